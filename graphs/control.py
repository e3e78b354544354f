"""Owns models whose control flow, shapes or kinds of values depend on what is fed."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from graphs.building import constant, model, tensor


def branching(links: int = 8, width: int = 16) -> onnx.ModelProto:
    """A value selects the branch: ``y = x + 1`` where ``mode`` is 0, and otherwise a chain of work.

    The other branch takes ``tanh(y @ w)`` ``links`` times, with weights drawn from a fixed seed.

    Inputs: ``x``, float32 [N, width], and ``mode``, int64 [].
    Outputs: ``y``, float32 [N, width].
    """
    weight = np.random.default_rng(0).normal(0, width**-0.5, (width, width))
    short = helper.make_graph(
        [helper.make_node("Add", ["x", "one"], ["short"])], "short", [], [tensor("short", ["N", width])]
    )
    nodes = []
    value = "x"
    for i in range(links):
        nodes.append(helper.make_node("MatMul", [value, "w"], [f"product{i}"]))
        value = f"link{i}"
        nodes.append(helper.make_node("Tanh", [f"product{i}"], [value]))
    long = helper.make_graph(nodes, "long", [], [tensor(value, ["N", width])])
    return model(
        "branching",
        [
            helper.make_node("Equal", ["mode", "zero"], ["is_zero"]),
            helper.make_node("If", ["is_zero"], ["y"], then_branch=short, else_branch=long),
        ],
        [tensor("x", ["N", width]), tensor("mode", [], np.int64)],
        [tensor("y", ["N", width])],
        [constant("one", 1.0), constant("w", weight), constant("zero", 0, np.int64)],
    )


def counted() -> onnx.ModelProto:
    """A loop whose number of turns is fed: halves ``x`` and adds 1, ``times`` times.

    Inputs: ``x``, float32 [N, 4], and ``times``, int64 [].
    Outputs: ``y``, float32 [N, 4].
    """
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Mul", ["before", "half"], ["halved"]),
            helper.make_node("Add", ["halved", "one"], ["after"]),
        ],
        "body",
        [tensor("turn", [], np.int64), tensor("go", [], np.bool_), tensor("before", ["N", 4])],
        [tensor("go_on", [], np.bool_), tensor("after", ["N", 4])],
    )
    return model(
        "counted",
        [helper.make_node("Loop", ["times", "", "x"], ["y"], body=body)],
        [tensor("x", ["N", 4]), tensor("times", [], np.int64)],
        [tensor("y", ["N", 4])],
        [constant("half", 0.5), constant("one", 1.0)],
    )


def sliced() -> onnx.ModelProto:
    """A value decides the output's shape: keeps the first ``count`` rows.

    Inputs: ``x``, float32 [N, 4], and ``count``, int64 [1].
    Outputs: ``y``, float32 [M, 4].
    """
    return model(
        "sliced",
        [helper.make_node("Slice", ["x", "start", "count", "axis"], ["y"])],
        [tensor("x", ["N", 4]), tensor("count", [1], np.int64)],
        [tensor("y", ["M", 4])],
        [constant("start", [0], np.int64), constant("axis", [0], np.int64)],
    )


def gather_fails() -> onnx.ModelProto:
    """Picks rows; an index out of range is an error when the model runs, not when it is loaded.

    Inputs: ``x``, float32 [N, 4], and ``index``, int64 [K].
    Outputs: ``y``, float32 [K, 4].
    """
    return model(
        "gather_fails",
        [helper.make_node("Gather", ["x", "index"], ["y"], axis=0)],
        [tensor("x", ["N", 4]), tensor("index", ["K"], np.int64)],
        [tensor("y", ["K", 4])],
    )


def sequence_output() -> onnx.ModelProto:
    """Splits a tensor into its rows.

    Inputs: ``x``, float32 [N, 4].
    Outputs: ``rows``, a sequence of N tensors, float32 [4].
    """
    rows = helper.make_tensor_sequence_value_info("rows", onnx.TensorProto.FLOAT, [4])
    return model(
        "sequence_output",
        [helper.make_node("SplitToSequence", ["x"], ["rows"], axis=0, keepdims=0)],
        [tensor("x", ["N", 4])],
        [rows],
    )


def optional_input() -> onnx.ModelProto:
    """Adds ``bias`` where there is one.

    Inputs: ``x``, float32 [N, 4], and ``bias``, an optional tensor, float32 [4]; ``None`` stands for none.
    Outputs: ``y``, float32 [N, 4].
    """
    bias = helper.make_optional_type_proto(helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [4]))
    added = helper.make_graph(
        [
            helper.make_node("OptionalGetElement", ["bias"], ["element"]),
            helper.make_node("Add", ["x", "element"], ["sum"]),
        ],
        "added",
        [],
        [tensor("sum", ["N", 4])],
    )
    passed = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["same"])], "passed", [], [tensor("same", ["N", 4])]
    )
    return model(
        "optional_input",
        [
            helper.make_node("OptionalHasElement", ["bias"], ["there"]),
            helper.make_node("If", ["there"], ["y"], then_branch=added, else_branch=passed),
        ],
        [tensor("x", ["N", 4]), helper.make_value_info("bias", bias)],
        [tensor("y", ["N", 4])],
    )
