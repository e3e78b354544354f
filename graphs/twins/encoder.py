"""Owns the pair of a whole transformer encoder block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from graphs.building import OPSET
from graphs.twins.attention import Projections, written_attention
from graphs.twins.blocks import written_gelu
from graphs.twins.normal import EPSILON, written_layer_norm
from graphs.twins.writing import Twin, Writer, pair, twin, vector, weight


class _Weights:
    """The weights of one block."""

    def __init__(self, seed: int, width: int, inner: int) -> None:
        draw = np.random.default_rng(seed)
        self.attention = Projections(draw, width)
        self.norms = [(vector(draw, width, 1.0), vector(draw, width)) for _ in range(2)]
        self.up = weight(draw, width, inner), vector(draw, inner)
        self.down = weight(draw, inner, width), vector(draw, width)


def encoder_block(
    batch: int = 1,
    length: int = 512,
    heads: int = 12,
    size: int = 32,
    inner: int | None = None,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """Self-attention and two layers with GELU, each added to its input and normalised.

    Fused by hand it is Attention, BiasGelu and SkipLayerNormalization twice. ``inner`` is four times the
    width unless it is given.

    Inputs: ``x``, ``dtype`` [batch, length, heads * size].
    Outputs: ``y``, ``dtype`` [batch, length, heads * size].
    """
    width = heads * size
    weights = _Weights(seed, width, inner or 4 * width)
    unfused, fused = pair(dtype, opset)
    _written(unfused, weights, (batch, length, heads, size))
    _fused(fused, weights, heads)
    dims = [batch, length, width]
    inputs, outputs = [unfused.tensor("x", dims)], [unfused.tensor("y", dims)]
    return twin("encoder_block", (unfused, fused), inputs, outputs)


def _written(to: Writer, weights: _Weights, shape: tuple[int, int, int, int]) -> None:
    attended = written_attention(to, weights.attention, ("x", "x"), shape, shape[1])
    normal = written_layer_norm(to, to.op("Add", attended, "x"), *weights.norms[0])
    active = written_gelu(to, to.linear(normal, *weights.up))
    written_layer_norm(to, to.op("Add", to.linear(active, *weights.down), normal), *weights.norms[1], "y")


def _fused(to: Writer, weights: _Weights, heads: int) -> None:
    def skip(product: str, added: str, norm: int, bias: npt.ArrayLike, out: str = "") -> str:
        constants = [to.constant(value) for value in (*weights.norms[norm], bias)]
        return to.contrib("SkipLayerNormalization", product, added, *constants, out=out, epsilon=EPSILON)

    context = to.contrib("Attention", "x", *weights.attention.packed(to), num_heads=heads)
    product = to.op("MatMul", context, to.constant(weights.attention.matrices[3]))
    normal = skip(product, "x", 0, weights.attention.biases[3])
    up, down = (to.constant(matrix) for matrix, _ in (weights.up, weights.down))
    active = to.contrib("BiasGelu", to.op("MatMul", normal, up), to.constant(weights.up[1]))
    skip(to.op("MatMul", active, down), normal, 1, weights.down[1], "y")
