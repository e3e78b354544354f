"""Owns the question which inputs steer: whose values, not only shapes, decide control flow or shapes.

It knows which operands of which operators steer and how values flow through nodes, subgraphs and local
functions. Must never recurse or look at weights, and must never import ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

import onnx

from ort_stacktune.ort.walk import (
    Body,
    FunctionId,
    OperatorId,
    called_functions,
    function_id,
    operator_id,
    subgraphs,
)

STEERING_OPERANDS: Mapping[OperatorId, tuple[int, ...]] = {
    # Control flow. A loop body's own condition is added where loops are connected.
    ("", "If"): (0,),
    ("", "Loop"): (0, 1),  # trip count, condition
    # Shape and extent of the output.
    ("", "AffineGrid"): (1,),
    ("", "BlackmanWindow"): (0,),
    ("", "CenterCropPad"): (1,),
    ("", "Col2Im"): (1, 2),  # image shape, block shape
    ("", "ConstantOfShape"): (0,),
    ("", "CumProd"): (1,),
    ("", "CumSum"): (1,),
    ("", "DFT"): (1, 2),  # length, axis
    ("", "Expand"): (1,),
    ("", "HammingWindow"): (0,),
    ("", "HannWindow"): (0,),
    ("", "MaxUnpool"): (2,),
    ("", "MelWeightMatrix"): (0, 1),  # bins, length
    ("", "NonMaxSuppression"): (2,),
    ("", "OneHot"): (1,),
    ("", "Pad"): (1, 3),  # pads, axes
    ("", "Range"): (0, 1, 2),
    ("", "ReduceL1"): (1,),
    ("", "ReduceL2"): (1,),
    ("", "ReduceLogSum"): (1,),
    ("", "ReduceLogSumExp"): (1,),
    ("", "ReduceMax"): (1,),
    ("", "ReduceMean"): (1,),
    ("", "ReduceMin"): (1,),
    ("", "ReduceProd"): (1,),
    ("", "ReduceSum"): (1,),
    ("", "ReduceSumSquare"): (1,),
    ("", "Reshape"): (1,),
    ("", "Resize"): (1, 2, 3),  # region (scales in opset 10), scales, sizes
    ("", "STFT"): (1, 3),  # step, length
    ("", "SequenceAt"): (1,),
    ("", "SequenceErase"): (1,),
    ("", "SequenceInsert"): (2,),
    ("", "Slice"): (1, 2, 3, 4),  # starts, ends, axes, steps
    ("", "Split"): (1,),
    ("", "SplitToSequence"): (1,),
    ("", "Squeeze"): (1,),
    ("", "Tile"): (1, 2),  # repeats; tiles and axis in opset 1
    ("", "TopK"): (1,),
    ("", "Trilu"): (1,),
    ("", "Unsqueeze"): (1,),
    ("", "Upsample"): (1,),
    # ONNX Runtime's own operators.
    ("com.microsoft", "Attention"): (6,),  # past sequence length
    ("com.microsoft", "BeamSearch"): (1, 2, 3, 4),  # lengths, beams, sequences
    ("com.microsoft", "ConvTransposeWithDynamicPads"): (2,),
    ("com.microsoft", "CropAndResize"): (3,),
    ("com.microsoft", "DecoderAttention"): (8, 9, 10, 11),  # flags
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): (7, 8),  # past sequence length, beams
    ("com.microsoft", "DecoderMaskedSelfAttention"): (6, 7),  # past sequence length, beams
    ("com.microsoft", "ExpandDims"): (1,),
    ("com.microsoft", "GreedySearch"): (1, 2),  # lengths
    ("com.microsoft", "GroupQueryAttention"): (6,),  # total sequence length
    ("com.microsoft", "MultiHeadAttention"): (8,),  # past sequence length
    ("com.microsoft", "Pad"): (1,),
    ("com.microsoft", "Range"): (0, 1, 2),
    ("com.microsoft", "RelativePositionBias"): (1, 2),  # query and key lengths
    ("com.microsoft", "Sampling"): (1, 2),  # lengths
    ("com.microsoft", "SparseAttention"): (7,),  # total sequence length
    ("com.microsoft", "Trilu"): (1,),
    ("com.microsoft", "WhisperBeamSearch"): (1, 2, 3, 4),  # lengths, beams, sequences
}
"""Positions of the inputs whose values decide what runs or how large an output is.

