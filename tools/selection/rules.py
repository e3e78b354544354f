"""Owns what is compared: the search that ships and the usual rule, each as one trial over replayed rows."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ort_stacktune.policy import StackPolicy

from .replay import Player, run_search
from .rows import Rows

_USUAL_PAIRS = 7
_USUAL_SPREAD = 0.15


@dataclass(frozen=True, slots=True)
class Trial:
    """What one search over replayed rows came to.

    Attributes:
        winner: Position of who was promoted among the candidates; ``None`` where the reference stayed.
        pairs: Pairs of timings spent.
        reasons: For each candidate, why it was not promoted, in words.
    """

    winner: int | None
    pairs: int
    reasons: tuple[str, ...]


Rule = Callable[[Rows, Sequence[float], StackPolicy, random.Random], Trial]


def ours(rows: Rows, speedups: Sequence[float], policy: StackPolicy, rng: random.Random) -> Trial:
    """Runs the search that ships."""
    outcome, pairs = run_search(rows, speedups, policy, rng)
    reasons = tuple(_without_numbers(report.note) for report in outcome.reports[1:])
    return Trial(outcome.winner - 1 if outcome.winner else None, pairs, reasons)


def usual(rows: Rows, speedups: Sequence[float], policy: StackPolicy, rng: random.Random) -> Trial:
    """Takes the lowest median ratio of seven pairs of single timings, unless they spread by more than 15 %."""
    medians: dict[int, float] = {}
    reasons = []
    for index, speedup in enumerate(speedups):
        player = Player(rows, speedup, rng)
        pairs = [player.pair(candidate_first=rng.random() < 0.5) for _ in range(_USUAL_PAIRS)]
        ratios = [candidate[0] / reference[0] for reference, candidate in pairs]
        median = statistics.median(ratios)
        spread = statistics.median(abs(ratio - median) for ratio in ratios) / median
        if spread > _USUAL_SPREAD:
            reasons.append("too noisy")
        elif median * policy.min_speedup > 1.0:
            reasons.append("gain is under min_speedup")
        else:
            medians[index] = median
            reasons.append("another was faster")
    winner = min(medians, key=medians.__getitem__, default=None)
    return Trial(winner, _USUAL_PAIRS * len(speedups), tuple(reasons))


RULES: dict[str, Rule] = {"ours": ours, "usual": usual}


def _without_numbers(note: str) -> str:
    return re.split(r"\s*\d", note, maxsplit=1)[0]
