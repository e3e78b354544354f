"""Owns what is known of a model from its graph alone, and how a graph's inputs get fixed shapes.

Must never read external data, change a weight, or import ONNX Runtime.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx

from ort_stacktune.failures import invalid
from ort_stacktune.ort.steering import steering_positions
from ort_stacktune.ort.walk import Body, called_functions, function_id, nested, operator_id

Dims: TypeAlias = tuple[int | str | None, ...]
"""Declared dimensions: a size, a symbolic name, or ``None`` where neither is declared."""

_DRAWING = frozenset(
    {
        ("", "Bernoulli"),
        ("", "Multinomial"),
        ("", "RandomNormal"),
        ("", "RandomNormalLike"),
        ("", "RandomUniform"),
        ("", "RandomUniformLike"),
        ("com.microsoft", "Sampling"),
    }
)
"""Operators that always draw random numbers."""

_DRAWING_IN_TRAINING = {
    ("", "Dropout"): 2,
    ("com.microsoft", "BiasDropout"): 4,
    ("com.microsoft", "BitmaskBiasDropout"): 4,
    ("com.microsoft", "BitmaskDropout"): 2,
}
"""Operators that draw random numbers when the operand at this position is true."""

_CONTAINERS = {"sequence_type": "seq", "optional_type": "optional"}
_TENSORS = {"tensor_type": "tensor", "sparse_tensor_type": "sparse_tensor"}
_FLOATS = frozenset({"tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)"})
_MOST_STEERING_FLOATS = 16
"""Length up to which a float input may be scales or a limit; a longer one is data."""


@dataclass(frozen=True, slots=True)
class InputFact:
    """An input or output as the graph declares it.

    Attributes:
        name: Its name.
        type: Its type as ONNX Runtime prints it, such as ``tensor(float)``; empty where undeclared.
        dims: Its declared dimensions; ``None`` where the rank is not declared or it is not a tensor.
    """

    name: str
    type: str
    dims: Dims | None


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What a graph says about itself.

    Attributes:
        name: The graph's name.
        inputs: Inputs that a caller feeds, in order; those with an initializer are not among them.
        outputs: Outputs, in order.
        overridable: Names of initializers that a caller may feed instead.
        steering: Names of inputs whose values, not only shapes, decide control flow or shapes: of integer
            or boolean type with any shape, or float with at most one dimension, not known to be long.
        random: Operators that draw random numbers or may do so, as "type (node name)".
        node_count: Nodes of the graph, its subgraphs and the local functions it calls, each once.
        op_types: How many of those nodes are of each type; "domain:type" outside the standard domain.
    """

    name: str
    inputs: tuple[InputFact, ...]
    outputs: tuple[InputFact, ...]
    overridable: tuple[str, ...] = ()
    steering: tuple[str, ...] = ()
    random: tuple[str, ...] = ()
    node_count: int = 0
    op_types: Mapping[str, int] = field(default_factory=dict)


def facts(model: onnx.ModelProto) -> GraphFacts:
    """Reads the facts of a model; takes time in proportion to its nodes.

    Args:
        model: The model; external data need not be loaded.
    """
    graph = model.graph
    with_value = {tensor.name for tensor in graph.initializer}
    with_value.update(sparse.values.name for sparse in graph.sparse_initializer)
    declared = [_fact(value) for value in graph.input]
    # Up to IR version 3 every initializer had to be an input too, and none could be overridden.
    overridable = (fact.name for fact in declared if fact.name in with_value and model.ir_version > 3)
    functions = called_functions(model)
    bodies: list[Body] = [graph, *functions.values()]
    nodes = [node for body in bodies for part in nested(body) for node in part.node]
    return GraphFacts(
        name=graph.name,
        inputs=tuple(fact for fact in declared if fact.name not in with_value),
        outputs=tuple(_fact(value) for value in graph.output),
        overridable=tuple(overridable),
        steering=tuple(
            declared[i].name
            for i in sorted(steering_positions(model))
            if declared[i].name not in with_value and _may_steer(declared[i])
        ),
        random=tuple(
            _label(node) for body in bodies for node in _drawing(body) if function_id(node) not in functions
        ),
        node_count=len(nodes),
        op_types=dict(Counter(":".join(filter(None, operator_id(node))) for node in nodes)),
    )


def frozen_dims(facts: GraphFacts, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int] | None:
    """Returns sizes for symbolic dimension names, as ``add_free_dimension_override_by_name`` takes them.

    Args:
        facts: The model's facts.
        shapes: Exact shapes by input name. Inputs that are left out, and unnamed dimensions, stay free.

    Returns:
        Size by name, empty where no fed dimension is symbolic; ``None`` where names can't express these
        shapes: one name would stand for two sizes, or a rank or size differs from the declared one.
    """
    sizes: dict[str, int] = {}
    for fact in facts.inputs:
        shape = shapes.get(fact.name)
        if shape is None or fact.dims is None:
            continue
        if not _agree(fact.dims, shape):
            return None
        for dim, size in zip(fact.dims, shape, strict=True):
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                return None
    return sizes


