"""Owns pairs of attention, and how attention is written in single operators."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from graphs.building import OPSET
from graphs.twins.writing import Twin, Writer, pair, twin, vector, weight

Matrix = npt.NDArray[np.float64]


class Projections:
    """The weights of attention: one matrix and one bias for each of query, key, value and output."""

    def __init__(self, draw: np.random.Generator, width: int, shared: int | None = None) -> None:
        """Draws them; ``shared`` is the width of key and value where it is another than the query's."""
        widths = [width, shared or width, shared or width, width]
        self.matrices = [weight(draw, width, columns) for columns in widths]
        self.biases = [vector(draw, columns) for columns in widths]

    def written(self, to: Writer, part: int, value: str, out: str = "") -> str:
        """Writes one projection: 0 query, 1 key, 2 value, 3 output."""
        return to.linear(value, self.matrices[part], self.biases[part], out)

    def packed(self, to: Writer) -> tuple[str, str]:
        """Adds the constants in which query, key and value stand side by side."""
        return (
            to.constant(np.concatenate(self.matrices[:3], axis=1)),
            to.constant(np.concatenate(self.biases[:3])),
        )

    def head(self, part: int, head: int, size: int) -> tuple[Matrix, Matrix]:
        """Returns one head's columns of one projection."""
        columns = slice(head * size, (head + 1) * size)
        return self.matrices[part][:, columns], self.biases[part][columns]


def written_heads(to: Writer, value: str, shape: tuple[int, int, int, int]) -> str:
    """Writes how [batch, length, heads * size] becomes [batch, heads, length, size]."""
    return to.op("Transpose", to.op("Reshape", value, to.ints(*shape)), perm=[0, 2, 1, 3])


def written_weights(
    to: Writer, query: str, key: str, size: int, swap: tuple[int, ...], causal: int = 0
) -> str:
    """Writes the attention weights; with ``causal``, the length, none looks ahead.

    ``swap`` is the order of dimensions in which the key's last two are exchanged.
    """
    scores = to.op("MatMul", query, to.op("Transpose", key, perm=swap))
    scores = to.op("Div", scores, to.constant(size**0.5))
    if causal:
        seen = to.constant(np.tril(np.ones((1, 1, causal, causal), np.bool_)), np.bool_)
        scores = to.op("Where", seen, scores, to.constant(float(np.finfo(to.dtype).min)))
    return to.op("Softmax", scores, axis=-1)


def written_context(
    to: Writer, parts: tuple[str, str, str], shape: tuple[int, int, int, int], causal: bool = False
) -> str:
    """Writes attention from query, key and value, [batch, heads, length, size] each, to [batch, length, width].

    ``shape`` is the query's batch, length, heads and size.
    """
    batch, length, heads, size = shape
    weights = written_weights(to, parts[0], parts[1], size, (0, 1, 3, 2), length if causal else 0)
    context = to.op("Transpose", to.op("MatMul", weights, parts[2]), perm=[0, 2, 1, 3])
    return to.op("Reshape", context, to.ints(batch, length, heads * size))


def written_attention(
    to: Writer,
    weights: Projections,
    values: tuple[str, str],
    shape: tuple[int, int, int, int],
    other_length: int,
    causal: bool = False,
    out: str = "",
) -> str:
    """Writes attention whole, projections included, of ``values[0]`` to ``values[1]``."""
    batch, _, heads, size = shape
    query = written_heads(to, weights.written(to, 0, values[0]), shape)
    other = (batch, other_length, heads, size)
    key, value = (written_heads(to, weights.written(to, part, values[1]), other) for part in (1, 2))
    return weights.written(to, 3, written_context(to, (query, key, value), shape, causal), out)


