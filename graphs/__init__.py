"""Builds small ONNX models with known behaviour, for tests, benchmarks and examples.

Needs only onnx and numpy. Every builder returns a model that ``onnx.checker`` accepts and ONNX Runtime
1.24 loads (IR version 10 and opset 21 at most), and says in its docstring what goes in and what comes out;
``N`` there is a dimension of any size, zero included.
"""

from __future__ import annotations

from graphs.control import branching, counted, gather_fails, optional_input, sequence_output, sliced
from graphs.small import (
    argmax,
    int_division,
    mlp,
    nan_maker,
    overridable,
    positive_rows,
    random_op,
    scalar,
    string_identity,
    sum_of,
    with_state,
)
from graphs.work import external, heavy, slowed

__all__ = [
    "argmax",
    "branching",
    "counted",
    "external",
    "gather_fails",
    "heavy",
    "int_division",
    "mlp",
    "nan_maker",
    "optional_input",
    "overridable",
    "positive_rows",
    "random_op",
    "scalar",
    "sequence_output",
    "sliced",
    "slowed",
    "string_identity",
    "sum_of",
    "with_state",
]
