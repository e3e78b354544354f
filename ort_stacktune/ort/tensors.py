"""Owns tensors in a device's memory, and copies into it and out of it.

Saying what a tensor is never touches its content. Copies are made for trials alone, by tiny sessions on the
execution provider that owns the memory, so that every kind of it is reached in one way and in that
provider's own order. Must never write to a caller's buffer.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ort_stacktune.ort.devices import (
    CPU,
    HOST,
    Memory,
    binding_word,
    by_handle,
    copying_provider,
    memory_of_word,
    owned_memory,
)
from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.recipes import Provider
from ort_stacktune.signature import Array

_FATAL_ONLY = 4

# Two clones that take turns, and those of the inputs that a validation is at.
_CLONES = 4


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTensor:
    """A tensor of numbers in a device's memory, known by all but its content.

    It keeps the caller's value alive, or, for a bare address, relies on the caller to do so.

    Attributes:
        dtype: Element type.
        shape: Exact shape.
        memory: Where it lies.
        providers: Providers of the session that it was handed to, among them the memory's owner.
        value: The ``onnxruntime.OrtValue``; ``None`` for a bare address.
        address: Where it begins, as the device counts.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    memory: Memory
    providers: tuple[Provider, ...]
    value: Any = None
    address: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def copy(self) -> Array:
        """Reads it back: returns a copy of its content in host memory."""
        return read_back({"": self})[""]

    def overlaps(self, other: DeviceTensor) -> bool:
        """Whether both share memory."""
        if self.memory != other.memory or not self.nbytes or not other.nbytes:
            return False
        if by_handle(self.memory):
            return self.address == other.address
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


Tensor = Array | DeviceTensor
"""What a request feeds: an array in host memory, or a tensor in a device's."""


DTYPES = {
    "tensor(float)": "f4",
    "tensor(double)": "f8",
    "tensor(float16)": "f2",
    "tensor(int8)": "i1",
    "tensor(int16)": "i2",
    "tensor(int32)": "i4",
    "tensor(int64)": "i8",
    "tensor(uint8)": "u1",
    "tensor(uint16)": "u2",
    "tensor(uint32)": "u4",
    "tensor(uint64)": "u8",
    "tensor(bool)": "b1",
}
"""ONNX Runtime's names of the element types that numpy has, and numpy's."""


def tensor_of(value: Any, providers: Callable[[], tuple[Provider, ...]]) -> Tensor | str:
    """Returns what an ``onnxruntime.OrtValue`` holds, or why trials can't repeat it.

    Args:
        value: The value; nothing of it is copied.
        providers: Tells the providers of the session that it is handed to.
    """
    try:
        known = value.is_tensor() and value.data_type() in DTYPES
    except Exception:  # noqa: BLE001 - values without content, or of odd types, raise in several ways
        known = False
    if not known:
        return "is no tensor of numbers that numpy has a type for"
    word = value.device_name().lower()
    if word == HOST.kind:
        array: Array = value.numpy()
        return array
    return tensor_at(
        word,
        _number_of_device(value),
        np.dtype(DTYPES[value.data_type()]),
        tuple(value.shape()),
        value.data_ptr(),
        providers(),
        value,
    )


def _number_of_device(value: Any) -> int:
    try:
        return int(value.__dlpack_device__()[1])
    except Exception:  # noqa: BLE001 - such values have no number: WebGPU has one device, older builds tell none
        return 0


def tensor_at(
    word: str,
    device_id: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    address: int,
    providers: tuple[Provider, ...],
    value: Any = None,
) -> DeviceTensor | str:
    """Returns a tensor in a device's memory, or why a session can't reach it."""
    memory = memory_of_word(word, device_id, providers)
    if memory is None or memory not in owned_memory(providers):
        names = ", ".join(name for name, _ in providers)
        return f"lies in memory of {word}:{device_id}, which this session's {names} can't reach"
    if value is None and by_handle(memory):
        return f"is bound by an address, and {memory.kind} has handles where others have addresses"
    return DeviceTensor(dtype, shape, memory, providers, value, address)


