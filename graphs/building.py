"""Owns what all builders share: versions, types and the final check."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

OPSET = 21
IR_VERSION = 10

Dims = Sequence[int | str | None]


def elem(dtype: npt.DTypeLike) -> int:
    """Returns ONNX's number for a numpy dtype; ``str`` and ``object`` are strings."""
    dtype = np.dtype(dtype)
    if dtype.kind in "OUS":
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(dtype))


def tensor(name: str, dims: Dims, dtype: npt.DTypeLike = np.float32) -> onnx.ValueInfoProto:
    """Returns the declaration of a tensor input or output."""
    return helper.make_tensor_value_info(name, elem(dtype), list(dims))


def constant(name: str, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> onnx.TensorProto:
    """Returns an initializer."""
    return onnx.numpy_helper.from_array(np.asarray(value, np.dtype(dtype)), name)


def model(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """Returns a checked model of one graph."""
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    built = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="ort_stacktune graphs",
    )
    onnx.checker.check_model(built, full_check=True)
    return built
