"""A real NVIDIA GPU: kernels and their numbers, streams, events, and a table of what each way to call costs.

It needs no network and, beside a build of ONNX Runtime for CUDA, only what the package needs and cupy.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from cuda_parts import CUDA, FULL_FLOAT32, model_of, on_cuda, on_standin, products, saved
from onnx import helper, numpy_helper
from tuning import CPU, floats, one_thread

from ort_stacktune import FailureKind, SessionRecipe, StackPolicy, StackTuner, Timing, TunedSession
from ort_stacktune.environment import describe
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.sessions import make_session

pytestmark = pytest.mark.gpu

POLICY = StackPolicy(budget_s=20.0, max_relative_mad=10.0)
ON_THE_GPU = [(CUDA, FULL_FLOAT32), *CPU]
REFERENCE = SessionRecipe("reference", providers=CPU)


def convolutions(channels: int = 64, size: int = 56) -> onnx.ModelProto:
    """Returns four convolutions with Relu between them."""
    rng = np.random.default_rng(3)
    nodes, weights = [], []
    for i, (before, after) in enumerate([(3, channels), *[(channels, channels)] * 3]):
        kernel = rng.standard_normal((after, before, 3, 3)) / (9 * before) ** 0.5
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"w{i}"))
        last = "y" if i == 3 else f"r{i}"
        nodes += [
            helper.make_node("Conv", [f"r{i - 1}" if i else "x", f"w{i}"], [f"c{i}"], pads=[1] * 4),
            helper.make_node("Relu", [f"c{i}"], [last]),
        ]
    return model_of(nodes, [("x", [4, 3, size, size])], [("y", [4, channels, size, size])], weights)


def many_small_nodes(links: int = 150) -> onnx.ModelProto:
    """Returns a chain of tiny operators, of which the launches take longer than the work."""
    kinds = ("Tanh", "Sigmoid", "Neg")
    names = ["x", *(f"t{i}" for i in range(1, links)), "y"]
    nodes = [helper.make_node(kinds[i % 3], [names[i]], [names[i + 1]]) for i in range(links)]
    return model_of(nodes, [("x", ["rows", 64])], [("y", ["rows", 64])])


def normalised() -> onnx.ModelProto:
    """Returns a softmax less its mean."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], axis=-1),
        helper.make_node("ReduceMean", ["s"], ["m"], axes=[-1]),
        helper.make_node("Sub", ["s", "m"], ["y"]),
    ]
    return model_of(nodes, [("x", ["rows", 1024])], [("y", ["rows", 1024])])


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[int, ...]]] = {
    "products": (lambda: products(2048, 4), (64, 2048)),
    "convolutions": (convolutions, (4, 3, 56, 56)),
    "small nodes": (many_small_nodes, (8, 64)),
    "softmax": (normalised, (256, 1024)),
}


def error_of(found: Any, expected: Any) -> float:
    """Returns the relative error in the 2-norm."""
    return float(np.linalg.norm(found.astype(np.float64) - expected) / (np.linalg.norm(expected) or 1.0))


def on_the_host(path: str, x: Any) -> Any:
    return ort.InferenceSession(path, providers=CPU).run(None, {"x": x})[0]


# --- numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_full_float32_agrees_with_the_host(tmp_path: Path, name: str) -> None:
    make, shape = MODELS[name]
    path, x = saved(tmp_path, make()), floats(*shape)
    session = make_session(on_cuda(), ModelSource.of(path), REFERENCE, trial=True)
    assert set(session.nodes) == {CUDA}
    assert error_of(session.session.run(None, {"x": x})[0], on_the_host(path, x)) < 1e-4


@pytest.mark.parametrize(
    "options",
    [{"prefer_nhwc": "1"}, {"fuse_conv_bias": "1"}, {"cudnn_conv_algo_search": "HEURISTIC"}],
    ids=lambda options: next(iter(options)),
)
def test_options_that_choose_other_kernels_agree_with_the_host(
    tmp_path: Path, options: dict[str, str]
) -> None:
    path, x = saved(tmp_path, convolutions()), floats(4, 3, 56, 56)
    session = make_session(on_cuda(**options), ModelSource.of(path), REFERENCE, trial=True).session
    assert error_of(session.run(None, {"x": x})[0], on_the_host(path, x)) < 1e-4


