"""What users of the command ``report`` rely on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from evidence import kept, record

from ort_stacktune.cli.main import main
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.store import Record, RecordStore

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return filled(tmp_path / "cache", record(), record(shape=(1, 3, 48, 160)), kept())


def filled(directory: Path, *records: Record) -> Path:
    store = RecordStore(directory, warn=pytest.fail)
    assert all(store.put(each) for each in records)
    return directory


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_(*arguments: str | Path) -> tuple[int, str, str]:
        status = main(["report", *map(str, arguments)])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out, said.err

    return run_


def test_report_prints_what_the_cache_knows(run: Run, cache: Path) -> None:
    status, out, _ = run("--cache", cache)
    assert status == 0
    assert "3 signatures of 2 models: 2 left the reference" in out
    assert "openvino wins: 2.00x as fast as the reference" in out


def test_report_writes_a_page_and_says_where(run: Run, cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    status, out, _ = run("--cache", cache, "--html", file)
    assert status == 0
    assert f"Written to {file}" in out
    assert file.read_text().startswith("<!DOCTYPE html>")


def test_report_prints_one_document_for_machines(run: Run, cache: Path, tmp_path: Path) -> None:
    status, out, _ = run("--cache", cache, "--json", "--html", tmp_path / "page.html")
    document = json.loads(out)
    assert status == 0
    assert document["overview"]["left_reference"] == 2
    assert document["html"] == str(tmp_path / "page.html")
    first = document["signatures"][0]
    assert (first["winner"], first["ratio"], first["strictness"]["min_speedup"]) == ("openvino", 0.5, 1.1)
    assert first["candidates"][0]["standing"] == "SELECTED"
    assert first["candidates"][0]["break_even_calls"] == 64
    assert first["candidates"][0]["evidence"]["interval"] == [0.4, 0.8]
    assert document["environments"][0]["facts"]["processor"] == "AMD EPYC 9B45"


def test_report_can_be_kept_to_some_models(run: Run, cache: Path) -> None:
    _, out, _ = run("--cache", cache, "--json", "--model", "SEGM")
    assert [each["model"] for each in json.loads(out)["signatures"]] == ["segmenter"]
    _, out, _ = run("--cache", cache, "--json", "--model", "segm", b"detector".hex()[:8])
    assert len(json.loads(out)["signatures"]) == 3


def test_a_model_that_is_not_stored_is_named_with_those_that_are(run: Run, cache: Path) -> None:
    status, _, err = run("--cache", cache, "--model", "nothing")
    assert status == 2
    assert "no stored choice is for the model 'nothing'; there are detector 64657465, segmenter" in err
    assert "may also be named by the path of its file" in err


def test_an_empty_cache_is_told_so(run: Run, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o755)
    status, out, _ = run("--cache", empty)
    assert (status, out.strip()) == (0, f"No choices are stored in {empty}.")


def test_a_cache_that_is_not_there_is_a_mistake(run: Run, tmp_path: Path) -> None:
    status, _, err = run("--cache", tmp_path / "none")
    assert status == 2
    assert "there is no cache directory" in err


def test_a_page_that_cannot_be_written_is_one_sentence(run: Run, cache: Path, tmp_path: Path) -> None:
    status, _, err = run("--cache", cache, "--html", tmp_path / "no" / "folder.html")
    assert status == 2
    assert "can't be written to" in err
    assert "No such file or directory" in err


def test_damaged_records_are_left_out_with_a_warning(run: Run, cache: Path) -> None:
    path = sorted((cache / "v1").iterdir())[0]
    path.write_bytes(path.read_bytes()[:-20])
    path.chmod(0o600)
    status, out, err = run("--cache", cache)
    assert status == 0
    assert "2 signatures of" in out
    assert "1 file can't be relied on; see cache verify" in err


def test_a_models_file_names_and_titles_its_model(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "vad.onnx"
    file.write_bytes(b"a model")
    other = tmp_path / "other.onnx"
    other.write_bytes(b"another model")
    digest = ModelSource.of(file).digest()
    cache = filled(tmp_path / "cache", record(), record("torch_jit", digest=digest))
    _, out, _ = run("--cache", cache, "--json", "--model", other, file)
    assert [each["model"] for each in json.loads(out)["signatures"]] == ["vad.onnx"]
    status, _, err = run("--cache", cache, "--model", other)
    assert status == 2
    assert "no stored choice is for the model 'other.onnx'" in err
