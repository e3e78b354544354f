from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from scripted import raising
from tuning import CPU, QUICK, floats, save

import graphs
from ort_stacktune import (
    FailureKind,
    Mode,
    Scope,
    SessionRecipe,
    StackPolicy,
    TunableSet,
    enable_stack_autotune,
    try_execute_stack,
)
from ort_stacktune.identity import parse_fields

FEED = {"x": floats(2, 16)}


def recipe(name: str, model: str | None = None, **fields: Any) -> SessionRecipe:
    fields.setdefault("session_options", {"intra_op_num_threads": 1, "log_severity_level": 4})
    return SessionRecipe(name, model=model, providers=CPU, **fields)


def pair(tmp_path: Path, base: onnx.ModelProto | None = None, **keywords: Any) -> TunableSet:
    """Returns a set whose reference is slow on purpose and whose candidate is its fast twin."""
    base = base or graphs.mlp()
    slow = recipe("slow", save(graphs.slowed(base, links=60), tmp_path / "slow.onnx"))
    return TunableSet("layer", slow, [recipe("fast", save(base, tmp_path / "fast.onnx"))], **keywords)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Returns the feeds of all calls of any session's ``run``, trials included."""
    seen: list[dict[str, Any]] = []
    run = ort.InferenceSession.run

    def spy(self: Any, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        seen.append(input_feed)
        return run(self, output_names, input_feed, run_options)

    monkeypatch.setattr(ort.InferenceSession, "run", spy)
    return seen


def live(runs: list[dict[str, Any]], feed: dict[str, Any]) -> int:
    """Returns how many runs saw the caller's own arrays."""
    return sum(any(value is own for value in seen.values()) for own in feed.values() for seen in runs)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, ["name"]),
        ({"name": None}, ["name"]),
        ({"scope": 1}, ["scope"]),
        ({"reference": 2}, ["reference 2", "out of range", "2 recipes"]),
        ({"reference": -1}, ["out of range"]),
        ({"reference": True}, ["SessionRecipe"]),
        ({"reference": "a"}, ["SessionRecipe"]),
        ({"candidates": ["b"]}, ["'b'", "SessionRecipe"]),
        ({"candidates": []}, ["out of range"]),
        ({"reference": recipe("lost"), "candidates": []}, ["'lost'", "model"]),
    ],
    ids=str,
)
def test_a_set_that_can_not_work_is_refused_with_what_is_wrong(
    change: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    model = save(graphs.mlp(), tmp_path / "m.onnx")
    given = {
        "name": "layer",
        "reference": 0,
        "candidates": [recipe("a", model), recipe("b", model)],
        **change,
    }
    scope = {"scope": given["scope"]} if "scope" in given else {}
    with raising(FailureKind.INVALID_INPUT, *words):
        TunableSet(given["name"], given["reference"], given["candidates"], **scope)


def test_two_recipes_of_one_name_are_refused(tmp_path: Path) -> None:
    model = save(graphs.mlp(), tmp_path / "m.onnx")
    with raising(FailureKind.INVALID_INPUT, "name", "unique"):
        TunableSet("layer", recipe("a", model), [recipe("b", model), recipe("a", model)])


def test_the_reference_may_be_given_by_its_position(tmp_path: Path) -> None:
    recipes = [recipe(n, save(graphs.mlp(), tmp_path / "m.onnx")) for n in "abc"]
    tunables = TunableSet("layer", 1, recipes)
    assert tunables.reference.name == "b"
    assert [r.name for r in tunables.candidates] == ["a", "c"]


def test_without_a_controller_nothing_runs(tmp_path: Path, runs: list[dict[str, Any]]) -> None:
    asked: list[Any] = []

    def workload(inputs: Any) -> str:
        asked.append(inputs)
        return "mine"

    with raising(FailureKind.INVALID_INPUT, "enable_stack_autotune"):
        try_execute_stack("op", pair(tmp_path, workload=workload), FEED)
    assert not runs
    assert not asked


@pytest.mark.parametrize(("name", "word"), [("", "name"), (None, "name"), (5, "name")])
def test_an_operation_needs_a_name(name: Any, word: str, tmp_path: Path, runs: list[dict[str, Any]]) -> None:
    enable_stack_autotune(QUICK)
    with raising(FailureKind.INVALID_INPUT, word):
        try_execute_stack(name, pair(tmp_path), FEED)
    assert not runs


def test_recipes_alone_are_no_set() -> None:
    enable_stack_autotune(QUICK)
    with raising(FailureKind.INVALID_INPUT, "TunableSet"):
        try_execute_stack("op", [recipe("a")], FEED)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", ["", None, 5, b"text"])
def test_without_an_exact_workload_text_nothing_runs(
    answer: Any, tmp_path: Path, runs: list[dict[str, Any]]
) -> None:
    enable_stack_autotune(QUICK)
    tunables = pair(tmp_path, workload=lambda _: answer)
    with raising(FailureKind.INVALID_INPUT, "workload()", repr(answer)):
        try_execute_stack("op", tunables, FEED)
    assert not runs


def test_a_set_is_tuned_once_and_its_winner_serves(tmp_path: Path) -> None:
    tuner = enable_stack_autotune(QUICK)
    tunables = pair(tmp_path)
    expected = ort.InferenceSession(tunables.reference.model, providers=CPU).run(None, FEED)[0]
    for _ in range(3):
        np.testing.assert_allclose(try_execute_stack("op", tunables, FEED)[0], expected, rtol=1e-5, atol=1e-6)
    assert (tuner.stats().tunes, tuner.stats().memory_hits) == (1, 2)
    (report,) = tuner.reports()
    assert report.winner == "fast"
    assert "layer" in report.operation
    assert "op" in report.operation


def test_live_inputs_are_executed_exactly_once_whatever_is_decided(
    tmp_path: Path, runs: list[dict[str, Any]]
) -> None:
    enable_stack_autotune(QUICK)
    tunables = pair(tmp_path)
    for calls in (1, 2, 3):
        try_execute_stack("op", tunables, FEED)
        assert live(runs, FEED) == calls
    assert len(runs) > 3


@pytest.mark.parametrize("mode", [Mode.DISABLED, Mode.CACHE_ONLY])
def test_where_no_search_is_allowed_the_reference_serves(
    mode: Mode, tmp_path: Path, runs: list[dict[str, Any]]
) -> None:
    tuner = enable_stack_autotune(StackPolicy(mode=mode))
    assert try_execute_stack("op", pair(tmp_path), FEED)[0].shape == (2, 16)
    assert len(runs) == live(runs, FEED) == 1
    assert tuner.stats().tunes == 0


def test_the_text_that_a_workload_function_gives_is_the_workload_of_the_question(tmp_path: Path) -> None:
    tuner = enable_stack_autotune(QUICK)
    seen: list[Any] = []

    def workload(inputs: Any) -> str:
        seen.append(inputs["x"])
        return f"rows {len(inputs['x'])}"

    tunables = pair(tmp_path, workload=workload)
    for rows in (1, 2, 1):
        feed = {"x": floats(rows, 16)}
        try_execute_stack("op", tunables, feed)
        assert seen[-1] is feed["x"]
    told = [parse_fields(report.workload)[0] for report in tuner.reports()]
    assert told == ["rows 1", "rows 2"]


def test_another_operation_or_scope_is_another_question(tmp_path: Path) -> None:
    tuner = enable_stack_autotune(QUICK)
    for name, scope in (("a", Scope.GRAPH), ("b", Scope.GRAPH), ("a", Scope.OPERATOR), ("a", Scope.GRAPH)):
        try_execute_stack(name, pair(tmp_path, scope=scope), FEED)
    assert tuner.stats().tunes == 3


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


def test_a_live_failure_reaches_the_caller_bans_the_winner_and_is_not_replayed(
    tmp_path: Path, runs: list[dict[str, Any]]
) -> None:
    tuner = enable_stack_autotune(QUICK)
    slow = recipe("slow", save(graphs.slowed(_rows(clipped=True), links=60), tmp_path / "slow.onnx"))
    fast = recipe("fast", save(_rows(clipped=False), tmp_path / "fast.onnx"))
    tunables = TunableSet("rows", slow, [fast])
    good, bad = {"i": np.array([0, 3])}, {"i": np.array([0, 7])}
    try_execute_stack("op", tunables, good)
    assert tuner.reports()[-1].winner == "fast"
    with pytest.raises(Exception, match="out of data bounds"):
        try_execute_stack("op", tunables, bad)
    assert live(runs, bad) == 1
    assert tuner.stats().invalidations == 1
    assert try_execute_stack("op", tunables, bad)[0].shape == (2, 2)
    assert tuner.reports()[-1].winner == "slow"
    assert "banned" in tuner.reports()[-1].candidates[1].note


def test_a_caller_who_terminates_a_run_bans_nobody(tmp_path: Path) -> None:
    tuner = enable_stack_autotune(QUICK)
    tunables = pair(tmp_path)
    options = ort.RunOptions()
    try_execute_stack("op", tunables, FEED, run_options=options)
    options.terminate = True
    with pytest.raises(Exception, match="terminate"):
        try_execute_stack("op", tunables, FEED, run_options=options)
    assert tuner.stats().invalidations == 0


BAD: dict[str, Callable[[Any], Any]] = {
    "missing input": lambda run: run({}),
    "unknown input": lambda run: run({**FEED, "z": FEED["x"]}),
    "wrong dtype": lambda run: run({"x": FEED["x"].astype(np.float64)}),
    "wrong rank": lambda run: run({"x": FEED["x"][0]}),
    "wrong size": lambda run: run({"x": floats(2, 15)}),
    "unknown output": lambda run: run(FEED, ["nope"]),
    "no mapping": lambda run: run([FEED["x"]]),
    "nothing": lambda run: run(None),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_are_of_the_types_that_the_session_raises_before_and_after_a_decision(
    name: str, tmp_path: Path
) -> None:
    tuner = enable_stack_autotune(QUICK)
    tunables = pair(tmp_path)
    raw = ort.InferenceSession(tunables.reference.model, providers=CPU)

    def error(run: Callable[..., Any]) -> type[BaseException] | None:
        try:
            BAD[name](run)
        except Exception as caught:
            return type(caught)
        return None

    expected = error(lambda feed, names=None: raw.run(names, feed))
    assert expected is not None

    def ours(feed: Any, names: Any = None) -> Any:
        return try_execute_stack("op", tunables, feed, output_names=names)

    assert error(ours) is expected
    try_execute_stack("op", tunables, FEED)
    assert error(ours) is expected
    assert (tuner.stats().tunes, tuner.stats().invalidations) == (1, 0)


def test_a_reference_that_fails_gives_its_own_error_and_is_executed_once(
    tmp_path: Path, runs: list[dict[str, Any]]
) -> None:
    enable_stack_autotune(QUICK)
    raising_one = recipe("rows", save(_rows(clipped=False), tmp_path / "m.onnx"))
    tunables, bad = TunableSet("rows", raising_one, []), {"i": np.array([7])}
    with pytest.raises(Exception, match="out of data bounds") as caught:
        try_execute_stack("op", tunables, bad)
    assert type(caught.value).__module__.startswith("onnxruntime")
    assert live(runs, bad) == 1


def test_outputs_are_those_asked_for_in_their_order(tmp_path: Path) -> None:
    enable_stack_autotune(QUICK)
    tunables = pair(tmp_path, graphs.with_state())
    feed = {"x": floats(2, 4), "state": floats(2, 4, seed=1)}
    raw = ort.InferenceSession(tunables.reference.model, providers=CPU)
    for names in (None, ["new_state"], ["new_state", "y"], ["y"]):
        ours = try_execute_stack("op", tunables, feed, output_names=names)
        for our, their in zip(ours, raw.run(names, feed), strict=True):
            np.testing.assert_allclose(our, their, rtol=1e-5, atol=1e-6)


def test_what_can_not_be_tuned_runs_on_the_reference(tmp_path: Path) -> None:
    tuner = enable_stack_autotune(QUICK)
    tunables = TunableSet("text", recipe("only", save(graphs.string_identity(), tmp_path / "m.onnx")), [])
    words = np.array(["a", "b"], object)
    assert try_execute_stack("op", tunables, {"x": words})[0].tolist() == ["a", "b"]
    assert tuner.stats().tunes == 0


def test_a_wrong_recipe_is_never_served(tmp_path: Path) -> None:
    tuner = enable_stack_autotune(QUICK)
    slow = recipe("slow", save(graphs.slowed(graphs.mlp(seed=0), links=60), tmp_path / "slow.onnx"))
    wrong = recipe("wrong", save(graphs.mlp(seed=1), tmp_path / "wrong.onnx"))
    try_execute_stack("op", TunableSet("layer", slow, [wrong]), FEED)
    (report,) = tuner.reports()
    assert report.winner == "slow"
    assert report.candidates[1].rejection is FailureKind.REJECTED


def test_the_references_own_run_config_is_used_when_it_serves(tmp_path: Path) -> None:
    enable_stack_autotune(StackPolicy(mode=Mode.CACHE_ONLY))
    # A value that only a run can refuse shows that the run saw it.
    odd = {"memory.enable_memory_arena_shrinkage": "no such device"}
    reference = recipe("r", save(graphs.mlp(), tmp_path / "m.onnx"), run_config=odd)
    with pytest.raises(Exception, match="device"):
        try_execute_stack("op", TunableSet("layer", reference, []), FEED)


def test_several_sessions_of_the_reference_serve_like_one(tmp_path: Path) -> None:
    enable_stack_autotune(QUICK)
    model = save(graphs.mlp(), tmp_path / "m.onnx")
    pool = TunableSet("pool", recipe("pool", model, instances=2), [recipe("one", model)])
    expected = ort.InferenceSession(model, providers=CPU).run(None, FEED)[0]
    np.testing.assert_allclose(try_execute_stack("op", pool, FEED)[0], expected, rtol=1e-6, atol=1e-6)


def test_threads_that_share_a_set_all_get_right_outputs(tmp_path: Path) -> None:
    tuner = enable_stack_autotune(QUICK)
    tunables = pair(tmp_path)
    expected = ort.InferenceSession(tunables.reference.model, providers=CPU).run(None, FEED)[0]
    gate, outputs = threading.Barrier(8), []

    def call() -> None:
        gate.wait()
        outputs.extend(try_execute_stack("op", tunables, FEED)[0] for _ in range(3))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outputs) == 24
    for output in outputs:
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
    assert tuner.stats().tunes == 1
