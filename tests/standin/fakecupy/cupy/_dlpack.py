"""Capsules of the DLPack protocol, made and taken apart by ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

_CUDA = 2
_KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)

# What a capsule points at lives until its taker says that it is done.
_exported: dict[int, Any] = {}


@_Deleter
def _delete(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


def export(owner: Any, pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Returns a capsule of contiguous device memory."""
    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    tensor = _Tensor(pointer, _CUDA, 0, len(shape), _KINDS[dtype.kind], 8 * dtype.itemsize, 1, sizes, None, 0)
    managed = _Managed(tensor, None, _delete)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, sizes, owner)
    return _api.PyCapsule_New(address, b"dltensor", None)


def imported(value: Any) -> tuple[int, tuple[int, ...], np.dtype[Any], Any]:
    """Returns address, shape, dtype and what keeps the memory of an object with ``__dlpack__`` alive."""
    kind, _ = value.__dlpack_device__()
    if kind != _CUDA:
        raise ValueError("this is not in device memory")
    capsule = value.__dlpack__()
    managed = _Managed.from_address(_api.PyCapsule_GetPointer(capsule, b"dltensor"))
    tensor = managed.tensor
    kind = {code: kind for kind, code in _KINDS.items()}[tensor.code]
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    return tensor.data + tensor.byte_offset, shape, np.dtype(f"{kind}{tensor.bits // 8}"), (value, capsule)
