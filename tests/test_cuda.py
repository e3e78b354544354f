"""CUDA sessions, bindings, graphs and cupy, wherever there is a device: a real GPU, or the stand-in for one.

The models are of products alone, which both compute.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from cuda_parts import CUDA, FULL_FLOAT32, model_of, on_cuda, products, saved
from onnx import TensorProto, helper
from tuning import CPU, QUICK, floats, one_thread

from ort_stacktune import (
    FailureKind,
    SessionRecipe,
    StackPolicy,
    StackTuner,
    Timing,
    TunedSession,
    TuneFailure,
)
from ort_stacktune.ort import captured
from ort_stacktune.ort.captured import CapturedSession
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.sessions import make_session

pytestmark = [pytest.mark.gpu, pytest.mark.standin]

REFERENCE = SessionRecipe("reference", providers=CPU)
GRAPH = {"enable_cuda_graph": "1"}


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    session = ort.InferenceSession(products().SerializeToString(), providers=[CUDA])
    assert CUDA in session.get_providers(), (
        "there is no CUDA device; see make test-gpu and make test-cuda-standin"
    )


def right(path: str, x: Any) -> Any:
    """Returns what the CPU computes."""
    return ort.InferenceSession(path, one_thread(), providers=CPU).run(None, {"x": x})[0]


def close(found: Any, expected: Any) -> bool:
    return bool(np.allclose(found, expected, rtol=1e-3, atol=1e-4))


def replaying(path: str, **changes: Any) -> Any:
    """Returns a session that captures, made as a candidate's is."""
    recipe = on_cuda("graph", **GRAPH, **changes)
    return make_session(recipe, ModelSource.of(path), REFERENCE, trial=True).session


# --- candidates -------------------------------------------------------------------------------------


def test_a_cuda_candidate_is_validated_and_runs_every_node_on_the_device(tmp_path: Path) -> None:
    session = TunedSession(
        saved(tmp_path, products()),
        one_thread(),
        providers=CPU,
        candidates=[on_cuda()],
        tuner=StackTuner(QUICK),
    )
    feed = {"x": floats(4, 16)}
    session.tune(feed)
    report = session.report(feed)
    assert report is not None
    told = next(candidate for candidate in report.candidates if candidate.name == "cuda")
    assert told.verified
    assert told.rejection is None
    assert told.facts["nodes"] == "CUDA 2 of 2"


def test_nodes_that_are_not_on_the_device_are_named(tmp_path: Path) -> None:
    # A loop's trip count is no business of a GPU; nor are strings.
    text = helper.make_node("StringNormalizer", ["s"], ["t"])
    node = helper.make_node("MatMul", ["x", "x"], ["y"])
    types = {"s": TensorProto.STRING, "t": TensorProto.STRING}
    model = model_of([node, text], [("x", [4, 4]), ("s", [1])], [("y", [4, 4]), ("t", [1])], types=types)
    with pytest.raises(TuneFailure, match="StringNormalizer") as caught:
        make_session(on_cuda(), ModelSource.of(saved(tmp_path, model)), REFERENCE, trial=True)
    assert caught.value.kind is FailureKind.REJECTED


def test_a_binding_of_device_values_goes_in_and_out_and_takes_other_shapes(tmp_path: Path) -> None:
    path = saved(tmp_path, products())
    session = TunedSession(
        path,
        one_thread(),
        providers=[(CUDA, FULL_FLOAT32), *CPU],
        candidates=[on_cuda("other-arena", arena_extend_strategy="kSameAsRequested")],
        tuner=StackTuner(QUICK),
    )
    binding = session.io_binding()
    for rows in (4, 7, 4):
        x = floats(rows, 16, seed=rows)
        binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0))
        binding.bind_output("y", "cuda", 0)
        session.run_with_iobinding(binding)
        y = binding.get_outputs()[0]
        assert y.device_name() == "cuda"
        assert close(y.numpy(), right(path, x))


# --- replays ----------------------------------------------------------------------------------------


