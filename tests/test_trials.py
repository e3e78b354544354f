from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from scripted import raising
from tuning import CPU, floats, save

import graphs
from ort_stacktune import FailureKind, SessionRecipe, Timing, Tolerance, TuneFailure, Validation
from ort_stacktune.ort.callers import Caller
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.request import OutputTarget, Request
from ort_stacktune.ort.trials import SessionTrials

QUIET: dict[str, Any] = {"intra_op_num_threads": 1, "log_severity_level": 4}
REFERENCE, CANDIDATE = 0, 1


def recipe(name: str, model: str | None = None) -> SessionRecipe:
    return SessionRecipe(name, model=model, providers=CPU, session_options=QUIET)


def trials_of(
    tmp_path: Path,
    reference: onnx.ModelProto,
    candidate: onnx.ModelProto,
    request: Request | Mapping[str, Any],
    **keywords: Any,
) -> SessionTrials:
    if not isinstance(request, Request):
        outputs = tuple(OutputTarget(output.name) for output in reference.graph.output)
        request = Request(request, outputs)
    source = ModelSource.of(save(reference, tmp_path / "reference.onnx"))
    recipes = (recipe("reference"), recipe("candidate", save(candidate, tmp_path / "candidate.onnx")))
    return SessionTrials(recipes, REFERENCE, source, request, **keywords)


def verdict(trials: SessionTrials) -> Validation:
    try:
        assert trials.validate(REFERENCE, REFERENCE, Tolerance()) is Validation.PASSED
        return trials.validate(REFERENCE, CANDIDATE, Tolerance())
    finally:
        trials.close()


def graph_of(
    nodes: list[onnx.NodeProto], x: str = "x0", dtype: Any = np.float32, **constants: np.ndarray[Any, Any]
) -> onnx.ModelProto:
    """Returns a model with one input [N, 4] and one output ``y``."""
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info(x, number, ["N", 4])],
        [helper.make_tensor_value_info("y", number, ["N", 4])],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_candidate_that_agrees_on_everything_passes_and_can_be_timed(tmp_path: Path) -> None:
    trials = trials_of(tmp_path, graphs.slowed(graphs.mlp()), graphs.mlp(), {"x": floats(2, 16)})
    assert trials.validate(REFERENCE, REFERENCE, Tolerance()) is Validation.PASSED
    assert trials.validate(REFERENCE, CANDIDATE, Tolerance()) is Validation.PASSED
    assert trials.measure(REFERENCE) > trials.measure(CANDIDATE) > 0
    trials.close()


def test_a_wrong_candidate_is_rejected_with_the_output_that_differs(tmp_path: Path) -> None:
    trials = trials_of(tmp_path, graphs.mlp(seed=0), graphs.mlp(seed=1), {"x": floats(2, 16)})
    with raising(FailureKind.REJECTED, "'y'"):
        verdict(trials)


_STREAM = 12


def _draws(seed: int) -> np.ndarray[Any, Any]:
    """Returns what a session draws in its first runs."""
    node = helper.make_node("RandomNormal", [], ["noise"], shape=[1, 1], seed=float(seed))
    relu = helper.make_node("Add", ["x0", "noise"], ["y"])
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(graph_of([node, relu]).SerializeToString(), options, providers=CPU)
    zeros = np.zeros((1, 4), np.float32)
    return np.array([session.run(None, {"x0": zeros})[0][0, 0] for _ in range(_STREAM)])


