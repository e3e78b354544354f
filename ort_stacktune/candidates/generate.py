"""Owns the order and number of generated candidates: the most promising first, a dozen at most.

Every one of them computes what the reference computes in full precision; anything lossy is the user's to
ask for. Must never make a session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ort_stacktune.candidates import cpu, openvino
from ort_stacktune.ort.recipes import SessionRecipe

MAX_GENERATED = 12


@dataclass(frozen=True, slots=True)
class Situation:
    """What candidates are generated for.

    Attributes:
        reference: The reference's recipe.
        shapes: Exact shape of every fed input of the signature.
        dynamic: Whether the model leaves any of their dimensions open.
        control_flow: Whether the graph branches or loops.
        cores: Cores this process may use, by affinity and quota.
        providers: Execution providers of this build.
        callers: Callers at one time that there is memory for a session each.
    """

    reference: SessionRecipe
    shapes: Mapping[str, tuple[int, ...]]
    dynamic: bool
    control_flow: bool
    cores: int
    providers: tuple[str, ...]
    callers: int = 1


def generate(situation: Situation) -> tuple[SessionRecipe, ...]:
    """Returns candidates for a situation, the most promising first, none equal to the reference."""
    chosen: list[SessionRecipe] = []
    seen = {situation.reference.revision}
    for recipe in _proposals(situation):
        if recipe.revision not in seen:
            seen.add(recipe.revision)
            chosen.append(recipe)
    return tuple(chosen[:MAX_GENERATED])


def _proposals(situation: Situation) -> Iterator[SessionRecipe]:
    # Shapes fixed for one branch break the inference of the other, which is never taken.
    dynamic = situation.dynamic and not situation.control_flow
    if not situation.control_flow:
        # OpenVINO EP 1.24 ends the process while it copies some branches of fixed shapes.
        yield from openvino.proposals(
            situation.reference, situation.shapes, dynamic, situation.cores, situation.providers
        )
    yield from cpu.pools(situation.reference, situation.cores, situation.callers)
    yield from cpu.proposals(situation.reference, situation.shapes, dynamic, situation.cores)
