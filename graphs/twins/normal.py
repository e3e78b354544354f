"""Owns pairs of normalisations, and how a normalisation is written in single operators."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from graphs.building import OPSET
from graphs.twins.writing import Twin, Writer, pair, twin, vector

EPSILON = 1e-5


def written_layer_norm(
    to: Writer, value: str, scale: npt.ArrayLike, bias: npt.ArrayLike, out: str = ""
) -> str:
    """Writes a layer normalisation over the last dimension in single operators."""
    centred = to.op("Sub", value, to.mean(value))
    variance = to.mean(to.op("Pow", centred, to.constant(2.0)))
    deviation = to.op("Sqrt", to.op("Add", variance, to.constant(EPSILON)))
    scaled = to.op("Mul", to.op("Div", centred, deviation), to.constant(scale))
    return to.op("Add", scaled, to.constant(bias), out=out)


def layer_norm(
    batch: int = 1,
    length: int = 128,
    width: int = 384,
    skip: bool = False,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """Layer normalisation: nine operators, or LayerNormalization, or SkipLayerNormalization.

    Inputs: ``x`` and, with ``skip``, ``skip``, which is added to it first; ``dtype`` [batch, length, width].
    Outputs: ``y`` and, with ``skip``, ``sum``, of the same dtype and shape.
    """
    draw = np.random.default_rng(seed)
    scale, bias = vector(draw, width, 1.0), vector(draw, width)
    unfused, fused = pair(dtype, opset)
    constants = fused.constant(scale), fused.constant(bias)
    names = ["x"], ["y"]
    if skip:
        names = ["x", "skip"], ["y", "sum"]
        written_layer_norm(unfused, unfused.op("Add", "x", "skip", out="sum"), scale, bias, "y")
        outs = ["y", "", "", "sum"]
        fused.contrib("SkipLayerNormalization", "x", "skip", *constants, out=outs, epsilon=EPSILON)
    else:
        written_layer_norm(unfused, "x", scale, bias, "y")
        fused.op("LayerNormalization", "x", *constants, out="y", axis=-1, epsilon=EPSILON)
    inputs, outputs = ([unfused.tensor(name, [batch, length, width]) for name in some] for some in names)
    return twin("layer_norm", (unfused, fused), inputs, outputs)


def rms_norm(
    batch: int = 1,
    length: int = 128,
    width: int = 384,
    skip: bool = False,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """Normalisation by the root of the mean square, computed in float32: SkipSimplifiedLayerNormalization.

    Without ``skip`` the fused model adds zeros: up to opset 22 that is the only fused operator for it
    that ``onnx.checker`` accepts.

    Inputs: ``x`` and, with ``skip``, ``skip``, which is added to it first; ``dtype`` [batch, length, width].
    Outputs: ``y`` and, with ``skip``, ``sum``, of the same dtype and shape.
    """
    scale = vector(np.random.default_rng(seed), width, 1.0)
    unfused, fused = pair(dtype, opset)
    names = (["x", "skip"], ["y", "sum"]) if skip else (["x"], ["y"])
    value = unfused.op("Add", "x", "skip", out="sum") if skip else "x"
    single = unfused.op("Cast", value, to=1)
    square = unfused.op("Pow", single, unfused.constant(2.0, np.float32))
    mean = unfused.op("Add", unfused.mean(square), unfused.constant(EPSILON, np.float32))
    inverse = unfused.op("Reciprocal", unfused.op("Sqrt", mean))
    normal = unfused.op("Cast", unfused.op("Mul", single, inverse), to=unfused.element)
    unfused.op("Mul", unfused.constant(scale), normal, out="y")

    added = "skip" if skip else fused.constant(np.zeros((length, width)))
    outs = ["y", "", "", "sum"] if skip else ["y"]
    fused.contrib(
        "SkipSimplifiedLayerNormalization", "x", added, fused.constant(scale), out=outs, epsilon=EPSILON
    )
    inputs, outputs = ([unfused.tensor(name, [batch, length, width]) for name in some] for some in names)
    return twin("rms_norm", (unfused, fused), inputs, outputs)
