"""Requests whose tensors lie in CUDA's memory: ways in and out, what is refused, and what is never copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from cuda_parts import CUDA, FULL_FLOAT32, on_cuda, products, saved
from tuning import CPU, QUICK, floats, one_thread

from ort_stacktune import FailureKind, SessionRecipe, StackTuner, TunedSession
from ort_stacktune.ort.devices import Memory
from ort_stacktune.ort.request import Request
from ort_stacktune.ort.tensors import Port
from ort_stacktune.ort.trials import SessionTrials
from ort_stacktune.reading import CallReader, Refusal
from ort_stacktune.vocabulary import CandidateReport

pytestmark = [pytest.mark.gpu, pytest.mark.standin]

PROVIDERS = [(CUDA, FULL_FLOAT32), *CPU]
SHAPE = (4, 16)


@pytest.fixture
def tuner() -> StackTuner:
    return StackTuner(QUICK)


def tuned(tmp_path: Path, tuner: StackTuner, *candidates: SessionRecipe, **stream: str) -> TunedSession:
    other = on_cuda("other", arena_extend_strategy="kSameAsRequested", **stream)
    return TunedSession(
        saved(tmp_path, products()),
        one_thread(),
        providers=[(CUDA, {**FULL_FLOAT32, **stream}), *CPU],
        candidates=[*candidates, other],
        tuner=tuner,
    )


def right(x: Any) -> Any:
    raw = ort.InferenceSession(products().SerializeToString(), one_thread(), providers=CPU)
    return raw.run(None, {"x": x})[0]


def on_device(array: Any) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0)


def told_of(tuner: StackTuner, name: str) -> CandidateReport:
    return next(each for each in tuner.reports()[-1].candidates if each.name == name)


@pytest.mark.parametrize("way_in", ["value", "array", "dlpack", "address", "host"])
@pytest.mark.parametrize("way_out", ["allocated", "value", "array", "host"])
def test_every_way_in_and_out_is_tuned_and_right(
    way_in: str, way_out: str, tmp_path: Path, tuner: StackTuner
) -> None:
    cupy = pytest.importorskip("cupy")
    session, host = tuned(tmp_path, tuner), floats(*SHAPE)
    x, y = cupy.asarray(host), cupy.zeros(SHAPE, np.float32)
    cupy.cuda.Device(0).synchronize()
    binding = session.io_binding()
    {
        "value": lambda: binding.bind_ortvalue_input("x", on_device(host)),
        "array": lambda: binding.bind_input("x", x),
        "dlpack": lambda: binding.bind_ortvalue_input("x", ort.OrtValue.from_dlpack(x)),
        "address": lambda: binding.bind_input("x", "cuda", 0, np.float32, SHAPE, x.data.ptr),
        "host": lambda: binding.bind_input("x", host),
    }[way_in]()
    {
        "allocated": lambda: binding.bind_output("y", "cuda", 0),
        "value": lambda: binding.bind_output("y", on_device(np.zeros(SHAPE, np.float32))),
        "array": lambda: binding.bind_output("y", y),
        "host": lambda: binding.bind_output("y"),
    }[way_out]()
    for _ in range(2):
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], right(host), rtol=1e-5, atol=1e-6)
    if way_out == "array":
        np.testing.assert_allclose(y.get(), right(host), rtol=1e-5, atol=1e-6)
    assert tuner.stats().tunes == 1
    on_devices = (way_in != "host") + (way_out != "host")
    assert tuner.reports()[0].workload.count("cuda:0") == on_devices


def test_two_bound_arrays_that_overlap_are_state_kept_in_place(tmp_path: Path, tuner: StackTuner) -> None:
    cupy = pytest.importorskip("cupy")
    state = cupy.asarray(floats(*SHAPE))
    cupy.cuda.Device(0).synchronize()
    session = tuned(tmp_path, tuner)
    binding = session.io_binding()
    binding.bind_input("x", state)
    binding.bind_output("y", state)
    request = CallReader(session).of_binding(binding, None)
    assert isinstance(request, Refusal)
    assert "in place" in request.reason


def test_reading_what_a_request_is_touches_no_content(
    tmp_path: Path, tuner: StackTuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = tuned(tmp_path, tuner)
    monkeypatch.setattr(Port, "read", lambda *_: pytest.fail("it was read"))
    monkeypatch.setattr(ort.OrtValue, "numpy", lambda *_: pytest.fail("it was read"))
    request = CallReader(session).of_run(None, {"x": on_device(floats(*SHAPE))}, None)
    assert isinstance(request, Request)
    assert request.inputs_on_devices() == {"x": Memory("cuda", 0)}
    assert "cuda:0" in request.signature(frozenset({"x"})).text()


def test_a_tensor_on_another_device_than_the_sessions_is_left_to_it(
    tmp_path: Path, tuner: StackTuner
) -> None:
    session, value = tuned(tmp_path, tuner), on_device(floats(*SHAPE))
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 1, np.float32, SHAPE, value.data_ptr())
    binding.bind_output("y")
    request = CallReader(session).of_binding(binding, None)
    assert isinstance(request, Refusal)
    assert "cuda:1" in request.reason


def test_a_candidate_for_another_device_or_none_is_refused_by_name(tmp_path: Path, tuner: StackTuner) -> None:
    session = tuned(tmp_path, tuner, SessionRecipe("cpu", providers=CPU), on_cuda("second", device_id="1"))
    x = floats(*SHAPE)
    (out,) = session.run(None, {"x": on_device(x)})
    np.testing.assert_allclose(out, right(x), rtol=1e-5, atol=1e-6)
    for name in ("cpu", "second"):
        refused = told_of(tuner, name)
        assert refused.rejection is FailureKind.REJECTED
        assert "cuda:0" in refused.note
        assert refused.create_ns is None
    assert told_of(tuner, "other").rejection is None


def test_only_a_candidate_on_the_callers_stream_may_serve_its_tensors(
    tmp_path: Path, tuner: StackTuner
) -> None:
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    session = tuned(tmp_path, tuner, on_cuda("elsewhere"), user_compute_stream=str(stream.ptr))
    x = floats(*SHAPE)
    (out,) = session.run(None, {"x": on_device(x)})
    np.testing.assert_allclose(out, right(x), rtol=1e-5, atol=1e-6)
    assert "stream" in told_of(tuner, "elsewhere").note
    assert told_of(tuner, "elsewhere").rejection is FailureKind.REJECTED
    assert told_of(tuner, "other").rejection is None


def test_an_array_of_other_strides_is_refused_when_it_is_bound(tmp_path: Path, tuner: StackTuner) -> None:
    cupy = pytest.importorskip("cupy")

    class Transposed:
        __cuda_array_interface__ = {  # noqa: RUF012 - as an array has it
            **cupy.asarray(floats(16, 4)).__cuda_array_interface__,
            "shape": SHAPE,
            "strides": (4, 16),
        }

    binding = tuned(tmp_path, tuner).io_binding()
    with pytest.raises(Exception, match="not contiguous") as caught:
        binding.bind_input("x", Transposed())
    assert caught.value.kind is FailureKind.INVALID_INPUT  # type: ignore[attr-defined]


def test_what_a_trial_took_of_the_device_is_given_back(tmp_path: Path, tuner: StackTuner) -> None:
    session = tuned(tmp_path, tuner)
    closed: list[SessionTrials] = []
    real = SessionTrials.close

    def closing(self: SessionTrials) -> None:
        real(self)
        closed.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SessionTrials, "close", closing)
        session.run(None, {"x": on_device(floats(*SHAPE))})
    assert closed
    assert not closed[0]._memory._ports
    assert not closed[0]._memory._clones
