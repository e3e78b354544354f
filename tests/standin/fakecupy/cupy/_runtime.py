"""Calls of the stand-in's CUDA runtime."""

from __future__ import annotations

import ctypes
from typing import Any

_library = ctypes.CDLL("libcudart.so.13")
if not hasattr(_library, "standin_mark"):
    raise ImportError(
        "this cupy works on the stand-in only; the libcudart.so.13 in this process is a real one"
    )
_library.cudaGetErrorName.restype = _library.cudaGetErrorString.restype = ctypes.c_char_p


class CUDARuntimeError(RuntimeError):
    """As ``cupy.cuda.runtime.CUDARuntimeError``."""

    def __init__(self, status: int) -> None:
        self.status = status
        name, text = _library.cudaGetErrorName(status), _library.cudaGetErrorString(status)
        super().__init__(f"{name.decode()}: {text.decode()}")


def call(name: str, *arguments: Any) -> None:
    """Calls a function of the runtime; an error it returns is raised."""
    status = getattr(_library, name)(*arguments)
    if status:
        raise CUDARuntimeError(status)
