"""Owns pairs of matrix products with quantised weights."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from graphs.building import OPSET
from graphs.twins.writing import Twin, pair, twin, weight

_STEP = 1 / 32


def qdq_matmul(
    rows: int = 64,
    inner: int = 256,
    columns: int = 256,
    bits: Literal[7, 8] = 7,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """A matrix product between QuantizeLinear and DequantizeLinear of 8 bits, or QLinearMatMul.

    Input and output are of unsigned whole numbers and the weights of signed ones, of one scale.

    Args:
        rows: Rows of the input.
        inner: Columns of the input.
        columns: Columns of the output.
        bits: How many bits of 8 the weights use. With 8, CPUs without VNNI saturate sums of pairs, and
            what they give is outside of the tolerance.
        dtype: Of input and output: ``x``, [rows, inner], and ``y``, [rows, columns].
        opset: The opset; float16 needs 19.
        seed: Of the weights.

    Raises:
        ValueError: float16 is asked of an opset below 19.
    """
    if np.dtype(dtype) == np.float16 and opset < 19:
        raise ValueError(f"opset {opset} quantises no float16: give 19 or more, or float32")
    drawn = weight(np.random.default_rng(seed), inner, columns)
    most = 2 ** (bits - 1) - 1
    scale = float(np.abs(drawn).max() / most)
    whole = np.clip(np.rint(drawn / scale), -most, most)
    unfused, fused = pair(dtype, opset)
    ends, matrices = [], []
    for to in (unfused, fused):
        ends.append((to.constant(_STEP), to.constant(128, np.uint8)))
        matrices.append((to.constant(whole, np.int8), to.constant(scale), to.constant(0, np.int8)))

    entered = unfused.op("DequantizeLinear", unfused.op("QuantizeLinear", "x", *ends[0]), *ends[0])
    product = unfused.op("MatMul", entered, unfused.op("DequantizeLinear", *matrices[0]))
    unfused.op("DequantizeLinear", unfused.op("QuantizeLinear", product, *ends[0]), *ends[0], out="y")

    entered = fused.op("QuantizeLinear", "x", *ends[1])
    product = fused.op("QLinearMatMul", entered, *ends[1], *matrices[1], *ends[1])
    fused.op("DequantizeLinear", product, *ends[1], out="y")
    # A sum halfway between two steps goes up in one and down in the other. In float16, QuantizeLinear of
    # ONNX Runtime 1.24 misses by a step now and then, at both ends.
    one_step, five_steps = (0.0, _STEP * 1.01), (0.0, _STEP * 5)
    return twin(
        "qdq_matmul",
        (unfused, fused),
        [unfused.tensor("x", [rows, inner])],
        [unfused.tensor("y", [rows, columns])],
        one_step,
        five_steps,
    )


def matmul_nbits(
    rows: int = 1,
    inner: int = 2048,
    columns: int = 2048,
    bits: Literal[4, 8] = 8,
    block: int = 32,
    accuracy_level: int = 0,
    stored: bool = False,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """A matrix product with weights of 4 or 8 bits, a scale for each block of a column, or MatMulNBits.

    The weights of the unfused model are those of the fused one, so that only arithmetic differs.

    Args:
        rows: Rows of the input.
        inner: Columns of the input, a multiple of ``block``.
        columns: Columns of the output.
        bits: Of each weight.
        block: How many weights share a scale: a power of 2, 16 at least.
        accuracy_level: MatMulNBits' own: 4 lets it round the input to 8 bits as well, 0 and 1 do not.
        stored: Whether the unfused model stores whole numbers for DequantizeLinear, which needs opset 21,
            rather than numbers of ``dtype``.
        dtype: Of input and output: ``x``, [rows, inner], and ``y``, [rows, columns].
        opset: The opset.
        seed: Of the weights.

    Raises:
        ValueError: ``inner`` is no multiple of ``block``, or ``stored`` is asked of an opset below 21.
    """
    if inner % block:
        raise ValueError(f"inner is {inner} and blocks have {block}: give a multiple of {block}")
    if stored and opset < 21:
        raise ValueError(f"opset {opset} has no scales for blocks: give 21, or leave 'stored' out")
    drawn = weight(np.random.default_rng(seed), inner, columns).reshape(-1, block, columns)
    middle = 2 ** (bits - 1)
    scales = (np.abs(drawn).max(1) / (middle - 1)).astype(dtype)
    whole = np.clip(np.rint(drawn / scales[:, None]) + middle, 0, 2 * middle - 1).astype(np.uint8)

    unfused, fused = pair(dtype, opset)
    if stored:
        kind = onnx.TensorProto.UINT4 if bits == 4 else onnx.TensorProto.UINT8
        numbers, zeros = (
            unfused.stored(helper.make_tensor("", kind, value.shape, value.ravel()))
            for value in (whole.reshape(inner, columns), np.full(scales.shape, middle, np.uint8))
        )
        scaled = unfused.constant(scales)
        matrix = unfused.op("DequantizeLinear", numbers, scaled, zeros, axis=0, block_size=block)
    else:
        centred = (whole.astype(np.float32) - middle) * scales[:, None].astype(np.float32)
        matrix = unfused.constant(centred.reshape(inner, columns))
    unfused.op("MatMul", "x", matrix, out="y")

    laid = whole.transpose(2, 0, 1)
    packed = laid if bits == 8 else laid[..., ::2] | laid[..., 1::2] << 4
    fused.contrib(
        "MatMulNBits",
        "x",
        fused.constant(packed, np.uint8),
        fused.constant(scales.T),
        out="y",
        K=inner,
        N=columns,
        bits=bits,
        block_size=block,
        accuracy_level=accuracy_level,
    )
    # Blocks of the input rounded to 8 bits: about 1 % of a typical output. ONNX Runtime's default for
    # stored weights is level 4 as well, whatever the fused twin asks for.
    rounded = accuracy_level == 4 or stored
    return twin(
        "matmul_nbits",
        (unfused, fused),
        [unfused.tensor("x", [rows, inner])],
        [unfused.tensor("y", [rows, columns])],
        (1e-2, 5e-2) if rounded else (1e-4, 1e-5),
        (2e-2, 5e-2) if rounded else (1e-2, 1e-2),
    )
