"""Owns pairs of activations and of the layers that an activation closes, and of an embedding."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from graphs.building import OPSET
from graphs.twins.normal import EPSILON, written_layer_norm
from graphs.twins.writing import Twin, Writer, pair, twin, vector, weight

Activation = Literal["Relu", "Tanh", "Sigmoid"]


def written_gelu(to: Writer, value: str, tanh: bool = False, out: str = "") -> str:
    """Writes GELU in single operators, by the error function or by ``tanh``."""
    half, one = to.constant(0.5), to.constant(1.0)
    if tanh:
        cube = to.op("Pow", value, to.constant(3.0))
        inner = to.op("Add", value, to.op("Mul", cube, to.constant(0.044715)))
        curve = to.op("Tanh", to.op("Mul", inner, to.constant(math.sqrt(2 / math.pi))))
        return to.op("Mul", to.op("Mul", value, half), to.op("Add", curve, one), out=out)
    curve = to.op("Erf", to.op("Div", value, to.constant(math.sqrt(2))))
    return to.op("Mul", to.op("Mul", value, to.op("Add", curve, one)), half, out=out)


def gelu(
    rows: int = 128,
    width: int = 1536,
    tanh: bool = False,
    bias: bool = True,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """GELU by the error function (BiasGelu, Gelu) or by ``tanh`` (FastGelu), after a bias or without one.

    Inputs: ``x``, ``dtype`` [1, rows, width].
    Outputs: ``y``, ``dtype`` [1, rows, width].
    """
    added = vector(np.random.default_rng(seed), width)
    unfused, fused = pair(dtype, opset)
    value = unfused.op("Add", "x", unfused.constant(added)) if bias else "x"
    written_gelu(unfused, value, tanh, "y")
    kind = "FastGelu" if tanh else "BiasGelu" if bias else "Gelu"
    fused.contrib(kind, "x", *([fused.constant(added)] if bias else []), out="y")
    shape = [1, rows, width]
    return twin("gelu", (unfused, fused), [unfused.tensor("x", shape)], [unfused.tensor("y", shape)])


def matmul_activation(
    rows: int = 64,
    inner: int = 256,
    columns: int = 256,
    activation: Activation = "Relu",
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """A matrix product, a bias and an activation, or FusedGemm.

    Inputs: ``x``, ``dtype`` [rows, inner].
    Outputs: ``y``, ``dtype`` [rows, columns].
    """
    draw = np.random.default_rng(seed)
    matrix, bias = weight(draw, inner, columns), vector(draw, columns)
    unfused, fused = pair(dtype, opset)
    unfused.op(activation, unfused.linear("x", matrix, bias), out="y")
    fused.contrib(
        "FusedGemm", "x", fused.constant(matrix), fused.constant(bias), out="y", activation=activation
    )
    inputs, outputs = [unfused.tensor("x", [rows, inner])], [unfused.tensor("y", [rows, columns])]
    return twin("matmul_activation", (unfused, fused), inputs, outputs)


def conv_block(
    batch: int = 1,
    channels: int = 16,
    filters: int = 32,
    side: int = 32,
    kernel: int = 3,
    activation: Activation = "Relu",
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """Convolution, batch normalisation and activation, or FusedConv with the normalisation in its weights.

    Inputs: ``x``, ``dtype`` [batch, channels, side, side]; ``kernel`` must be odd.
    Outputs: ``y``, ``dtype`` [batch, filters, side, side].

    Raises:
        ValueError: ``kernel`` is even.
    """
    if kernel % 2 == 0:
        raise ValueError(f"kernel is {kernel}, which has no middle: give an odd one")
    draw = np.random.default_rng(seed)
    shape = (filters, channels, kernel, kernel)
    matrix = draw.normal(0, (channels * kernel * kernel) ** -0.5, shape)
    scale, shift, mean = vector(draw, filters, 1.0), vector(draw, filters), vector(draw, filters)
    variance = draw.uniform(0.5, 2.0, filters)
    unfused, fused = pair(dtype, opset)
    around: dict[str, Any] = {"pads": [kernel // 2] * 4, "kernel_shape": [kernel, kernel]}
    value = unfused.op("Conv", "x", unfused.constant(matrix), **around)
    statistics = [unfused.constant(value) for value in (scale, shift, mean, variance)]
    value = unfused.op("BatchNormalization", value, *statistics, epsilon=EPSILON)
    unfused.op(activation, value, out="y")

    factor = scale / np.sqrt(variance + EPSILON)
    folded = fused.constant(matrix * factor[:, None, None, None])
    bias = fused.constant(shift - mean * factor)
    fused.contrib("FusedConv", "x", folded, bias, out="y", activation=activation, **around)
    inputs = [unfused.tensor("x", [batch, channels, side, side])]
    outputs = [unfused.tensor("y", [batch, filters, side, side])]
    return twin("conv_block", (unfused, fused), inputs, outputs)


def embedding(
    batch: int = 1,
    length: int = 128,
    width: int = 384,
    words: int = 1000,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """Sum of word, position and segment vectors, normalised, or EmbedLayerNormalization.

    Inputs: ``input_ids``, below ``words``, and ``segment_ids``, 0 or 1; int64 [batch, length].
    Outputs: ``y``, ``dtype`` [batch, length, width].
    """
    draw = np.random.default_rng(seed)
    tables = [draw.standard_normal((rows, width)) for rows in (words, length, 2)]
    scale, bias = vector(draw, width, 1.0), vector(draw, width)
    unfused, fused = pair(dtype, opset)
    positions = unfused.constant(np.arange(length)[None], np.int64)
    found = [
        unfused.op("Gather", unfused.constant(table), ids, axis=0)
        for table, ids in zip(tables, ("input_ids", positions, "segment_ids"), strict=True)
    ]
    total = unfused.op("Add", unfused.op("Add", found[0], found[2]), found[1])
    written_layer_norm(unfused, total, scale, bias, "y")

    # The fused operator takes int32 alone.
    ids = [fused.op("Cast", name, to=6) for name in ("input_ids", "segment_ids")]
    constants = [fused.constant(value) for value in (*tables, scale, bias)]
    fused.contrib("EmbedLayerNormalization", *ids, *constants, out=["y", "mask_index"], epsilon=EPSILON)
    inputs = [unfused.tensor(name, [batch, length], np.int64) for name in ("input_ids", "segment_ids")]
    return twin(
        "embedding",
        (unfused, fused),
        inputs,
        [unfused.tensor("y", [batch, length, width])],
        limits={"input_ids": words, "segment_ids": 2},
    )