def _wrong_in_run(number: int) -> onnx.ModelProto:
    """Relu, but off by one in the given run of a session, counted from 1, and in no other early one."""
    for seed in range(1, 500):
        draws = _draws(seed)
        if int(draws.argmax()) == number - 1:
            break
    threshold = np.float32(np.sort(draws)[-2:].mean())
    nodes = [
        helper.make_node("RandomNormal", [], ["noise"], shape=[1, 1], seed=float(seed)),
        helper.make_node("Greater", ["noise", "threshold"], ["off"]),
        helper.make_node("Cast", ["off"], ["error"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Relu", ["x0"], ["right"]),
        helper.make_node("Add", ["right", "error"], ["y"]),
    ]
    return graph_of(nodes, threshold=np.array(threshold))


@pytest.mark.parametrize("number", [2, 3])
def test_a_candidate_that_is_right_in_one_run_and_wrong_in_the_next_is_rejected(
    number: int, tmp_path: Path
) -> None:
    trials = trials_of(tmp_path, graphs.sum_of(1), _wrong_in_run(number), {"x0": floats(2, 4)})
    with raising(FailureKind.REJECTED, "'y'"):
        verdict(trials)


def test_a_candidate_that_is_right_for_values_as_large_as_the_live_ones_only_is_rejected(
    tmp_path: Path,
) -> None:
    x = floats(4, 4)
    bound = np.array(np.abs(x).max() * 1.5, np.float32)
    clip = graph_of(
        [helper.make_node("Clip", ["x0", "low", "high"], ["y"])], low=np.float32(0) * bound, high=bound
    )
    with raising(FailureKind.REJECTED, "'y'"):
        verdict(trials_of(tmp_path, graphs.sum_of(1), clip, {"x0": x}))


def test_a_candidate_that_returns_what_the_live_input_alone_gives_is_rejected(tmp_path: Path) -> None:
    x = floats(2, 4)
    frozen = graph_of(
        [
            helper.make_node("Mul", ["x0", "nought"], ["zero"]),
            helper.make_node("Add", ["zero", "answer"], ["y"]),
        ],
        nought=np.zeros(1, np.float32),
        answer=np.maximum(x, 0),
    )
    with raising(FailureKind.REJECTED, "'y'"):
        verdict(trials_of(tmp_path, graphs.sum_of(1), frozen, {"x0": x}))


def test_a_candidate_is_rejected_for_zeros_too(tmp_path: Path) -> None:
    """A constant input says nothing about arithmetic, so values are made up beside it."""
    x = np.zeros((2, 4), np.float32)
    double = graph_of([helper.make_node("Add", ["x0", "x0"], ["y"])])
    with raising(FailureKind.REJECTED, "'y'"):
        verdict(trials_of(tmp_path, graphs.sum_of(1), double, {"x0": x}))


def _rows(clipped: bool) -> onnx.ModelProto:
    """Picks rows by an index; the clipped one answers for any, the other raises beyond 3."""
    nodes = [helper.make_node("Clip", ["i", "low", "high"], ["j"])] if clipped else []
    nodes.append(helper.make_node("Gather", ["table", "j" if clipped else "i"], ["y"]))
    constants = {"table": floats(4, 2), "low": np.array(0, np.int64), "high": np.array(3, np.int64)}
    graph = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info("i", onnx.TensorProto.INT64, ["N"])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 2])],
        [onnx.numpy_helper.from_array(v, k) for k, v in constants.items() if clipped or k == "table"],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


LIVE, BEYOND = {"i": np.array([0, 3])}, {"i": np.array([0, 7])}


def test_a_candidate_that_answers_a_probe_on_which_the_reference_raises_is_rejected(tmp_path: Path) -> None:
    reference, candidate = _rows(clipped=False), _rows(clipped=True)
    assert verdict(trials_of(tmp_path, reference, candidate, LIVE)) is Validation.PASSED
    with raising(FailureKind.REJECTED, "answers a probe"):
        verdict(trials_of(tmp_path, reference, candidate, LIVE, probes=[BEYOND]))


def test_a_candidate_that_raises_on_a_probe_which_the_reference_answers_is_rejected(tmp_path: Path) -> None:
    reference, candidate = _rows(clipped=True), _rows(clipped=False)
    with raising(FailureKind.REJECTED, "out of data bounds"):
        verdict(trials_of(tmp_path, reference, candidate, LIVE, probes=[BEYOND]))


def test_a_probe_on_which_both_raise_is_no_difference(tmp_path: Path) -> None:
    reference = _rows(clipped=False)
    assert verdict(trials_of(tmp_path, reference, reference, LIVE, probes=[BEYOND])) is Validation.PASSED


