"""Owns the order and number of generated candidates: the most promising first, a dozen at most.

Every one of them computes what the reference computes in no less than its precision, except where the user
allowed less by name. Must never make a session.
"""

from __future__ import annotations

from collections.abc import Iterator

from ort_stacktune.candidates import cpu, providers
from ort_stacktune.candidates.situation import Situation
from ort_stacktune.ort.provider_options import reduced_precisions
from ort_stacktune.ort.provider_table import OPENVINO
from ort_stacktune.ort.recipes import SessionRecipe, variant

MAX_GENERATED = 12


def generate(situation: Situation) -> tuple[SessionRecipe, ...]:
    """Returns candidates for a situation, the most promising first, none equal to the reference."""
    chosen: list[SessionRecipe] = []
    seen = {situation.reference.revision}
    allowed = reduced_precisions(situation.reference.provider_list) | set(situation.reduced_precision)
    for recipe in _proposals(situation):
        if recipe.revision not in seen and reduced_precisions(recipe.provider_list) <= allowed:
            seen.add(recipe.revision)
            chosen.append(
                variant(recipe, recipe.name, risky=True) if _is_risky(recipe, situation) else recipe
            )
    return tuple(chosen[:MAX_GENERATED])


def _is_risky(recipe: SessionRecipe, situation: Situation) -> bool:
    """Whether a candidate is of a kind that was seen to end the process.

    Shapes fixed for one branch of a graph break the inference of the other, which is never taken; OpenVINO EP 1.24
    ends the process over it, and over other branches that it copies.
    """
    changed = recipe.shapes != situation.reference.shapes or OPENVINO in dict(recipe.provider_list)
    return situation.control_flow and changed


def _proposals(situation: Situation) -> Iterator[SessionRecipe]:
    reference, cores = situation.reference, situation.cores
    yield from providers.proposals(situation)
    yield from cpu.pools(reference, cores, situation.callers)
    yield from cpu.proposals(reference, situation.shapes, situation.fixable, cores)