def test_tf32_is_less_exact_and_a_strict_tolerance_rejects_it(tmp_path: Path) -> None:
    path, x = saved(tmp_path, products(1024, 4)), floats(64, 1024)
    session = make_session(on_cuda(use_tf32="1"), ModelSource.of(path), REFERENCE, trial=True).session
    assert 1e-5 < error_of(session.run(None, {"x": x})[0], on_the_host(path, x)) < 1e-2
    tuned = TunedSession(
        path, providers=CPU, candidates=[on_cuda("tf32", use_tf32="1")], tuner=StackTuner(POLICY)
    )
    tuned.tune({"x": x})
    report = tuned.report({"x": x})
    assert report is not None
    told = next(candidate for candidate in report.candidates if candidate.name == "tf32")
    assert told.rejection is FailureKind.REJECTED


# --- selection --------------------------------------------------------------------------------------


def test_the_gpu_is_chosen_where_it_is_faster(tmp_path: Path) -> None:
    path, x = saved(tmp_path, products(2048, 4)), floats(64, 2048)
    session = TunedSession(
        path, one_thread(), providers=CPU, candidates=[on_cuda()], tuner=StackTuner(POLICY)
    )
    assert session.tune({"x": x}).name == "cuda"
    assert error_of(session.run(None, {"x": x})[0], on_the_host(path, x)) < 1e-4


@pytest.mark.parametrize("name", ["products", "convolutions", "small nodes"])
def test_generated_candidates_are_all_explained_and_what_is_served_is_right(
    tmp_path: Path, name: str
) -> None:
    make, shape = MODELS[name]
    path, x = saved(tmp_path, make()), floats(*shape)
    session = TunedSession(path, providers=ON_THE_GPU, tuner=StackTuner(POLICY))
    decision = session.tune({"x": x})
    report = session.report({"x": x})
    assert report is not None
    assert len(report.candidates) > 1
    for told in report.candidates:
        print(f"  {name:14} {told.name:24} {told.verdict:12} {told.ratio or 0:6.3f}  {told.note}")
        assert told.verdict, told
        assert told.rejection is None or told.note, told
    print(f"  {name:14} chosen: {decision.name}")
    for seed in range(3):
        x = floats(*shape, seed=seed)
        assert error_of(session.run(None, {"x": x})[0], on_the_host(path, x)) < 1e-4


# --- streams and events -----------------------------------------------------------------------------


def test_a_producer_that_is_waited_for_is_seen_and_a_stream_of_the_callers_orders_itself(
    tmp_path: Path,
) -> None:
    cupy = pytest.importorskip("cupy")
    path = saved(tmp_path, products(1024, 2))
    busy = cupy.asarray(floats(4096, 4096))
    stream = cupy.cuda.Stream(non_blocking=True)
    hosts = [floats(64, 1024, seed=seed) for seed in range(4)]
    sources = [cupy.asarray(host) for host in hosts]
    for own in (False, True):
        options = {**FULL_FLOAT32, **({"user_compute_stream": str(stream.ptr)} if own else {})}
        session = TunedSession(path, providers=[(CUDA, options), *CPU], tuner=StackTuner(POLICY))
        x, y = cupy.zeros((64, 1024), np.float32), cupy.zeros((64, 1024), np.float32)
        cupy.cuda.Device(0).synchronize()
        binding = session.io_binding()
        binding.bind_input("x", "cuda", 0, np.float32, x.shape, x.data.ptr)
        binding.bind_output("y", "cuda", 0, np.float32, y.shape, y.data.ptr)
        session.run_with_iobinding(binding)
        for source, host in zip(sources, hosts, strict=True):
            with stream:
                for _ in range(4):
                    busy @ busy  # some ms ahead of the write
                cupy.copyto(x, source)
            if not own:
                stream.synchronize()
            session.run_with_iobinding(binding)
            stream.synchronize()
            assert error_of(cupy.asnumpy(y), on_the_host(path, host)) < 1e-4


