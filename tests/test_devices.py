from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tuning import CPU, floats

import graphs
from ort_stacktune import FailureKind, SessionRecipe, TuneFailure
from ort_stacktune.ort.completion import DeviceEvents, events_for, waiting_for
from ort_stacktune.ort.devices import (
    HOST,
    Memory,
    binding_word,
    memory_of_word,
    owned_memory,
    why_unreachable,
)
from ort_stacktune.ort.request import OutputTarget, Request
from ort_stacktune.ort.tensors import DeviceTensor, TrialMemory, read_back, tensor_at, tensor_of
from ort_stacktune.reading import CallReader, Refusal

CUDA = ("CUDAExecutionProvider", {"device_id": "0"})
SECOND_CUDA = ("CUDAExecutionProvider", {"device_id": "1"})
TENSORRT = ("TensorrtExecutionProvider", {})
WEBGPU = ("WebGpuExecutionProvider", {})
OPENVINO = ("OpenVINOExecutionProvider", {})
HOST_ONLY = ("CPUExecutionProvider", {})
FLOAT = np.dtype(np.float32)


def on_stream(pointer: str) -> tuple[str, dict[str, str]]:
    return ("CUDAExecutionProvider", {"user_compute_stream": pointer})


def tensor(address: int, kind: str = "cuda", number: int = 0, count: int = 4) -> DeviceTensor:
    return DeviceTensor(FLOAT, (count,), Memory(kind, number), (CUDA,), None, address)


# --- whose memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "providers", "kind"),
    [
        ("cpu", [HOST_ONLY], "cpu"),
        ("cpu", [CUDA, HOST_ONLY], "cpu"),
        ("cuda", [CUDA, HOST_ONLY], "cuda"),
        ("gpu", [CUDA], "cuda"),
        ("cuda", [TENSORRT], "cuda"),
        ("cuda", [WEBGPU, HOST_ONLY], "webgpu"),
        ("webgpu", [WEBGPU], "webgpu"),
        ("gpu", [WEBGPU], "webgpu"),
        ("dml", [("DmlExecutionProvider", {})], "dml"),
        ("cuda", [("MIGraphXExecutionProvider", {})], "hip"),
        ("cann", [("CANNExecutionProvider", {})], "cann"),
        ("cuda", [HOST_ONLY], None),
        ("cuda", [OPENVINO, HOST_ONLY], None),
        ("npu", [CUDA], None),
        ("cuda", [], None),
    ],
)
def test_a_word_for_memory_means_that_of_the_sessions_own_provider(
    word: str, providers: Any, kind: str | None
) -> None:
    found = memory_of_word(word, 0, providers)
    assert found == (None if kind is None else Memory(kind))


def test_a_memory_is_told_by_kind_and_number() -> None:
    assert [Memory("cuda", 1).text(), Memory("webgpu").text(), HOST.text()] == ["cuda:1", "webgpu:0", "cpu"]
    assert [binding_word(memory) for memory in (HOST, Memory("webgpu"), Memory("hip"))] == [
        "cpu",
        "webgpu",
        "cuda",
    ]
    assert owned_memory([SECOND_CUDA, HOST_ONLY]) == (Memory("cuda", 1),)
    assert owned_memory([TENSORRT, CUDA]) == (Memory("cuda", 0),)


@pytest.mark.parametrize("providers", [[HOST_ONLY], [OPENVINO, HOST_ONLY], [WEBGPU], [SECOND_CUDA], []])
def test_a_candidate_that_does_not_own_the_memory_is_refused_by_name(providers: Any) -> None:
    reason = why_unreachable([HOST, Memory("cuda", 0)], providers, [CUDA])
    assert reason is not None
    assert "cuda:0" in reason
    assert all(name in reason for name, _ in providers)


@pytest.mark.parametrize("providers", [[CUDA], [TENSORRT, CUDA, HOST_ONLY], [TENSORRT]])
def test_a_candidate_that_owns_the_memory_may_try(providers: Any) -> None:
    assert why_unreachable([Memory("cuda", 0), HOST], providers, [CUDA]) is None


def test_a_request_in_host_memory_is_anybodys() -> None:
    assert why_unreachable([HOST], [OPENVINO], [on_stream("7")]) is None


