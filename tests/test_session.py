from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from scripted import raising
from tuning import CPU, QUICK, fast_twin, floats, one_thread, save, tuned_pair

import graphs
from ort_stacktune import (
    DecisionSource,
    FailureKind,
    Mode,
    SessionRecipe,
    StackPolicy,
    StackTuner,
    TunedSession,
    enable_stack_autotune,
)


def test_a_tuned_session_is_an_inference_session(tmp_path: Path) -> None:
    tuned, raw, _ = tuned_pair(tmp_path, graphs.mlp())
    assert isinstance(tuned, ort.InferenceSession)
    assert [i.name for i in tuned.get_inputs()] == [i.name for i in raw.get_inputs()]
    assert tuned.get_providers() == raw.get_providers()
    assert tuned.get_modelmeta().graph_name == raw.get_modelmeta().graph_name


def test_the_first_request_is_decided_and_later_ones_are_served_by_the_winner(tmp_path: Path) -> None:
    tuned, raw, tuner = tuned_pair(tmp_path, graphs.mlp())
    feed = {"x": floats(2, 16)}
    assert tuned.decision(feed) is None
    for _ in range(3):
        np.testing.assert_allclose(tuned.run(None, feed)[0], raw.run(None, feed)[0], rtol=1e-5, atol=1e-6)
    decision = tuned.decision(feed)
    assert decision is not None
    assert (decision.name, decision.verified) == ("fast", True)
    assert tuner.stats().tunes == 1
    assert tuner.stats().memory_hits >= 2
    assert tuned._lane().live_winners() == 1


def test_each_exact_shape_is_a_question_of_its_own(tmp_path: Path) -> None:
    tuned, raw, tuner = tuned_pair(tmp_path, graphs.mlp())
    for rows in (1, 2, 3, 2, 1):
        feed = {"x": floats(rows, 16)}
        np.testing.assert_allclose(tuned.run(None, feed)[0], raw.run(None, feed)[0], rtol=1e-5, atol=1e-6)
    assert tuner.stats().tunes == 3


def test_without_a_controller_nothing_is_read_measured_or_kept(tmp_path: Path) -> None:
    path = save(graphs.mlp(), tmp_path / "m.onnx")
    tuned, raw = TunedSession(path, one_thread(), providers=CPU), ort.InferenceSession(path, providers=CPU)
    (tmp_path / "m.onnx").unlink()
    feed = {"x": floats(2, 16)}
    np.testing.assert_array_equal(tuned.run(None, feed)[0], raw.run(None, feed)[0])
    assert tuned._reference is not None
    assert tuned._reference._lane is None
    assert tuned._routes == {}
    assert type(tuned.io_binding()) is ort.IOBinding
    assert tuned.decision(feed) is None
    assert tuned.report(feed) is None
    with raising(FailureKind.INVALID_INPUT, "enable_stack_autotune"):
        tuned.tune(feed)


def test_the_installed_controller_is_used_from_the_moment_it_is_installed(tmp_path: Path) -> None:
    slow, fast = fast_twin(tmp_path, graphs.mlp())
    tuned = TunedSession(slow, one_thread(), providers=CPU, candidates=[fast])
    feed = {"x": floats(1, 16)}
    tuned.run(None, feed)
    tuner = enable_stack_autotune(QUICK)
    tuned.run(None, feed)
    assert tuner.stats().tunes == 1


def test_disabled_serves_the_reference_alone(tmp_path: Path) -> None:
    tuned, _, tuner = tuned_pair(tmp_path, graphs.mlp(), StackTuner(StackPolicy(mode=Mode.DISABLED)))
    tuned.run(None, {"x": floats(1, 16)})
    assert tuner.stats().misses == 0
    assert tuned._routes == {}