def test_a_replay_of_inputs_bound_on_the_host_gives_stale_results(tmp_path: Path) -> None:
    # Why sessions that capture are never called as they are.
    path = saved(tmp_path, products())
    raw = ort.InferenceSession(path, providers=[(CUDA, {**FULL_FLOAT32, **GRAPH})])
    binding = raw.io_binding()
    y = ort.OrtValue.ortvalue_from_numpy(np.zeros((4, 16), np.float32), "cuda", 0)
    binding.bind_ortvalue_output("y", y)
    first, second = floats(4, 16), floats(4, 16, seed=1)
    for x in (first, second):
        binding.bind_cpu_input("x", x)
        raw.run_with_iobinding(binding)
        assert close(y.numpy(), right(path, first))


def test_replays_follow_every_input_of_every_signature(tmp_path: Path) -> None:
    path = saved(tmp_path, products())
    session = replaying(path)
    assert isinstance(session, CapturedSession)
    for seed in range(6):
        x = floats(4 + seed % 2, 16, seed=seed)
        assert close(session.run(None, {"x": x})[0], right(path, x))
        assert close(session._sess.run(["y"], {"x": x}, None)[0], right(path, x))
        value = ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0)
        assert close(session.run_with_ort_values(["y"], {"x": value})[0].numpy(), right(path, x))
    assert len(session._sess._slots) == 2


def test_earlier_outputs_are_not_written_over_by_later_replays(tmp_path: Path) -> None:
    path = saved(tmp_path, products())
    session = replaying(path)
    feeds = [floats(4, 16, seed=seed) for seed in range(3)]
    outputs = [session.run(None, {"x": x})[0] for x in feeds]
    assert all(close(y, right(path, x)) for x, y in zip(feeds, outputs, strict=True))


def test_inputs_of_any_layout_are_replayed(tmp_path: Path) -> None:
    path = saved(tmp_path, products())
    session = replaying(path)
    for x in (floats(8, 16)[::2], np.asfortranarray(floats(4, 16, seed=1)), floats(4, 32, seed=2)[:, 16:]):
        assert close(session.run(None, {"x": x})[0], right(path, x))


def test_threads_share_replays(tmp_path: Path) -> None:
    path = saved(tmp_path, products())
    session = replaying(path)
    feeds = [floats(3, 16, seed=seed) for seed in range(4)]
    expected = [right(path, x) for x in feeds]
    wrong: list[Any] = []

    def call(number: int) -> None:
        try:
            for turn in range(10):
                at = (number + turn) % len(feeds)
                if not close(session.run(None, {"x": feeds[at]})[0], expected[at]):
                    wrong.append((number, turn))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_beyond_so_many_signatures_requests_run_without_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured, "_MAX_SIGNATURES", 2)
    path = saved(tmp_path, products())
    session = replaying(path)
    for rows in (1, 2, 3, 4, 1, 3):
        for seed in range(2):
            x = floats(rows, 16, seed=seed)
            assert close(session.run(None, {"x": x})[0], right(path, x))
    assert len(session._sess._slots) == 2


def test_an_input_that_is_read_on_the_host_can_not_be_replayed(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["y"]),
    ]
    model = model_of(
        nodes, [("x", [4, 4]), ("shape", [1])], [("y", ["n"])], types={"shape": TensorProto.INT64}
    )
    with pytest.raises(TuneFailure, match="'shape' lies in host memory") as caught:
        replaying(saved(tmp_path, model))
    assert caught.value.kind is FailureKind.REJECTED


def test_a_graph_with_nodes_elsewhere_can_not_be_replayed(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "x"], ["y"]), helper.make_node("Det", ["s"], ["d"])]
    model = model_of(nodes, [("x", [4, 4]), ("s", [4, 4])], [("y", [4, 4]), ("d", [])])
    with pytest.raises(TuneFailure, match="CPUExecutionProvider runs nodes") as caught:
        replaying(saved(tmp_path, model), allow_partial=True)
    assert caught.value.kind is FailureKind.REJECTED


