"""Owns what is known of one candidate while it is under trial, and the words for it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ort_stacktune.failures import FailureKind, Fault
from ort_stacktune.policy import StackPolicy
from ort_stacktune.statistics import (
    FasterTest,
    Verdict,
    median_interval,
    mostly,
    pair_ratios,
    ratio_and_spread,
)
from ort_stacktune.vocabulary import CandidateReport, FirstCosts

_PAIRS_OF_A_LEADER = 5
_INTERVAL_CONFIDENCE = 0.95

Pairs = list[tuple[int, int]]
"""Times of the reference and of the candidate in ns, pair by pair."""


@dataclass(slots=True)
class Contender:
    """A candidate while it is under trial.

    Attributes:
        index: Its position.
        test: The sequential test over its pairs.
        verified: Whether its outputs agreed with the reference's.
        pairs: Pairs that the test saw.
        confirming: Fresh pairs, taken as it will serve.
        verdict: Verdict so far.
        note: Reason in words.
        rejection: Kind of the failure that ended it.
        fault: How the process of its trial ended, where that is what ended it.
        opening_ns: What making, validating and first timing it took.
        pairs_ns: What its pairs took in all, on the clock of the budget.
        trailing: Whether it takes no more pairs because somebody leads by far.
        undecided: Whether time ran out before its verdict.
    """

    index: int
    test: FasterTest
    verified: bool = False
    pairs: Pairs = field(default_factory=list)
    confirming: Pairs = field(default_factory=list)
    verdict: Verdict = Verdict.OPEN
    note: str = ""
    rejection: FailureKind | None = None
    fault: Fault | None = None
    opening_ns: int = 0
    pairs_ns: int = 0
    trailing: bool = False
    undecided: bool = False

    def score(self, *, confirmed: bool = False) -> float:
        """Returns its median time over the reference's, also on the fresh pairs; infinite without pairs."""
        ratios = pair_ratios(self.confirming if confirmed else self.pairs)
        return ratio_and_spread(ratios)[0] if ratios else float("inf")

    def quartiles(self) -> tuple[float, float]:
        """Returns the quartiles of its ratios, the fast one first."""
        ratios = sorted(pair_ratios(self.pairs) or [1.0])
        return ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]

    def leads(self, policy: StackPolicy) -> bool:
        """Whether it is on its way to pass, so that others may be held against it."""
        enough = len(self.pairs) >= _PAIRS_OF_A_LEADER and self.verdict is not Verdict.NOT_FASTER
        return enough and self.quartiles()[1] * policy.min_speedup < 1.0

    def reject(self, kind: FailureKind, note: str, fault: Fault | None = None) -> None:
        """Ends its trial with a failure."""
        self.verdict = Verdict.NOT_FASTER
        self.rejection = kind
        self.fault = fault
        self.verified = self.verified and kind is not FailureKind.REJECTED
        self.note = note

    def is_settled(self, policy: StackPolicy) -> bool:
        """Whether its fresh pairs speak clearly: against it, or for it and without too much noise."""
        pairs = len(self.confirming)
        gains = sum(reference > policy.min_speedup * own for reference, own in self.confirming)
        if mostly(pairs - gains, pairs):
            return True
        return mostly(gains, pairs) and failing_limit(self.confirming, policy) is None

    def break_even(self, costs: FirstCosts | None) -> int | None:
        """Returns the calls after which it has repaid its making and its slower first run, where known."""
        if costs is None or costs.create_ns is None or costs.first_run_ns is None:
            return None
        reference_ns = middle([pair[0] for pair in self.confirming])
        steady_ns = middle([pair[1] for pair in self.confirming])
        extra_ns = costs.create_ns + max(0, costs.first_run_ns - steady_ns)
        return math.ceil(extra_ns / max(1, reference_ns - steady_ns))

    def report(self, name: str, *, selected: bool) -> CandidateReport:
        """Returns what is to be told of it; the winner's figures are those of its fresh pairs."""
        pairs = self.confirming if selected else self.pairs
        ratios = pair_ratios(pairs) if pairs else None
        ratio, spread = ratio_and_spread(ratios) if ratios else (None, None)
        return CandidateReport(
            name,
            samples=len(self.pairs) + len(self.confirming),
            ratio=ratio,
            relative_mad=spread,
            verified=self.verified,
            note=self.note,
            rejection=self.rejection,
            fault=self.fault,
            interval=median_interval(ratios or [], _INTERVAL_CONFIDENCE),
            median_ns=middle([pair[1] for pair in pairs]) if pairs else None,
            verdict="selected" if selected else self._verdict_in_words(),
        )

    def _verdict_in_words(self) -> str:
        if self.rejection is not None:
            return "rejected"
        if self.verdict is Verdict.FASTER:
            return "passed"
        return "undecided" if self.undecided else "not faster"


def failing_limit(pairs: Pairs, policy: StackPolicy) -> str | None:
    """Returns which limit of the policy a set of pairs fails, in words, or ``None``.

    The limit on the spread is meant for ``policy.samples`` pairs. More of them know the median better, by the
    square root of their number, and may scatter as much more.
    """
    ratios = pair_ratios(pairs)
    if len(pairs) < policy.samples or ratios is None:
        return f"too few good pairs: {len(pairs)} of {policy.samples}"
    ratio, spread = ratio_and_spread(ratios)
    limit = policy.max_relative_mad * math.sqrt(len(pairs) / policy.samples)
    if spread > limit:
        return f"too noisy: spread {spread:.2f} over the limit {limit:.2f} for {len(pairs)} pairs"
    if ratio * policy.min_speedup > 1.0:
        return f"gain {1 / ratio:.3f}x is under min_speedup {policy.min_speedup:g}"
    return None


def middle(values: Sequence[int]) -> int:
    """Returns a middle value, one that occurred."""
    return sorted(values)[len(values) // 2]