def test_a_candidate_on_another_stream_than_the_callers_is_refused() -> None:
    reasons = [
        why_unreachable([Memory("cuda", 0)], [provider], [on_stream("7")])
        for provider in (CUDA, on_stream("0"), on_stream("8"), on_stream("7"))
    ]
    assert [reason is None for reason in reasons] == [False, False, False, True]
    assert "stream" in str(reasons[0])


def test_a_candidate_on_a_device_of_its_own_of_webgpu_is_refused() -> None:
    apart = ("WebGpuExecutionProvider", {"deviceId": "1"})
    memory = Memory("webgpu", 0)
    assert why_unreachable([memory], [WEBGPU], [WEBGPU]) is None
    assert why_unreachable([memory], [apart], [apart]) is None
    for one, other in ((apart, WEBGPU), (WEBGPU, apart)):
        assert "deviceId" in str(why_unreachable([memory], [one], [other]))
    # Who brings no stream waits before each run.
    assert why_unreachable([Memory("cuda", 0)], [on_stream("7")], [CUDA]) is None


# --- tensors ----------------------------------------------------------------------------------------


def test_tensors_share_memory_where_their_bytes_do() -> None:
    assert tensor(1000).overlaps(tensor(1000))
    assert tensor(1000).overlaps(tensor(1012))
    assert tensor(1012).overlaps(tensor(1000))
    assert not tensor(1000).overlaps(tensor(1016))
    assert not tensor(1000).overlaps(tensor(1000, number=1))
    assert not tensor(1000).overlaps(tensor(1000, count=0))
    # There, an address names a buffer and says nothing of the next one.
    assert tensor(1000, "webgpu").overlaps(tensor(1000, "webgpu"))
    assert not tensor(1000, "webgpu").overlaps(tensor(1012, "webgpu"))


def test_a_tensor_out_of_reach_is_said_to_be() -> None:
    for providers in ((HOST_ONLY,), (SECOND_CUDA,)):
        reason = tensor_at("cuda", 0, FLOAT, (4,), 1000, providers)
        assert isinstance(reason, str)
        assert "cuda:0" in reason
    assert isinstance(tensor_at("webgpu", 0, FLOAT, (4,), 1000, (WEBGPU,)), str)
    found = tensor_at("cuda", 0, FLOAT, (4,), 1000, (CUDA,))
    assert isinstance(found, DeviceTensor)
    assert (found.memory, found.shape, found.nbytes) == (Memory("cuda", 0), (4,), 16)


def test_a_value_in_host_memory_is_a_view_and_odd_values_have_a_reason() -> None:
    x = floats(2, 3)
    view = tensor_of(ort.OrtValue.ortvalue_from_numpy(x), lambda: ())
    assert np.shares_memory(view, x)  # type: ignore[arg-type]
    half = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(2, np.uint16), 16)
    assert half.data_type() == "tensor(bfloat16)"
    assert isinstance(tensor_of(half, lambda: ()), str)


def test_what_is_read_back_of_the_host_is_a_copy() -> None:
    x = floats(2, 3)
    copy = read_back({"x": x})["x"]
    np.testing.assert_array_equal(copy, x)
    assert not np.shares_memory(copy, x)


def test_a_detached_request_asks_the_same_question() -> None:
    memory = Memory("cuda", 1)
    request = Request({"x": floats(2, 3)}, (OutputTarget("y", None, memory),), placed={"x": memory})
    text = request.signature(frozenset()).text()
    assert text.count("cuda:1") == 2
    assert request.detached().signature(frozenset()).text() == text
    assert request.memories() == {memory}
    assert request.inputs_on_devices() == {"x": memory}
    elsewhere = Request({"x": floats(2, 3)}, (OutputTarget("y", None, Memory("cuda")),))
    assert elsewhere.signature(frozenset()).text() != text


def test_feeds_of_the_host_are_handed_on_as_they_are() -> None:
    feeds = {"x": floats(2, 3)}
    memory = TrialMemory({"x": HOST}, (HOST_ONLY,))
    assert memory.place(feeds) is feeds
    memory.close()


