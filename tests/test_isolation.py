from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from faulty import Libraries, children, is_gone_soon, libraries, members
from scripted import raising
from tuning import CPU, QUICK, fast_twin, floats, one_thread, save

import graphs
from ort_stacktune import (
    CandidateReport,
    DecisionSource,
    FailureKind,
    Fault,
    SessionRecipe,
    StackPolicy,
    StackTuner,
    Tolerance,
    TrialLimits,
    TunedSession,
    TuneFailure,
    Validation,
    environment,
)
from ort_stacktune.failures import NotReproduced, ReferenceFailure
from ort_stacktune.isolation import IsolatedTrials, TrialsCancelled
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.request import OutputTarget, Request
from ort_stacktune.ort.trials import SessionTrials

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these tests look into /proc")
__all__ = ["libraries"]

ONE_THREAD: dict[str, Any] = {"intra_op_num_threads": 1}
SOON = TrialLimits(create_s=5.0, run_s=5.0, memory_bytes=450 << 20)
ISOLATED = StackPolicy(budget_s=60.0, max_relative_mad=10.0, isolation="process", limits=SOON)


def recipe(name: str, model: str | None = None, **changes: Any) -> SessionRecipe:
    return SessionRecipe(name, model=model, providers=CPU, session_options=ONE_THREAD, **changes)


def request_of(feeds: Mapping[str, Any], *outputs: str) -> Request:
    return Request(feeds, tuple(OutputTarget(name) for name in outputs))


@contextmanager
def isolated(
    tmp_path: Path,
    model: onnx.ModelProto,
    request: Request,
    candidates: Sequence[SessionRecipe],
    reference: SessionRecipe | None = None,
    **keywords: Any,
) -> Iterator[IsolatedTrials]:
    source = ModelSource.of(save(model, tmp_path / "reference.onnx"))
    recipes = (reference or recipe("reference"), *candidates)
    trials = IsolatedTrials(recipes, 0, source, request, limits=keywords.pop("limits", SOON), **keywords)
    try:
        yield trials
    finally:
        trials.close()
        assert children() == []


def fault_of(trials: IsolatedTrials, candidate: int) -> TuneFailure:
    with pytest.raises(TuneFailure) as caught:
        trials.validate(0, candidate, Tolerance())
    assert caught.value.kind is FailureKind.REJECTED
    return caught.value