@pytest.mark.parametrize(
    "probe", [{}, {"i": np.array([7])}, {"i": np.array([0, 7], np.int32)}, {"j": np.array([0, 7])}], ids=str
)
def test_a_probe_of_another_signature_says_nothing(probe: dict[str, Any], tmp_path: Path) -> None:
    trials = trials_of(tmp_path, _rows(clipped=False), _rows(clipped=True), LIVE, probes=[probe])
    assert verdict(trials) is Validation.PASSED


def test_a_value_that_steers_is_the_same_in_every_input_a_candidate_is_checked_on(tmp_path: Path) -> None:
    feed = {"x": floats(2, 4), "times": np.array(3)}
    thrice = graphs.counted()
    del thrice.graph.input[1]
    thrice.graph.initializer.append(onnx.numpy_helper.from_array(np.array(3), "times"))
    thrice.graph.input.append(helper.make_tensor_value_info("times", onnx.TensorProto.INT64, []))
    # A probe for another value is another question.
    probes = [{"x": floats(2, 4, seed=1), "times": np.array(5)}]
    trials = trials_of(tmp_path, graphs.counted(), thrice, feed, steering=frozenset({"times"}), probes=probes)
    assert verdict(trials) is Validation.PASSED


def test_a_reference_that_differs_between_runs_can_not_be_validated(tmp_path: Path) -> None:
    trials = trials_of(tmp_path, graphs.random_op(), graphs.random_op(), {"x": floats(2, 4)})
    with raising(FailureKind.UNAVAILABLE, "disagrees with itself", "'y'"):
        verdict(trials)


def test_a_reference_that_is_not_finite_can_not_be_validated(tmp_path: Path) -> None:
    trials = trials_of(tmp_path, graphs.nan_maker(), graphs.nan_maker(), {"x": -np.abs(floats(2, 4)) - 1})
    assert trials.validate(REFERENCE, REFERENCE, Tolerance()) is Validation.UNSUPPORTED


def test_a_stand_in_that_does_not_reproduce_the_live_session_is_no_reference(tmp_path: Path) -> None:
    def live(names: Any, feed: Any, options: Any) -> Any:
        return [np.maximum(feed["x0"], 0) * 0.5]

    trials = trials_of(tmp_path, graphs.sum_of(1), graphs.sum_of(1), {"x0": floats(2, 4)}, live_run=live)
    with raising(FailureKind.UNAVAILABLE, "does not reproduce yours"):
        verdict(trials)


def test_a_reference_that_can_not_be_made_again_is_unavailable_and_a_candidate_rejected(
    tmp_path: Path,
) -> None:
    for broken, kind in (("reference", FailureKind.UNAVAILABLE), ("candidate", FailureKind.REJECTED)):
        trials = trials_of(tmp_path, graphs.mlp(), graphs.mlp(), {"x": floats(2, 16)})
        (tmp_path / f"{broken}.onnx").write_bytes(b"junk")
        with raising(kind, "could not be made" if broken == "reference" else "has changed since"):
            verdict(trials)


def test_device_timing_is_unavailable_where_there_are_no_device_events(tmp_path: Path) -> None:
    trials = trials_of(tmp_path, graphs.mlp(), graphs.mlp(), {"x": floats(2, 16)}, timing=Timing.DEVICE)
    with raising(FailureKind.UNAVAILABLE, "END_TO_END"):
        trials.measure(CANDIDATE)


@pytest.mark.parametrize(("links", "looped"), [(1, True), (3000, False)])
def test_short_runs_are_timed_in_a_loop_and_long_ones_one_by_one(
    links: int, looped: bool, tmp_path: Path
) -> None:
    model = graphs.slowed(graphs.mlp(), links=links)
    trials = trials_of(tmp_path, model, graphs.mlp(), {"x": floats(2, 16)})
    trials.validate(REFERENCE, REFERENCE, Tolerance())
    assert (trials._loops > 1) is looped
    trials.close()


