"""Owns the search: which candidate is validated and timed when, and who wins.

Pure: it drives a :class:`TrialRunner` and knows neither ONNX Runtime nor the disk; the clock and the coin
are handed in. It must never promote a candidate without a passed validation (unless the policy says so),
and never on fewer pairs than the sequential test asks for.

The course of a search: the reference is warmed up, validated against itself and timed. Each candidate is
warmed up, validated and given a few opening pairs, so that a plain loser leaves before the next one is
made. Those still open then take pairs in turns, one a round, until each has a verdict. The fastest of
those that passed is confirmed on fresh pairs; where that fails, the next one is. Who trails a leader beyond
both spreads takes no more pairs, unless the leader does not last.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ort_stacktune.contender import Contender, failing_limit, middle
from ort_stacktune.failures import FailureKind, ReferenceFailure, TuneFailure
from ort_stacktune.policy import Candidate, StackPolicy
from ort_stacktune.statistics import FasterTest, Verdict, pair_ratios, ratio_and_spread
from ort_stacktune.vocabulary import (
    CandidateReport,
    FirstCosts,
    Progress,
    TrialLifecycle,
    TrialRunner,
    Validation,
)

# Slower than this in every pair so far, after one, two and three of them: no need for more. In noise, being
# unlucky three times in a row is common, so it takes a lot.
_PLAIN_LOSER = (4.0, 2.0, 1.25)
_TIE = 1.01

# Who may be the fastest among those that passed, and how many of them are set up to serve at one time.
_CLOSE = 1.15
_MAX_FINALISTS = 3
_CLOSE_BATCHES = 3
_CLOSE_IN_THE_FINAL = 1.03

# Share of the budget for opening candidates before the favourite so far may keep others from being opened.
_LOOKING_AROUND = 0.4


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search decided.

    Attributes:
        winner: Position of the winner; the reference's where no candidate passed.
        verified: Whether the winner was validated.
        ratio: Winner's time over the reference's on the confirming pairs; 1.0 for the reference.
        reference_ns: Median time of the reference.
        selected_ns: Median time of the winner.
        budget_exhausted: Whether the budget ended the search early.
        reports: One for each candidate, in order.
        phases_ns: Phase -> its duration in ns.
    """

    winner: int
    verified: bool
    ratio: float
    reference_ns: int
    selected_ns: int
    budget_exhausted: bool
    reports: tuple[CandidateReport, ...]
    phases_ns: Mapping[str, int]