def with_fixed_shapes(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """Returns a copy of a model whose inputs have exactly these shapes.

    Names and types of inputs and outputs stay as they are. What was said about shapes further down (of
    intermediate values, and the dimensions of outputs) is dropped, so that nothing contradicts the new
    input shapes. Weights are copied as they are; references to external data stay relative, so the copy
    finds its weights only when it is loaded from the directory of the original. ONNX Runtime refuses to load
    the copy where a branch that is never taken with these shapes would not accept them.

    Args:
        model: The model; external data need not be loaded. It is not changed.
        shapes: Exact shapes by input name. Inputs that are left out keep their declaration.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where a name is no tensor input of the model, or a shape
            contradicts the declared rank or size.
    """
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    inputs = {value.name: value for value in fixed.graph.input}
    for name, shape in shapes.items():
        value = inputs.get(name)
        if value is None or not value.type.HasField("tensor_type"):
            raise invalid(f"the model has no tensor input {name!r}; it has {', '.join(inputs) or 'none'}")
        dims = _dims(value.type)
        if dims is not None and not _agree(dims, shape):
            raise invalid(f"shape {shape} contradicts {dims}, which the model declares for input {name!r}")
        target = value.type.tensor_type.shape
        target.Clear()
        for size in shape:
            target.dim.add().dim_value = size
        # An empty shape is one of rank 0, but only where it is there at all.
        target.SetInParent()
    for value in fixed.graph.output:
        _free_dims(value.type)
    for body in (fixed.graph, *fixed.functions):
        for part in nested(body):
            del part.value_info[:]
    return fixed


def _fact(value: onnx.ValueInfoProto) -> InputFact:
    return InputFact(value.name, _type_text(value.type), _dims(value.type))


def _type_text(declared: onnx.TypeProto) -> str:
    text = "{}"
    while True:
        kind = declared.WhichOneof("value")
        if kind == "map_type":
            text = text.format(f"map({_elem_text(declared.map_type.key_type)},{{}})")
            declared = declared.map_type.value_type
        elif kind in _CONTAINERS:
            text = text.format(f"{_CONTAINERS[kind]}({{}})")
            declared = getattr(declared, kind).elem_type
        else:
            tensor = getattr(declared, kind).elem_type if kind in _TENSORS else None
            return text.format("" if tensor is None else f"{_TENSORS[kind]}({_elem_text(tensor)})")


def _elem_text(elem_type: int) -> str:
    try:
        return str(onnx.TensorProto.DataType.Name(elem_type)).lower()
    except ValueError:
        return f"type {elem_type}"


def _dims(declared: onnx.TypeProto) -> Dims | None:
    if not declared.HasField("tensor_type") or not declared.tensor_type.HasField("shape"):
        return None
    return tuple(_dim(dim) for dim in declared.tensor_type.shape.dim)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    # Some exporters write -1 for an unknown size; ONNX Runtime reads it so too.
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return dim.dim_param or None


def _agree(dims: Dims, shape: tuple[int, ...]) -> bool:
    return len(dims) == len(shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(dims, shape, strict=True)
    )


def _free_dims(declared: onnx.TypeProto) -> None:
    while (kind := declared.WhichOneof("value")) in _CONTAINERS:
        declared = getattr(declared, kind).elem_type
    if kind == "tensor_type":
        for dim in declared.tensor_type.shape.dim:
            dim.Clear()


def _may_steer(fact: InputFact) -> bool:
    if fact.type in _FLOATS:
        if fact.dims is None or len(fact.dims) > 1:
            return False
        return all(not isinstance(dim, int) or dim <= _MOST_STEERING_FLOATS for dim in fact.dims)
    return fact.type.startswith(("tensor(int", "tensor(uint", "tensor(bool"))


def _label(node: onnx.NodeProto) -> str:
    return f"{node.op_type} ({node.name or next(iter(node.output), '')})"


def _drawing(body: Body) -> Iterator[onnx.NodeProto]:
    """Yields the nodes of a body and its subgraphs that draw random numbers, or may."""
    off: set[str] | None = None
    for part in nested(body):
        for node in part.node:
            operator = operator_id(node)
            if operator in _DRAWING:
                yield node
            position = _DRAWING_IN_TRAINING.get(operator, math.inf)
            if position < len(node.input):
                off = _constant_false(body) if off is None else off
                mode = node.input[int(position)]
                if mode and mode not in off:
                    yield node


def _constant_false(body: Body) -> set[str]:
    """Returns the names that stand for a constant false wherever they occur in a body."""
    false: set[str] = set()
    other: set[str] = set()
    for part in nested(body):
        if isinstance(part, onnx.GraphProto):
            other.update(value.name for value in part.input)
            for tensor in part.initializer:
                (false if _is_false(tensor) else other).add(tensor.name)
        else:
            other.update(part.input)
        for node in part.node:
            constant = operator_id(node) == ("", "Constant") and any(
                attribute.name == "value" and _is_false(attribute.t) for attribute in node.attribute
            )
            (false if constant else other).update(node.output)
    return false - other


def _is_false(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type != onnx.TensorProto.BOOL or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return False
    values = onnx.numpy_helper.to_array(tensor)
    return values.size == 1 and not values.item()