def _bad_calls() -> dict[str, Callable[[Any], Any]]:
    x = floats(2, 16)
    return {
        "missing input": lambda s: s.run(None, {}),
        "unknown input": lambda s: s.run(None, {"x": x, "z": x}),
        "wrong dtype": lambda s: s.run(None, {"x": x.astype(np.float64)}),
        "wrong rank": lambda s: s.run(None, {"x": x[0]}),
        "wrong fixed dimension": lambda s: s.run(None, {"x": floats(2, 15)}),
        "unknown output": lambda s: s.run(["nope"], {"x": x}),
        "feed is a list": lambda s: s.run(None, [x]),
        "feed is None": lambda s: s.run(None, None),
        "value is None": lambda s: s.run(None, {"x": None}),
        "value is a list": lambda s: s.run(None, {"x": [1.0, 2.0]}),
        "value is text": lambda s: s.run(None, {"x": "abc"}),
        "outputs is text": lambda s: s.run("y", {"x": x}),
        "outputs is a number": lambda s: s.run(3, {"x": x}),
        "other byte order": lambda s: s.run(None, {"x": x.astype(">f4")}),
        "run options of another kind": lambda s: s.run(None, {"x": x}, 5),
        "no arguments": lambda s: s.run(),
        "ort values missing": lambda s: s.run_with_ort_values(None, {}),
        "binding of another session": lambda s: s.run_with_iobinding(None),
        "async without inputs": lambda s: s.run_async(None, {}, lambda *_: None, None),
    }


def _error(call: Callable[[Any], Any], session: Any) -> type[BaseException] | None:
    try:
        call(session)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("name", _bad_calls())
def test_errors_are_of_the_raw_sessions_types_before_and_after_a_decision(name: str, tmp_path: Path) -> None:
    tuned, raw, _ = tuned_pair(tmp_path, graphs.mlp())
    call = _bad_calls()[name]
    expected = _error(call, raw)
    assert _error(call, tuned) is expected
    tuned.run(None, {"x": floats(2, 16)})
    assert _error(call, tuned) is expected


def test_a_session_that_a_failed_set_providers_broke_is_as_broken_as_the_raw_one(tmp_path: Path) -> None:
    tuned, raw, _ = tuned_pair(tmp_path, graphs.mlp())
    for call in (lambda s: s.set_providers("CPU"), lambda s: s.run(None, {"x": floats(2, 16)})):
        expected = _error(call, raw)
        assert expected is not None
        assert _error(call, tuned) is expected


@pytest.mark.parametrize(
    "arguments",
    [
        {"path_or_bytes": "no such file"},
        {"path_or_bytes": b"junk"},
        {"path_or_bytes": 5},
        {"path_or_bytes": "model", "sess_options": 5},
        {"path_or_bytes": "model", "providers": 5},
        {"path_or_bytes": "model", "providers": CPU, "provider_options": [{}, {}], "enable_fallback": 0},
    ],
    ids=str,
)
def test_construction_fails_as_the_raw_session_fails(arguments: dict[str, Any], tmp_path: Path) -> None:
    path = save(graphs.mlp(), tmp_path / "model")
    given = {k: (path if v == "model" else v) for k, v in arguments.items()}
    expected = _error(lambda kind: kind(**given), ort.InferenceSession)
    assert expected is not None
    assert _error(lambda kind: kind(**given), TunedSession) is expected


@pytest.mark.parametrize(
    ("keywords", "word"),
    [
        ({"candidates": ["threads"]}, "SessionRecipe"),
        ({"tuner": 5}, "tuner"),
        ({"scope": 1}, "scope"),
        ({"probes": [5]}, "probe"),
        ({"steering_inputs": "x"}, "steering_inputs"),
        ({"steering_inputs": ["nope"]}, "nope"),
    ],
)
def test_a_bad_argument_of_ours_is_named(keywords: dict[str, Any], word: str, tmp_path: Path) -> None:
    path = save(graphs.mlp(), tmp_path / "m.onnx")
    with raising(FailureKind.INVALID_INPUT, word):
        TunedSession(path, providers=CPU, **keywords)


