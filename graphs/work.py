"""Owns models that are large or slow on purpose."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from graphs.building import constant, model, tensor

_SIDE = 512
_BLOCK_BYTES = _SIDE * _SIDE * 4


def heavy(megabytes: int = 1, seed: int = 0) -> onnx.ModelProto:
    """A chain of matrix products with about so many MB of weights in the model itself, no two alike.

    Inputs: ``x``, float32 [N, 512].
    Outputs: ``y``, float32 [N, 512], between -1 and 1.
    """
    draw = np.random.default_rng(seed)
    nodes, weights = [], []
    value = "x"
    for i in range(max(1, megabytes * 2**20 // _BLOCK_BYTES)):
        matrix = draw.standard_normal((_SIDE, _SIDE), np.float32) * np.float32(_SIDE**-0.5)
        weights.append(constant(f"w{i}", matrix))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"product{i}"]))
        value = f"link{i}"
        nodes.append(helper.make_node("Tanh", [f"product{i}"], [value]))
    nodes[-1].output[0] = "y"
    return model("heavy", nodes, [tensor("x", ["N", _SIDE])], [tensor("y", ["N", _SIDE])], weights)


def external(path: str | os.PathLike[str], megabytes: int = 1, seed: int = 0) -> onnx.ModelProto:
    """Writes the model of :func:`heavy` with its weights in a file of their own.

    The model goes to ``path`` and the weights to the same name with ``.data`` behind it, in the same
    directory, which must exist.

    Inputs: ``x``, float32 [N, 512].
    Outputs: ``y``, float32 [N, 512], between -1 and 1.

    Returns:
        The model as it was written: weights are references to the file.
    """
    built = heavy(megabytes, seed)
    location = f"{Path(path).name}.data"
    offset = 0
    with Path(path).with_name(location).open("wb") as file:
        for weight in built.graph.initializer:
            onnx.external_data_helper.set_external_data(weight, location, offset, len(weight.raw_data))
            offset += file.write(weight.raw_data)
            weight.ClearField("raw_data")
    onnx.save_model(built, path)
    onnx.checker.check_model(path)
    return built


def slowed(base: onnx.ModelProto, links: int = 100, width: int = 64) -> onnx.ModelProto:
    """Returns a model with the outputs of ``base`` that takes longer: a twin which must lose.

    The first output gets an exact zero added. That zero comes at the end of a chain of ``links`` matrix
    products and Tanh, of ``width`` each, that starts from the output's own values, so that nothing short
    of proving bounds for the whole chain can remove it, and nothing can run it beside ``base``. The cost
    grows with ``links`` and, roughly by its square, with ``width``.

    Args:
        base: A model whose first output is a tensor of numbers. It is not changed.
        links: Length of the chain.
        width: Width of the chain.

    Raises:
        ValueError: The first output is not a tensor of numbers.
    """
    slow = onnx.ModelProto()
    slow.CopyFrom(base)
    graph = slow.graph
    output = graph.output[0]
    number = output.type.tensor_type.elem_type
    if number in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.BOOL, onnx.TensorProto.STRING):
        raise ValueError(f"output {output.name!r} is no tensor of numbers, so nothing can be added to it")
    early = f"{output.name}__early"
    for node in graph.node:
        node.input[:] = [early if name == output.name else name for name in node.input]
        node.output[:] = [early if name == output.name else name for name in node.output]
    weight = np.random.default_rng(0).normal(0, 2 * width**-0.5, (width, width))
    graph.initializer.extend(
        [
            constant("slow_weight", weight),
            constant("slow_start", np.linspace(-1, 1, width).reshape(1, width)),
            constant("slow_bound", 2.0),
            constant("slow_nought", 0.0),
        ]
    )
    start = [
        helper.make_node("Cast", [early], ["slow_float"], to=onnx.TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["slow_float"], ["slow_sum"], keepdims=0),
        # A comparison turns whatever the output holds, NaN included, into 0 or 1.
        helper.make_node("Greater", ["slow_sum", "slow_nought"], ["slow_sign"]),
        helper.make_node("Cast", ["slow_sign"], ["slow_one"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["slow_one", "slow_start"], ["slow_link0"]),
    ]
    chain = []
    for i in range(links):
        chain.append(helper.make_node("MatMul", [f"slow_link{i}", "slow_weight"], [f"slow_product{i}"]))
        chain.append(helper.make_node("Tanh", [f"slow_product{i}"], [f"slow_link{i + 1}"]))
    end = [
        helper.make_node("ReduceMax", [f"slow_link{links}"], ["slow_most"], keepdims=0),
        # Tanh stays below the bound, so this is never true.
        helper.make_node("Greater", ["slow_most", "slow_bound"], ["slow_never"]),
        helper.make_node("Cast", ["slow_never"], ["slow_zero"], to=number),
        helper.make_node("Add", [early, "slow_zero"], [output.name]),
    ]
    graph.node.extend([*start, *chain, *end])
    onnx.checker.check_model(slow, full_check=True)
    return slow
