"""Owns the order in which signatures are decided and how much of a budget each may take. Pure.

The heaviest come first, so that a run that is stopped early has decided what matters most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ort_stacktune.prewarm.manifest import ModelEntry, SignatureEntry


@dataclass(frozen=True, slots=True)
class Task:
    """One signature of one model.

    Attributes:
        model: The model's entry.
        signature: The signature's entry.
        number: Position in the manifest, from 0.
    """

    model: ModelEntry
    signature: SignatureEntry
    number: int


def in_order(models: Iterable[ModelEntry]) -> list[Task]:
    """Returns all signatures, the heaviest first; among equals, those of one model together."""
    pairs = [(model, signature) for model in models for signature in model.signatures]
    tasks = [Task(model, signature, number) for number, (model, signature) in enumerate(pairs)]
    return sorted(tasks, key=lambda task: (-task.signature.weight, task.number))


def planned(budget_s: float | None, weights: Sequence[float], mosts_s: Sequence[float]) -> list[float]:
    """Returns the seconds that each of several signatures gets in turn if all use up what they get.

    Args:
        budget_s: Seconds for all of them; ``None`` for no limit.
        weights: Their weights, in the order of their turns.
        mosts_s: Most seconds for each.
    """
    shares_s = []
    for number, most_s in enumerate(mosts_s):
        share_s = allotment(budget_s, weights[number:], most_s)
        budget_s = None if budget_s is None else budget_s - share_s
        shares_s.append(share_s)
    return shares_s


def allotment(left_s: float | None, weights: Sequence[float], most_s: float) -> float:
    """Returns the seconds that the first of several signatures may take.

    What one does not use goes to those after it. No signature gets less than an equal part of what is left,
    so that rare ones are decided as well; a heavy one gets its part by weight.

    Args:
        left_s: Seconds left for all of them; ``None`` for no limit.
        weights: Their weights, the first one's first.
        most_s: Most seconds for one signature.
    """
    if left_s is None:
        return most_s
    by_weight = left_s * weights[0] / sum(weights)
    return max(0.0, min(most_s, max(by_weight, left_s / len(weights))))