def test_subset_order_and_empty_lists_of_outputs_mean_what_they_mean_to_the_raw_session(
    tmp_path: Path,
) -> None:
    tuned, raw, _ = tuned_pair(tmp_path, graphs.with_state())
    inputs = {i.name: floats(*[d if isinstance(d, int) else 2 for d in i.shape]) for i in raw.get_inputs()}
    names = [o.name for o in raw.get_outputs()]
    backwards = dict(reversed(inputs.items()))
    for _ in range(2):
        for wanted in (None, [], names, names[::-1], names[:1], tuple(names)):
            for feed in (inputs, backwards):
                ours, theirs = tuned.run(wanted, feed), raw.run(wanted, feed)
                assert len(ours) == len(theirs)
                for our, their in zip(ours, theirs, strict=True):
                    np.testing.assert_allclose(our, their, rtol=1e-5, atol=1e-6)


def test_a_value_that_steers_a_branch_is_part_of_the_signature(tmp_path: Path) -> None:
    tuned, raw, tuner = tuned_pair(tmp_path, graphs.branching())
    x = floats(1, 16)
    for _ in range(2):
        for mode in (0, 1):
            feed = {"x": x, "mode": np.array(mode)}
            np.testing.assert_allclose(tuned.run(None, feed)[0], raw.run(None, feed)[0], rtol=1e-5, atol=1e-6)
            assert tuned.decision(feed) is not None
    assert tuner.stats().tunes == 2
    assert tuned.decision({"x": x, "mode": np.array(2)}) is None


def test_a_steering_value_that_is_new_in_every_call_stops_costing_a_search(tmp_path: Path) -> None:
    tuner = StackTuner(StackPolicy(samples=3, max_samples=3, repeats=1, warmups=1, confidence=0.6))
    tuned, _, _ = tuned_pair(tmp_path, graphs.branching(links=1), tuner)
    for mode in range(40):
        tuned.run(None, {"x": floats(1, 16), "mode": np.array(mode)})
    assert tuner.stats().tunes == 16
    report = tuned.report({"x": floats(1, 16), "mode": np.array(39)})
    assert report is not None
    assert "mode" in report.candidates[0].note


@pytest.mark.parametrize(
    ("build", "make_feed", "word"),
    [
        (graphs.random_op, lambda: {"x": floats(2, 4)}, "random"),
        (graphs.overridable, lambda: {"x": floats(2, 4), "bias": floats(4)}, "initializer"),
        (graphs.string_identity, lambda: {"x": np.array(["a", "b"], dtype=object)}, "numbers"),
    ],
)
def test_what_cannot_be_tuned_runs_on_the_reference_and_the_report_says_why(
    build: Callable[[], onnx.ModelProto], make_feed: Callable[[], dict[str, Any]], word: str, tmp_path: Path
) -> None:
    path = save(build(), tmp_path / "m.onnx")
    raw = ort.InferenceSession(path, one_thread(), providers=CPU)
    feed = {}
    for meta, value in zip(
        [*raw.get_inputs(), *raw.get_overridable_initializers()], make_feed().values(), strict=False
    ):
        shape = [d if isinstance(d, int) else 2 for d in meta.shape]
        feed[meta.name] = value if value.dtype == object else np.resize(value, shape)
    tuner = StackTuner(QUICK)
    tuned = TunedSession(path, one_thread(), providers=CPU, tuner=tuner)
    for _ in range(2):
        assert [np.shape(o) for o in tuned.run(None, feed)] == [np.shape(o) for o in raw.run(None, feed)]
    assert tuner.stats().tunes == 0
    report = tuned.report(feed)
    assert report is not None
    assert word in report.candidates[0].note
    assert report.winner == "reference"