def test_event_timing_measures_work_that_the_host_does_not_wait_for(tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    path = saved(tmp_path, products(2048, 4))
    x = ort.OrtValue.ortvalue_from_numpy(floats(64, 2048), "cuda", 0)
    for timing in (Timing.END_TO_END, Timing.DEVICE):
        policy = StackPolicy(budget_s=20.0, max_relative_mad=10.0, timing=timing)
        tuner = StackTuner(policy)
        candidates = [on_cuda("other-arena", arena_extend_strategy="kSameAsRequested")]
        session = TunedSession(path, providers=ON_THE_GPU, candidates=candidates, tuner=tuner)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", x)
        binding.bind_output("y", "cuda", 0)
        session.run_with_iobinding(binding)
        (report,) = tuner.reports()
        told = next(candidate for candidate in report.candidates if candidate.name == "other-arena")
        assert told.rejection is None, told.note
        assert told.median_ns
        print(f"  {timing.name:10} {told.median_ns / 1000:9.1f} us")


# --- environment ------------------------------------------------------------------------------------


def test_the_environment_names_the_gpu_and_its_driver() -> None:
    told = describe(providers=[CUDA])
    for label, text in told.items():
        if any(word in label for word in ("NVIDIA", "CUDA", "cu", "capability", "stored")):
            print(f"  {label}: {text}")
    assert told["NVIDIA driver"] not in ("unknown", "no NVIDIA driver")
    assert told["NVIDIA devices"] != "unknown"
    assert told["CUDA runtime"].startswith("libcudart.so")


# --- speed ------------------------------------------------------------------------------------------


def each(call: Callable[[], object], wait: Callable[[], object] = lambda: None, runs: int = 100) -> float:
    """Returns microseconds of one call, the median of five loops."""
    for _ in range(5):
        call()
    wait()
    found = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(runs):
            call()
        wait()
        found.append((time.perf_counter() - started) / runs * 1e6)
    return statistics.median(found)


def ways_to_call(path: str, x: Any, runs: int, policy: StackPolicy) -> dict[str, float]:
    """Returns what each way to call a model costs, in microseconds."""
    host = ort.InferenceSession(path, providers=CPU)
    raw = ort.InferenceSession(path, providers=ON_THE_GPU)
    replaying = make_session(
        on_cuda(enable_cuda_graph="1"), ModelSource.of(path), REFERENCE, trial=False
    ).session
    tuner = StackTuner(policy)
    tuned = TunedSession(path, providers=ON_THE_GPU, tuner=tuner)
    value = ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0)
    feed = {"x": x}

    def bound(session: Any) -> Callable[[], object]:
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_output("y", "cuda", 0)
        return lambda: session.run_with_iobinding(binding)

    found = {
        "host, run": each(lambda: host.run(None, feed), runs=runs),
        "CUDA, run": each(lambda: raw.run(None, feed), runs=runs),
        "CUDA, binding": each(bound(raw), runs=runs),
        "replay, run": each(lambda: replaying.run(None, feed), runs=runs),
        "tuned, run": each(lambda: tuned.run(None, feed), runs=runs),
        "tuned, binding": each(bound(tuned), runs=runs),
    }
    print("  chosen:", ", ".join(f"{r.winner}" for r in tuner.reports()))
    return found


@pytest.mark.standin
def test_the_table_of_speeds(tmp_path: Path) -> None:
    models, runs, policy = MODELS, 100, POLICY
    if on_standin():
        # A rehearsal: nothing else is computed there, and no time means anything.
        models, runs = {"products": (lambda: products(16, 2), (4, 16))}, 2
        policy = StackPolicy(budget_s=1.0, max_relative_mad=10.0)
    table = {}
    for name, (make, shape) in models.items():
        table[name] = ways_to_call(saved(tmp_path, make(), f"{name}.onnx"), floats(*shape), runs, policy)
    columns = list(next(iter(table.values())))
    print("\nmicroseconds".ljust(15), *(column.rjust(14) for column in columns))
    for name, row in table.items():
        print(name.ljust(14), *(f"{row[column]:14.1f}" for column in columns))
    if folder := os.environ.get("OUT"):
        facts = {"environment": describe(providers=[CUDA]), "microseconds": table}
        (Path(folder) / "gpu_speed.json").write_text(json.dumps(facts, indent=1))