def test_a_candidate_that_replays_is_validated_and_served_through_its_own_buffers(tmp_path: Path) -> None:
    path = saved(tmp_path, products())
    session = TunedSession(
        path,
        one_thread(),
        providers=[(CUDA, FULL_FLOAT32), *CPU],
        candidates=[on_cuda("graph", **GRAPH)],
        tuner=StackTuner(QUICK),
    )
    feed = {"x": floats(4, 16)}
    session.tune(feed)
    report = session.report(feed)
    assert report is not None
    told = next(candidate for candidate in report.candidates if candidate.name == "graph")
    assert told.verified, told.note
    for seed in range(4):
        x = floats(4, 16, seed=seed)
        assert close(session.run(None, {"x": x})[0], right(path, x))


def test_a_session_of_the_users_own_that_replays_is_left_alone(tmp_path: Path) -> None:
    session = TunedSession(
        saved(tmp_path, products()), providers=[(CUDA, {**FULL_FLOAT32, **GRAPH})], tuner=StackTuner(QUICK)
    )
    feed = {"x": floats(4, 16)}
    session.run(None, feed)
    report = session.report(feed)
    assert report is not None
    assert "replays what it captured" in report.candidates[0].note


def test_a_binding_is_not_served_by_replays(tmp_path: Path) -> None:
    path = saved(tmp_path, products())
    session = TunedSession(
        path,
        one_thread(),
        providers=[(CUDA, FULL_FLOAT32), *CPU],
        candidates=[on_cuda("graph", **GRAPH)],
        tuner=StackTuner(QUICK),
    )
    binding = session.io_binding()
    x = floats(4, 16)
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0))
    binding.bind_output("y", "cuda", 0)
    session.run_with_iobinding(binding)
    assert close(binding.get_outputs()[0].numpy(), right(path, x))


# --- cupy -------------------------------------------------------------------------------------------


def test_arrays_of_cupy_are_bound_where_they_are(tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    path = saved(tmp_path, products())
    session = TunedSession(
        path,
        one_thread(),
        providers=[(CUDA, FULL_FLOAT32), *CPU],
        candidates=[on_cuda("other-arena", arena_extend_strategy="kSameAsRequested")],
        tuner=StackTuner(QUICK),
    )
    host = floats(4, 16)
    x, y = cupy.asarray(host), cupy.zeros((4, 16), np.float32)
    cupy.cuda.Device(0).synchronize()
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 0, np.float32, x.shape, x.data.ptr)
    binding.bind_output("y", "cuda", 0, np.float32, y.shape, y.data.ptr)
    for seed in range(3):
        host = floats(4, 16, seed=seed)
        x.set(host)
        cupy.cuda.Device(0).synchronize()
        session.run_with_iobinding(binding)
        assert close(y.get(), right(path, host))


def test_a_value_goes_to_cupy_and_back_without_a_copy() -> None:
    cupy = pytest.importorskip("cupy")
    host = floats(4, 16)
    value = ort.OrtValue.ortvalue_from_numpy(host, "cuda", 0)
    array = cupy.from_dlpack(value)
    assert array.data.ptr == value.data_ptr()
    assert np.array_equal(array.get(), host)
    again = ort.OrtValue.from_dlpack(array)
    assert again.data_ptr() == value.data_ptr()


def test_device_time_is_taken_by_the_devices_own_events(tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    policy = StackPolicy(budget_s=20.0, max_relative_mad=10.0, timing=Timing.DEVICE)
    session = TunedSession(
        saved(tmp_path, products(size=64)),
        one_thread(),
        providers=[(CUDA, FULL_FLOAT32), *CPU],
        candidates=[on_cuda("other-arena", arena_extend_strategy="kSameAsRequested")],
        tuner=StackTuner(policy),
    )
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(floats(4, 64), "cuda", 0))
    binding.bind_output("y", "cuda", 0)
    session.run_with_iobinding(binding)
    (report,) = session._tuner.reports()
    told = next(candidate for candidate in report.candidates if candidate.name == "other-arena")
    assert told.rejection is None, told.note
    assert told.samples > 0