@pytest.mark.parametrize(
    "build",
    [graphs.sequence_output, graphs.scalar, graphs.nan_maker, graphs.argmax, graphs.optional_input],
)
def test_unusual_kinds_of_values_come_out_as_from_the_raw_session(
    build: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    path = save(build(), tmp_path / "m.onnx")
    raw = ort.InferenceSession(path, one_thread(), providers=CPU)
    policy = StackPolicy(samples=3, max_samples=3, repeats=1, confidence=0.6, max_candidates=1)
    tuned = TunedSession(path, one_thread(), providers=CPU, tuner=StackTuner(policy))
    for rows in (0, 1, 3):
        feed = {}
        for meta in raw.get_inputs():
            if meta.type.startswith("optional"):
                continue
            shape = [d if isinstance(d, int) else rows for d in meta.shape]
            dtype = {"tensor(float)": np.float32, "tensor(int64)": np.int64}[meta.type]
            feed[meta.name] = floats(*shape).astype(dtype)
        for _ in range(2):
            ours, theirs = tuned.run(None, feed), raw.run(None, feed)
            assert len(ours) == len(theirs)
            for our, their in zip(ours, theirs, strict=True):
                assert type(our) is type(their)
                if isinstance(their, list):
                    assert len(our) == len(their)
                    our, their = np.array(our), np.array(their)
                np.testing.assert_allclose(our, their, rtol=1e-4, atol=1e-5)


def test_sixteen_threads_at_first_touch_start_one_search_and_the_rest_are_served_by_the_reference(
    tmp_path: Path,
) -> None:
    tuner = StackTuner(StackPolicy(budget_s=60.0, samples=41, max_samples=201))
    tuned, raw, _ = tuned_pair(tmp_path, graphs.mlp(layers=4, width=64), tuner)
    feed = {"x": floats(8, 64)}
    expected = raw.run(None, feed)[0]
    gate, outputs = threading.Barrier(16), []

    def call() -> None:
        gate.wait()
        outputs.append(tuned.run(None, feed)[0])

    threads = [threading.Thread(target=call) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tuner.stats().tunes, tuner.stats().busy_fallbacks) == (1, 15)
    assert len(outputs) == 16
    for output in outputs:
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def _table(clipped: bool) -> onnx.ModelProto:
    """``y = table[i]``; the clipped one answers for any index, the other raises beyond 3."""
    nodes = [helper.make_node("Clip", ["i", "low", "high"], ["j"])] if clipped else []
    nodes.append(helper.make_node("Gather", ["table", "j" if clipped else "i"], ["y"]))
    constants = {
        "table": np.arange(8, dtype=np.float32).reshape(4, 2),
        "low": np.array(0, np.int64),
        "high": np.array(3, np.int64),
    }
    graph = helper.make_graph(
        nodes,
        "table",
        [helper.make_tensor_value_info("i", onnx.TensorProto.INT64, ["N"])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 2])],
        [onnx.numpy_helper.from_array(v, k) for k, v in constants.items() if clipped or k == "table"],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_live_failure_on_the_winner_reaches_the_caller_bans_it_and_is_not_replayed(tmp_path: Path) -> None:
    slow = save(graphs.slowed(_table(clipped=True), links=60), tmp_path / "slow.onnx")
    fast = SessionRecipe("fast", model=save(_table(clipped=False), tmp_path / "fast.onnx"), providers=CPU)
    tuner = StackTuner(QUICK)
    tuned = TunedSession(slow, one_thread(), providers=CPU, candidates=[fast], tuner=tuner)
    good, bad = {"i": np.array([0, 3])}, {"i": np.array([0, 7])}
    tuned.run(None, good)
    decision = tuned.decision(good)
    assert decision is not None
    assert decision.name == "fast"
    with pytest.raises(Exception, match="indices element out of data bounds"):
        tuned.run(None, bad)
    assert tuner.stats().invalidations == 1
    assert tuned._lane().live_winners() == 0
    np.testing.assert_array_equal(tuned.run(None, bad)[0], [[0, 1], [6, 7]])
    later = tuned.decision(good)
    assert later is not None
    assert later.name == "reference"


def test_a_choice_taken_back_by_the_controller_is_no_longer_served_from_the_sessions_table(
    tmp_path: Path,
) -> None:
    tuned, _, tuner = tuned_pair(tmp_path, graphs.mlp())
    feed = {"x": floats(1, 16)}
    decision = tuned.tune(feed)
    tuner.invalidate(decision, ban_candidate=True)
    tuned.run(None, feed)
    later = tuned.decision(feed)
    assert later is not None
    assert later.name == "reference"
    assert tuned._lane().live_winners() == 0


