"""Owns models of a few nodes, each with one property that a test is about."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from graphs.building import constant, model, tensor


def sum_of(n_inputs: int = 1, dtype: npt.DTypeLike = np.float32) -> onnx.ModelProto:
    """Adds up all inputs; with a single one, takes Relu of it.

    Inputs: ``x0`` … ``x{n_inputs-1}``, ``dtype`` (any number type that Add takes) [N, 4].
    Outputs: ``y``, ``dtype`` [N, 4].
    """
    names = [f"x{i}" for i in range(n_inputs)]
    if n_inputs == 1:
        nodes = [helper.make_node("Relu", names, ["y"])]
    else:
        sums = [names[0], *(f"sum{i}" for i in range(1, n_inputs - 1)), "y"]
        nodes = [helper.make_node("Add", [sums[i], names[i + 1]], [sums[i + 1]]) for i in range(n_inputs - 1)]
    inputs = [tensor(name, ["N", 4], dtype) for name in names]
    return model("sum_of", nodes, inputs, [tensor("y", ["N", 4], dtype)])


def mlp(layers: int = 2, width: int = 16, seed: int = 0) -> onnx.ModelProto:
    """A chain of matrix products with bias, each followed by Relu; weights are drawn from ``seed``.

    Inputs: ``x``, float32 [N, width].
    Outputs: ``y``, float32 [N, width].
    """
    draw = np.random.default_rng(seed)
    nodes, weights = [], []
    value = "x"
    for i in range(layers):
        weights.append(constant(f"w{i}", draw.normal(0, (2 / width) ** 0.5, (width, width))))
        weights.append(constant(f"b{i}", draw.normal(0, 0.1, width)))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"product{i}"]))
        nodes.append(helper.make_node("Add", [f"product{i}", f"b{i}"], [f"sum{i}"]))
        value = "y" if i == layers - 1 else f"hidden{i}"
        nodes.append(helper.make_node("Relu", [f"sum{i}"], [value]))
    return model("mlp", nodes, [tensor("x", ["N", width])], [tensor("y", ["N", width])], weights)


def with_state() -> onnx.ModelProto:
    """One step of a recurrence: ``new_state = state / 2 + x`` and ``y = tanh(new_state)``.

    Inputs: ``x`` and ``state``, float32 [N, 4].
    Outputs: ``y`` and ``new_state``, float32 [N, 4].
    """
    nodes = [
        helper.make_node("Mul", ["state", "half"], ["kept"]),
        helper.make_node("Add", ["kept", "x"], ["new_state"]),
        helper.make_node("Tanh", ["new_state"], ["y"]),
    ]
    return model(
        "with_state",
        nodes,
        [tensor("x", ["N", 4]), tensor("state", ["N", 4])],
        [tensor("y", ["N", 4]), tensor("new_state", ["N", 4])],
        [constant("half", 0.5)],
    )


def random_op(seed: float | None = None) -> onnx.ModelProto:
    """Adds normal noise to its input, new in every run; ``seed`` fixes the stream of a session.

    Inputs: ``x``, float32 [N, 4].
    Outputs: ``y``, float32 [N, 4].
    """
    draw = helper.make_node("RandomNormalLike", ["x"], ["noise"], name="draw")
    if seed is not None:
        draw.attribute.append(helper.make_attribute("seed", float(seed)))
    nodes = [draw, helper.make_node("Add", ["x", "noise"], ["y"])]
    return model("random_op", nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 4])])


def argmax(classes: int = 16, seed: int = 0) -> onnx.ModelProto:
    """Classifies: a matrix product with weights drawn from ``seed``, then the position of the largest.

    Inputs: ``x``, float32 [N, 8].
    Outputs: ``label``, int64 [N], and ``logits``, float32 [N, classes].
    """
    weight = constant("w", np.random.default_rng(seed).normal(size=(8, classes)))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["logits"]),
        helper.make_node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0),
    ]
    outputs = [tensor("label", ["N"], np.int64), tensor("logits", ["N", classes])]
    return model("argmax", nodes, [tensor("x", ["N", 8])], outputs, [weight])


def string_identity() -> onnx.ModelProto:
    """Passes strings through.

    Inputs: ``x``, string [N].
    Outputs: ``y``, string [N].
    """
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return model("string_identity", nodes, [tensor("x", ["N"], str)], [tensor("y", ["N"], str)])


def overridable() -> onnx.ModelProto:
    """Multiplies by ``scale``, which is 2 unless a caller feeds another value.

    Inputs: ``x``, float32 [N, 4], and, optionally, ``scale``, float32 [1].
    Outputs: ``y``, float32 [N, 4].
    """
    nodes = [helper.make_node("Mul", ["x", "scale"], ["y"])]
    inputs = [tensor("x", ["N", 4]), tensor("scale", [1])]
    return model("overridable", nodes, inputs, [tensor("y", ["N", 4])], [constant("scale", [2.0])])


def scalar() -> onnx.ModelProto:
    """Doubles a scalar.

    Inputs: ``x``, float32 [] (no dimensions).
    Outputs: ``y``, float32 [].
    """
    return model(
        "scalar",
        [helper.make_node("Mul", ["x", "two"], ["y"])],
        [tensor("x", [])],
        [tensor("y", [])],
        [constant("two", 2.0)],
    )


def positive_rows() -> onnx.ModelProto:
    """Keeps the rows whose first element is above 0, so that data decides the output's size, 0 included.

    Inputs: ``x``, float32 [N, 4].
    Outputs: ``y``, float32 [M, 4].
    """
    nodes = [
        helper.make_node("Gather", ["x", "first"], ["column"], axis=1),
        helper.make_node("Greater", ["column", "zero"], ["keep"]),
        helper.make_node("Compress", ["x", "keep"], ["y"], axis=0),
    ]
    constants = [constant("first", 0, np.int64), constant("zero", 0.0)]
    return model("positive_rows", nodes, [tensor("x", ["N", 4])], [tensor("y", ["M", 4])], constants)


def nan_maker() -> onnx.ModelProto:
    """Takes the logarithm: NaN where ``x`` is negative, minus infinity where it is 0.

    Inputs: ``x``, float32 [N, 4].
    Outputs: ``y``, float32 [N, 4].
    """
    nodes = [helper.make_node("Log", ["x"], ["y"])]
    return model("nan_maker", nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 4])])


def int_division(dtype: npt.DTypeLike = np.int64) -> onnx.ModelProto:
    """Divides whole numbers, rounding towards zero. A zero in ``b`` may end the process it runs in.

    Inputs: ``a`` and ``b``, ``dtype`` [N].
    Outputs: ``y``, ``dtype`` [N].
    """
    inputs = [tensor("a", ["N"], dtype), tensor("b", ["N"], dtype)]
    nodes = [helper.make_node("Div", ["a", "b"], ["y"])]
    return model("int_division", nodes, inputs, [tensor("y", ["N"], dtype)])