class Search:
    """One search over the candidates of one question.

    Args:
        candidates: All of them, the reference included.
        reference: Position of the reference.
        policy: Strictness and effort.
        runner: Runs the trials.
        clock_ns: Monotonic clock in ns, for the budget.
        coin: Decides the order within each pair.
        banned: Positions not to be tried, with the reason.
        watch: Told of every step, where somebody waits for the search.
        on_fault: Told at once which candidate ended the process of its trial, and how.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        reference: int,
        policy: StackPolicy,
        runner: TrialRunner,
        *,
        clock_ns: Callable[[], int],
        coin: random.Random,
        banned: Mapping[int, str] | None = None,
        watch: Callable[[Progress], None] | None = None,
        on_fault: Callable[[int, TuneFailure], None] | None = None,
    ) -> None:
        self._candidates = candidates
        self._reference = reference
        self._policy = policy
        self._runner = runner
        self._lifecycle = runner if isinstance(runner, TrialLifecycle) else None
        self._clock_ns = clock_ns
        self._coin = coin
        self._banned = banned or {}
        self._watch = watch
        self._on_fault = on_fault
        self._deadline_ns = 0
        self._round = 0
        self._reference_times: list[int] = []
        self._reference_verified = False
        self._left_out: dict[int, tuple[str, FailureKind | None]] = {}
        self._contenders: dict[int, Contender] = {}
        self._facts: dict[int, Mapping[str, str]] = {}
        self._costs: dict[int, FirstCosts] = {}
        self._phases_ns: dict[str, int] = {}
        self._exhausted = False
        self._exhausted_early = False

    def run(self) -> Outcome:
        """Runs the search.

        Raises:
            TuneFailure: ``UNAVAILABLE`` where the reference cannot be validated or timed here; its own
                kind where the reference failed; ``DEVICE`` where a candidate left completion unknown.
        """
        self._deadline_ns = self._clock_ns() + int(self._policy.budget_s * 1e9)
        with self._phase("reference"):
            self._examine_reference()
        with self._phase("opening"):
            self._open_trials()
        with self._phase("rounds"):
            self._play_rounds()
        with self._phase("confirmation"):
            winner = self._pick_winner()
        return self._outcome(winner)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started_ns = self._clock_ns()
        yield
        self._phases_ns[name] = self._clock_ns() - started_ns

    def _examine_reference(self) -> None:
        with _blaming_the_reference():
            self._warm_up(self._reference)
            verdict = self._runner.validate(self._reference, self._reference, self._policy.tolerance)
            if verdict is not Validation.PASSED and self._policy.require_validation:
                raise TuneFailure(
                    FailureKind.UNAVAILABLE,
                    "its outputs have no validator: they are of an unsupported kind, hold no finite number,"
                    " or take more bytes than tolerance.max_bytes",
                )
            self._reference_verified = verdict is Validation.PASSED
            self._reference_times.append(self._best_of_repeats(self._reference))
        self._note_facts(self._reference)

    def _open_trials(self) -> None:
        to_try = self._choose_whom_to_try()
        for index in to_try:
            if self._out_of_time():
                self._left_out[index] = ("not tried: the budget was spent", None)
                continue
            contender = Contender(
                index,
                FasterTest(
                    self._policy.min_speedup,
                    self._policy.confidence,
                    len(to_try),
                    self._policy.max_samples,
                ),
            )
            self._make_room()
            if (favourite := self._favourite_short_of_time()) is not None:
                name = self._candidates[favourite.index].name
                self._left_out[index] = (f"not tried: the rest of the budget is needed for {name}", None)
                continue
            self._contenders[index] = contender
            self._attempt(contender, self._open_trial)

    def _favourite_short_of_time(self) -> Contender | None:
        """Returns the fastest so far if opening one more would leave too little time to decide it."""
        gaining = [
            c
            for c in self._contenders.values()
            if c.verdict is Verdict.OPEN and c.score() * self._policy.min_speedup < 1.0
        ]
        looked_around = self._time_left_ns() < (1.0 - _LOOKING_AROUND) * self._policy.budget_s * 1e9
        if not gaining or not looked_around:
            return None
        favourite = min(gaining, key=Contender.score)
        opening_ns = max(c.opening_ns for c in self._contenders.values())
        if self._time_left_ns() >= self._needed_ns(favourite) + opening_ns:
            return None
        self._exhausted_early = True
        return favourite

    def _needed_ns(self, contender: Contender) -> float:
        """Returns about how long it takes to decide and confirm a candidate that goes on as it began."""
        pairs = max(1, contender.test.least_pairs - contender.test.pairs) + self._policy.samples
        return pairs * contender.pairs_ns / max(1, len(contender.pairs))

    def _time_left_ns(self) -> int:
        return self._deadline_ns - self._clock_ns()

    def _make_room(self) -> None:
        """Decides those who are open before another one is opened, where memory does not hold them all."""
        open_ones = [c for c in self._contenders.values() if c.verdict is Verdict.OPEN]
        if len(open_ones) < self._room():
            return
        self._play_rounds()
        for contender in open_ones:
            self._release(contender.index)

    def _room(self) -> int:
        return len(self._candidates) if self._lifecycle is None else self._lifecycle.room()

    def _choose_whom_to_try(self) -> list[int]:
        to_try: list[int] = []
        for index, candidate in enumerate(self._candidates):
            if index == self._reference:
                continue
            if index in self._banned:
                self._left_out[index] = (self._banned[index], None)
            elif not candidate.eligible:
                self._left_out[index] = ("not tried: declared not eligible", None)
            elif not candidate.fits(self._policy):
                self._left_out[index] = ("not tried: its workspace does not fit workspace_limit", None)
            elif len(to_try) >= self._policy.max_candidates:
                self._left_out[index] = ("not tried: beyond max_candidates", None)
            else:
                to_try.append(index)
        return to_try

    def _open_trial(self, contender: Contender) -> None:
        started_ns = self._clock_ns()
        try:
            self._examine(contender)
        finally:
            contender.opening_ns = self._clock_ns() - started_ns

    def _examine(self, contender: Contender) -> None:
        index = contender.index
        self._warm_up(index)
        verdict = self._runner.validate(self._reference, index, self._policy.tolerance)
        contender.verified = verdict is Validation.PASSED
        if not contender.verified and self._policy.require_validation:
            raise TuneFailure(FailureKind.UNAVAILABLE, "its outputs have no validator")
        self._note_facts(index)
        for slower in _PLAIN_LOSER[: self._policy.max_samples]:
            self._play_pair(contender)
            if min(pair_ratios(contender.pairs) or [1.0]) > slower:
                contender.verdict = Verdict.NOT_FASTER
                pairs = "its first pair" if len(contender.pairs) == 1 else f"all {len(contender.pairs)} pairs"
                contender.note = f"slower by {slower:g}x or more in {pairs}"
                return

    def _play_rounds(self) -> None:
        while True:
            open_ones = [c for c in self._contenders.values() if c.verdict is Verdict.OPEN]
            if not open_ones:
                return
            self._round += 1
            for contender in self._whose_turn(open_ones):
                if self._out_of_time():
                    return
                self._attempt(contender, self._play_pair)
            self._drop_the_hopeless()

    def _whose_turn(self, open_ones: list[Contender]) -> list[Contender]:
        """Everybody's, or the fastest's alone where there is no time to decide them all."""
        if self._time_left_ns() >= sum(map(self._needed_ns, open_ones)):
            return open_ones
        return [min(open_ones, key=Contender.score)]

    def _drop_the_hopeless(self) -> None:
        """Drops who trails the leader beyond both spreads: only one can win, and pairs cost time.

        Dropping somebody never promotes anybody, so the guarantee is not touched.
        """
        leader = min(
            (c for c in self._contenders.values() if c.rejection is None and c.leads(self._policy)),
            key=Contender.score,
            default=None,
        )
        if leader is None:
            return
        _, slowest_of_leader = leader.quartiles()
        for contender in self._contenders.values():
            if contender.verdict is not Verdict.OPEN or contender is leader:
                continue
            fastest, _ = contender.quartiles()
            if fastest > slowest_of_leader * _TIE:
                contender.verdict = Verdict.NOT_FASTER
                contender.trailing = True
                behind = contender.score() / leader.score()
                name = self._candidates[leader.index].name
                contender.note = f"behind {name} by {behind:.2f}x after {len(contender.pairs)} pairs"
                self._release(contender.index)

    def _pick_winner(self) -> Contender | None:
        while True:
            winner = self._confirmed_favourite()
            if winner is not None or not self._recall_the_trailing():
                return winner
            self._play_rounds()

    def _recall_the_trailing(self) -> bool:
        """Gives those another chance who were dropped for a leader that did not last."""
        if self._time_left_ns() <= 0:
            return False
        trailing = [c for c in self._contenders.values() if c.trailing]
        for contender in trailing:
            contender.trailing = False
            contender.verdict = Verdict.OPEN
            contender.note = ""
        return bool(trailing)

    def _confirmed_favourite(self) -> Contender | None:
        for contender in self._contenders.values():
            self._judge(contender)
        qualified = sorted(
            (c for c in self._contenders.values() if c.verdict is Verdict.FASTER),
            key=lambda c: (c.score(), c.index),
        )
        while qualified:
            close = [c for c in qualified if c.score() <= qualified[0].score() * _CLOSE]
            finalists = close[: min(_MAX_FINALISTS, self._room())]
            self._play_final(finalists)
            confirmed = [c for c in finalists if self._is_confirmed(c)]
            qualified = [c for c in qualified if c not in finalists]
            if confirmed:
                return self._winner_of(confirmed, qualified)
        return None

    def _winner_of(self, confirmed: list[Contender], others: list[Contender]) -> Contender:
        best = min(c.score(confirmed=True) for c in confirmed)
        winner = min(
            (c for c in confirmed if c.score(confirmed=True) <= best * _TIE),
            key=lambda c: (self._candidates[c.index].complexity, c.score(confirmed=True), c.index),
        )
        for other in (*confirmed, *others):
            if other is not winner:
                other.note = f"passed, but {self._candidates[winner.index].name} is faster or simpler"
        return winner

    def _play_final(self, finalists: list[Contender]) -> None:
        """Plays fresh pairs against the reference, all sides set up as they will serve.

        The pairs that made a favourite flatter it, and what keeps trials quiet may have slowed one side.
        Pairs go on while one finalist's do not speak clearly or two are close together.
        """
        policy = self._policy
        # Set up as they will serve, they are other sessions; the trials' own are done.
        for contender in self._contenders.values():
            self._release(contender.index)
        for played in range(policy.max_samples):
            playing = [c for c in finalists if c.rejection is None]
            if played >= policy.samples:
                unsettled = [c for c in playing if not c.is_settled(policy)]
                if _too_close_to_call(playing) and played < _CLOSE_BATCHES * policy.samples:
                    unsettled = playing
                if not unsettled or self._time_left_ns() <= 0:
                    return
                playing = unsettled
            self._round += 1
            for contender in playing:
                self._attempt(contender, self._play_confirming_pair)

    def _judge(self, contender: Contender) -> None:
        """Puts the test's verdict into words and holds it against the limits of the policy."""
        test, policy = contender.test, self._policy
        if contender.rejection is not None or contender.note:
            return
        if contender.verdict is Verdict.OPEN:
            contender.verdict = Verdict.NOT_FASTER
            contender.undecided = True
            contender.note = f"undecided after {test.pairs} pairs: the budget was spent"
        elif test.least_pairs > policy.max_samples:
            contender.note = (
                f"no verdict: among this many candidates the confidence {policy.confidence:g} takes"
                f" {test.least_pairs} won pairs, and max_samples is {policy.max_samples}"
            )
        elif contender.verdict is Verdict.NOT_FASTER:
            contender.note = (
                f"not faster by {policy.min_speedup:g}x: was so in {test.gains} of {test.pairs} pairs"
            )
        elif (failing := failing_limit(contender.pairs, policy)) is not None:
            contender.verdict = Verdict.NOT_FASTER
            contender.note = failing

    def _is_confirmed(self, contender: Contender) -> bool:
        if contender.rejection is not None:
            return False
        failing = failing_limit(contender.confirming, self._policy)
        if failing is not None:
            contender.note = f"not confirmed on fresh pairs: {failing}"
        elif (unpaid := self._unpaid_costs(contender)) is not None:
            contender.note = unpaid
        else:
            return True
        contender.verdict = Verdict.NOT_FASTER
        self._release(contender.index)
        return False

    def _unpaid_costs(self, contender: Contender) -> str | None:
        expected, needed = self._policy.expected_calls, contender.break_even(self._costs.get(contender.index))
        if expected is None or needed is None or needed <= expected:
            return None
        return f"repays its first costs after {needed} calls, more than expected_calls {expected}"

    def _play_confirming_pair(self, contender: Contender) -> None:
        contender.confirming.append(self._timed_pair(contender.index, as_served=True))

    def _play_pair(self, contender: Contender) -> None:
        started_ns = self._clock_ns()
        pair = self._timed_pair(contender.index)
        contender.pairs.append(pair)
        contender.pairs_ns += self._clock_ns() - started_ns
        verdict = contender.test.add(*pair)
        # A pass waits for `samples` pairs, and for more where they are noisy; a futile candidate need not.
        if (
            verdict is Verdict.FASTER
            and len(contender.pairs) < self._policy.max_samples
            and failing_limit(contender.pairs, self._policy) is not None
        ):
            return
        contender.verdict = verdict

    def _timed_pair(self, candidate: int, *, as_served: bool = False) -> tuple[int, int]:
        if self._lifecycle is not None:
            self._lifecycle.begin_round(self._round, as_served=as_served)
        if self._coin.random() < 0.5:
            reference_ns = self._time_reference()
            candidate_ns = self._best_of_repeats(candidate)
        else:
            candidate_ns = self._best_of_repeats(candidate)
            reference_ns = self._time_reference()
        self._reference_times.append(reference_ns)
        return reference_ns, candidate_ns

    def _time_reference(self) -> int:
        with _blaming_the_reference():
            return self._best_of_repeats(self._reference)

    def _best_of_repeats(self, index: int) -> int:
        return min(self._measure(index) for _ in range(self._policy.repeats))

    def _warm_up(self, index: int) -> None:
        for _ in range(self._policy.warmups):
            self._measure(index)

    def _measure(self, index: int) -> int:
        elapsed_ns = self._runner.measure(index)
        if not isinstance(elapsed_ns, int) or elapsed_ns <= 0:
            raise TuneFailure(
                FailureKind.UNAVAILABLE,
                f"the trial runner measured {elapsed_ns!r}; expected ns of completed work, more than 0",
            )
        return elapsed_ns

    def _attempt(self, contender: Contender, step: Callable[[Contender], None]) -> None:
        """Runs one step of a trial; a candidate that fails is noted and skipped."""
        if self._watch is not None:
            self._watch(self._progress(contender))
        try:
            step(contender)
        except ReferenceFailure:
            raise
        except TuneFailure as failure:
            if failure.kind in (FailureKind.DEVICE, FailureKind.QUARANTINED):
                raise
            contender.reject(failure.kind, failure.message, failure.fault)
            if failure.fault is not None and self._on_fault is not None:
                self._on_fault(contender.index, failure)
        except Exception as error:  # noqa: BLE001 - one candidate's bug must not end the others' trial
            contender.reject(FailureKind.REJECTED, f"{type(error).__name__}: {error}")
        if contender.verdict is Verdict.NOT_FASTER:
            self._release(contender.index)

    def _progress(self, contender: Contender) -> Progress:
        ahead = min(
            (c for c in self._contenders.values() if c.rejection is None and c.pairs),
            key=Contender.score,
            default=None,
        )
        trying = self._candidates[contender.index].name
        if ahead is None or ahead.score() >= 1.0:
            return Progress(trying, self._candidates[self._reference].name, 1.0)
        return Progress(trying, self._candidates[ahead.index].name, ahead.score())

    def _release(self, index: int) -> None:
        if self._lifecycle is not None:
            self._lifecycle.release(index)

    def _note_facts(self, index: int) -> None:
        if self._lifecycle is not None:
            self._facts[index] = self._lifecycle.facts(index)
            self._costs[index] = self._lifecycle.costs(index)

    def _out_of_time(self) -> bool:
        if self._clock_ns() >= self._deadline_ns:
            self._exhausted = True
        return self._exhausted

    def _outcome(self, winner: Contender | None) -> Outcome:
        reference_ns = middle(self._reference_times)
        ratio = 1.0
        selected_ns = reference_ns
        if winner is not None:
            ratio = ratio_and_spread(pair_ratios(winner.confirming) or [1.0])[0]
            reference_ns = middle([pair[0] for pair in winner.confirming])
            selected_ns = middle([pair[1] for pair in winner.confirming])
            repaid = winner.break_even(self._costs.get(winner.index))
            winner.note = f"{1 / ratio:.2f}x faster, confirmed on {len(winner.confirming)} fresh pairs" + (
                "" if repaid is None else f"; repays its first costs after {repaid} calls"
            )
        return Outcome(
            winner=self._reference if winner is None else winner.index,
            verified=self._reference_verified if winner is None else winner.verified,
            ratio=ratio,
            reference_ns=reference_ns,
            selected_ns=selected_ns,
            budget_exhausted=self._exhausted or self._exhausted_early,
            reports=tuple(self._report(index, winner) for index in range(len(self._candidates))),
            phases_ns=self._phases_ns,
        )

    def _report(self, index: int, winner: Contender | None) -> CandidateReport:
        name = self._candidates[index].name
        if index in self._left_out:
            note, kind = self._left_out[index]
            return CandidateReport(name, note=note, rejection=kind, verdict="not tried")
        if index == self._reference:
            report = CandidateReport(
                name,
                samples=len(self._reference_times),
                ratio=1.0,
                verified=self._reference_verified,
                note="" if winner is not None else "kept: no candidate was proven faster",
                median_ns=middle(self._reference_times),
                verdict="reference",
            )
        else:
            report = self._contenders[index].report(name, selected=self._contenders[index] is winner)
        costs = self._costs.get(index, FirstCosts())
        return replace(
            report,
            facts=self._facts.get(index, {}),
            create_ns=costs.create_ns,
            first_run_ns=costs.first_run_ns,
            switch_ns=costs.switch_ns,
            peak_bytes=costs.peak_bytes,
        )


def _too_close_to_call(finalists: list[Contender]) -> bool:
    scores = sorted(c.score(confirmed=True) for c in finalists)
    return len(scores) > 1 and scores[1] <= scores[0] * _CLOSE_IN_THE_FINAL


class _blaming_the_reference:
    """Turns a failure inside into one that names the reference as its cause."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ReferenceFailure) or not isinstance(error, Exception):
            return
        if isinstance(error, TuneFailure):
            raise ReferenceFailure(error.kind, f"the reference: {error.message}") from error
        raise ReferenceFailure(
            FailureKind.REJECTED, f"the reference failed: {type(error).__name__}: {error}"
        ) from error
