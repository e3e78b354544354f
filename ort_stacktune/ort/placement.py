"""Owns the question where a session's nodes went, and the refusal of one that is not what was asked for.

ONNX Runtime falls back in silence, wholly or for single nodes. Must never let pass what was not shown: one
provider measured under the name of another is a wrong answer to every later question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ort_stacktune.failures import FailureKind, TuneFailure
from ort_stacktune.ort.provider_table import CPU
from ort_stacktune.ort.recipes import SessionRecipe

Placement = Mapping[str, Counter[str]]
"""Execution provider -> operator type -> number of nodes."""

_MOST_OPERATORS = 5


def placement(session: Any) -> Placement:
    """Returns where a session's nodes went, empty where this ONNX Runtime doesn't tell."""
    ask = getattr(session, "get_provider_graph_assignment_info", None)
    if ask is None:
        return {}
    counts: dict[str, Counter[str]] = {}
    try:
        assigned = ask()
    except Exception:  # noqa: BLE001 - a build that records nothing says so in its own ways
        return {}
    for subgraph in assigned:
        operators = counts.setdefault(subgraph.ep_name, Counter())
        operators.update(node.op_type for node in subgraph.get_nodes())
    return counts


def refuse_absent(recipe: SessionRecipe, active: Sequence[str]) -> None:
    """Refuses a session that lacks the provider its recipe asks for.

    Args:
        recipe: What was asked for.
        active: Providers of the session.

    Raises:
        TuneFailure: ``REJECTED``.
    """
    first = recipe.provider_list[0][0] if recipe.providers else CPU
    if first not in active:
        raise TuneFailure(
            FailureKind.REJECTED,
            f"asked for {first} but the session runs on {', '.join(active)}; a library it needs did not load",
        )


def refuse_other_use(recipe: SessionRecipe, nodes: Placement) -> None:
    """Refuses a session whose nodes are not where its recipe asks for them.

    Args:
        recipe: What was asked for.
        nodes: Where the nodes are; empty where nothing tells.

    Raises:
        TuneFailure: ``REJECTED``, with the operators that are elsewhere.
    """
    first = recipe.provider_list[0][0] if recipe.providers else CPU
    if not nodes:
        if first != CPU:
            raise TuneFailure(FailureKind.REJECTED, f"nothing tells whether {first} runs any node")
        return
    if first not in nodes:
        raise TuneFailure(FailureKind.REJECTED, f"{first} is active but runs none of the nodes")
    elsewhere = {provider: operators for provider, operators in nodes.items() if provider != first}
    if elsewhere and not recipe.allow_partial:
        total = sum(operators.total() for operators in nodes.values())
        raise TuneFailure(
            FailureKind.REJECTED,
            f"{first} runs {nodes[first].total()} of {total} nodes: {_listed(elsewhere)};"
            " set allow_partial=True to accept partial use",
        )


def _listed(nodes: Placement) -> str:
    parts = []
    for provider, operators in nodes.items():
        named = [f"{operator} x{count}" for operator, count in operators.most_common(_MOST_OPERATORS)]
        more = len(operators) - len(named)
        parts.append(f"{provider} runs {', '.join(named)}{f' and {more} more kinds' if more else ''}")
    return "; ".join(parts)
