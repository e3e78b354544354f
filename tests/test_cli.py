"""What users of the command line rely on: answers, sentences and exit statuses."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import ROOT
from rich.console import Console

import graphs
from ort_stacktune import __version__
from ort_stacktune.cli import cache, tune
from ort_stacktune.cli.arguments import cache_directory
from ort_stacktune.cli.console import Output
from ort_stacktune.cli.main import main
from ort_stacktune.environment import runtime_environment
from ort_stacktune.failures import FailureKind, TuneFailure
from ort_stacktune.identity import fields
from ort_stacktune.ort import loader
from ort_stacktune.report import decision_line, duration, ordered, report_table, speedup
from ort_stacktune.store import Record, RecordStore
from ort_stacktune.vocabulary import CandidateReport, Decision, DecisionSource, Scope, TuneReport

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _as_for_a_new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_STACKTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line in this process; returns its status, answer and what else it said."""

    def run_(*arguments: str | Path) -> tuple[int, str, str]:
        status = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out, said.err

    return run_


def process(*arguments: str | Path, **keywords: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command line in a process of its own."""
    return subprocess.run(
        command(arguments), capture_output=True, text=True, timeout=120, cwd=ROOT, **keywords
    )


def command(arguments: Sequence[str | Path]) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "ort_stacktune", *map(str, arguments)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save_model(graphs.mlp(), path)
    return path


def saved(tmp_path: Path, model: onnx.ModelProto) -> Path:
    path = tmp_path / f"{model.graph.name}.onnx"
    onnx.save_model(model, path)
    return path


def a_report(environment: str, workload: str = "") -> TuneReport:
    return TuneReport(
        operation=fields(("onnx", "detector", "0123456789abcdef0123456789abcdef")),
        environment=environment,
        workload=workload
        or fields(("run", fields([fields(("x", "f4", "1x3", "cpu", ""))]), fields(()), fields(()))),
        execution_context="isolated-single-device",
        winner="openvino",
        elapsed_ns=2_500_000_000,
        budget_exhausted=False,
        candidates=(
            CandidateReport("reference", samples=9, ratio=1.0, verified=True, note="reference"),
            CandidateReport(
                "threads-1", samples=9, ratio=1.5, relative_mad=0.05, verified=True, note="slower"
            ),
            CandidateReport("wrong", note="output 'y' differs", rejection=FailureKind.REJECTED),
            CandidateReport(
                "openvino",
                samples=9,
                ratio=0.5,
                relative_mad=0.02,
                verified=True,
                note="selected: 2.00x",
                interval=(0.4, 0.8),
                median_ns=1_580_000,
                facts={"nodes": "OpenVINO 9 of 9"},
            ),
            CandidateReport("later", note="not tried: the budget was spent"),
        ),
    )


def stored(directory: Path, key: str = "a key", *, environment: str = "", workload: str = "") -> Path:
    """Stores a record and returns its file."""
    report = a_report(environment or runtime_environment().fingerprint, workload)
    record = Record(
        key=key,
        scope=Scope.GRAPH,
        winner="openvino",
        winner_revision="5b1c",
        reference="reference",
        reference_revision="1",
        created_s=time.time() - 300,
        reference_ns=3_160_000,
        selected_ns=1_580_000,
        ratio=0.5,
        verified=True,
        report=report,
        effort={"budget_s": 30.0},
    )
    store = RecordStore(directory, warn=pytest.fail)
    assert store.put(record)
    return store.path_of(key)


# --- tune -----------------------------------------------------------------------------------------


def test_tune_decides_and_stores_and_the_next_process_finds_the_choice(model: Path, tmp_path: Path) -> None:
    arguments = ("tune", model, "--dim", "N=2", "--budget", "60")
    first = process(*arguments)
    assert (first.returncode, first.stderr) == (0, "")
    assert "x f4[2x16] -> y" in first.stdout
    assert "found in" in first.stdout
    assert f"Stored in {tmp_path}/cache/v1/" in first.stdout
    second = process(*arguments, "--json")
    assert (second.returncode, second.stderr) == (0, "")
    answer = json.loads(second.stdout)
    assert answer["decision"]["source"] == "DISK_CACHE"
    assert answer["decision"]["verified"] is True
    assert Path(answer["stored"]).is_file()
    assert answer["not_stored"] is None
    assert {each["name"] for each in answer["report"]["candidates"]} >= {"reference", "threads-1"}
    assert answer["report"]["winner"] == answer["decision"]["name"]


def test_tune_takes_the_inputs_of_a_file(tmp_path: Path, run: Run) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((3, 16), np.float32), mode=np.array(0))
    path = saved(tmp_path, graphs.branching())
    status, out, _ = run("tune", path, "--inputs", tmp_path / "in.npz", "--json", "--budget", "0.1")
    assert status == 0
    assert "3x16" in json.loads(out)["report"]["workload"]


def test_tune_says_that_the_budget_ended_the_search(model: Path, run: Run) -> None:
    status, out, err = run("tune", model, "--dim", "N=2", "--budget", "0.001")
    assert (status, err) == (0, "")
    assert "reference stays: the budget ended before a candidate had won" in out
    assert "The budget ended the search early; give it more with --budget SECONDS." in out


def test_tune_gives_the_controller_what_the_options_say(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = []

    def watched(policy: Any, directory: Path, **keywords: Any) -> Any:
        policies.append((policy, directory, keywords["coin"].random()))
        raise TuneFailure(FailureKind.INVALID_INPUT, "seen")

    monkeypatch.setattr(tune, "StackTuner", watched)
    options = "--budget 3 --confidence 0.9 --min-speedup 1.2 --tolerance 1e-5,0.01 --seed 7 --cache c"
    assert main(["tune", str(model), *options.split()]) == 2
    ((policy, directory, drawn),) = policies
    assert (policy.budget_s, policy.confidence, policy.min_speedup) == (3, 0.9, 1.2)
    assert (policy.tolerance.absolute, policy.tolerance.relative) == (1e-5, 0.01)
    assert directory == Path.cwd() / "c"
    assert drawn == random.Random(7).random()


def test_tune_asks_for_everything_that_is_missing_in_one_sentence(tmp_path: Path, run: Run) -> None:
    status, out, err = run("tune", saved(tmp_path, graphs.branching()))
    assert (status, out) == (2, "")
    assert err == (
        "ort-stacktune: error: input 'x' has the free dimension 'N'; input 'mode' takes int64 values, which"
        " can't be guessed: pass --dim N=SIZE --fill mode=VALUE, or --inputs FILE.npz\n"
    )


def test_tune_tells_a_scalar_from_a_tensor_of_unknown_rank(tmp_path: Path, run: Run) -> None:
    unranked = graphs.sum_of()
    unranked.graph.input[0].type.tensor_type.ClearField("shape")
    path = tmp_path / "unranked.onnx"
    onnx.save_model(unranked, path)
    assert "input 'x0' is of undeclared rank" in run("tune", path)[2]
    assert run("tune", saved(tmp_path, graphs.scalar()), "--budget", "0.001")[0] == 0


def test_a_reference_that_fails_ends_with_status_3(tmp_path: Path, run: Run) -> None:
    path = saved(tmp_path, graphs.gather_fails())
    arguments = ("tune", path, "--dim", "N=2", "--dim", "K=1", "--fill", "index=99")
    status, out, err = run(*arguments)
    assert (status, out) == (3, "")
    assert "error: the reference: " in err
    status, out, _ = run(*arguments, "--json")
    assert status == 3
    assert json.loads(out)["error"]["kind"] == "REJECTED"


def test_a_model_that_can_not_be_tuned_ends_with_the_reason(tmp_path: Path, run: Run) -> None:
    status, _, err = run("tune", saved(tmp_path, graphs.random_op()), "--dim", "N=2")
    assert status == 2
    assert "this request can't be tuned: it draws random numbers" in err


def test_a_request_without_a_validator_is_decided_for_the_reference(tmp_path: Path, run: Run) -> None:
    status, out, _ = run("tune", saved(tmp_path, graphs.nan_maker()), "--dim", "N=2", "--fill", "x=-1")
    assert status == 0
    assert "reference serves, nothing was measured (source: validation unavailable)." in out
    assert "Not stored: nothing was verified." in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.onnx"], "the model missing.onnx does not exist"),
        (["."], "the model . is not a file"),
        (
            ["MODEL", "--providers", "Foo"],
            "execution provider 'Foo' is not in this build of ONNX Runtime; it has",
        ),
        (["MODEL", "--dim", "M=2"], "the model has no named dimension 'M'; it has 'N'"),
        (["MODEL", "--dim", "N"], "--dim 'N' is not usable; expected NAME=VALUE"),
        (["MODEL", "--dim", "N=0"], "--dim 'N=0' is not usable; expected a whole number of 1 or more"),
        (["MODEL", "--dim", "N=1", "--dim", "N=2"], "--dim names 'N' twice; name it once"),
        (["MODEL", "--shape", "x=1x?"], "--shape 'x=1x?' is not usable; expected sizes of 1 or more"),
        (["MODEL", "--shape", "x=1x5"], "shape 1x5 for input 'x' contradicts the ?x16"),
        (["MODEL", "--fill", "x="], "--fill 'x=' is not usable; expected a number or a word after ="),
        (["MODEL", "--inputs", "missing.npz"], "the inputs missing.npz can't be read: No such file"),
        (["MODEL", "--inputs", "MODEL"], "is no file of plain arrays of numbers"),
        (["MODEL", "--dim", "N=2", "--output", "z"], "the model has no output 'z'; it has 'y'"),
        (["MODEL", "--budget", "0"], "budget_s is 0.0; expected a number above 0"),
        (["MODEL", "--budget", "nan"], "argument --budget: 'nan' is not a finite number"),
        (["MODEL", "--tolerance", "1"], "argument --tolerance: '1' is not ABS,REL, such as 1e-4,1e-3"),
        (["MODEL", "--threads", "0"], "argument --threads: '0' is not a whole number of 1 or more"),
        (["MODEL", "--dim", "N=1", "M=2"], "unexpected 'M=2'; an option that may be given several times"),
        (["MODEL", "--cache", ""], "the cache directory is ''; expected the path of a directory"),
        (["MODEL", "--dim", "N=2", "--cache", "MODEL/x"], "a part of its path is a file"),
        (
            ["MODEL", "--dim", "N=2", "--cache", "/proc/x"],
            "/proc/x can't be made: No such file or directory;",
        ),
    ],
)
def test_a_mistake_ends_with_one_sentence_and_status_2(
    arguments: list[str], sentence: str, model: Path, run: Run
) -> None:
    status, out, err = run("tune", *(text.replace("MODEL", str(model)) for text in arguments))
    assert (status, out) == (2, "")
    assert sentence in err
    assert len([line for line in err.splitlines() if "error:" in line]) == 1


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a directory that nobody can write to")
def test_a_cache_that_cannot_be_written_to_is_found_before_the_search(
    tmp_path: Path, model: Path, run: Run
) -> None:
    directory = Path("/sys/kernel")
    if os.geteuid():
        directory = tmp_path / "closed"
        directory.mkdir(mode=0o500)
    status, out, err = run("tune", model, "--dim", "N=1", "--cache", directory)
    assert (status, out) == (2, "")
    assert f"the cache directory {directory} can't be written to: " in err


def test_a_file_that_is_no_model_ends_with_one_sentence(tmp_path: Path, run: Run) -> None:
    (tmp_path / "junk.onnx").write_text("this is no model")
    status, out, err = run("tune", tmp_path / "junk.onnx", "--json")
    assert status == 2
    assert err.count("\n") == 1
    assert f"the model {tmp_path / 'junk.onnx'} can't be loaded: Protobuf parsing failed" in err
    assert json.loads(out)["error"]["kind"] == "INVALID_INPUT"


def test_a_cache_that_others_may_write_to_is_refused_before_the_search(
    model: Path, tmp_path: Path, run: Run
) -> None:
    for directory in (tmp_path / "open", tmp_path / "closed" / "v1"):
        directory.mkdir(parents=True)
        directory.chmod(0o777)
    for name in ("open", "closed"):
        for arguments in (("tune", model, "--dim", "N=2"), ("cache", "list")):
            status, _, err = run(*arguments, "--cache", tmp_path / name)
            assert status == 2
            assert "'chmod go-w" in err


def test_providers_may_be_given_by_their_short_names(model: Path, run: Run) -> None:
    arguments = ("tune", model, "--dim", "N=2", "--providers", "cpu", "--threads", "1", "--budget", "0.001")
    assert run(*arguments)[0] == 0


def test_a_missing_build_of_onnx_runtime_is_one_sentence(
    model: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def missing() -> Any:
        raise ImportError("ONNX Runtime is not installed; install exactly one build")

    monkeypatch.setattr(loader, "_load", missing)
    monkeypatch.setattr(loader, "_loaded", None)
    for arguments in (("env",), ("tune", model, "--dim", "N=2")):
        status, _, err = run(*arguments)
        assert status == 2
        assert err == "ort-stacktune: error: ONNX Runtime is not installed; install exactly one build\n"


def test_an_interrupted_search_ends_quietly_with_status_130(tmp_path: Path) -> None:
    slow = saved(tmp_path, graphs.slowed(graphs.mlp(), links=1000))
    started = subprocess.Popen(
        command(("tune", slow, "--dim", "N=64", "--budget", "60")),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background of a shell inherit that the signal is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # The search prepares the directory as its last act before it starts.
    while not (tmp_path / "cache").exists() and started.poll() is None:
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert (started.returncode, out, err) == (130, "", "ort-stacktune: note: interrupted\n")


def test_a_long_search_shows_its_progress_on_standard_error_of_a_terminal(tmp_path: Path) -> None:
    slow = saved(tmp_path, graphs.slowed(graphs.mlp(), links=1000))
    ours, theirs = pty.openpty()
    started = subprocess.Popen(
        command(("tune", slow, "--dim", "N=64", "--json", "--budget", "2.5")),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    out, _ = started.communicate(timeout=120)
    drawn = b""
    try:
        while part := os.read(ours, 65536):
            drawn += part
    except OSError:
        pass  # the terminal's other end is closed, which Linux reports as an error
    os.close(ours)
    assert started.returncode == 0
    assert json.loads(out)["report"]["elapsed_ns"] > 2_500_000_000
    assert b"searching" in drawn
    assert b"Traceback" not in drawn


# --- cache ----------------------------------------------------------------------------------------


def test_cache_list_shows_what_is_stored_and_whether_it_is_of_this_environment(
    tmp_path: Path, run: Run
) -> None:
    here = stored(tmp_path / "cache")
    elsewhere = stored(tmp_path / "cache", "another", environment="elsewhere")
    status, out, err = run("cache", "list")
    assert (status, err) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if not line.startswith(" ")}
    assert rows[here.stem[:12]] == ["2.00x", "yes", "5", "min", "graph", "yes"]
    assert rows[elsewhere.stem[:12]] == ["2.00x", "yes", "5", "min", "graph", "no"]
    assert "    openvino for detector 01234567: x f4[1x3] ->" in out
    status, out, _ = run("cache", "list", "--json")
    answer = json.loads(out)
    assert [each["environment_is_current"] for each in answer["records"]] == [True, False]
    assert answer["records"][0]["path"] == str(here)
    assert answer["records"][0]["ratio"] == 0.5
    assert answer["directory"] == str(tmp_path / "cache")


def test_cache_list_works_without_a_build_of_onnx_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    stored(tmp_path / "cache")
    monkeypatch.setattr("ort_stacktune.environment.runtime_environment", _no_build)
    status, out, _ = run("cache", "list")
    assert status == 0
    assert "graph           unknown" in out


def _no_build(**_: Any) -> Any:
    raise ImportError("ONNX Runtime is not installed")


def test_cache_show_prints_all_evidence_of_one_record(tmp_path: Path, run: Run) -> None:
    path = stored(tmp_path / "cache", environment=fields(("ONNX Runtime version", "0.9", "cores", "64")))
    status, out, err = run("cache", "show", path.stem[:5])
    assert (status, err) == (0, "")
    assert str(path) in out
    assert "openvino, 1.58 ms, 2.00x, verified" in out
    assert "selected: 2.00x; nodes: OpenVINO 9 of 9" in out
    assert "Environment, another one than here:" in out
    assert "cores                 64   [here: not there]" in out
    assert out.rstrip().endswith("Key:\na key")
    status, out, _ = run("cache", "show", path.stem, "--json")
    answer = json.loads(out)
    assert answer["environment"] == {"ONNX Runtime version": "0.9", "cores": "64"}
    assert answer["environment_is_current"] is False
    assert answer["record"]["report"]["candidates"][3]["interval"] == [0.4, 0.8]
    assert answer["record"]["scope"] == "GRAPH"


def test_cache_show_asks_for_an_id_that_names_one_record(tmp_path: Path, run: Run) -> None:
    paths = [stored(tmp_path / "cache", f"key {number}") for number in range(20)]
    first = {path.name[0] for path in paths}
    twice = next(digit for digit in first if sum(path.name[0] == digit for path in paths) > 1)
    status, _, err = run("cache", "show", twice)
    assert status == 2
    assert f"records begin with {twice!r}" in err
    assert "no record in" in run("cache", "show", "xyz")[2]
    paths[0].write_text("damaged")
    assert "its first line is not the header of a record" in run("cache", "show", paths[0].stem)[2]


def test_cache_verify_fails_where_a_record_can_not_be_relied_on(tmp_path: Path, run: Run) -> None:
    good, bad = stored(tmp_path / "cache"), stored(tmp_path / "cache", "another")
    assert run("cache", "verify")[:2] == (0, f"2 of 2 records in {tmp_path / 'cache'} are good.\n")
    bad.write_bytes(bad.read_bytes().replace(b"openvino", b"openvina"))
    status, out, _ = run("cache", "verify")
    assert status == 1
    assert "1 file can't be relied on:" in out
    assert "its checksum is wrong" in out
    status, out, _ = run("cache", "verify", "--json")
    assert status == 1
    answer = json.loads(out)
    assert answer["good"] == 1
    assert [each["path"] for each in answer["unreadable"]] == [str(bad)]
    assert "1 file can't be relied on; see ort-stacktune cache verify." in run("cache", "list")[1]
    assert good.exists()


def test_a_leftover_of_a_writer_is_only_noted(tmp_path: Path, run: Run) -> None:
    path = stored(tmp_path / "cache")
    path.with_name(f"{path.stem}.1.0123456789abcdef.tmp").touch()
    status, out, _ = run("cache", "verify")
    assert status == 0
    assert "1 file left over:" in out
    assert "1 of 1 records" in out
    assert len(json.loads(run("cache", "verify", "--json")[1])["leftovers"]) == 1


def test_cache_prune_removes_what_it_is_told_to(tmp_path: Path, run: Run) -> None:
    paths = [stored(tmp_path / "cache", f"key {number}") for number in range(3)]
    for number, path in enumerate(paths):
        os.utime(path, (time.time() - 86400 * (3 - number),) * 2)
    assert run("cache", "prune")[0] == 2
    assert run("cache", "prune", "--older-than", "60h")[1].startswith("Removed 1 file from")
    status, out, _ = run("cache", "prune", "--keep", "1", "--json")
    assert status == 0
    assert json.loads(out)["removed"] == [str(paths[1])]
    assert [path.exists() for path in paths] == [False, False, True]


@pytest.mark.parametrize("text", ["30", "d", "-1d", "30 d", "1y"])
def test_an_age_that_can_not_be_read_is_refused(text: str, run: Run) -> None:
    status, _, err = run("cache", "prune", f"--older-than={text}")
    assert status == 2
    assert "is not an age; expected a number and one of s, m, h, d, w" in err


@pytest.mark.parametrize("name", ["list", "verify", "show a", "prune --keep 1"])
def test_a_missing_cache_directory_is_a_clear_failure(name: str, tmp_path: Path, run: Run) -> None:
    status, out, err = run("cache", *name.split())
    assert (status, out) == (2, "")
    assert f"there is no cache directory {tmp_path / 'cache'}; name another with --cache DIR" in err
    assert not (tmp_path / "cache").exists()


def test_an_empty_cache_says_so(tmp_path: Path, run: Run) -> None:
    (tmp_path / "cache").mkdir()
    assert run("cache", "list")[:2] == (0, f"No choices are stored in {tmp_path / 'cache'}.\n")
    assert run("cache", "verify")[0] == 0
    assert json.loads(run("cache", "list", "--json")[1])["records"] == []


def test_text_from_a_record_can_not_steer_the_terminal(tmp_path: Path, run: Run) -> None:
    path = stored(
        tmp_path / "cache", "k\x1b[31m", environment=fields(("a\x1b[2J", "b\n")), workload="\x1b]0;t\x07"
    )
    for arguments in (("cache", "list"), ("cache", "show", path.stem)):
        status, out, _ = run(*arguments)
        assert status == 0
        assert "\x1b" not in out
        assert "\x07" not in out


# --- env and the frame ----------------------------------------------------------------------------


def test_env_shows_what_identifies_the_environment(tmp_path: Path, run: Run) -> None:
    status, out, err = run("env")
    assert (status, err) == (0, "")
    assert "ONNX Runtime version" in out
    assert "choices can be stored" in out
    assert str(tmp_path / "cache") in out
    answer = json.loads(run("env", "--json")[1])
    assert answer["fingerprint"] == runtime_environment().fingerprint
    assert answer["persistent"] is runtime_environment().persistent
    assert answer["facts"]["execution context"] == answer["execution_context"]


def test_the_cache_directory_is_found_as_help_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_directory("given") == Path.cwd() / "given"
    assert cache_directory(None) == tmp_path / "cache"
    monkeypatch.delenv("ORT_STACKTUNE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory(None) == Path("/xdg/ort_stacktune")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_directory(None) == Path("/home/somebody/.cache/ort_stacktune")


def test_the_version_costs_neither_onnx_nor_onnx_runtime() -> None:
    script = (
        "import sys; from ort_stacktune.cli.main import main; main(['--version']);"
        "print(sorted({'onnx', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"ort-stacktune {__version__}\n[]\n"


@pytest.mark.parametrize("arguments", [[], ["cache"], ["unknown"], ["tune"], ["env", "--unknown"]])
def test_wrong_usage_ends_with_status_2(arguments: list[str], run: Run) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert "usage: ort-stacktune" in err


@pytest.mark.parametrize("arguments", [["--help"], ["tune", "--help"], ["cache", "prune", "--help"]])
def test_help_is_there(arguments: list[str], run: Run) -> None:
    status, out, _ = run(*arguments)
    assert status == 0
    assert "usage: ort-stacktune" in out


def test_a_reader_that_closes_the_pipe_ends_the_command_quietly(tmp_path: Path) -> None:
    stored(tmp_path / "cache")
    for arguments in (("cache", "list"), ("cache", "list", "--json")):
        started = subprocess.Popen(
            command(arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.close()
        assert started.wait(timeout=60) == 141
        assert started.stderr.read() == ""
        started.stderr.close()


def test_a_terminal_that_lacks_a_letter_gets_its_escape(tmp_path: Path) -> None:
    stored(tmp_path / "cache", workload="größe")
    done = process("cache", "list", env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0
    assert "gr\\xf6\\xdfe" in done.stdout


def test_every_command_has_the_options_that_all_have(run: Run) -> None:
    for words in (["tune"], ["env"], *(["cache", name] for name in ("list", "show", "verify", "prune"))):
        out = run(*words, "--help")[1]
        assert "--json" in out
        assert "--cache DIR" in out


# --- reports --------------------------------------------------------------------------------------


def test_a_report_lists_the_winner_then_the_reference_then_the_rest_by_ratio() -> None:
    assert [each.name for each in ordered(a_report("here"))] == [
        "openvino",
        "reference",
        "threads-1",
        "wrong",
        "later",
    ]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_report_says_everything_at_any_width(width: int) -> None:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(report_table(a_report("here")))
    console.file.close()
    lines = console.export_text().splitlines()
    assert all(len(line) <= max(width, 75) for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "openvino 2.00x 1.58 ms 0.02 1.25-2.50 9 yes" in text
    assert "threads-1 0.67x - 0.05 - 9 yes" in text
    for part in ("rejected: output 'y' differs", "nodes: OpenVINO 9 of 9", "not tried: the budget was spent"):
        assert part in text or width >= 110
    assert "wrong - - - - - no" in text
    assert "later - - - - - -" in text


def test_a_decision_reads_as_one_sentence() -> None:
    report = a_report("here")
    won = Decision(1, 0, "openvino", DecisionSource.TUNED, True, 0.5, "key")
    assert decision_line(won, report) == (
        "openvino wins: 2.00x as fast as the reference, its outputs agree (found in 2.5 s)."
    )
    kept = Decision(0, 0, "reference", DecisionSource.DISK_CACHE, True, 1.0, "key")
    assert decision_line(kept, report, age="5 min") == (
        "reference stays: no candidate won (from the disk cache, found 5 min ago)."
    )
    missed = Decision(0, 0, "reference", DecisionSource.CACHE_MISS, False, None, "key")
    assert decision_line(missed) == "reference serves, nothing was measured (source: cache miss)."


def test_numbers_read_with_three_digits() -> None:
    assert [duration(ns) for ns in (7, 1_580, 12_345, 1_580_000, 104_000_000, 2_000_000_000, None)] == [
        "7 ns",
        "1.58 us",
        "12.3 us",
        "1.58 ms",
        "104 ms",
        "2.00 s",
        "-",
    ]
    assert [speedup(ratio) for ratio in (0.5, 1.0, 700.0, None)] == ["2.00x", "1.00x", "0.0014x", "-"]


def test_what_a_prune_could_not_remove_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    stored(tmp_path / "cache")

    class Stuck(RecordStore):
        def prune(self, **_: Any) -> list[Path]:
            self._warn("the record could not be removed: Permission denied")
            return []

    monkeypatch.setattr(cache, "opened_store", lambda directory, said: Stuck(directory, warn=said.append))
    status, out, err = run("cache", "prune", "--keep", "0")
    assert status == 1
    assert "Removed 0 files" in out
    assert err == "ort-stacktune: warning: the record could not be removed: Permission denied\n"


def test_a_document_holds_no_number_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        Output(as_json=True).document({"ratio": float("nan")})
    assert capsys.readouterr().out == ""