def test_a_choice_is_asked_for_again_when_it_expires(tmp_path: Path) -> None:
    now = [1000.0]
    tuner = StackTuner(QUICK, wall_clock_s=lambda: now[0])
    tuned, _, _ = tuned_pair(tmp_path, graphs.mlp(), tuner)
    feed = {"x": floats(1, 16)}
    tuned.run(None, feed)
    (route,) = tuned._routes.values()
    assert route.expires_s > 0
    route.expires_s = 0.0
    now[0] += QUICK.ttl_s + 1
    tuned.run(None, feed)
    assert tuner.stats().tunes == 2


def test_the_next_process_takes_the_choice_from_disk_and_never_times(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    tuned, raw, _ = tuned_pair(tmp_path, graphs.mlp(), StackTuner(QUICK, cache))
    feed = {"x": floats(1, 16)}
    assert tuned.tune(feed).source is DecisionSource.TUNED
    later = StackTuner(replace(QUICK, mode=Mode.CACHE_ONLY), cache)
    tuned, raw, _ = tuned_pair(tmp_path, graphs.mlp(), later)
    np.testing.assert_allclose(tuned.run(None, feed)[0], raw.run(None, feed)[0], rtol=1e-5, atol=1e-6)
    assert (later.stats().disk_hits, later.stats().tunes) == (1, 0)
    decision = tuned.decision(feed)
    assert decision is not None
    assert decision.name == "fast"
    report = tuned.report(feed)
    assert report is not None
    assert {r.name for r in report.candidates} == {"reference", "fast"}


def test_a_model_with_other_weights_is_another_question(tmp_path: Path) -> None:
    tuner = StackTuner(QUICK)
    feed = {"x": floats(1, 16)}
    for seed in (0, 1):
        path = save(graphs.mlp(seed=seed), tmp_path / "m.onnx")
        TunedSession(path, one_thread(), providers=CPU, candidates=[], tuner=tuner).run(None, feed)
    assert tuner.stats().tunes == 2


def test_a_wrong_candidate_is_never_served_and_its_report_says_where_it_differs(tmp_path: Path) -> None:
    slow = save(graphs.slowed(graphs.mlp(seed=0), links=60), tmp_path / "slow.onnx")
    wrong = SessionRecipe("wrong", model=save(graphs.mlp(seed=1), tmp_path / "w.onnx"), providers=CPU)
    tuned = TunedSession(slow, one_thread(), providers=CPU, candidates=[wrong], tuner=StackTuner(QUICK))
    feed = {"x": floats(2, 16)}
    assert tuned.tune(feed).name == "reference"
    report = tuned.report(feed)
    assert report is not None
    assert report.candidates[1].rejection is FailureKind.REJECTED
    assert "output" in report.candidates[1].note


def _negated_where_negative() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["y"])],
        "abs",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 4])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_candidate_that_is_right_on_the_live_input_only_is_caught_by_a_probe(tmp_path: Path) -> None:
    identity = graphs.sum_of(1)  # Relu: equals Abs wherever x is positive
    input_name = identity.graph.input[0].name
    slow = save(graphs.slowed(identity, links=60), tmp_path / "slow.onnx")
    other = _negated_where_negative()
    other.graph.input[0].name = other.graph.node[0].input[0] = input_name
    other.graph.output[0].name = other.graph.node[0].output[0] = identity.graph.output[0].name
    wrong = SessionRecipe("wrong", model=save(other, tmp_path / "w.onnx"), providers=CPU)
    feed = {input_name: np.abs(floats(2, 4)) + 1}
    for probes, winner in (([], "wrong"), ([{input_name: -feed[input_name]}], "reference")):
        tuned = TunedSession(
            slow, one_thread(), providers=CPU, candidates=[wrong], probes=probes, tuner=StackTuner(QUICK)
        )
        assert tuned.tune(feed).name == winner