def read_back(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Returns copies of tensors in host memory, each read once."""
    ports: dict[Memory, Port] = {}
    copies: dict[str, Array] = {}
    try:
        for name, tensor in tensors.items():
            if not isinstance(tensor, DeviceTensor):
                copies[name] = np.array(tensor)
                continue
            if tensor.memory not in ports:
                ports[tensor.memory] = Port(tensor.memory, tensor.providers)
            copies[name] = ports[tensor.memory].read(tensor)
    finally:
        for port in ports.values():
            port.close()
    return copies


class Port:
    """Copies between arrays and one device's memory.

    Args:
        memory: The device's memory.
        providers: Providers of the session whose tensors are copied: which queue they work on decides what
            a copy comes after.
    """

    def __init__(self, memory: Memory, providers: Sequence[Provider]) -> None:
        self.memory = memory
        self._word = binding_word(memory)
        self._provider = copying_provider(memory, providers)
        self._sessions: dict[np.dtype[Any], Any] = {}
        self._kept: weakref.WeakSet[Any] = weakref.WeakSet()

    def read(self, tensor: DeviceTensor) -> Array:
        """Returns a copy of a tensor, once whatever was submitted to its device before is done."""
        if not tensor.nbytes:
            return np.empty(tensor.shape, tensor.dtype)
        session = self._session(tensor.dtype)
        with _opened(session) as binding:
            if tensor.value is not None:
                binding.bind_ortvalue_input("x", tensor.value)
            else:
                binding.bind_input(
                    "x", self._word, self.memory.id, tensor.dtype.type, tensor.shape, tensor.address
                )
            binding.bind_output("y")
            binding.synchronize_inputs()
            session.run_with_iobinding(binding)
            copied: Array = binding.copy_outputs_to_cpu()[0]
        return copied

    def place(self, array: Array) -> Any:
        """Returns an ``onnxruntime.OrtValue`` on the device with an array's content; it lasts as this port."""
        session = self._session(array.dtype)
        with _opened(session) as binding:
            binding.bind_cpu_input("x", np.asarray(array, order="C"))
            binding.bind_output("y", self._word, self.memory.id)
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()
            # It keeps the native binding, which nobody runs again.
            value = binding.get_outputs()[0]
        self._kept.add(value)
        return value

    def fill(self, buffer: Any, value: Any) -> None:
        """Copies an array or an ``onnxruntime.OrtValue`` into a placed one of the same type and shape."""
        session = self._session(np.dtype(DTYPES[buffer.data_type()]))
        with _opened(session) as binding:
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input("x", np.asarray(value, order="C"))
            else:
                binding.bind_ortvalue_input("x", value)
            binding.bind_ortvalue_output("y", buffer)
            binding.synchronize_inputs()
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()

    def reader(self, array: Array) -> Callable[[], None]:
        """Returns a call that reads a placed copy of an array back, after all that was submitted before it."""
        session = self._session(array.dtype)
        placed, binding = self.place(array), session.io_binding()
        self._kept.add(binding)
        binding.bind_ortvalue_input("x", placed)
        binding.bind_output("y")

        def read(_keep: object = placed) -> None:
            session.run_with_iobinding(binding)

        return read

    def close(self) -> None:
        """Closes its sessions; what was placed through it goes with them."""
        let_go(self._kept)
        self._sessions.clear()

    def _session(self, dtype: np.dtype[Any]) -> Any:
        session = self._sessions.get(dtype)
        if session is None:
            ort = onnxruntime()
            options = ort.SessionOptions()
            options.log_severity_level = _FATAL_ONLY
            options.intra_op_num_threads = 1
            session = self._sessions[dtype] = ort.InferenceSession(
                _identity(dtype), options, providers=[self._provider, (CPU, {})], enable_fallback=0
            )
        return session


@contextmanager
def _opened(session: Any) -> Iterator[Any]:
    binding = session.io_binding()
    try:
        yield binding
    finally:
        let_go([binding])


def let_go(natives: Iterable[Any]) -> None:
    """Frees bindings and values of ONNX Runtime now, whoever still holds the objects, a traceback perhaps.

    With some providers (WebGPU) the process crashes where one of them outlives the session it came out of.
    """
    for each in list(natives):
        for native in ("_iobinding", "_ortvalue"):
            if hasattr(each, native):
                setattr(each, native, None)


class TrialMemory:
    """The device side of one trial: clones of its inputs, buffers for its outputs.

    Args:
        inputs: Input name -> where the request has it.
        providers: Providers of the session that the request was made to.
    """

    def __init__(self, inputs: Mapping[str, Memory], providers: Sequence[Provider]) -> None:
        self._inputs = {name: memory for name, memory in inputs.items() if memory != HOST}
        self._providers = tuple(providers)
        self._ports: dict[tuple[Any, ...], Port] = {}
        self._clones: OrderedDict[int, tuple[Mapping[str, Array], Mapping[str, Any]]] = OrderedDict()

    def place(self, feeds: Mapping[str, Array]) -> Mapping[str, Any]:
        """Returns feeds as the request brings them: arrays, and clones as ``onnxruntime.OrtValue``.

        Clones of the feeds used last are kept, so that prepared inputs are rotated without a copy.
        """
        if not self._inputs:
            return feeds
        kept = self._clones.get(id(feeds))
        if kept is None:
            placed = {
                name: self.buffer(self._inputs[name], array) if name in self._inputs else array
                for name, array in feeds.items()
            }
            kept = self._clones[id(feeds)] = (feeds, placed)
            if len(self._clones) > _CLONES:
                _, (_, oldest) = self._clones.popitem(last=False)
                let_go(value for value in oldest.values() if not isinstance(value, np.ndarray))
        self._clones.move_to_end(id(feeds))
        return kept[1]

    def buffer(self, memory: Memory, array: Array) -> Any:
        """Returns an ``onnxruntime.OrtValue`` of the trial's own with an array's content."""
        if memory == HOST:
            return onnxruntime().OrtValue.ortvalue_from_numpy(array)
        return self._port(memory, self._providers).place(array)

    def port_of(self, providers: Sequence[Provider]) -> Port:
        """Returns the way to the device that a session's providers work on first."""
        return self._port(owned_memory(providers)[0], providers)

    def _port(self, memory: Memory, providers: Sequence[Provider]) -> Port:
        # One for all sessions of the same device and queue.
        provider, options = copying_provider(memory, providers)
        slot = (memory, provider, *sorted(options.items()))
        if slot not in self._ports:
            self._ports[slot] = Port(memory, providers)
        return self._ports[slot]

    def close(self) -> None:
        """Gives back all of it; what was placed may not be used afterwards."""
        self._clones.clear()
        for port in self._ports.values():
            port.close()
        self._ports.clear()


def _identity(dtype: np.dtype[Any]) -> bytes:
    kind = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "copy",
        [onnx.helper.make_tensor_value_info("x", kind, None)],
        [onnx.helper.make_tensor_value_info("y", kind, None)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    data: bytes = model.SerializeToString()
    return data


def before_exit(act: Callable[[], None]) -> None:
    """Has a bound method called at the interpreter's exit if its object is still there then.

    Some providers (WebGPU) crash where a binding, or a value that came out of one, outlives them.
    """
    weakref.finalize(act.__self__, _call, weakref.WeakMethod(act))  # type: ignore[attr-defined]


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    act = method()
    if act is not None:
        act()