def test_the_best_of_several_timings_counts_where_runs_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[int] = []
    time_once = Caller.time

    def noticed(self: Caller, feeds: Any, loops: int) -> int:
        timed.append(time_once(self, feeds, loops))
        return timed[-1]

    trials = trials_of(tmp_path, graphs.mlp(), graphs.mlp(), {"x": floats(2, 16)})
    trials.validate(REFERENCE, REFERENCE, Tolerance())
    trials.measure(CANDIDATE)
    monkeypatch.setattr(Caller, "time", noticed)
    assert trials.measure(CANDIDATE) == min(timed)
    assert 1 < len(timed) <= 8
    trials.close()


@pytest.mark.parametrize("bound", [False, True], ids=["run", "binding"])
def test_the_callers_buffers_are_only_read(bound: bool, tmp_path: Path) -> None:
    x = floats(2, 16)
    before = x.copy()
    x.flags.writeable = False
    request = Request({"x": x}, (OutputTarget("y", ("f4", (2, 16)) if bound else None),), bound=bound)
    trials = trials_of(tmp_path, graphs.mlp(), graphs.mlp(), request, probes=[{"x": x}])
    assert verdict(trials) is Validation.PASSED
    trials.measure(CANDIDATE)
    np.testing.assert_array_equal(x, before)
    trials.close()


def test_what_a_caller_writes_into_a_buffer_later_does_not_change_a_trial(tmp_path: Path) -> None:
    x = floats(2, 16)
    trials = trials_of(tmp_path, graphs.mlp(), graphs.mlp(), {"x": x})
    trials.validate(REFERENCE, REFERENCE, Tolerance())
    x.fill(np.nan)
    assert trials.validate(REFERENCE, CANDIDATE, Tolerance()) is Validation.PASSED
    trials.close()


BOUND = {
    "allocated": OutputTarget("y"),
    "given": OutputTarget("y", ("f4", (2, 16))),
}


@pytest.mark.parametrize("target", BOUND)
def test_bound_requests_are_validated_and_timed(target: str, tmp_path: Path) -> None:
    request = Request({"x": floats(2, 16)}, (BOUND[target],), bound=True)
    trials = trials_of(tmp_path, graphs.mlp(), graphs.mlp(), request)
    assert verdict(trials) is Validation.PASSED
    trials = trials_of(tmp_path, graphs.slowed(graphs.mlp()), graphs.mlp(), request)
    trials.validate(REFERENCE, REFERENCE, Tolerance())
    assert trials.measure(REFERENCE) > trials.measure(CANDIDATE) > 0
    trials.close()
    with raising(FailureKind.REJECTED, "'y'"):
        verdict(trials_of(tmp_path, graphs.mlp(seed=0), graphs.mlp(seed=1), request))


def test_several_bound_outputs_of_which_one_is_wrong_are_told_apart(tmp_path: Path) -> None:
    wrong = graphs.with_state()
    wrong.graph.node[0].op_type = "Add"
    feeds = {"x": floats(2, 4), "state": floats(2, 4, seed=1)}
    targets = (OutputTarget("y", ("f4", (2, 4))), OutputTarget("new_state"))
    with raising(FailureKind.REJECTED, "'y'"):
        verdict(trials_of(tmp_path, graphs.with_state(), wrong, Request(feeds, targets, bound=True)))


@pytest.mark.parametrize("given", [None, ("f4", ())], ids=["allocated", "given"])
def test_a_bound_scalar_stays_a_scalar(given: Any, tmp_path: Path) -> None:
    request = Request({"x": np.array(3, np.float32)}, (OutputTarget("y", given),), bound=True)
    assert verdict(trials_of(tmp_path, graphs.scalar(), graphs.scalar(), request)) is Validation.PASSED


def test_inputs_without_elements_and_probes_in_another_memory_order_are_taken(tmp_path: Path) -> None:
    empty = {"x": floats(0, 16)}
    assert verdict(trials_of(tmp_path, graphs.mlp(), graphs.mlp(), empty)) is Validation.PASSED
    for bound in (False, True):
        request = Request({"x": floats(2, 16)}, (OutputTarget("y"),), bound=bound)
        probes = [{"x": np.asfortranarray(floats(2, 16, seed=1))}]
        trials = trials_of(tmp_path, graphs.mlp(), graphs.mlp(), request, probes=probes)
        assert verdict(trials) is Validation.PASSED


