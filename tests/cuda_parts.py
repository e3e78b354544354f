"""What tests on CUDA share: models of which the stand-in computes every node, recipes, and its controls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from tuning import CPU, save

from ort_stacktune import SessionRecipe

CUDA = "CUDAExecutionProvider"
FULL_FLOAT32 = {"use_tf32": "0"}


def products(size: int = 16, links: int = 2, seed: int = 0) -> onnx.ModelProto:
    """Returns y = x @ w0 @ w1 ... with x of shape (rows, size); the stand-in computes all of it."""
    rng = np.random.default_rng(seed)
    weights = [
        numpy_helper.from_array((rng.standard_normal((size, size)) / size**0.5).astype(np.float32), f"w{i}")
        for i in range(links)
    ]
    names = ["x", *(f"t{i}" for i in range(1, links)), "y"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(links)]
    return model_of(nodes, [("x", ["rows", size])], [("y", ["rows", size])], weights)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, Sequence[int | str]]],
    outputs: Sequence[tuple[str, Sequence[int | str]]],
    weights: Sequence[onnx.TensorProto] = (),
    types: dict[str, int] | None = None,
) -> onnx.ModelProto:
    """Returns a checked model; inputs and outputs are float32 unless a type is given for them."""
    types = types or {}

    def infos(entries: Sequence[tuple[str, Sequence[int | str]]]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), shape)
            for name, shape in entries
        ]

    graph = helper.make_graph(list(nodes), "graph", infos(inputs), infos(outputs), list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def on_cuda(name: str = "cuda", **changes: Any) -> SessionRecipe:
    """Returns a recipe for CUDA alone, in full float32; keywords are options of the provider."""
    options = {
        key: changes.pop(key) for key in list(changes) if key not in SessionRecipe.__dataclass_fields__
    }
    return SessionRecipe(name, providers=[(CUDA, {**FULL_FLOAT32, **options}), *map(str, CPU)], **changes)


def saved(tmp_path: Path, model: onnx.ModelProto, name: str = "model.onnx") -> str:
    """Saves a model and returns its path as text."""
    return save(model, tmp_path / name)


@cache
def on_standin() -> bool:
    """Whether the CUDA runtime that the loader finds stands in for a real one."""
    try:
        return hasattr(ctypes.CDLL("libcudart.so.13"), "standin_mark")
    except OSError:
        return False


@cache
def load_cuda() -> None:
    """Loads CUDA's libraries where they came as packages, in which the loader doesn't look."""
    if not on_standin():
        ort.preload_dlls()


class Standin:
    """The stand-in in this process, and its log."""

    def __init__(self, log: Path) -> None:
        self._library = ctypes.CDLL("libcudart.so.13")
        self._library.standin_used.restype = ctypes.c_size_t
        self._log = log
        self._library.standin_log_to(str(log).encode())

    @property
    def lines(self) -> list[str]:
        """What was logged so far."""
        return self._log.read_text().splitlines() if self._log.exists() else []

    @property
    def used_bytes(self) -> int:
        """Device memory in use."""
        return int(self._library.standin_used())

    def mark(self, text: str) -> None:
        """Writes a line to the log."""
        self._library.standin_mark(text.encode())

    def set_memory(self, size: int) -> None:
        """Sets the size of the device's memory; 0 for the default."""
        self._library.standin_set_memory(ctypes.c_size_t(size))

    def inject(self, fault: str) -> None:
        """Arranges a fault, as NAME:CODE:COUNT."""
        assert self._library.standin_inject(fault.encode()) == 0

    def reset(self) -> None:
        """Mends the device."""
        self._library.standin_reset()
        self.set_memory(0)
        self._library.standin_log_to(None)
