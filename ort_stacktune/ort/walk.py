"""Owns how the bodies of a model are visited: the main graph, subgraphs at any depth, local functions.

Must never recurse, because models nest and call as deeply as their exporter liked, and must never import
ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import onnx

Body: TypeAlias = onnx.GraphProto | onnx.FunctionProto
OperatorId: TypeAlias = tuple[str, str]
"""Domain ("" for the standard one) and operator type."""
FunctionId: TypeAlias = tuple[str, str, str]
"""Domain, name and overload."""


def domain_of(domain: str) -> str:
    """Returns a domain with its two spellings of the standard one made equal."""
    return "" if domain == "ai.onnx" else domain


def operator_id(node: onnx.NodeProto) -> OperatorId:
    """Returns which operator a node asks for."""
    return domain_of(node.domain), node.op_type


def function_id(node: onnx.NodeProto) -> FunctionId:
    """Returns which local function a node calls, if the model has such a function."""
    return domain_of(node.domain), node.op_type, node.overload


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yields the graphs that a node holds as attributes: branches, loop bodies, decoders."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def nested(body: Body) -> Iterator[Body]:
    """Yields a body and every graph within it, an outer one before those it holds."""
    pending: list[Body] = [body]
    while pending:
        current = pending.pop()
        yield current
        for node in current.node:
            if node.attribute:
                pending.extend(subgraphs(node))


def called_functions(model: onnx.ModelProto) -> dict[FunctionId, onnx.FunctionProto]:
    """Returns the local functions that the main graph calls, directly or not, a callee before its callers.

    Functions that call each other in a ring, which the format forbids, come in some order.
    """
    known = {(domain_of(f.domain), f.name, f.overload): f for f in model.functions}
    done: dict[FunctionId, onnx.FunctionProto] = {}
    if not known:
        return done
    opened: set[FunctionId] = set()
    pending = _calls(model.graph, known)
    while pending:
        key = pending[-1]
        if key in opened:
            pending.pop()
            done.setdefault(key, known[key])
            continue
        opened.add(key)
        pending.extend(callee for callee in _calls(known[key], known) if callee not in opened)
    return done


def _calls(body: Body, known: dict[FunctionId, onnx.FunctionProto]) -> list[FunctionId]:
    keys = (function_id(node) for part in nested(body) for node in part.node)
    return list(dict.fromkeys(key for key in keys if key in known))