@pytest.fixture(params=[True, False], ids=["collector on", "collector off"])
def collector(request: pytest.FixtureRequest) -> Any:
    was_on = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was_on else gc.disable)()


@pytest.mark.parametrize("build", [graphs.mlp, None], ids=["runs", "raises"])
def test_the_garbage_collector_is_left_as_it_was_even_when_a_run_raises(
    collector: bool, build: Callable[[], onnx.ModelProto] | None, tmp_path: Path
) -> None:
    if build is not None:
        trials = trials_of(tmp_path, build(), build(), {"x": floats(2, 16)})
        trials.measure(CANDIDATE)
    else:
        trials = trials_of(tmp_path, _rows(clipped=True), _rows(clipped=False), BEYOND)
        with raising(FailureKind.REJECTED, "out of data bounds"):
            trials.measure(CANDIDATE)
    assert gc.isenabled() is collector
    trials.close()


def test_a_released_candidate_is_closed_and_made_again_when_asked_for(tmp_path: Path) -> None:
    trials = trials_of(tmp_path, graphs.mlp(), graphs.mlp(), {"x": floats(2, 16)})
    assert trials.validate(REFERENCE, CANDIDATE, Tolerance()) is Validation.PASSED
    assert {index for index, _ in trials._callers} == {REFERENCE, CANDIDATE}
    trials.release(CANDIDATE)
    trials.release(CANDIDATE)
    assert {index for index, _ in trials._callers} == {REFERENCE}
    assert trials.measure(CANDIDATE) > 0
    trials.close()
    assert not trials._callers


@pytest.mark.parametrize(
    "end", [lambda t: t.release(CANDIDATE), lambda t: t.close()], ids=["release", "close"]
)
def test_a_session_is_gone_before_its_memory_is_given_back(
    end: Callable[[SessionTrials], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = trials_of(tmp_path, graphs.mlp(), graphs.mlp(), {"x": floats(2, 16)})
    trials.validate(REFERENCE, CANDIDATE, Tolerance())
    closed = weakref.ref(trials._callers[CANDIDATE, False].made.session)
    left: list[object] = []
    monkeypatch.setattr("ort_stacktune.ort.trials.give_back_memory", lambda: left.append(closed()))
    end(trials)
    assert left == [None]
    trials.close()


def test_the_reference_has_to_be_the_one_the_trial_was_made_for(tmp_path: Path) -> None:
    trials = trials_of(tmp_path, graphs.mlp(), graphs.mlp(), {"x": floats(2, 16)})
    with pytest.raises(ValueError, match="reference is 0"):
        trials.validate(CANDIDATE, CANDIDATE, Tolerance())


def test_nothing_is_read_or_made_before_the_first_trial(tmp_path: Path) -> None:
    trials = trials_of(tmp_path, graphs.mlp(), graphs.mlp(), {"x": floats(2, 16)})
    for path in tmp_path.glob("*.onnx"):
        path.unlink()
    trials.close()
    with pytest.raises(TuneFailure):
        trials.measure(CANDIDATE)


@pytest.mark.skipif(
    "OpenVINOExecutionProvider" not in ort.get_available_providers(), reason="this build has no OpenVINO"
)
def test_the_share_of_nodes_on_a_provider_is_among_the_facts(tmp_path: Path) -> None:
    openvino = ("OpenVINOExecutionProvider", {"device_type": "CPU"})
    source = ModelSource.of(save(graphs.mlp(), tmp_path / "m.onnx"))
    request = Request({"x": floats(2, 16)}, (OutputTarget("y"),))
    recipes = (recipe("reference"), SessionRecipe("openvino", providers=[openvino, *CPU]))
    trials = SessionTrials(recipes, REFERENCE, source, request)
    assert trials.facts(REFERENCE).get("nodes") is None
    assert "OpenVINO" in trials.facts(CANDIDATE)["nodes"]
    trials.close()
