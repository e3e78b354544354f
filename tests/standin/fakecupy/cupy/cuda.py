"""As ``cupy.cuda``: streams, events, devices and memory."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

from ._runtime import CUDARuntimeError, call

_local = threading.local()
_kept: dict[int, list[int]] = {}


class Stream:
    """A stream, or with ``null=True`` the default one."""

    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        made = ctypes.c_void_p()
        if not null:
            call("cudaStreamCreateWithFlags", ctypes.byref(made), int(non_blocking))
        self.ptr = made.value or 0

    @property
    def handle(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.ptr)

    def __enter__(self) -> Stream:
        _stack().append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _stack().pop()

    def use(self) -> Stream:
        _stack()[-1] = self
        return self

    def synchronize(self) -> None:
        call("cudaStreamSynchronize", self.handle)

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        call("cudaStreamWaitEvent", self.handle, event.handle, 0)


class ExternalStream(Stream):
    """A stream that somebody else made."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        self.ptr = ptr


Stream.null = Stream(null=True)


def _stack() -> list[Stream]:
    if not hasattr(_local, "streams"):
        _local.streams = [Stream.null]
    streams: list[Stream] = _local.streams
    return streams


def get_current_stream() -> Stream:
    return _stack()[-1]


class Event:
    """An event on a stream."""

    def __init__(self, block: bool = True, disable_timing: bool = False, interprocess: bool = False) -> None:
        made = ctypes.c_void_p()
        call("cudaEventCreate", ctypes.byref(made))
        self.ptr = made.value or 0

    @property
    def handle(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.ptr)

    def record(self, stream: Stream | None = None) -> None:
        call("cudaEventRecord", self.handle, (stream or get_current_stream()).handle)

    def synchronize(self) -> None:
        call("cudaEventSynchronize", self.handle)


def get_elapsed_time(start: Event, end: Event) -> float:
    milliseconds = ctypes.c_float()
    call("cudaEventElapsedTime", ctypes.byref(milliseconds), start.handle, end.handle)
    return milliseconds.value


class Device:
    """The one device there is."""

    compute_capability = "90"

    def __init__(self, device: int = 0) -> None:
        if device != 0:
            raise CUDARuntimeError(101)
        self.id = device

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def use(self) -> None:
        pass

    def synchronize(self) -> None:
        call("cudaDeviceSynchronize")


class UnownedMemory:
    """Memory that somebody else owns and keeps alive."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class Memory:
    """Memory of this package's own; dropped, it is kept for the next array of that size."""

    def __init__(self, size: int) -> None:
        self.size, self.device_id = size, 0
        kept = _kept.setdefault(size, [])
        if kept:
            self.ptr = kept.pop()
            return
        made = ctypes.c_void_p()
        call("cudaMalloc", ctypes.byref(made), ctypes.c_size_t(max(1, size)))
        self.ptr = made.value or 0

    def __del__(self) -> None:
        if hasattr(self, "ptr"):
            _kept[self.size].append(self.ptr)


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)


def alloc(size: int) -> MemoryPointer:
    return MemoryPointer(Memory(size), 0)


def is_available() -> bool:
    return True


def _number(name: str) -> int:
    number = ctypes.c_int()
    call(name, ctypes.byref(number))
    return number.value


runtime = SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError,
    getDeviceCount=lambda: _number("cudaGetDeviceCount"),
    runtimeGetVersion=lambda: _number("cudaRuntimeGetVersion"),
    driverGetVersion=lambda: _number("cudaDriverGetVersion"),
    deviceSynchronize=lambda: call("cudaDeviceSynchronize"),
    streamSynchronize=lambda ptr: call("cudaStreamSynchronize", ctypes.c_void_p(ptr)),
    memcpy=lambda to, source, size, kind: call(
        "cudaMemcpy", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size), kind
    ),
)