NonZero, Compress, Unique and their like are left out: what they depend on is data, which is new in every
call, so that no choice could ever be used again if their operands belonged to the signature.
"""

_SHAPE_ONLY = frozenset(
    {
        ("", "ConstantOfShape"),
        ("", "EyeLike"),
        ("", "OptionalHasElement"),
        ("", "SequenceLength"),
        ("", "Shape"),
        ("", "Size"),
    }
)
"""Operators whose output says nothing about the values of their operands."""


_Values: TypeAlias = list[int | None]
"""Numbers of values, with ``None`` for an operand left out."""


@dataclass(frozen=True, slots=True)
class _Summary:
    """What a local function does with its formal inputs, by position."""

    steering: frozenset[int]
    """Those that steer within it."""
    sources: tuple[frozenset[int], ...]
    """For each output, those its value is computed from."""


class _Scope:
    """Names visible in one body, with the surrounding ones behind them."""

    __slots__ = ("names", "outer")

    def __init__(self, outer: _Scope | None) -> None:
        self.names: dict[str, int] = {}
        self.outer = outer

    def find(self, name: str) -> int | None:
        scope: _Scope | None = self
        while scope is not None:
            value = scope.names.get(name)
            if value is not None:
                return value
            scope = scope.outer
        return None

    def find_all(self, names: Iterable[str]) -> _Values:
        return [self.find(name) for name in names]


class _Inner:
    """A subgraph of a node: its names, and the values that go in and come out."""

    __slots__ = ("body", "formal", "results", "scope")

    def __init__(self, body: Body, scope: _Scope) -> None:
        self.body = body
        self.scope = scope
        self.formal = scope.find_all(_names(body.input))
        self.results = scope.find_all(_names(body.output))


class _Flow:
    """Which values of a body, those of its subgraphs included, are computed from which others.

    Values are numbered; ``sources[v]`` lists what ``v`` is computed from, and ``seeds`` the values that
    steer directly.
    """

    def __init__(self, body: Body, summaries: Mapping[FunctionId, _Summary]) -> None:
        self.sources: list[list[int]] = []
        self.seeds: _Values = []
        self._summaries = summaries
        self.top = self._open(body, None)
        pending = [self.top]
        while pending:
            inner = pending.pop()
            for node in inner.body.node:
                pending.extend(self._connect(node, inner.scope))

    def reach(self, starts: Iterable[int | None]) -> frozenset[int]:
        """Returns the positions of the body's inputs that the given values are computed from."""
        seen = {value for value in starts if value is not None}
        pending = list(seen)
        while pending:
            for source in self.sources[pending.pop()]:
                if source not in seen:
                    seen.add(source)
                    pending.append(source)
        return frozenset(i for i, value in enumerate(self.top.formal) if value in seen)

    def summary(self) -> _Summary:
        """Returns what the body does with its inputs."""
        return _Summary(self.reach(self.seeds), tuple(self.reach((value,)) for value in self.top.results))

    def _open(self, body: Body, outer: _Scope | None) -> _Inner:
        scope = _Scope(outer)
        for name in _defined(body):
            if name and name not in scope.names:
                scope.names[name] = len(self.sources)
                self.sources.append([])
        return _Inner(body, scope)

    def _add(self, value: int | None, sources: Iterable[int | None]) -> None:
        if value is not None:
            self.sources[value].extend(source for source in sources if source is not None)

    def _connect(self, node: onnx.NodeProto, scope: _Scope) -> list[_Inner]:
        operator = operator_id(node)
        inputs = scope.find_all(node.input)
        outputs = scope.find_all(node.output)
        inner = [self._open(graph, scope) for graph in subgraphs(node)] if node.attribute else []
        summary = self._summaries.get(function_id(node))
        if summary is not None:
            self._connect_call(summary, inputs, outputs)
            return inner
        self.seeds.extend(_at(inputs, STEERING_OPERANDS.get(operator, ())))
        if operator == ("", "If"):
            self._connect_if(inputs, outputs, inner)
        elif operator == ("", "Loop") and inner:
            self._connect_loop(inputs, outputs, inner[0])
        elif operator == ("", "Scan") and inner:
            self._connect_scan(inputs, outputs, inner[0], _integer(node, "num_scan_inputs"))
        elif operator not in _SHAPE_ONLY:
            self._connect_any(inputs, outputs, inner)
        return inner

    def _connect_call(self, summary: _Summary, inputs: _Values, outputs: _Values) -> None:
        self.seeds.extend(_at(inputs, summary.steering))
        for output, sources in zip(outputs, summary.sources, strict=False):
            self._add(output, _at(inputs, sources))

    def _connect_if(self, inputs: _Values, outputs: _Values, branches: Sequence[_Inner]) -> None:
        for branch in branches:
            for output, result in zip(outputs, branch.results, strict=False):
                self._add(output, (*inputs, result))

    def _connect_loop(self, inputs: _Values, outputs: _Values, body: _Inner) -> None:
        formal = body.formal[1:]  # without the iteration number: the trip count steers already
        initial = inputs[1:]
        self.seeds.extend(body.results[:1])  # the condition for another turn
        for value, first, next_ in zip_longest(formal, initial, body.results[: len(formal)]):
            self._add(value, (first, next_))
        for output, result in zip(outputs, body.results[1:], strict=False):
            self._add(output, (result,))
        for output, first in zip(outputs[: len(formal) - 1], initial[1:], strict=False):
            self._add(output, (first,))  # a loop of no turns passes its first values on

    def _connect_scan(self, inputs: _Values, outputs: _Values, body: _Inner, scanned: int) -> None:
        # Opset 8 has one more operand in front, so operands are lined up from the end.
        actual = inputs[max(0, len(inputs) - len(body.formal)) :]
        states = len(body.formal) - scanned
        for value, source in zip(body.formal, actual, strict=False):
            self._add(value, (source,))
        for value, result in zip(body.formal[:states], body.results, strict=False):
            self._add(value, (result,))
        for output, result in zip(outputs, body.results, strict=False):
            self._add(output, (result,))
        for output, source in zip(outputs[:states], actual, strict=False):
            self._add(output, (source,))  # a scan over nothing passes its first states on

    def _connect_any(self, inputs: _Values, outputs: _Values, bodies: Sequence[_Inner]) -> None:
        results: _Values = []
        for body in bodies:
            results.extend(body.results)
            for value in body.formal:
                self._add(value, inputs)
        for output in outputs:
            self._add(output, (*inputs, *results))


