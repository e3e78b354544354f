"""Owns what a record's key says about how strictly its question was asked. Pure.

Must never guess: a key that does not read as :func:`ort_stacktune.question.cache_key` writes it says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ort_stacktune.failures import TuneFailure
from ort_stacktune.policy import StackPolicy
from ort_stacktune.question import parts_of_key
from ort_stacktune.vocabulary import Timing


@dataclass(frozen=True, slots=True)
class Strictness:
    """What was demanded of a winner, as in the policy of the search.

    Attributes:
        timing: Which clock the trials used.
        absolute: Absolute part of the tolerance.
        relative: Relative part of the tolerance.
        min_speedup: Least gain worth leaving the reference for.
        confidence: Chance that a search over equally fast candidates promotes none.
        expected_calls: Calls within which a winner had to repay its first costs; ``None`` for no such demand.
        concurrency: Callers at one time.
    """

    timing: Timing
    absolute: float
    relative: float
    min_speedup: float
    confidence: float
    expected_calls: int | None
    concurrency: int


def read_strictness(key: str) -> Strictness | None:
    """Returns the strictness that a key holds; ``None`` for a key of another make."""
    parts = parts_of_key(key)
    if parts is None:
        return None
    try:
        policy = StackPolicy.of_accuracy_key(parts.accuracy_key)
    except TuneFailure:
        return None
    return Strictness(
        policy.timing,
        policy.tolerance.absolute,
        policy.tolerance.relative,
        policy.min_speedup,
        policy.confidence,
        policy.expected_calls,
        policy.concurrency,
    )