def by_name(session: TunedSession, feed: Mapping[str, Any]) -> dict[str, CandidateReport]:
    report = session.report(feed)
    assert report is not None
    return {candidate.name: candidate for candidate in report.candidates}


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def known_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Names what is behind the plugins, so that what is found out about them may reach the disk."""
    monkeypatch.setenv("ORT_STACKTUNE_DRIVER_TAG", "tests")
    environment.forget_environment()
    yield
    environment.forget_environment()


def test_every_way_to_end_a_process_is_named_and_the_winner_is_one_of_the_healthy(
    tmp_path: Path, libraries: Libraries, known_driver: None
) -> None:
    slow, fast = fast_twin(tmp_path, graphs.mlp())
    bad = ("aborts", "sleeps", "hoards", "exits")
    plugins = [libraries.plugin(way) for way in bad[:3]]
    candidates = [*plugins, libraries.recipe("exits"), libraries.recipe("healthy"), fast]
    cache = tmp_path / "cache"
    feed = {"x": floats(2, 16)}

    def session() -> TunedSession:
        tuner = StackTuner(ISOLATED, cache)
        return TunedSession(slow, one_thread(), providers=CPU, candidates=candidates, tuner=tuner)

    first = session()
    assert first.tune(feed).name == "fast"
    reports = by_name(first, feed)
    faults = {name: report.fault for name, report in reports.items() if report.fault is not None}
    assert faults == {
        "aborts": Fault.SIGNAL,
        "sleeps": Fault.TIMEOUT,
        "hoards": Fault.MEMORY,
        "exits": Fault.EXIT,
    }
    assert "died by SIGABRT while its session was made" in reports["aborts"].note
    assert "last words: no device: giving up" in reports["aborts"].note
    assert "ended itself with status 7" in reports["exits"].note
    assert "limits.create_s 5 s" in reports["sleeps"].note
    assert "limits.memory_bytes 450 MiB" in reports["hoards"].note
    assert reports["healthy"].verified
    assert children() == []

    loaded = {way: libraries.times_loaded(way) for way in bad}
    other_shape = {"x": floats(3, 16)}
    second = session()
    assert second.tune(other_shape).source is DecisionSource.TUNED
    for name, report in by_name(second, other_shape).items():
        if name in bad:
            assert report.verdict == "not tried"
            assert report.fault is faults[name]
            assert report.note.startswith("not tried: its process ")
    assert {way: libraries.times_loaded(way) for way in bad} == loaded


def test_a_tuned_session_gives_the_same_answers_with_trials_in_a_process_of_their_own(tmp_path: Path) -> None:
    slow, fast = fast_twin(tmp_path, graphs.mlp())
    tuned = TunedSession(slow, one_thread(), providers=CPU, candidates=[fast], tuner=StackTuner(ISOLATED))
    feed = {"x": floats(2, 16)}
    (ours,) = tuned.run(None, feed)
    decision = tuned.decision(feed)
    assert decision is not None
    assert decision.name == "fast"
    assert decision.verified
    raw = TunedSession(slow, one_thread(), providers=CPU)
    np.testing.assert_allclose(ours, raw.run(None, feed)[0], rtol=1e-5, atol=1e-6)
    assert children() == []


def test_the_same_questions_get_the_same_verdicts_here_and_elsewhere(tmp_path: Path) -> None:
    wrong = save(graphs.mlp(seed=1), tmp_path / "wrong.onnx")
    right = save(graphs.mlp(seed=0), tmp_path / "right.onnx")
    candidates = [recipe("right", right), recipe("wrong", wrong), recipe("shaped", shapes={"x": [2, 16]})]
    request = request_of({"x": floats(2, 16)}, "y")
    dims = {"x": ("N", 16)}
    with isolated(tmp_path, graphs.slowed(graphs.mlp(seed=0)), request, candidates, dims=dims) as there:
        here = SessionTrials(
            (recipe("reference"), *candidates),
            0,
            ModelSource.of(tmp_path / "reference.onnx"),
            request,
            dims=dims,
        )
        for trials in (here, there):
            assert trials.validate(0, 0, Tolerance()) is Validation.PASSED
            assert trials.validate(0, 1, Tolerance()) is Validation.PASSED
            assert trials.validate(0, 3, Tolerance()) is Validation.PASSED
            trials.begin_round(1, as_served=False)
            assert trials.measure(0) > trials.measure(1) > 0
            costs = trials.costs(1)
            assert costs.create_ns
            assert costs.switch_ns
            assert trials.facts(1) == {}
        messages = []
        for trials in (here, there):
            with raising(FailureKind.REJECTED, "'y'"):
                try:
                    trials.validate(0, 2, Tolerance())
                except TuneFailure as failure:
                    messages.append(failure.message)
                    raise
        assert messages[0] == messages[1]
        here.close()


def test_a_candidate_that_crashes_while_it_is_timed_costs_itself_alone(
    tmp_path: Path, libraries: Libraries
) -> None:
    candidates = [libraries.recipe("explodes"), recipe("same")]
    with isolated(tmp_path, graphs.mlp(), request_of({"x": floats(2, 16)}, "y"), candidates) as trials:
        assert trials.validate(0, 0, Tolerance()) is Validation.PASSED
        first = trials.process_id
        with raising(FailureKind.REJECTED, "died by SIGSEGV"):
            trials.validate(0, 1, Tolerance())
            for number in range(1_000_000):
                trials.begin_round(number, as_served=False)
                trials.measure(1)
        assert trials.process_id is None
        assert trials.validate(0, 2, Tolerance()) is Validation.PASSED
        assert trials.process_id not in (None, first)
        assert trials.measure(0) > 0
        with raising(FailureKind.REJECTED, "SIGSEGV"):
            trials.measure(1)


def test_a_process_that_is_killed_in_the_middle_of_a_measurement_is_replaced(tmp_path: Path) -> None:
    candidates = [recipe("killed"), recipe("same")]
    with isolated(tmp_path, graphs.mlp(), request_of({"x": floats(2, 16)}, "y"), candidates) as trials:
        for index in (0, 1):
            trials.validate(0, index, Tolerance())
        pid = trials.process_id
        assert pid is not None
        killer = threading.Timer(0.2, os.kill, (pid, signal.SIGSEGV))
        killer.start()
        with raising(FailureKind.REJECTED, "died by SIGSEGV"):
            for number in range(1_000_000):
                trials.begin_round(number, as_served=False)
                trials.measure(1)
        killer.join()
        assert trials.measure(2) > 0
        assert trials.measure(0) > 0


def test_when_the_reference_dies_beside_a_candidate_it_goes_on_without_that_candidate(tmp_path: Path) -> None:
    candidates = [recipe("suspect"), recipe("same")]
    with isolated(tmp_path, graphs.mlp(), request_of({"x": floats(2, 16)}, "y"), candidates) as trials:
        trials.validate(0, 0, Tolerance())
        trials.validate(0, 1, Tolerance())
        pid = trials.process_id
        assert pid is not None
        # It dies while nobody asks it for anything; the reference is the next to be asked.
        os.kill(pid, signal.SIGSEGV)
        assert is_gone_soon(pid)
        assert trials.measure(0) > 0
        assert trials.validate(0, 2, Tolerance()) is Validation.PASSED
        with raising(FailureKind.REJECTED, "SIGSEGV"):
            trials.measure(1)


def test_a_process_that_somebody_killed_is_replaced_and_no_candidate_is_blamed_unless_it_goes_on(
    tmp_path: Path,
) -> None:
    with isolated(tmp_path, graphs.mlp(), request_of({"x": floats(2, 16)}, "y"), [recipe("same")]) as trials:
        trials.validate(0, 0, Tolerance())
        trials.validate(0, 1, Tolerance())
        for _ in range(2):
            pid = trials.process_id
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert is_gone_soon(pid)
            assert trials.measure(1) > 0
        pid = trials.process_id
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert is_gone_soon(pid)
        with raising(FailureKind.REJECTED, "SIGKILL"):
            trials.measure(1)


def test_a_reference_that_brings_its_process_down_is_to_blame_itself(
    tmp_path: Path, libraries: Libraries
) -> None:
    request = request_of({"x": floats(2, 16)}, "y")
    with (
        isolated(tmp_path, graphs.mlp(), request, [recipe("same")], libraries.recipe("aborts")) as trials,
        pytest.raises(ReferenceFailure, match="the reference: its process died by SIGABRT") as caught,
    ):
        trials.validate(0, 0, Tolerance())
    assert caught.value.fault is Fault.SIGNAL


@pytest.mark.parametrize("way", ["scribbles", "shuts"])
def test_a_library_that_writes_to_or_closes_what_is_not_its_own_is_a_broken_protocol(
    tmp_path: Path, libraries: Libraries, way: str
) -> None:
    request = request_of({"x": floats(2, 16)}, "y")
    with isolated(tmp_path, graphs.mlp(), request, [libraries.recipe(way), recipe("same")]) as trials:
        trials.validate(0, 0, Tolerance())
        assert fault_of(trials, 1).fault is Fault.PROTOCOL
        assert trials.validate(0, 2, Tolerance()) is Validation.PASSED


def test_what_a_candidate_started_ends_with_it(tmp_path: Path, libraries: Libraries) -> None:
    request = request_of({"x": floats(2, 16)}, "y")
    with isolated(tmp_path, graphs.mlp(), request, [libraries.recipe("breeds")]) as trials:
        trials.validate(0, 0, Tolerance())
        group = trials.process_id
        assert group is not None
        assert fault_of(trials, 1).fault is Fault.SIGNAL
        assert [pid for pid in members(group) if not is_gone_soon(pid)] == []


def test_outputs_over_their_limit_reject_a_candidate_and_excuse_a_reference(tmp_path: Path) -> None:
    helper = onnx.helper
    values = [onnx.TensorProto.FLOAT, ["N", "M"]]
    nodes = [helper.make_node("Concat", ["x"] * 64, ["y"], axis=0)]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", *values)],
        [helper.make_tensor_value_info("y", *values)],
    )
    large = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    request = request_of({"x": floats(2, 16)}, "y")
    candidate = recipe("large", save(large, tmp_path / "large.onnx"))
    with isolated(
        tmp_path, graphs.mlp(), request, [candidate], limits=TrialLimits(output_bytes=1000)
    ) as trials:
        trials.validate(0, 0, Tolerance())
        pid = trials.process_id
        assert fault_of(trials, 1).fault is Fault.OUTPUT
        assert trials.process_id == pid
    with (
        isolated(tmp_path, large, request, [], limits=TrialLimits(output_bytes=1000)) as trials,
        pytest.raises(ReferenceFailure, match=r"limits\.output_bytes 1000") as caught,
    ):
        trials.validate(0, 0, Tolerance())
    assert (caught.value.kind, caught.value.fault) == (FailureKind.UNAVAILABLE, Fault.OUTPUT)


def test_a_session_that_its_stand_in_does_not_reproduce_is_found_out(tmp_path: Path) -> None:
    request = request_of({"x": floats(2, 16)}, "y")

    def other(names: list[str], feeds: dict[str, Any], options: object) -> list[Any]:
        return [feeds["x"] + 1]

    with (
        isolated(tmp_path, graphs.mlp(), request, [], live_run=other) as trials,
        pytest.raises(NotReproduced),
    ):
        trials.validate(0, 0, Tolerance())


def test_a_process_that_is_replaced_leaves_no_descriptor_open(tmp_path: Path, libraries: Libraries) -> None:
    request = request_of({"x": floats(2, 16)}, "y")
    bad = [libraries.recipe("aborts"), libraries.recipe("exits"), libraries.recipe("scribbles")]
    before = descriptors()
    with isolated(tmp_path, graphs.mlp(), request, bad) as trials:
        for index in (1, 2, 3):
            fault_of(trials, index)
        assert trials.process_id is None
        # What is packed stays for the next process.
        assert len(descriptors() - before) == 1
    assert descriptors() == before


def test_trials_are_cancelled_from_another_thread(tmp_path: Path, libraries: Libraries) -> None:
    request = request_of({"x": floats(2, 16)}, "y")
    with isolated(
        tmp_path, graphs.mlp(), request, [libraries.recipe("sleeps")], limits=TrialLimits()
    ) as trials:
        trials.validate(0, 0, Tolerance())
        before = libraries.times_loaded("sleeps")

        def cancel() -> None:
            while libraries.times_loaded("sleeps") == before:
                time.sleep(0.02)
            trials.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(TrialsCancelled):
            trials.validate(0, 1, Tolerance())
        thread.join()
        with pytest.raises(TrialsCancelled):
            trials.measure(0)


def test_only_what_steers_sessions_of_the_environment_reaches_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET_TOKEN", "hush")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    with isolated(tmp_path, graphs.mlp(), request_of({"x": floats(2, 16)}, "y"), [], niceness=5) as trials:
        trials.validate(0, 0, Tolerance())
        pid = trials.process_id
        assert pid is not None
        variables = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"hush" not in variables
        assert b"OMP_WAIT_POLICY=PASSIVE" in variables
        assert os.getpgid(pid) == os.getsid(pid) == pid
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + 5


def test_nothing_is_left_in_the_directory_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    with isolated(tmp_path, graphs.mlp(), request_of({"x": floats(2, 16)}, "y"), []) as trials:
        trials.validate(0, 0, Tolerance())
        # ONNX Runtime leaves a file of its own there, wherever it is imported.
        assert [path.name for path in folder.iterdir() if path.name != ".ses"] == []


def test_a_model_from_bytes_and_a_bound_request_are_tried_elsewhere_too(tmp_path: Path) -> None:
    data = graphs.mlp().SerializeToString()
    request = Request({"x": floats(2, 16)}, (OutputTarget("y", ("f4", (2, 16))),), bound=True)
    trials = IsolatedTrials((recipe("reference"), recipe("same")), 0, ModelSource.of(data), request)
    assert trials.validate(0, 1, Tolerance()) is Validation.PASSED
    assert trials.measure(1) > 0
    trials.close()


PARENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
import faulty, graphs, numpy as np
from pathlib import Path
from ort_stacktune import SessionRecipe, Tolerance, TrialLimits
from ort_stacktune.isolation import IsolatedTrials
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.request import OutputTarget, Request
libraries = faulty.Libraries(Path(sys.argv[2]))
request = Request({"x": np.ones((2, 16), np.float32)}, (OutputTarget("y"),))
source = ModelSource.of(graphs.mlp().SerializeToString())
recipes = (SessionRecipe("reference", providers=faulty.CPU), libraries.recipe("sleeps"))
trials = IsolatedTrials(recipes, 0, source, request, limits=TrialLimits(create_s=600))
trials.validate(0, 0, Tolerance())
print(trials.process_id, flush=True)
if sys.argv[3] == "goes on":
    trials.validate(0, 1, Tolerance())
"""


