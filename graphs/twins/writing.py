"""Owns how a pair of models is written: names of values, constants, and what each pair declares.

It must never decide a weight: builders draw each weight once and hand it to both writers of a pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from graphs.building import IR_VERSION, OPSET, constant, elem, tensor

CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
OLDEST_OPSET = 17

Array = npt.NDArray[np.generic]
Feeds = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Twin:
    """Two models of one function, with the same weights, inputs and outputs.

    Attributes:
        name: Name of the function.
        unfused: As an exporter writes it, in operators of ai.onnx only.
        fused: The same in ONNX Runtime's operators.
        rtol: With ``atol``, how far the outputs of one may be from those of the other, and both from the
            ONNX reference evaluator's: ``|a - b| <= atol + rtol * |b|`` for inputs of amplitude 1.
        atol: See ``rtol``.
        limits: For each input of whole numbers, the smallest number that it may not hold; 0 is legal.
    """

    name: str
    unfused: onnx.ModelProto
    fused: onnx.ModelProto
    rtol: float
    atol: float
    limits: Mapping[str, int] = field(default_factory=dict)

    def feeds(self, seed: int = 0, amplitude: float = 1.0) -> Feeds:
        """Draws one set of inputs: normal numbers times ``amplitude``, and legal whole numbers."""
        draw = np.random.default_rng(seed)
        fed: Feeds = {}
        for value in self.unfused.graph.input:
            kind = value.type.tensor_type
            shape = [dim.dim_value for dim in kind.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            if value.name in self.limits:
                fed[value.name] = draw.integers(0, self.limits[value.name], shape).astype(dtype)
            else:
                fed[value.name] = (draw.standard_normal(shape) * amplitude).astype(dtype)
        return fed


class Writer:
    """Writes the nodes of one model, all in one floating-point dtype, and names its values.

    Raises:
        ValueError: The dtype is not float32 or float16, or the opset is none that twins are written in.
    """

    def __init__(self, dtype: npt.DTypeLike, opset: int) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float16):
            raise ValueError(f"twins are written in float32 or float16, not in {self.dtype}")
        if not OLDEST_OPSET <= opset <= OPSET:
            raise ValueError(f"twins are written in opset {OLDEST_OPSET} to {OPSET}, not in {opset}")
        self.opset = opset
        self.element = elem(dtype)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def op(
        self, kind: str, *inputs: str, out: str | Sequence[str] = "", domain: str = "", **attributes: Any
    ) -> str:
        """Adds a node and returns its first output's name, ``out`` where that is given."""
        names = [out] if isinstance(out, str) else list(out)
        names[0] = names[0] or f"{kind}_{len(self._nodes)}"
        node = helper.make_node(
            kind, inputs, names, f"{kind}_{len(self._nodes)}_node", domain=domain, **attributes
        )
        self._nodes.append(node)
        return names[0]

    def contrib(self, kind: str, *inputs: str, out: str | Sequence[str] = "", **attributes: Any) -> str:
        """Adds a node of one of ONNX Runtime's own operators."""
        return self.op(kind, *inputs, out=out, domain=CONTRIB, **attributes)

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> str:
        """Adds an initializer, of the writer's dtype unless another is given, and returns its name."""
        return self.stored(constant("", value, self.dtype if dtype is None else dtype))

    def ints(self, *values: int) -> str:
        """Adds an int64 initializer of one dimension: a shape, axes or sizes."""
        return self.constant(values, np.int64)

    def stored(self, made: onnx.TensorProto) -> str:
        """Adds a ready initializer under a name of its own."""
        made.name = f"constant_{len(self._constants)}"
        self._constants.append(made)
        return made.name

    def mean(self, value: str) -> str:
        """Adds the mean over the last dimension, which is kept; its axes moved to an input in opset 18."""
        if self.opset < 18:
            return self.op("ReduceMean", value, axes=[-1])
        return self.op("ReduceMean", value, self.ints(-1))

    def linear(self, value: str, weight: npt.ArrayLike, bias: npt.ArrayLike, out: str = "") -> str:
        """Adds a matrix product and a bias."""
        product = self.op("MatMul", value, self.constant(weight))
        return self.op("Add", product, self.constant(bias), out=out)

    def tensor(
        self, name: str, dims: Sequence[int], dtype: npt.DTypeLike | None = None
    ) -> onnx.ValueInfoProto:
        """Returns the declaration of an input or output, of the writer's dtype unless another is given."""
        return tensor(name, dims, self.dtype if dtype is None else dtype)

    def model(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """Returns the model of what was written, checked."""
        opsets = [helper.make_opsetid("", self.opset)]
        if any(node.domain == CONTRIB for node in self._nodes):
            opsets.append(helper.make_opsetid(CONTRIB, 1))
        built = helper.make_model(
            helper.make_graph(self._nodes, name, inputs, outputs, self._constants),
            opset_imports=opsets,
            ir_version=IR_VERSION,
            producer_name="ort_stacktune graphs",
        )
        onnx.checker.check_model(built, full_check=True)
        return built


def twin(
    name: str,
    writers: tuple[Writer, Writer],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    single: tuple[float, float] = (1e-4, 1e-5),
    half: tuple[float, float] = (1e-2, 1e-2),
    limits: Mapping[str, int] | None = None,
) -> Twin:
    """Returns the pair of what two writers, the unfused one first, have written.

    Args:
        name: Name of the function.
        writers: The writers of the unfused and of the fused model.
        inputs: Declarations of the inputs, the same for both.
        outputs: Declarations of the outputs, the same for both.
        single: Relative and absolute tolerance in float32.
        half: The same in float16.
        limits: See :class:`Twin`.
    """
    unfused, fused = writers
    rtol, atol = single if unfused.dtype == np.float32 else half
    return Twin(
        name,
        unfused.model(name, inputs, outputs),
        fused.model(f"{name}_fused", inputs, outputs),
        rtol,
        atol,
        dict(limits or {}),
    )


def pair(dtype: npt.DTypeLike, opset: int) -> tuple[Writer, Writer]:
    """Returns the writers of the unfused and of the fused model."""
    return Writer(dtype, opset), Writer(dtype, opset)


def weight(draw: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.float64]:
    """Draws a matrix that keeps the amplitude of what it multiplies."""
    return draw.normal(0, rows**-0.5, (rows, columns))


def vector(draw: np.random.Generator, size: int, around: float = 0.0) -> npt.NDArray[np.float64]:
    """Draws a bias, or a scale around 1."""
    return draw.normal(around, 0.1, size)