def _self_attention(
    name: str, shape: tuple[int, int, int, int], causal: bool, dtype: npt.DTypeLike, opset: int, seed: int
) -> Twin:
    batch, length, heads, size = shape
    weights = Projections(np.random.default_rng(seed), heads * size)
    unfused, fused = pair(dtype, opset)
    written_attention(unfused, weights, ("x", "x"), shape, length, causal, "y")
    context = fused.contrib(
        "Attention", "x", *weights.packed(fused), num_heads=heads, unidirectional=int(causal)
    )
    weights.written(fused, 3, context, "y")
    dims = [batch, length, heads * size]
    return twin(name, (unfused, fused), [unfused.tensor("x", dims)], [unfused.tensor("y", dims)])


def self_attention(
    batch: int = 1,
    length: int = 128,
    heads: int = 12,
    size: int = 32,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """Attention of a sequence to itself, projections included, or com.microsoft Attention.

    Inputs: ``x``, ``dtype`` [batch, length, heads * size].
    Outputs: ``y``, ``dtype`` [batch, length, heads * size].
    """
    return _self_attention("self_attention", (batch, length, heads, size), False, dtype, opset, seed)


def causal_attention(
    batch: int = 1,
    length: int = 128,
    heads: int = 12,
    size: int = 32,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """The same where no position looks ahead: a constant mask, or Attention with ``unidirectional``.

    Inputs: ``x``, ``dtype`` [batch, length, heads * size].
    Outputs: ``y``, ``dtype`` [batch, length, heads * size].
    """
    return _self_attention("causal_attention", (batch, length, heads, size), True, dtype, opset, seed)


def cross_attention(
    batch: int = 1,
    length: int = 64,
    other_length: int = 128,
    heads: int = 12,
    size: int = 32,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """Attention of a sequence to another one, projections included, or MultiHeadAttention.

    Inputs: ``x``, ``dtype`` [batch, length, heads * size], and ``other``, [batch, other_length, heads * size].
    Outputs: ``y``, ``dtype`` [batch, length, heads * size].
    """
    weights = Projections(np.random.default_rng(seed), heads * size)
    unfused, fused = pair(dtype, opset)
    shape = (batch, length, heads, size)
    written_attention(unfused, weights, ("x", "other"), shape, other_length, out="y")
    parts = [weights.written(fused, part, value) for part, value in enumerate(("x", "other", "other"))]
    weights.written(fused, 3, fused.contrib("MultiHeadAttention", *parts, num_heads=heads), "y")
    dims, other = [batch, length, heads * size], [batch, other_length, heads * size]
    inputs = [unfused.tensor("x", dims), unfused.tensor("other", other)]
    return twin("cross_attention", (unfused, fused), inputs, [unfused.tensor("y", dims)])


def head_by_head(
    batch: int = 1,
    length: int = 64,
    heads: int = 12,
    size: int = 64,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """Self-attention in which each head has projections of its own, or MultiHeadAttention for all of them.

    Inputs: ``x``, ``dtype`` [batch, length, heads * size].
    Outputs: ``y``, ``dtype`` [batch, length, heads * size].
    """
    weights = Projections(np.random.default_rng(seed), heads * size)
    unfused, fused = pair(dtype, opset)
    contexts = []
    for head in range(heads):
        query, key, value = (unfused.linear("x", *weights.head(part, head, size)) for part in range(3))
        contexts.append(unfused.op("MatMul", written_weights(unfused, query, key, size, (0, 2, 1)), value))
    weights.written(unfused, 3, unfused.op("Concat", *contexts, axis=-1), "y")
    parts = [weights.written(fused, part, "x") for part in range(3)]
    weights.written(fused, 3, fused.contrib("MultiHeadAttention", *parts, num_heads=heads), "y")
    dims = [batch, length, heads * size]
    inputs, outputs = [unfused.tensor("x", dims)], [unfused.tensor("y", dims)]
    return twin("head_by_head", (unfused, fused), inputs, outputs)


def grouped_query_attention(
    batch: int = 1,
    length: int = 128,
    heads: int = 8,
    groups: int = 2,
    size: int = 32,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """Causal attention in which heads share keys and values: these repeated, or GroupQueryAttention.

    ``heads`` must be a multiple of ``groups``, the number of heads of key and value, and ``size`` one of 8.

    Inputs: ``x``, ``dtype`` [batch, length, heads * size].
    Outputs: ``y``, ``dtype`` [batch, length, heads * size].

    Raises:
        ValueError: ``heads`` is no multiple of ``groups``, or ``size`` none of 8.
    """
    if heads % groups:
        raise ValueError(f"{heads} heads can not share {groups} heads of keys: give a multiple of {groups}")
    if size % 8:
        raise ValueError(f"size is {size}, which GroupQueryAttention does not take: give a multiple of 8")
    weights = Projections(np.random.default_rng(seed), heads * size, groups * size)
    unfused, fused = pair(dtype, opset)
    shape = (batch, length, heads, size)

    query = written_heads(unfused, weights.written(unfused, 0, "x"), shape)
    repeated = []
    for part in (1, 2):
        value = written_heads(unfused, weights.written(unfused, part, "x"), (batch, length, groups, size))
        value = unfused.op("Unsqueeze", value, unfused.ints(2))
        value = unfused.op("Expand", value, unfused.ints(batch, groups, heads // groups, length, size))
        repeated.append(unfused.op("Reshape", value, unfused.ints(batch, heads, length, size)))
    context = written_context(unfused, (query, repeated[0], repeated[1]), shape, causal=True)
    weights.written(unfused, 3, context, "y")

    parts = [weights.written(fused, part, "x") for part in range(3)]
    last = fused.constant(np.full(batch, length - 1), np.int32)
    total = fused.constant(length, np.int32)
    context = fused.contrib(
        "GroupQueryAttention",
        *parts,
        "",
        "",
        last,
        total,
        out=["", "present_key", "present_value"],
        num_heads=heads,
        kv_num_heads=groups,
    )
    weights.written(fused, 3, context, "y")
    dims = [batch, length, heads * size]
    return twin(
        "grouped_query_attention",
        (unfused, fused),
        [unfused.tensor("x", dims)],
        [unfused.tensor("y", dims)],
    )


def rotary_embedding(
    batch: int = 1,
    length: int = 128,
    heads: int = 8,
    size: int = 64,
    positions: int = 512,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
) -> Twin:
    """Turns the halves of each vector by its position's angles, or RotaryEmbedding; ``size`` must be even.

    Inputs: ``x``, ``dtype`` [batch, heads, length, size], and ``position_ids``, int64 [batch, length],
    below ``positions``.
    Outputs: ``y``, ``dtype`` [batch, heads, length, size].

    Raises:
        ValueError: ``size`` is odd.
    """
    if size % 2:
        raise ValueError(f"size is {size}, and its halves are turned against each other: give an even one")
    angles = np.outer(np.arange(positions), 10000.0 ** (-np.arange(0, size, 2) / size))
    unfused, fused = pair(dtype, opset)
    cosine, sine = (
        unfused.op(
            "Unsqueeze",
            unfused.op("Gather", unfused.constant(np.tile(table, 2)), "position_ids", axis=0),
            unfused.ints(1),
        )
        for table in (np.cos(angles), np.sin(angles))
    )
    first = unfused.op("Slice", "x", unfused.ints(0), unfused.ints(size // 2), unfused.ints(3))
    second = unfused.op("Slice", "x", unfused.ints(size // 2), unfused.ints(size), unfused.ints(3))
    turned = unfused.op("Concat", unfused.op("Neg", second), first, axis=-1)
    unfused.op("Add", unfused.op("Mul", "x", cosine), unfused.op("Mul", turned, sine), out="y")

    tables = fused.constant(np.cos(angles)), fused.constant(np.sin(angles))
    fused.contrib("RotaryEmbedding", "x", "position_ids", *tables, out="y")
    dims = [batch, heads, length, size]
    return twin(
        "rotary_embedding",
        (unfused, fused),
        [unfused.tensor("x", dims), unfused.tensor("position_ids", [batch, length], np.int64)],
        [unfused.tensor("y", dims)],
        limits={"position_ids": positions},
    )
