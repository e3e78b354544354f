"""Builds small ONNX models with known behaviour, for tests, benchmarks and examples.

Needs only onnx and numpy. Every builder returns a model that ``onnx.checker`` accepts and ONNX Runtime
1.24 loads (IR version 10 and opset 21 at most), and says in its docstring what goes in and what comes out;
``N`` there is a dimension of any size, zero included. Pairs of models of one function, unfused and fused, are in
:mod:`graphs.twins`.
"""

from __future__ import annotations

from graphs.control import branching, counted, gather_fails, optional_input, sequence_output, sliced
from graphs.hostile import (
    distinct,
    expanded,
    free_noise,
    growing_state,
    hidden_noise,
    masked_softmax,
    naive_softmax,
    one_name_two_sizes,
    outer_sum,
    shape_branch,
    until_small,
    unused_input,
)
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
    "distinct",
    "expanded",
    "external",
    "free_noise",
    "gather_fails",
    "growing_state",
    "heavy",
    "hidden_noise",
    "int_division",
    "masked_softmax",
    "mlp",
    "naive_softmax",
    "nan_maker",
    "one_name_two_sizes",
    "optional_input",
    "outer_sum",
    "overridable",
    "positive_rows",
    "random_op",
    "scalar",
    "sequence_output",
    "shape_branch",
    "sliced",
    "slowed",
    "string_identity",
    "sum_of",
    "until_small",
    "unused_input",
    "with_state",
]
