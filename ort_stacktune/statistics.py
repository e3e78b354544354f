"""Owns the arithmetic of the selection rule: medians, paired scores and the sequential test.

Pure: no clock, no randomness, no I/O. The caller owes one thing, a fair coin that decides which side of
each pair runs first; the guarantee below rests on it.

**The guarantee.** Take a search over ``m`` candidates of which none is faster than the reference. The
chance that any of them passes :class:`FasterTest` is at most ``1 - confidence``, whatever the noise looks
like: heavy tails, drift, bursts, correlation between neighbours.

**Why.** Call a pair a win when the candidate took less time than the reference. If both sides draw on the
same distribution given everything seen before, then swapping the labels of a pair changes nothing, and
the coin makes both labellings equally likely, so a win has a chance of at most 1/2 given the past; a slower
candidate, or counting a tie as lost, only lowers it. A gambler who starts with 1 and stakes the
fraction ``b`` of what he has on each pair (times ``1 + b`` for a win, ``1 - b`` otherwise) then holds a
supermartingale, and so does the average over several gamblers with different ``b``. By Ville's inequality
(J. Ville, 1939) such a fortune ever reaches ``m / (1 - confidence)`` with a chance of at most
``(1 - confidence) / m``; the union over ``m`` candidates gives the claim. It holds at every moment at
once, so looking after each pair and stopping when pleased costs nothing, and a pass stays a pass.

Passing shows that a candidate is faster. That it is faster by ``min_speedup`` is asked of the median of its
pairs, and again of fresh pairs; whatever refuses a candidate there, or drops it early, can't promote one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache

from ort_stacktune.policy import StackPolicy

# A large stake wins fast where every pair is won, a small one survives noise; their average is within
# log(len) of the best of them.
_STAKES = (0.3, 0.6, 0.95)

# Enough to give a candidate up, or to call its fresh pairs clear: wrong with a chance of at most 1/20.
_ENOUGH = math.log(20.0)


class Verdict(Enum):
    """What the test says of a candidate so far."""

    OPEN = "open"
    FASTER = "faster"
    NOT_FASTER = "not faster"


class FasterTest:
    """Sequential test of whether a candidate is faster than the reference.

    Args:
        min_speedup: Gain below which a candidate is given up: one whose gains do not reach it in most pairs.
        confidence: Chance that a search without any faster candidate promotes none.
        candidates: Candidates in that search; the evidence asked of each grows with it.
        max_pairs: Pairs after which an open test ends.
    """

    def __init__(self, min_speedup: float, confidence: float, candidates: int, max_pairs: int) -> None:
        self._min_speedup = min_speedup
        self._needed = math.log(max(candidates, 1) / (1.0 - confidence))
        self._max_pairs = max_pairs
        self._passed = False
        self.pairs = 0
        self.wins = 0
        self.gains = 0

    def add(self, reference_ns: int, candidate_ns: int) -> Verdict:
        """Takes one pair of completed times in ns and returns the verdict so far."""
        self.pairs += 1
        # A tie counts against the candidate: with it the chance of a win stays at most 1/2.
        self.wins += reference_ns > candidate_ns
        self.gains += reference_ns > self._min_speedup * candidate_ns
        self._passed = self._passed or _log_fortune(self.wins, self.pairs - self.wins) >= self._needed
        return self.verdict

    @property
    def least_pairs(self) -> int:
        """Pairs it takes where every one is won."""
        pairs = 1
        while _log_fortune(pairs, 0) < self._needed:
            pairs += 1
        return pairs

    @property
    def verdict(self) -> Verdict:
        """The verdict over the pairs taken so far."""
        if mostly(self.pairs - self.gains, self.pairs):
            return Verdict.NOT_FASTER
        if self._passed:
            return Verdict.FASTER
        still_to_come = self._max_pairs - self.pairs
        if _log_fortune(self.wins + still_to_come, self.pairs - self.wins) < self._needed:
            return Verdict.NOT_FASTER
        return Verdict.OPEN


def mostly(cases: int, pairs: int) -> bool:
    """Whether something occurs in most pairs, by those seen; wrong with a chance of at most 1/20."""
    return _log_fortune(cases, pairs - cases) >= _ENOUGH


@lru_cache(maxsize=65536)
def _log_fortune(wins: int, losses: int) -> float:
    exponents = [wins * math.log1p(stake) + losses * math.log1p(-stake) for stake in _STAKES]
    largest = max(exponents)
    return largest + math.log(sum(math.exp(e - largest) for e in exponents) / len(exponents))


def median(values: list[float]) -> float | None:
    """Sorts a list of positive finite floats in place and returns its median.

    Returns:
        The middle value, or the mean of the two middle ones; ``None`` where the list is empty or holds a
        value that is zero, negative or not finite.
    """
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        return None
    values.sort()
    middle = len(values) // 2
    if len(values) % 2:
        return values[middle]
    return values[middle - 1] / 2 + values[middle] / 2


def paired_score(pairs: Sequence[tuple[float, float]], policy: StackPolicy) -> tuple[float, float] | None:
    """Returns how a candidate compares over its pairs, or ``None`` where they say nothing.

    Args:
        pairs: Completed times ``(reference, selected)`` in one unit, each pair taken back to back.
        policy: ``samples`` is the least number of pairs, ``max_relative_mad`` the most spread.

    Returns:
        The median of selected over reference (below 1 for a gain) and the median absolute deviation of
        the ratios over that median. ``None`` with too few pairs, a duration that is zero, negative or not
        finite, or too much spread. A spread of zero is fine.
    """
    if len(pairs) < policy.samples:
        return None
    ratios = pair_ratios(pairs)
    if ratios is None:
        return None
    centre, spread = ratio_and_spread(ratios)
    if spread > policy.max_relative_mad:
        return None
    return centre, spread


def pair_ratios(pairs: Sequence[tuple[float, float]]) -> list[float] | None:
    """Returns selected over reference of each pair; ``None`` where a duration is no positive number."""
    if not all(math.isfinite(side) and side > 0 for pair in pairs for side in pair):
        return None
    return [selected / reference for reference, selected in pairs]


def ratio_and_spread(ratios: Sequence[float]) -> tuple[float, float]:
    """Returns the median of positive ratios and their relative median absolute deviation."""
    centre = median(list(ratios))
    if centre is None:
        raise ValueError("expected at least one ratio, all positive and finite")
    deviations = sorted(abs(ratio - centre) for ratio in ratios)
    middle = len(deviations) // 2
    spread = deviations[middle] if len(deviations) % 2 else (deviations[middle - 1] + deviations[middle]) / 2
    return centre, spread / centre


def median_interval(ratios: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Returns an interval that covers the median ratio with the given chance, without assuming a shape.

    The bounds are order statistics chosen by the binomial distribution (the sign test turned round);
    ``None`` where there are too few values for that confidence.
    """
    ordered = sorted(ratios)
    n = len(ordered)
    tail = (1.0 - confidence) / 2.0
    below = 0.0
    rank = -1
    for k in range(n // 2):
        below += math.comb(n, k) * 0.5**n
        if below > tail:
            break
        rank = k
    if rank < 0:
        return None
    return ordered[rank], ordered[n - 1 - rank]