def test_the_callers_buffers_are_never_written_to(tmp_path: Path) -> None:
    tuned, _, _ = tuned_pair(tmp_path, graphs.mlp())
    x = floats(2, 16)
    before = x.copy()
    x.flags.writeable = False
    tuned.run(None, {"x": x})
    np.testing.assert_array_equal(x, before)


def test_arrays_that_are_not_contiguous_are_served_as_the_raw_session_serves_them(tmp_path: Path) -> None:
    tuned, raw, _ = tuned_pair(tmp_path, graphs.mlp())
    x = floats(16, 4).T
    for _ in range(2):
        np.testing.assert_allclose(
            tuned.run(None, {"x": x})[0], raw.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6
        )


def test_run_async_uses_a_choice_in_memory_and_never_searches(tmp_path: Path) -> None:
    tuned, raw, tuner = tuned_pair(tmp_path, graphs.mlp())
    tuned.set_providers(CPU)
    feed, done, seen = {"x": floats(1, 16)}, threading.Event(), []

    def callback(results: Any, data: Any, error: str) -> None:
        seen.append((results, data, error))
        done.set()

    options = one_thread()
    options.intra_op_num_threads = 2
    slow, fast = fast_twin(tmp_path, graphs.mlp())
    two = SessionRecipe("two", model=fast.model, providers=CPU, session_options={"intra_op_num_threads": 2})
    tuned = TunedSession(slow, options, providers=CPU, candidates=[two], tuner=tuner)
    for tunes in (0, 1):
        done.clear()
        tuned.run_async(None, feed, callback, "mine")
        assert done.wait(30)
        results, data, error = seen.pop()
        assert (data, error) == ("mine", "")
        np.testing.assert_allclose(results[0], raw.run(None, feed)[0], rtol=1e-5, atol=1e-6)
        assert tuner.stats().tunes == tunes
        tuned.tune(feed)


def test_ort_values_in_and_out(tmp_path: Path) -> None:
    tuned, raw, tuner = tuned_pair(tmp_path, graphs.mlp())
    x = floats(2, 16)
    values = {"x": ort.OrtValue.ortvalue_from_numpy(x)}
    for _ in range(2):
        (out,) = tuned.run_with_ort_values(None, values)
        assert isinstance(out, ort.OrtValue)
        np.testing.assert_allclose(out.numpy(), raw.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)
    assert tuner.stats().tunes == 1
    np.testing.assert_allclose(tuned.run(None, values)[0], raw.run(None, values)[0], rtol=1e-5, atol=1e-6)
    assert tuner.stats().tunes == 1


def test_run_options_with_a_terminate_flag_end_the_run_and_ban_nobody(tmp_path: Path) -> None:
    tuned, _, tuner = tuned_pair(tmp_path, graphs.mlp())
    feed = {"x": floats(1, 16)}
    tuned.tune(feed)
    options = ort.RunOptions()
    tuned.run(None, feed, options)
    options.terminate = True
    with pytest.raises(Exception, match="terminate"):
        tuned.run(None, feed, options)
    assert tuner.stats().invalidations == 0


def test_other_providers_make_another_reference(tmp_path: Path) -> None:
    tuned, raw, _ = tuned_pair(tmp_path, graphs.mlp())
    feed = {"x": floats(1, 16)}
    tuned.tune(feed)
    tuned.set_providers(CPU)
    np.testing.assert_allclose(tuned.run(None, feed)[0], raw.run(None, feed)[0], rtol=1e-5, atol=1e-6)


def test_a_profiled_session_is_left_alone_so_that_its_profile_is_whole(tmp_path: Path) -> None:
    slow, fast = fast_twin(tmp_path, graphs.mlp())
    options = one_thread()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    tuner = StackTuner(QUICK)
    tuned = TunedSession(slow, options, providers=CPU, candidates=[fast], tuner=tuner)
    tuned.run(None, {"x": floats(1, 16)})
    assert Path(tuned.end_profiling()).exists()
    assert tuner.stats().tunes == 0
    assert len(list(tmp_path.glob("profile*"))) == 1


