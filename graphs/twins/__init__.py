"""Builds the building blocks of common models twice: as exporters write them and as ONNX Runtime's operators.

Every builder takes sizes, a dtype (float32 or float16) and an opset (17 to 21), and returns a
:class:`Twin`: two models with the same weights, inputs and outputs, and how far they may differ. Called
without arguments it returns one of a size that is worth measuring. Shapes are fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from graphs.twins.attention import (
    causal_attention,
    cross_attention,
    grouped_query_attention,
    head_by_head,
    rotary_embedding,
    self_attention,
)
from graphs.twins.blocks import conv_block, embedding, gelu, matmul_activation
from graphs.twins.encoder import encoder_block
from graphs.twins.normal import layer_norm, rms_norm
from graphs.twins.quantised import matmul_nbits, qdq_matmul
from graphs.twins.recurrent import gru, lstm
from graphs.twins.writing import Twin

BUILDERS: Mapping[str, Callable[..., Twin]] = MappingProxyType(
    {
        build.__name__: build
        for build in (
            causal_attention,
            conv_block,
            cross_attention,
            embedding,
            encoder_block,
            gelu,
            grouped_query_attention,
            gru,
            head_by_head,
            layer_norm,
            lstm,
            matmul_activation,
            matmul_nbits,
            qdq_matmul,
            rms_norm,
            rotary_embedding,
            self_attention,
        )
    }
)
"""All builders by the names of their functions."""

__all__ = [
    "BUILDERS",
    "Twin",
    "causal_attention",
    "conv_block",
    "cross_attention",
    "embedding",
    "encoder_block",
    "gelu",
    "grouped_query_attention",
    "gru",
    "head_by_head",
    "layer_norm",
    "lstm",
    "matmul_activation",
    "matmul_nbits",
    "qdq_matmul",
    "rms_norm",
    "rotary_embedding",
    "self_attention",
]
