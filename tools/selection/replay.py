"""Owns the replay: rows of recorded noise take the place of a machine under the search that ships.

The search is the shipped one. All that is added is that it tells the runner whose pair comes next, which a
machine need not know but a replay does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count

from ort_stacktune.policy import Candidate, StackPolicy
from ort_stacktune.search import Outcome, Search
from ort_stacktune.vocabulary import Tolerance, Validation

from .rows import Rows, Timings

REFERENCE = 0


class Player:
    """Plays one candidate against the reference, row by row from a random place.

    Which of the two recorded sessions plays the candidate is drawn once, and a pair takes the next row in which
    the same one ran first as in the pair: what being first costs, and what one session had over the other,
    stays in the times. Rows stay whole and in order, so that drift and bursts stay too.
    """

    def __init__(self, rows: Rows, speedup: float, rng: random.Random) -> None:
        self._rows = rows
        self._speedup = speedup
        self._session = rng.randrange(2)
        self._next = rng.randrange(len(rows))

    def pair(self, *, candidate_first: bool) -> tuple[Timings, Timings]:
        """Returns three timings of the reference and of the candidate, from one row."""
        first = self._session if candidate_first else 1 - self._session
        row = self._rows.following[first][self._next]
        self._next = (row + 1) % len(self._rows)
        times = self._rows.times_ns[row]
        return times[1 - self._session], self._sped_up(times[self._session])

    def _sped_up(self, times: Timings) -> Timings:
        if self._speedup == 1.0:
            return times
        a, b, c = times
        return int(a / self._speedup) or 1, int(b / self._speedup) or 1, int(c / self._speedup) or 1


class ReplayRunner:
    """A trial runner whose times come from rows. Every candidate is right; candidate ``i`` has position ``i``.

    Args:
        rows: Noise to replay.
        speedups: True gain of each candidate, the reference left out.
        rng: Draws where each candidate begins.
    """

    def __init__(self, rows: Rows, speedups: Sequence[float], rng: random.Random) -> None:
        self._players = [Player(rows, speedup, rng) for speedup in speedups]
        self._outside_pairs = _one_after_another(rows, rng)
        self._announced: int | None = None
        self._due: dict[int, list[int]] = {}
        self.pairs = 0

    def announce(self, candidate: int) -> None:
        """Says whose pair comes next."""
        self._announced = candidate

    def validate(self, reference: int, candidate: int, tolerance: Tolerance) -> Validation:
        """Passes everybody."""
        return Validation.PASSED

    def measure(self, candidate: int) -> int:
        """Returns the next of the three timings of this side of the pair, in ns; outside pairs, the next of any."""
        if self._announced is not None:
            self._deal(self._announced, candidate != REFERENCE)
            self._announced = None
        due = self._due.get(candidate)
        return due.pop() if due else next(self._outside_pairs)

    def _deal(self, candidate: int, candidate_first: bool) -> None:
        if any(self._due.values()):
            raise RuntimeError("a pair began before the last one was over; expected 3 timings of each side")
        reference_times, candidate_times = self._players[candidate - 1].pair(candidate_first=candidate_first)
        self._due = {REFERENCE: [*reversed(reference_times)], candidate: [*reversed(candidate_times)]}
        self.pairs += 1


def _one_after_another(rows: Rows, rng: random.Random) -> Iterator[int]:
    """Yields the timings of one session, row by row from a random place, without an end."""
    session, start = rng.randrange(2), rng.randrange(len(rows))
    for row in count(start):
        yield from rows.times_ns[row % len(rows)][session]


class _TellingSearch(Search):
    """The shipped search; it tells the replay whose pair comes next."""

    _runner: ReplayRunner

    def _timed_pair(self, candidate: int, *, as_served: bool = False) -> tuple[int, int]:
        self._runner.announce(candidate)
        return super()._timed_pair(candidate, as_served=as_served)


def run_search(
    rows: Rows, speedups: Sequence[float], policy: StackPolicy, rng: random.Random
) -> tuple[Outcome, int]:
    """Runs the shipped search over candidates of known gain, and returns its outcome and the pairs it took."""
    runner = ReplayRunner(rows, speedups, rng)
    names = [Candidate(f"candidate {i}" if i else "reference") for i in range(len(speedups) + 1)]
    outcome = _TellingSearch(names, REFERENCE, policy, runner, clock_ns=lambda: 0, coin=rng).run()
    # Pairs that the runner was not told of would be answered with times of one session.
    told = sum(report.samples for report in outcome.reports[1:])
    if runner.pairs != told:
        raise RuntimeError(
            f"the search reports {told} pairs, and {runner.pairs} were announced to the replay"
        )
    return outcome, runner.pairs