def test_options_that_cannot_be_read_back_leave_the_reference_in_place(tmp_path: Path) -> None:
    model = graphs.mlp()
    weight = model.graph.initializer[0]
    value = onnx.numpy_helper.to_array(weight)
    options = one_thread()
    injected = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value * 0.5))
    options.add_initializer(weight.name, injected)
    path = save(model, tmp_path / "m.onnx")
    tuner = StackTuner(QUICK)
    tuned = TunedSession(path, options, providers=CPU, tuner=tuner)
    feed = {"x": floats(1, 16)}
    with raising(FailureKind.INVALID_INPUT, "rebuilt"):
        tuned.tune(feed)
    report = tuned.report(feed)
    assert report is not None
    assert "rebuilt" in report.candidates[0].note
    plain = TunedSession(path, one_thread(), providers=CPU, candidates=[], tuner=tuner)
    assert plain.tune(feed).source is DecisionSource.TUNED


def test_a_session_and_its_memory_go_when_the_last_reference_goes(tmp_path: Path) -> None:
    tuned, _, _ = tuned_pair(tmp_path, graphs.mlp())
    tuned.run(None, {"x": floats(1, 16)})
    gone = weakref.ref(tuned)
    del tuned
    assert gone() is None


def test_a_model_given_as_bytes_is_tuned(tmp_path: Path) -> None:
    slow, fast = fast_twin(tmp_path, graphs.mlp())
    tuned = TunedSession(
        Path(slow).read_bytes(), one_thread(), providers=CPU, candidates=[fast], tuner=StackTuner(QUICK)
    )
    assert tuned.tune({"x": floats(1, 16)}).name == "fast"


def test_a_choice_of_another_session_serves_only_one_that_answers_alike(tmp_path: Path) -> None:
    model = graphs.mlp()
    slow, fast = fast_twin(tmp_path, model)
    tuner, feed = StackTuner(QUICK), {"x": floats(1, 16)}
    first = TunedSession(slow, one_thread(), providers=CPU, candidates=[fast], tuner=tuner)
    assert first.tune(feed).name == "fast"
    options = one_thread()
    weight = model.graph.initializer[0]
    halved = np.ascontiguousarray(onnx.numpy_helper.to_array(weight) * 0.5)
    injected = ort.OrtValue.ortvalue_from_numpy(halved)
    options.add_initializer(weight.name, injected)
    raw = ort.InferenceSession(slow, options, providers=CPU)
    second = TunedSession(slow, options, providers=CPU, candidates=[fast], tuner=tuner)
    for _ in range(3):
        np.testing.assert_allclose(second.run(None, feed)[0], raw.run(None, feed)[0], rtol=1e-5, atol=1e-6)
    assert second._lane().live_winners() <= 1
    third = TunedSession(slow, one_thread(), providers=CPU, candidates=[fast], tuner=tuner)
    third.run(None, feed)
    decision = third.decision(feed)
    assert decision is not None
    assert decision.name == "fast"


def test_a_model_replaced_under_a_session_does_not_change_what_it_answers(tmp_path: Path) -> None:
    tuner, feed = StackTuner(QUICK), {"x": floats(1, 16)}
    slow, fast = fast_twin(tmp_path, graphs.mlp(seed=0))
    old = TunedSession(slow, one_thread(), providers=CPU, candidates=[fast], tuner=tuner)
    expected = ort.InferenceSession(slow, one_thread(), providers=CPU).run(None, feed)[0]
    slow, fast = fast_twin(tmp_path, graphs.mlp(seed=5))
    TunedSession(slow, one_thread(), providers=CPU, candidates=[fast], tuner=tuner).tune(feed)
    for _ in range(3):
        np.testing.assert_allclose(old.run(None, feed)[0], expected, rtol=1e-5, atol=1e-6)


def test_a_callers_mistake_bans_nobody(tmp_path: Path) -> None:
    tuned, _, tuner = tuned_pair(tmp_path, graphs.mlp())
    feed = {"x": floats(1, 16)}
    tuned.run(None, feed)
    for mistake in (
        lambda: tuned.run("y", feed),
        lambda: tuned.run_with_ort_values(None, feed),
        lambda: tuned.run([5], feed),
    ):
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever ONNX Runtime says to it
            mistake()
    assert tuner.stats().invalidations == 0
    decision = tuned.decision(feed)
    assert decision is not None
    assert decision.name == "fast"


