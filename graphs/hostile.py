"""Owns models that mislead whoever rewrites, fuses, compares or measures them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from graphs.building import constant, model, tensor


def free_noise() -> onnx.ModelProto:
    """Adds noise between 0 and 1 that no input feeds, so that it looks like a constant and is none.

    Inputs: ``x``, float32 [N, 4].
    Outputs: ``y``, float32 [N, 4]; the four numbers added are new in every run.
    """
    nodes = [
        helper.make_node("RandomUniform", [], ["noise"], shape=[1, 4]),
        helper.make_node("Add", ["x", "noise"], ["y"]),
    ]
    return model("free_noise", nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 4])])


def hidden_noise() -> onnx.ModelProto:
    """Adds normal noise in one branch alone: ``y = x`` where ``mode`` is 0.

    Inputs: ``x``, float32 [N, 4], and ``mode``, int64 [].
    Outputs: ``y``, float32 [N, 4].
    """
    still = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["same"])], "still", [], [tensor("same", ["N", 4])]
    )
    drawn = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"]),
        helper.make_node("Add", ["x", "noise"], ["noisy"]),
    ]
    noisy = helper.make_graph(drawn, "noisy", [], [tensor("noisy", ["N", 4])])
    nodes = [
        helper.make_node("Equal", ["mode", "zero"], ["is_zero"]),
        helper.make_node("If", ["is_zero"], ["y"], then_branch=still, else_branch=noisy),
    ]
    inputs = [tensor("x", ["N", 4]), tensor("mode", [], np.int64)]
    return model("hidden_noise", nodes, inputs, [tensor("y", ["N", 4])], [constant("zero", 0, np.int64)])


def shape_branch() -> onnx.ModelProto:
    """The number of rows selects the branch: ``y = -x`` for a single row and ``y = 2 x`` otherwise.

    Inputs: ``x``, float32 [N, 4].
    Outputs: ``y``, float32 [N, 4].
    """
    single = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["negative"])], "single", [], [tensor("negative", ["N", 4])]
    )
    several = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["twice"])], "several", [], [tensor("twice", ["N", 4])]
    )
    nodes = [
        helper.make_node("Shape", ["x"], ["rows"], end=1),
        helper.make_node("Equal", ["rows", "one"], ["is_one"]),
        helper.make_node("Squeeze", ["is_one"], ["is_single"]),
        helper.make_node("If", ["is_single"], ["y"], then_branch=single, else_branch=several),
    ]
    one = constant("one", [1], np.int64)
    return model("shape_branch", nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 4])], [one])


def until_small() -> onnx.ModelProto:
    """Halves ``x`` until no element is above 1 in size, 64 times at most: the data decide the time.

    Inputs: ``x``, float32 [N, 4], N at least 1.
    Outputs: ``y``, float32 [N, 4], and ``turns``, int64 [], how many times it was halved.
    """

    def above(value: str, name: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("Abs", [value], [f"{name}_size"]),
            helper.make_node("ReduceMax", [f"{name}_size"], [f"{name}_most"], keepdims=0),
            helper.make_node("Greater", [f"{name}_most", "one"], [name]),
        ]

    body = helper.make_graph(
        [
            helper.make_node("Mul", ["before", "half"], ["after"]),
            helper.make_node("Add", ["done", "step"], ["done_next"]),
            *above("after", "go_on"),
        ],
        "body",
        [
            tensor("turn", [], np.int64),
            tensor("go", [], np.bool_),
            tensor("before", ["N", 4]),
            tensor("done", [], np.int64),
        ],
        [tensor("go_on", [], np.bool_), tensor("after", ["N", 4]), tensor("done_next", [], np.int64)],
    )
    return model(
        "until_small",
        [
            *above("x", "start"),
            helper.make_node("Loop", ["most", "start", "x", "none"], ["y", "turns"], body=body),
        ],
        [tensor("x", ["N", 4])],
        [tensor("y", ["N", 4]), tensor("turns", [], np.int64)],
        [
            constant("half", 0.5),
            constant("one", 1.0),
            constant("step", 1, np.int64),
            constant("none", 0, np.int64),
            constant("most", 64, np.int64),
        ],
    )


def distinct() -> onnx.ModelProto:
    """Lists the different values in order, so that the data decide the shapes of all outputs.

    Inputs: ``x``, float32 [N].
    Outputs: ``values``, float32 [M], and ``counts``, int64 [M], how often each occurs.
    """
    node = helper.make_node("Unique", ["x"], ["values", "", "", "counts"], sorted=1)
    outputs = [tensor("values", ["M"]), tensor("counts", ["M"], np.int64)]
    return model("distinct", [node], [tensor("x", ["N"])], outputs)


def growing_state(width: int = 8) -> onnx.ModelProto:
    """One step of attention over all rows so far: the state that is fed back is longer after each step.

    Inputs: ``x``, float32 [1, width], and ``past``, float32 [P, width], P from 0.
    Outputs: ``y``, float32 [1, width], and ``present``, float32 [P + 1, width]: ``past`` and ``x``.
    """
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=0),
        helper.make_node("Transpose", ["present"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "present"], ["y"]),
    ]
    inputs = [tensor("x", [1, width]), tensor("past", ["P", width])]
    return model("growing_state", nodes, inputs, [tensor("y", [1, width]), tensor("present", ["Q", width])])


def expanded() -> onnx.ModelProto:
    """Repeats a number as often as a value says: 16 bytes of input may ask for any amount of memory.

    Inputs: ``x``, float32 [], and ``shape``, int64 [2].
    Outputs: ``y``, float32 [rows, columns], of that shape.
    """
    node = helper.make_node("Expand", ["x", "shape"], ["y"])
    inputs = [tensor("x", []), tensor("shape", [2], np.int64)]
    return model("expanded", [node], inputs, [tensor("y", ["rows", "columns"])])


def outer_sum() -> onnx.ModelProto:
    """Sums the outer product over its rows: between small ends there are N times N numbers.

    Inputs: ``x``, float32 [N].
    Outputs: ``y``, float32 [N]: ``x`` times the sum of ``x``.
    """
    nodes = [
        helper.make_node("Unsqueeze", ["x", "last"], ["column"]),
        helper.make_node("Unsqueeze", ["x", "first"], ["row"]),
        helper.make_node("Mul", ["column", "row"], ["outer"]),
        helper.make_node("ReduceSum", ["outer", "first"], ["y"], keepdims=0),
    ]
    constants = [constant("first", [0], np.int64), constant("last", [1], np.int64)]
    return model("outer_sum", nodes, [tensor("x", ["N"])], [tensor("y", ["N"])], constants)


def naive_softmax() -> onnx.ModelProto:
    """Softmax that does not subtract the largest first: NaN where an element is above 88.

    Inputs: ``x``, float32 [N, 4].
    Outputs: ``y``, float32 [N, 4].
    """
    nodes = [
        helper.make_node("Exp", ["x"], ["power"]),
        helper.make_node("ReduceSum", ["power", "last"], ["sum"], keepdims=1),
        helper.make_node("Div", ["power", "sum"], ["y"]),
    ]
    last = constant("last", [-1], np.int64)
    return model("naive_softmax", nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 4])], [last])


def masked_softmax() -> onnx.ModelProto:
    """Softmax over the elements that a mask keeps: a row of which it keeps none is NaN.

    Inputs: ``x``, float32 [N, 4], and ``keep``, bool [N, 4].
    Outputs: ``y``, float32 [N, 4].
    """
    nodes = [
        helper.make_node("Where", ["keep", "x", "far"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["y"], axis=-1),
    ]
    inputs = [tensor("x", ["N", 4]), tensor("keep", ["N", 4], np.bool_)]
    return model("masked_softmax", nodes, inputs, [tensor("y", ["N", 4])], [constant("far", -np.inf)])


def unused_input() -> onnx.ModelProto:
    """Doubles ``x`` and ignores ``spare``, which belongs to its inputs all the same.

    Inputs: ``x``, float32 [N, 4], and ``spare``, int64 [N].
    Outputs: ``y``, float32 [N, 4].
    """
    inputs = [tensor("x", ["N", 4]), tensor("spare", ["N"], np.int64)]
    return model(
        "unused_input", [helper.make_node("Add", ["x", "x"], ["y"])], inputs, [tensor("y", ["N", 4])]
    )


def one_name_two_sizes() -> onnx.ModelProto:
    """Puts rows behind each other; one symbolic name, ``?``, stands for three different sizes.

    Inputs: ``a`` and ``b``, float32 [?, 4].
    Outputs: ``y``, float32 [?, 4].
    """
    node = helper.make_node("Concat", ["a", "b"], ["y"], axis=0)
    return model(
        "one_name_two_sizes", [node], [tensor("a", ["?", 4]), tensor("b", ["?", 4])], [tensor("y", ["?", 4])]
    )