def steering_positions(model: onnx.ModelProto) -> frozenset[int]:
    """Returns the positions among ``graph.input`` whose values decide control flow or shapes.

    Values are followed backwards from the steering operands of all operators through the nodes that
    compute them. ``Shape`` and its like end a path: only a shape matters there. A local function is
    summed up once and each of its calls judged by that summary. Types are not looked at.
    """
    summaries: dict[FunctionId, _Summary] = {}
    for key, function in called_functions(model).items():
        summaries[key] = _Flow(function, summaries).summary()
    flow = _Flow(model.graph, summaries)
    return flow.reach(flow.seeds)


def _at(values: _Values, positions: Iterable[int]) -> _Values:
    return [values[position] for position in positions if position < len(values)]


def _integer(node: onnx.NodeProto, name: str) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), 0)


def _names(values: Iterable[onnx.ValueInfoProto | str]) -> Iterator[str]:
    # A graph describes its inputs and outputs, a function only names them.
    return (value if isinstance(value, str) else value.name for value in values)


def _defined(body: Body) -> Iterator[str]:
    yield from _names(body.input)
    if isinstance(body, onnx.GraphProto):
        yield from (tensor.name for tensor in body.initializer)
        yield from (sparse.values.name for sparse in body.sparse_initializer)
    for node in body.node:
        yield from node.output