def _parent(libraries: Libraries, what: str) -> tuple[subprocess.Popen[str], int]:
    folder = Path(libraries.path("sleeps")).parent
    tests = Path(__file__).parent
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tests), str(folder), what],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests.parent), *filter(None, sys.path)])},
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def test_a_parent_that_is_killed_takes_its_trials_with_it_while_a_library_holds_the_interpreter(
    libraries: Libraries,
) -> None:
    before = libraries.times_loaded("sleeps")
    parent, worker = _parent(libraries, "goes on")
    with parent:
        while libraries.times_loaded("sleeps") == before:
            time.sleep(0.02)
        parent.kill()
    assert is_gone_soon(worker)


def test_a_program_that_forgets_to_close_its_trials_leaves_no_process(libraries: Libraries) -> None:
    parent, worker = _parent(libraries, "ends")
    with parent:
        assert parent.wait() == 0
    assert is_gone_soon(worker)


def test_inline_is_the_default_and_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    slow, fast = fast_twin(tmp_path, graphs.mlp())
    monkeypatch.setattr(subprocess, "Popen", never)
    tuned = TunedSession(slow, one_thread(), providers=CPU, candidates=[fast], tuner=StackTuner(QUICK))
    assert tuned.tune({"x": floats(2, 16)}).name == "fast"