@pytest.mark.parametrize("feed", [{"x": [1.0]}, {"x": object()}, {"x": None}], ids=["list", "object", "none"])
def test_what_is_no_tensor_is_left_to_the_session(feed: dict[str, Any]) -> None:
    session = ort.InferenceSession(graphs.mlp().SerializeToString(), providers=CPU)
    assert isinstance(CallReader(session).of_run(None, feed, None), Refusal)


# --- completion -------------------------------------------------------------------------------------


def test_on_the_cpu_there_is_nothing_to_wait_for() -> None:
    def never() -> Any:
        raise AssertionError

    assert waiting_for(never, (HOST_ONLY,), never) is None
    assert waiting_for(never, (), never) is None


def test_elsewhere_the_wait_is_the_providers_own() -> None:
    waited: list[str] = []
    binding = SimpleNamespace(synchronize_outputs=lambda: waited.append("outputs"))
    wait = waiting_for(lambda: binding, (CUDA, HOST_ONLY), lambda: pytest.fail("no port is needed"))
    assert wait is not None
    wait()
    assert waited == ["outputs"]


class Events:
    """What of cupy times a stream, on a made-up clock of the device."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.now_ms = 0.0
        events = self

        class Stream:
            ptr = 4711

            def __init__(self, non_blocking: bool = False) -> None:
                assert non_blocking

            def synchronize(self) -> None:
                events.log.append("stream idle")

        class Event:
            def record(self, stream: Stream) -> None:
                self.at_ms = events.now_ms
                events.log.append("record")

            def synchronize(self) -> None:
                events.log.append("event reached")

        class Device:
            def __init__(self, number: int) -> None:
                events.log.append(f"device {number}")

            def __enter__(self) -> None: ...

            def __exit__(self, *_: object) -> None: ...

        self.cuda = SimpleNamespace(
            Stream=Stream,
            Event=Event,
            Device=Device,
            get_elapsed_time=lambda start, end: end.at_ms - start.at_ms,
        )


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Events:
    events = Events()
    module = ModuleType("cupy")
    module.cuda = events.cuda  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", module)
    return events


def test_events_time_the_work_between_them_and_wait_for_the_last(cupy: Events) -> None:
    events = events_for(SimpleNamespace(provider_list=(SECOND_CUDA, HOST_ONLY)), 1)  # type: ignore[arg-type]

    def work() -> None:
        cupy.log.append("work")
        cupy.now_ms += 2.5

    cupy.log.clear()
    assert events.time(work) == 2_500_000
    assert cupy.log == ["device 1", "stream idle", "record", "work", "record", "event reached"]


def test_events_of_no_length_are_not_no_time(cupy: Events) -> None:
    assert DeviceEvents(cupy, 0).time(lambda: None) == 1


@pytest.mark.parametrize(
    ("providers", "concurrency", "named"),
    [
        ((HOST_ONLY,), 1, "CPUExecutionProvider"),
        ((), 1, "CPUExecutionProvider"),
        ((OPENVINO, HOST_ONLY), 1, "OpenVINOExecutionProvider"),
        ((WEBGPU, HOST_ONLY), 1, "WebGpuExecutionProvider"),
        ((CUDA, HOST_ONLY), 2, "2"),
    ],
)
def test_where_there_are_no_events_the_reason_is_named(
    providers: Any, concurrency: int, named: str, cupy: Events
) -> None:
    with pytest.raises(TuneFailure, match=named) as caught:
        events_for(SimpleNamespace(provider_list=providers), concurrency)  # type: ignore[arg-type]
    assert caught.value.kind is FailureKind.UNAVAILABLE
    assert "END_TO_END" in str(caught.value)


def test_without_cupy_or_a_device_for_it_the_reason_is_named(
    cupy: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe: Any = SimpleNamespace(provider_list=(CUDA,))

    def broken(number: int) -> Any:
        raise RuntimeError("no CUDA-capable device")

    monkeypatch.setattr(cupy.cuda, "Device", broken)
    with pytest.raises(TuneFailure, match="no CUDA-capable device"):
        events_for(recipe, 1)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(TuneFailure, match=r"ort-stacktune\[cupy\]"):
        events_for(recipe, 1)


def test_only_the_providers_with_a_stream_are_put_on_it(cupy: Events) -> None:
    plain = SessionRecipe("plain", providers=CPU)
    assert DeviceEvents(cupy, 0).on_stream(plain).provider_list == plain.provider_list