def test_output_names_that_can_be_read_only_once_reach_the_raw_session_unread(tmp_path: Path) -> None:
    tuned, raw, _ = tuned_pair(tmp_path, graphs.mlp())
    feed = {"x": floats(1, 16)}
    tuned.run(None, feed)
    assert _error(lambda s: s.run((n for n in ["y"]), feed), tuned) is _error(
        lambda s: s.run((n for n in ["y"]), feed), raw
    )


def test_run_async_works_where_the_winner_has_one_thread(tmp_path: Path) -> None:
    slow, fast = fast_twin(tmp_path, graphs.mlp())
    options = one_thread()
    options.intra_op_num_threads = 2
    tuned = TunedSession(slow, options, providers=CPU, candidates=[fast], tuner=StackTuner(QUICK))
    feed, done, seen = {"x": floats(1, 16)}, threading.Event(), []
    assert tuned.tune(feed).name == "fast"

    def callback(results: Any, data: Any, error: str) -> None:
        seen.append(error)
        done.set()

    tuned.run_async(None, feed, callback, None)
    assert done.wait(30)
    assert seen == [""]


def test_routes_of_bindings_are_voided_while_other_threads_add_some(tmp_path: Path) -> None:
    tuned, _, _ = tuned_pair(tmp_path, graphs.mlp())
    x, stop, errors = floats(1, 16), threading.Event(), []

    def keep_binding() -> None:
        while not stop.is_set():
            binding = tuned.io_binding()
            binding.bind_cpu_input("x", x)
            binding.bind_output("y")
            try:
                tuned.run_with_iobinding(binding)
            except Exception as error:  # the test asks for none
                errors.append(error)

    tuned.run(None, {"x": x})
    threads = [threading.Thread(target=keep_binding) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert tuned._table is not None
    for _ in range(2000):
        tuned._table.choice_gone("no such key")
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_model_that_cannot_be_read_any_more_is_not_read_for_every_request(tmp_path: Path) -> None:
    path = save(graphs.mlp(), tmp_path / "m.onnx")
    tuned = TunedSession(path, one_thread(), providers=CPU, tuner=StackTuner(QUICK))
    (tmp_path / "m.onnx").unlink()
    feed = {"x": floats(1, 16)}
    tuned.run(None, feed)
    save(graphs.mlp(), tmp_path / "m.onnx")
    tuned.run(None, feed)
    report = tuned.report(feed)
    assert report is not None
    assert "can't be read" in report.candidates[0].note


def test_an_input_that_the_reference_refuses_says_nothing_about_a_choice_of_another_session(
    tmp_path: Path,
) -> None:
    slow = save(graphs.slowed(graphs.gather_fails(), links=60), tmp_path / "slow.onnx")
    fast = SessionRecipe("fast", model=save(graphs.gather_fails(), tmp_path / "fast.onnx"), providers=CPU)
    tuner = StackTuner(QUICK)

    def session() -> TunedSession:
        return TunedSession(slow, one_thread(), providers=CPU, candidates=[fast], tuner=tuner)

    names = {meta.name: meta for meta in session().get_inputs()}
    (index,) = [name for name, meta in names.items() if "int64" in meta.type]
    rest = {
        name: floats(*(2 if isinstance(d, str) else d for d in meta.shape)) for name, meta in names.items()
    }
    size = [d if isinstance(d, int) else 2 for d in names[index].shape]
    good, bad = {**rest, index: np.zeros(size, np.int64)}, {**rest, index: np.full(size, 10**6, np.int64)}
    assert session().tune(good).name == "fast"
    second = session()
    with pytest.raises(Exception, match=r"[Ii]ndex|indices|out of"):
        second.run(None, bad)
    second.run(None, good)
    decision = second.decision(good)
    assert decision is not None
    assert decision.name == "fast"
