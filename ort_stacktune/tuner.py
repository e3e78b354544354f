"""Owns the controller: what is known, who may search, and what is served meanwhile.

It must never know ONNX Runtime, and never hold its lock while a candidate, a validator or the disk is at
work: claims are taken and results published under the lock, everything else happens outside it.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from ort_stacktune.deferred import DeferredSearches
from ort_stacktune.failures import FailureKind, NotReproduced, ReferenceFailure, TuneFailure, invalid
from ort_stacktune.identity import fields, text_digest
from ort_stacktune.policy import Candidate, StackPolicy
from ort_stacktune.question import Question, environment_of, pose
from ort_stacktune.search import Outcome, Search
from ort_stacktune.statistics import median
from ort_stacktune.store import FaultMemory, FaultRecord, Record, RecordStore, fault_key
from ort_stacktune.traffic import HitCount, TrafficRecorder, recorder_for
from ort_stacktune.vocabulary import (
    CandidateReport,
    Decision,
    DecisionSource,
    MemoryEviction,
    Mode,
    Problem,
    Progress,
    Scope,
    Stats,
    TrialRunner,
    TuneReport,
    Validation,
)

_log = logging.getLogger("ort_stacktune")
_trial = threading.local()

MAX_REPORTS = 128

_RISKY = (
    "not tried: one of its kind has ended the process that tried it;"
    " isolation='process' tries it in a process of its own"
)


class ChoiceListener(Protocol):
    """Somebody who acts on a choice without asking again, and must hear when it is void."""

    def choice_gone(self, cache_key: str) -> None:
        """Says that the record behind this key was invalidated or evicted."""
        ...


@dataclass(slots=True)
class _KeyState:
    """All that memory holds for one key; it is bounded and evicted as one."""

    record: Record | None = None
    banned: set[tuple[str, str]] = field(default_factory=set)
    comparisons: deque[float] = field(default_factory=deque)
    unavailable: str | None = None


class StackTuner:
    """Selects among candidates by experiment, remembers the choice and serves the reference in doubt.

    Args:
        policy: Strictness, effort and limits; checked here.
        cache_directory: Where records are kept; ``None`` keeps them in memory only. Not touched before
            the first lookup.
        memory_eviction: Which in-memory record leaves first when ``policy.capacity`` is reached.
        clock_ns: Monotonic clock in ns. For tests.
        wall_clock_s: Unix time in seconds, for the age of records. For tests.
        coin: Decides the order within pairs. For tests and repeatable searches.
        watch: Told of every step of a search, from the thread that runs it.
        retry_failed: Whether candidates are tried again that crashed or hung in an earlier process.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for a bad policy or argument.
    """

    def __init__(
        self,
        policy: StackPolicy | None = None,
        cache_directory: str | os.PathLike[str] | None = None,
        *,
        memory_eviction: MemoryEviction = MemoryEviction.FIFO,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_clock_s: Callable[[], float] = time.time,
        coin: random.Random | None = None,
        watch: Callable[[Progress], None] | None = None,
        retry_failed: bool = False,
    ) -> None:
        self._policy = StackPolicy() if policy is None else policy
        if not isinstance(self._policy, StackPolicy):
            raise invalid(f"policy is {policy!r}; expected a StackPolicy")
        self._policy.validate()
        if not isinstance(memory_eviction, MemoryEviction):
            raise invalid(f"memory_eviction is {memory_eviction!r}; expected a member of MemoryEviction")
        self._memory_eviction = memory_eviction
        self._clock_ns = clock_ns
        self._wall_clock_s = wall_clock_s
        self._coin = coin or random.Random()
        self._watch = watch
        self._store = self._open_store(cache_directory)
        self._directory = None if cache_directory is None else Path(cache_directory).absolute()
        self._faults = FaultMemory(
            None if self._store is None else cache_directory,
            warn=self._warn_cache,
            since_s=self._wall_clock_s() if retry_failed else None,
        )
        self._lock = threading.Lock()
        self._states: OrderedDict[str, _KeyState] = OrderedDict()
        self._claimed_keys: set[str] = set()
        self._claimed_environments: set[str] = set()
        self._quarantined: dict[str, str] = {}
        self._reports: deque[TuneReport] = deque(maxlen=min(self._policy.capacity, MAX_REPORTS))
        self._counters: Counter[str] = Counter()
        self._listeners: weakref.WeakSet[ChoiceListener] = weakref.WeakSet()
        self.table_hits = HitCount()
        self.searches = DeferredSearches()
        self._further_hits: dict[int, HitCount] = {}
        self._recorder: TrafficRecorder | None = None

    def _open_store(self, directory: str | os.PathLike[str] | None) -> RecordStore | None:
        if directory is None or self._policy.mode is Mode.DISABLED:
            return None
        if not isinstance(directory, str | os.PathLike) or not os.fspath(directory):
            raise invalid(f"cache_directory is {directory!r}; expected a path or None")
        return RecordStore(directory, capacity=self._policy.capacity, warn=self._warn_cache)

    @property
    def policy(self) -> StackPolicy:
        """The policy this controller was made with."""
        return self._policy

    @property
    def cache_directory(self) -> Path | None:
        """Where choices are kept; ``None`` for in memory only."""
        return None if self._store is None else self._directory

    @property
    def memory_eviction(self) -> MemoryEviction:
        """The order in which records leave a full memory."""
        return self._memory_eviction

    def stats(self) -> Stats:
        """Returns a snapshot of the counters."""
        with self._lock:
            counted = Stats(**self._counters)
            hits = (self.table_hits, *self._further_hits.values())
        return replace(counted, memory_hits=counted.memory_hits + sum(each.value for each in hits))

    def counting(self, hits: HitCount) -> HitCount:
        """Counts answers that a listener gives from a table of its own as memory hits; returns ``hits``."""
        with self._lock:
            return self._further_hits.setdefault(id(hits), hits)

    def record(self, path: str | os.PathLike[str] | TrafficRecorder, *, samples: int = 0) -> TrafficRecorder:
        """Counts, from now on, the exact signatures of the calls to sessions under this controller.

        To be called before they serve: a signature that is being served is not counted before its choice is
        asked for again. A session made with ``record=`` counts in its own place.

        Args:
            path: The directory to record to, which many processes may share, or a recorder.
            samples: Sample inputs to keep for each signature, as ``sample_count`` of
                :class:`~ort_stacktune.traffic.TrafficRecorder`.

        Raises:
            TuneFailure: ``INVALID_INPUT`` for a bad argument, or where calls are recorded elsewhere already.
        """
        recorder = recorder_for(path, samples)
        with self._lock:
            if self._recorder not in (None, recorder):
                raise invalid("this controller records already, to another place; one record() is enough")
            self._recorder = recorder
        return recorder

    @property
    def recorder(self) -> TrafficRecorder | None:
        """Where calls are counted, if anywhere."""
        return self._recorder

    def reports(self) -> tuple[TuneReport, ...]:
        """Returns the reports of the last searches, oldest first, at most min(capacity, 128)."""
        with self._lock:
            return tuple(self._reports)

    def report_for(self, key: str) -> TuneReport | None:
        """Returns the evidence behind the choice in memory for a key, whichever process gathered it."""
        with self._lock:
            state = self._states.get(key)
            if state is None or state.record is None:
                return None
            return state.record.report

    def select(
        self, problem: Problem, candidates: Sequence[Candidate], reference: int, runner: TrialRunner
    ) -> Decision:
        """Decides which candidate serves a question.

        Args:
            problem: The exact question.
            candidates: 1 to 4096 of them with unique names.
            reference: Position of the reference among them.
            runner: Runs trials where there have to be any; it is not touched otherwise.

        Raises:
            TuneFailure: ``INVALID_INPUT`` before anything ran; ``QUARANTINED`` after a device fault in
                this environment; the reference's own failure where it failed a search; ``DEVICE`` where
                completion is unknown.
        """
        question = pose(problem, candidates, reference, self._policy)
        if (fault := self._quarantined.get(problem.environment)) is not None:
            raise TuneFailure(
                FailureKind.QUARANTINED,
                f"this environment had a device fault earlier in this process ({fault});"
                " restart the process to use the device again",
            )
        if self._policy.mode is Mode.DISABLED:
            return question.serve_reference(DecisionSource.DISABLED)
        with self._lock:
            answer = self._known(question) or self._claim(question)
        if answer is not None:
            return answer
        try:
            with _inside_trial():
                return self._from_disk(question, runner) or self._search(question, runner)
        except TuneFailure as failure:
            if failure.kind is FailureKind.DEVICE:
                self._quarantine(problem.environment, failure.message)
            raise
        finally:
            with self._lock:
                self._claimed_keys.discard(question.key)
                self._claimed_environments.discard(problem.environment)

    def recall(self, problem: Problem, candidates: Sequence[Candidate], reference: int) -> Decision | None:
        """Returns what memory knows of a question, that it can't be validated included; never searches.

        Args:
            problem: The exact question.
            candidates: As for :meth:`select`.
            reference: As for :meth:`select`.
        """
        question = pose(problem, candidates, reference, self._policy)
        with self._lock:
            return None if problem.environment in self._quarantined else self._known(question)

    def put_off(self, problem: Problem, candidates: Sequence[Candidate], reference: int) -> Decision:
        """Returns the decision that the reference serves a question until a background search has ended."""
        question = pose(problem, candidates, reference, self._policy)
        return question.serve_reference(DecisionSource.DEFERRED)

    def close(self) -> None:
        """Ends the background search under way and drops those that wait. What is known serves on."""
        self.searches.close()

    def peek(self, problem: Problem, candidates: Sequence[Candidate], reference: int) -> Decision | None:
        """Returns the choice in memory for a question, or ``None``; never searches, reads or counts."""
        question = pose(problem, candidates, reference, self._policy)
        with self._lock:
            quarantined = problem.environment in self._quarantined
            record = None if quarantined else self._usable(question)
        if record is None:
            return None
        return question.serve(record, DecisionSource.MEMORY_CACHE)

    def invalidate(self, decision: Decision, ban_candidate: bool = False) -> None:
        """Takes a choice back: its record leaves memory and disk.

        Args:
            decision: A decision of this controller.
            ban_candidate: Also bars the chosen candidate, unless it is the reference, from this key.
        """
        if not decision.cache_key:
            return
        with self._lock:
            state = self._states.get(decision.cache_key)
            record = state.record if state is not None else None
            if state is None and ban_candidate:
                state = self._state(decision.cache_key)
            if state is not None:
                state.record = None
                state.comparisons.clear()
                if ban_candidate and not decision.is_reference:
                    revision = record.winner_revision if record and record.winner == decision.name else ""
                    state.banned.add((decision.name, revision))
            self._counters["invalidations"] += 1
        if self._store is not None:
            self._store.delete(decision.cache_key)
        self._tell_listeners([decision.cache_key])

    def device_fault(self, decision: Decision, reason: str) -> None:
        """Takes a device fault in a live request: the environment of its decision is quarantined from now on.

        Args:
            decision: The decision by which the request was served.
            reason: What went wrong, in words.
        """
        self._quarantine(environment_of(decision.cache_key), reason)

    def record_comparison(
        self, decision: Decision, reference_ns: int, selected_ns: int, correctness_checked: bool
    ) -> bool:
        """Takes one pair from a controlled replay and takes the choice back when it has become slow.

        Args:
            decision: The decision that was replayed.
            reference_ns: The reference's completed time.
            selected_ns: The selected candidate's completed time.
            correctness_checked: Whether the outputs were compared; it has to be true.

        Returns:
            Whether the choice was invalidated and its candidate banned. ``False`` as well where there is
            no record, or one with another winner.

        Raises:
            TuneFailure: ``INVALID_INPUT`` for a duration that is not positive or an unchecked pair.
        """
        if not correctness_checked:
            raise invalid("the comparison's outputs were not checked; compare them and pass True")
        for name, value in (("reference_ns", reference_ns), ("selected_ns", selected_ns)):
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise invalid(f"{name} is {value!r}; expected ns of completed work, more than 0")
        with self._lock:
            state = self._states.get(decision.cache_key)
            record = state.record if state is not None else None
            if state is None or record is None or record.winner != decision.name or decision.is_reference:
                return False
            state.comparisons.append(selected_ns / reference_ns)
            while len(state.comparisons) > self._policy.regression_pairs:
                state.comparisons.popleft()
            if len(state.comparisons) < self._policy.regression_pairs:
                return False
            middle = median(list(state.comparisons))
        if middle is None or middle <= self._policy.regression_ratio:
            return False
        self.invalidate(decision, ban_candidate=True)
        return True

    def lower_level_fingerprint(self) -> str:
        """Returns a digest of every fresh choice below ``PIPELINE`` and of every bypass.

        It belongs into the execution context of the level above: when an operator's or a graph's choice
        changes, so does this text, and the decision above is void.
        """
        now = self._wall_clock_s()
        parts: list[str] = []
        with self._lock:
            for key, state in sorted(self._states.items()):
                record = state.record
                if record is not None and record.scope is not Scope.PIPELINE and self._fresh(record, now):
                    parts.append(fields(("choice", key, record.winner, record.winner_revision)))
                if state.unavailable is not None:
                    parts.append(fields(("unvalidatable", key)))
                parts.extend(fields(("ban", key, *ban)) for ban in sorted(state.banned))
            parts.extend(fields(("quarantine", environment)) for environment in sorted(self._quarantined))
        return text_digest(fields(parts))

    def subscribe(self, listener: ChoiceListener) -> None:
        """Tells a listener, weakly held, of every choice that is taken back or evicted from now on."""
        with self._lock:
            self._listeners.add(listener)

    def holds(self, decision: Decision) -> bool:
        """Returns whether memory still holds the choice that a decision stands for."""
        now = self._wall_clock_s()
        with self._lock:
            state = self._states.get(decision.cache_key)
            record = state.record if state is not None else None
        return record is not None and record.winner == decision.name and self._fresh(record, now)

    def seconds_fresh(self, key: str) -> float:
        """Returns how many seconds the choice in memory stays fresh; 0.0 where there is none."""
        now = self._wall_clock_s()
        with self._lock:
            state = self._states.get(key)
            record = state.record if state is not None else None
        if record is None or not self._fresh(record, now):
            return 0.0
        return record.created_s + self._policy.ttl_s - now

    def _known(self, question: Question) -> Decision | None:
        """Answers from memory. Called under the lock."""
        record = self._usable(question)
        if record is not None:
            if self._memory_eviction is MemoryEviction.LRU:
                self._states.move_to_end(question.key)
            self._counters["memory_hits"] += 1
            return question.serve(record, DecisionSource.MEMORY_CACHE)
        state = self._states.get(question.key)
        if state is not None and state.unavailable is not None:
            return question.serve_reference(DecisionSource.VALIDATION_UNAVAILABLE)
        if is_tuning():
            return question.serve_reference(DecisionSource.NESTED)
        return None

    def _usable(self, question: Question) -> Record | None:
        state = self._states.get(question.key)
        record = state.record if state is not None else None
        if state is None or record is None or not self._fresh(record, self._wall_clock_s()):
            return None
        return record if self._acceptable(question, record, state) else None

    def _acceptable(self, question: Question, record: Record, state: _KeyState | None) -> bool:
        if self._policy.require_validation and not record.verified:
            return False
        index = question.position(record.winner, record.winner_revision)
        if index is None:
            return False
        winner = question.candidates[index]
        if index != question.reference and not winner.eligible:
            return False
        if state is not None and _is_banned(state, winner):
            return False
        return winner.fits(self._policy)

    def _claim(self, question: Question) -> Decision | None:
        """Claims key and environment, or says that the reference has to serve. Called under the lock."""
        environment = question.problem.environment
        if (
            question.key in self._claimed_keys
            or environment in self._claimed_environments
            or len(self._claimed_keys) >= self._policy.max_parallel_tunes
        ):
            self._counters["busy_fallbacks"] += 1
            return question.serve_reference(DecisionSource.BUSY)
        self._claimed_keys.add(question.key)
        self._claimed_environments.add(environment)
        return None

    def _from_disk(self, question: Question, runner: TrialRunner) -> Decision | None:
        if self._store is None or not question.problem.persistent:
            return None
        record = self._store.get(question.key)
        if record is None or not self._fresh(record, self._wall_clock_s()):
            return None
        # Where nothing may be measured, an answer of less effort is still one with the same guarantee.
        if self._policy.mode is Mode.EXPLORE and not self._policy.is_met_by(
            record.effort, record.report.budget_exhausted
        ):
            return None
        with self._lock:
            state = self._states.get(question.key)
            acceptable = self._acceptable(question, record, state)
        if not acceptable:
            return None
        index = question.position(record.winner, record.winner_revision)
        assert index is not None
        if self._known_faults(question, [index]) or not self._still_right(question, index, runner):
            return None
        self._publish(question.key, record)
        with self._lock:
            self._counters["disk_hits"] += 1
        return question.serve(record, DecisionSource.DISK_CACHE)

    def _still_right(self, question: Question, index: int, runner: TrialRunner) -> bool:
        """Validates a choice of another process once; one that fails leaves the disk."""
        if index == question.reference:
            return True
        try:
            verdict = runner.validate(question.reference, index, self._policy.tolerance)
            if verdict is Validation.PASSED or not self._policy.require_validation:
                return True
            reason = "its outputs have no validator"
        except ReferenceFailure:
            # This input, or this session's reference, is at fault; the record may be right for others.
            raise
        except TuneFailure as failure:
            if failure.kind is FailureKind.DEVICE:
                raise
            self._remember_fault(question, index, failure)
            reason = failure.message
        except Exception as error:  # noqa: BLE001 - whatever a stored choice does here, it is doubt
            reason = f"{type(error).__name__}: {error}"
        assert self._store is not None
        self._store.delete(question.key)
        self._warn_cache(
            f"the stored choice {question.candidates[index].name!r} did not validate in this process"
            f" and was deleted: {reason}"
        )
        return False

    def _search(self, question: Question, runner: TrialRunner) -> Decision:
        with self._lock:
            self._counters["misses"] += 1
            state = self._states.get(question.key)
            banned = {
                index: "not tried: banned for this question after a failure or a regression"
                for index, candidate in enumerate(question.candidates)
                if state is not None and _is_banned(state, candidate) and index != question.reference
            }
        if self._policy.mode is Mode.CACHE_ONLY:
            return question.serve_reference(DecisionSource.CACHE_MISS)
        faults = self._known_faults(question, range(len(question.candidates)))
        banned.update((index, fault.why_not_tried()) for index, fault in faults.items())
        if not getattr(runner, "contained", False):
            banned.update(
                (index, _RISKY)
                for index, candidate in enumerate(question.candidates)
                if candidate.risky and index not in banned
            )
        started_ns = self._clock_ns()
        with self._lock:
            seed = self._coin.getrandbits(63)
        search = Search(
            question.candidates,
            question.reference,
            self._policy,
            runner,
            clock_ns=self._clock_ns,
            coin=random.Random(seed),
            banned=banned,
            watch=self._watch,
            on_fault=lambda index, failure: self._remember_fault(question, index, failure),
        )
        try:
            outcome = search.run()
        except TuneFailure as failure:
            # What one session's options hide says nothing about others with the same question.
            if failure.kind is not FailureKind.UNAVAILABLE or isinstance(failure, NotReproduced):
                raise
            return self._remember_unavailable(question, failure, self._clock_ns() - started_ns)
        elapsed_ns = self._clock_ns() - started_ns
        reports = tuple(
            replace(report, fault=faults[index].fault) if index in faults else report
            for index, report in enumerate(outcome.reports)
        )
        for index, report in enumerate(reports):
            if report.verified and report.fault is None:
                self._faults.pardon(_fault_key(question, index))
        return self._remember_outcome(question, replace(outcome, reports=reports), elapsed_ns, seed)

    def _known_faults(self, question: Question, indices: Sequence[int]) -> dict[int, FaultRecord]:
        """Returns which of some candidates crashed or hung before; the reference, which serves, never counts."""
        keys = {_fault_key(question, index): index for index in indices if index != question.reference}
        known = self._faults.known(keys, self._wall_clock_s())
        return {keys[key]: fault for key, fault in known.items()}

    def _remember_fault(self, question: Question, index: int, failure: TuneFailure) -> None:
        if failure.fault is None:
            return
        name = question.candidates[index].name
        self._faults.remember(
            FaultRecord(
                _fault_key(question, index), name, failure.fault, failure.message, self._wall_clock_s()
            ),
            on_disk=question.problem.persistent,
        )

    def _remember_unavailable(self, question: Question, failure: TuneFailure, elapsed_ns: int) -> Decision:
        reference = question.candidates[question.reference]
        report = question.report(
            reference.name,
            elapsed_ns,
            False,
            (CandidateReport(reference.name, note=failure.message, rejection=failure.kind),),
        )
        with self._lock:
            self._state(question.key).unavailable = failure.message
            self._reports.append(report)
            evicted = self._evict()
        self._tell_listeners(evicted)
        return question.serve_reference(DecisionSource.VALIDATION_UNAVAILABLE)

    def _remember_outcome(self, question: Question, outcome: Outcome, elapsed_ns: int, seed: int) -> Decision:
        winner = question.candidates[outcome.winner]
        reference = question.candidates[question.reference]
        report = replace(
            question.report(winner.name, elapsed_ns, outcome.budget_exhausted, outcome.reports),
            seed=seed,
            phases_ns=outcome.phases_ns,
        )
        record = Record(
            key=question.key,
            scope=question.problem.scope,
            winner=winner.name,
            winner_revision=winner.revision,
            reference=reference.name,
            reference_revision=reference.revision,
            created_s=self._wall_clock_s(),
            reference_ns=outcome.reference_ns,
            selected_ns=outcome.selected_ns,
            ratio=outcome.ratio,
            verified=outcome.verified,
            report=report,
            effort=self._policy.effort(),
        )
        with self._lock:
            self._counters["tunes"] += 1
            self._reports.append(report)
            state = self._states.get(question.key)
            banned_meanwhile = state is not None and _is_banned(state, winner)
        if banned_meanwhile and outcome.winner != question.reference:
            return question.serve_reference(DecisionSource.BUSY)
        self._publish(question.key, record)
        if self._store is not None and question.problem.persistent and record.verified:
            self._store.put(record)
        return question.serve(record, DecisionSource.TUNED)

    def _publish(self, key: str, record: Record) -> None:
        with self._lock:
            state = self._state(key)
            state.record = record
            state.unavailable = None
            state.comparisons.clear()
            evicted = self._evict()
        self._tell_listeners(evicted)

    def _state(self, key: str) -> _KeyState:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _KeyState()
        return state

    def _evict(self) -> list[str]:
        evicted = []
        while len(self._states) > self._policy.capacity:
            evicted.append(self._states.popitem(last=False)[0])
        return evicted

    def _tell_listeners(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        with self._lock:
            listeners = list(self._listeners)
        for key in keys:
            for listener in listeners:
                try:
                    listener.choice_gone(key)
                except Exception:  # noqa: BLE001 - the others have to hear all the same
                    _log.exception("a listener failed to take back a choice")

    def _quarantine(self, environment: str, reason: str) -> None:
        with self._lock:
            self._quarantined.setdefault(environment, reason)
            self._counters["device_failures"] += 1
            keys = list(self._states)
        # Choices of a lane that may be broken are not to be used unasked.
        self._tell_listeners(keys)

    def _fresh(self, record: Record, now_s: float) -> bool:
        return 0.0 <= now_s - record.created_s <= self._policy.ttl_s

    def _warn_cache(self, sentence: str) -> None:
        _log.warning("%s", sentence)
        with self._lock:
            self._counters["cache_warnings"] += 1


def _is_banned(state: _KeyState, candidate: Candidate) -> bool:
    # A ban without a revision was spoken when the record was gone already: it bars the name.
    return (candidate.name, candidate.revision) in state.banned or (candidate.name, "") in state.banned


def _fault_key(question: Question, index: int) -> str:
    problem, candidate = question.problem, question.candidates[index]
    return fault_key(problem.environment, problem.operation, candidate.name, candidate.revision)


@contextmanager
def _inside_trial() -> Iterator[None]:
    _trial.depth = getattr(_trial, "depth", 0) + 1
    try:
        yield
    finally:
        _trial.depth -= 1


def is_tuning() -> bool:
    """Returns whether this thread is inside a trial of a controller."""
    return getattr(_trial, "depth", 0) > 0
