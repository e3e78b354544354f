"""The few calls of cupy that tests use, over the stand-in's CUDA runtime.

The real cupy brings a CUDA runtime of its own and can't work on the stand-in. Like the real one, this one
queues copies on the current stream and does not wait for them, and keeps the memory of dropped arrays.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import cuda
from ._dlpack import export, imported
from ._runtime import call

__version__ = "0+standin"
float16, float32, float64, int32, int64, bool_ = (
    np.float16,
    np.float32,
    np.float64,
    np.int32,
    np.int64,
    np.bool_,
)

_HOST_TO_DEVICE, _DEVICE_TO_HOST, _DEVICE_TO_DEVICE = 1, 2, 3


class ndarray:
    """An array in device memory."""

    def __init__(self, shape: Any, dtype: Any = np.float32, memptr: Any = None, strides: Any = None) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.size = int(np.prod(self.shape, dtype=np.int64))
        self.nbytes = self.size * self.dtype.itemsize
        self.ndim = len(self.shape)
        self.data = memptr if memptr is not None else cuda.alloc(self.nbytes)
        # The device's memory is host memory; this view of it tells strides and flags.
        steps = zip(self.shape, strides or (0,) * self.ndim, strict=True)
        span = max(self.nbytes, self.dtype.itemsize + sum((count - 1) * step for count, step in steps))
        memory = (ctypes.c_char * max(1, span)).from_address(self.data.ptr or 1)
        self._view = np.ndarray(self.shape, self.dtype, memory, strides=strides)
        self.strides = self._view.strides
        self.flags = self._view.flags

    @property
    def device(self) -> cuda.Device:
        return cuda.Device(0)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "strides": None if self.flags.c_contiguous else self.strides,
            "data": (self.data.ptr, False),
            "version": 3,
            "stream": 1,
        }

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        return export(self, self.data.ptr, self.shape, self.dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __getitem__(self, key: Any) -> ndarray:
        part = self._view[key]
        offset = part.__array_interface__["data"][0] - self._view.__array_interface__["data"][0]
        return ndarray(part.shape, self.dtype, self.data + offset, part.strides)

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in (Ellipsis, slice(None)):
            raise NotImplementedError("the stand-in's cupy assigns whole arrays only")
        copyto(
            self,
            value if isinstance(value, ndarray) else asarray(np.broadcast_to(value, self.shape), self.dtype),
        )

    def __matmul__(self, other: ndarray) -> ndarray:
        return asarray(self.get() @ other.get())

    def __add__(self, other: Any) -> ndarray:
        return asarray(self.get() + (other.get() if isinstance(other, ndarray) else other))

    def __mul__(self, other: Any) -> ndarray:
        return asarray(self.get() * (other.get() if isinstance(other, ndarray) else other))

    def get(self) -> np.ndarray[Any, Any]:
        if not self.flags.c_contiguous:
            call("cudaStreamSynchronize", cuda.get_current_stream().handle)
            return self._view.view().copy()
        host = np.empty(self.shape, self.dtype)
        _copy(host.ctypes.data, self.data.ptr, self.nbytes, _DEVICE_TO_HOST)
        call("cudaStreamSynchronize", cuda.get_current_stream().handle)
        return host

    def set(self, host: Any) -> None:
        host = np.ascontiguousarray(host, self.dtype)
        _copy(self.data.ptr, host.ctypes.data, self.nbytes, _HOST_TO_DEVICE)

    def fill(self, value: Any) -> None:
        self.set(np.full(self.shape, value, self.dtype))

    def copy(self) -> ndarray:
        made = ndarray(self.shape, self.dtype)
        copyto(made, self)
        return made


def _copy(to: int, source: int, size: int, kind: int) -> None:
    handle = cuda.get_current_stream().handle
    call("cudaMemcpyAsync", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size), kind, handle)


def empty(shape: Any, dtype: Any = np.float32) -> ndarray:
    return ndarray(shape, dtype)


def zeros(shape: Any, dtype: Any = np.float32) -> ndarray:
    made = ndarray(shape, dtype)
    made.fill(0)
    return made


def asarray(value: Any, dtype: Any = None) -> ndarray:
    if isinstance(value, ndarray):
        return value
    host = np.ascontiguousarray(value, dtype)
    made = ndarray(np.shape(value), host.dtype)
    made.set(host)
    return made


array = asarray


def copyto(to: ndarray, source: ndarray) -> None:
    _copy(to.data.ptr, source.data.ptr, to.nbytes, _DEVICE_TO_DEVICE)


def asnumpy(value: Any) -> np.ndarray[Any, Any]:
    return value.get() if isinstance(value, ndarray) else np.asarray(value)


def from_dlpack(value: Any) -> ndarray:
    pointer, shape, dtype, owner = imported(value)
    memory = cuda.UnownedMemory(pointer, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, owner, 0)
    return ndarray(shape, dtype, cuda.MemoryPointer(memory, 0))
