"""Owns the trials of one request as the controller sees them where they run in a process of their own.

It stands in for trials in this process: same protocol, same sessions, same clock. What it adds is that a process
that is lost costs one candidate, is replaced, and the rest goes on. Must never make a session itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ort_stacktune.failures import FailureKind, Fault, ReferenceFailure, TuneFailure
from ort_stacktune.isolation.board import Phase
from ort_stacktune.isolation.cargo import Cargo, Served, TrialSet, output_bytes, pack
from ort_stacktune.isolation.messages import Call
from ort_stacktune.isolation.process import Allowance, WorkerLost, WorkerProcess, is_ending
from ort_stacktune.isolation.watched import too_large
from ort_stacktune.machine import available_bytes
from ort_stacktune.ort.callers import Feeds
from ort_stacktune.ort.ep_caches import EpCaches
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.recipes import SessionRecipe
from ort_stacktune.ort.request import Request
from ort_stacktune.ort.sessions import in_short
from ort_stacktune.policy import TrialLimits
from ort_stacktune.vocabulary import FirstCosts, Timing, Tolerance, Validation

_log = logging.getLogger("ort_stacktune")

# Kept free for everybody else, this process first of all, where no limit on memory was set.
_RESERVE_BYTES = 256 << 20
_RESERVE_SHARE = 10

# A process that is killed again and again is not killed by chance.
_KILLS_FORGIVEN = 2


class TrialsCancelled(ReferenceFailure):
    """The trials were cancelled from another thread; nothing is to be concluded from it."""


class IsolatedTrials:
    """Runs the candidates of one request in a process of their own; the controller's ``TrialRunner``.

    Reference and candidates live and are timed in one process, so that a pair is what it would be here. The process
    is started at the first call. When a candidate brings it down or goes over a limit, that candidate is rejected
    with the :class:`~ort_stacktune.failures.Fault`, and a new process goes on with the others.

    All calls but :meth:`cancel` come from one thread. On Linux the process ends with that thread at the latest.

    Args:
        recipes: As for ``SessionTrials``, like all that follow.
        reference: Position of the reference.
        model: The reference's model.
        request: What is repeated.
        steering: Inputs whose values belong to the signature.
        probes: Further feeds to validate on.
        live_run: ``run`` of the session that serves the reference; called once, in this process.
        timing: Clock asked for.
        room: Tells how many candidates may be open at one time.
        concurrency: Callers at one time.
        zeros_are_safe: Whether a zero may be drawn.
        dims: Declared dimensions of the inputs.
        ep_caches: Where execution providers may keep files.
        limits: What a candidate may take.
        niceness: Added to the niceness of the process; above 0 for a lower priority.
    """

    contained = True
    """What goes wrong in a trial stays there; the controller then tries risky candidates too."""

    def __init__(
        self,
        recipes: Sequence[SessionRecipe],
        reference: int,
        model: ModelSource,
        request: Request,
        *,
        steering: frozenset[str] = frozenset(),
        probes: Sequence[Feeds] = (),
        live_run: Callable[..., Any] | None = None,
        timing: Timing = Timing.END_TO_END,
        room: Callable[[], int] = lambda: 1,
        concurrency: int = 1,
        zeros_are_safe: bool = False,
        dims: Mapping[str, Sequence[int | str | None]] | None = None,
        ep_caches: EpCaches | None = None,
        limits: TrialLimits | None = None,
        niceness: int = 0,
    ) -> None:
        self._trials = TrialSet(
            recipes,
            reference,
            model,
            request,
            steering,
            probes,
            timing,
            concurrency,
            zeros_are_safe,
            dims,
            ep_caches,
        )
        self._live_run = live_run
        self._room = room
        self._limits = limits or TrialLimits()
        self._niceness = niceness
        self._cargo: Cargo | None = None
        self._worker: WorkerProcess | None = None
        self._lock = threading.Lock()
        self._cancelled = False
        self._kills_forgiven = 0
        self._round = 0
        self._as_served = False
        self._allowance = Allowance(self._limits.create_s, self._limits.run_s)
        self._tolerance: Tolerance | None = None
        self._open: set[tuple[int, bool]] = set()
        self._ran_last: int | None = None
        self._condemned: dict[int, TuneFailure] = {}
        self._most_added_bytes = 0
        self._other_shapes = True

    @property
    def process_id(self) -> int | None:
        """The process that runs the trials now, if there is one."""
        worker = self._worker
        return None if worker is None else worker.pid

    def validate(self, reference: int, candidate: int, tolerance: Tolerance) -> Validation:
        """As ``SessionTrials.validate``; a process that is lost over it is a rejection with its fault."""
        if reference != self._trials.reference:
            raise ValueError(f"this runner's reference is {self._trials.reference}, not {reference}")
        found = self._ask(Call.VALIDATE, candidate, tolerance=tolerance)
        self._tolerance = tolerance
        assert isinstance(found, Validation)
        return found

    def measure(self, candidate: int) -> int:
        """As ``SessionTrials.measure``; a process that is lost over it is a rejection with its fault."""
        elapsed_ns = self._ask(Call.MEASURE, candidate, round=self._round, as_served=self._as_served)
        assert isinstance(elapsed_ns, int)
        return elapsed_ns

    def begin_round(self, index: int, *, as_served: bool) -> None:
        """Moves to the next prepared input, for both sides of the coming pair."""
        self._round = index
        self._as_served = as_served

    def room(self) -> int:
        """Returns how many sessions fit, by the memory of this machine and by the limit of the process."""
        room = self._room()
        limit, worker = self._limits.memory_bytes, self._worker
        held = None if worker is None else worker.held_bytes()
        if limit is None or held is None or not self._most_added_bytes:
            return room
        open_ones = {index for index, _ in self._open} - {self._trials.reference}
        return max(1, min(room, len(open_ones) + max(0, limit - held) // self._most_added_bytes))

    def release(self, candidate: int) -> None:
        """Closes a candidate's session; one that can't be closed in peace is not asked again."""
        opened = {key for key in self._open if key[0] == candidate}
        if self._worker is None or not opened:
            return
        self._open -= opened
        try:
            self._worker.call(Call.RELEASE, candidate, self._allowance)
        except WorkerLost as lost:
            self._forget_worker()
            if lost.may_be_from_outside:
                return
            self._condemned[candidate] = _rejected(lost.note, lost.fault)
            _log.warning("%s: %s", self._trials.recipes[candidate].name, lost.note)

    def facts(self, candidate: int) -> Mapping[str, str]:
        """As ``SessionTrials.facts``."""
        facts = self._ask(Call.FACTS, candidate)
        assert isinstance(facts, dict)
        return facts

    def costs(self, candidate: int) -> FirstCosts:
        """As ``SessionTrials.costs``; where a run of another shape is too much, without its cost."""
        costs = self._ask(Call.FIRST_COSTS, candidate)
        assert isinstance(costs, FirstCosts)
        self._most_added_bytes = max(self._most_added_bytes, costs.peak_bytes or 0)
        if self._worker is None or not self._other_shapes:
            return costs
        try:
            answer = self._worker.call(Call.ALL_COSTS, candidate, self._allowance)
        except WorkerLost as lost:
            # Nobody asked for that shape, so it is no reason to reject anybody.
            self._forget_worker()
            self._other_shapes = False
            _log.info("no change of shape is timed: %s", lost.note)
            return costs
        if answer.failure is not None and answer.failure.kind is FailureKind.DEVICE:
            self._replace_worker()
            self._other_shapes = False
        return answer.value if isinstance(answer.value, FirstCosts) else costs

    def cancel(self) -> None:
        """Ends the trials from any thread; the call under way and all later ones raise :class:`TrialsCancelled`."""
        self._cancelled = True
        with self._lock:
            worker = self._worker
        if worker is not None:
            worker.interrupt()

    def close(self) -> None:
        """Ends the process and leaves nothing of it behind."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
        if self._cargo is not None:
            self._cargo.file.close()
            self._cargo = None

    def _ask(self, call: Call, candidate: int, **details: object) -> object:
        """Has the process do something, in as many processes as it takes until somebody is to blame."""
        while True:
            if (failure := self._condemned.get(candidate)) is not None:
                raise failure
            try:
                worker = self._running_worker()
                if call in (Call.VALIDATE, Call.MEASURE):
                    self._make_allowance(worker, candidate)
                answer = worker.call(call, candidate, self._allowance, **details)
            except WorkerLost as lost:
                self._forget_worker()
                self._find_who_is_to_blame(lost, candidate)
                continue
            if answer.failure is None:
                return answer.value
            if answer.failure.kind is not FailureKind.DEVICE or self._ran_last is None:
                raise answer.failure
            # What a device fault leaves behind is this process's. The reference, in a new one, will tell whether
            # the device itself still works.
            self._replace_worker()
            self._condemned[self._ran_last] = _rejected(answer.failure.message, answer.failure.fault)

    def _find_who_is_to_blame(self, lost: WorkerLost, asked: int) -> None:
        """Takes note of one more candidate that is not to be asked again.

        Raises:
            ReferenceFailure: Where no candidate can be to blame.
        """
        if self._cancelled or is_ending():
            raise _cancelled()
        if lost.may_be_from_outside and self._kills_forgiven < _KILLS_FORGIVEN:
            # Whoever cleans up a machine kills what does not belong to it; that is no candidate's doing.
            self._kills_forgiven += 1
            return
        if lost.phase is Phase.START:
            raise ReferenceFailure(
                FailureKind.UNAVAILABLE, f"no process for trials could be started: {lost.note}", lost.fault
            )
        suspect, note = lost.candidate, lost.note
        if suspect >= len(self._trials.recipes) or suspect in self._condemned:
            # What the board shows was written over.
            suspect = asked
        if suspect == self._trials.reference:
            if self._ran_last is None:
                raise ReferenceFailure(FailureKind.REJECTED, f"the reference: {note}", lost.fault)
            # Alone it gets another chance; what a candidate left behind in the process is that candidate's doing.
            suspect, note = self._ran_last, f"the reference, in one process with it: {note}"
        self._condemned[suspect] = _rejected(note, lost.fault)

    def _running_worker(self) -> WorkerProcess:
        """Returns the process, started and with the reference examined where there was one before."""
        if self._cancelled:
            raise _cancelled()
        if self._worker is not None:
            return self._worker
        worker = self._start_worker()
        worker.call(Call.START, self._trials.reference, self._allowance)
        if self._tolerance is not None:
            self._make_allowance(worker, self._trials.reference)
            again = worker.call(
                Call.VALIDATE, self._trials.reference, self._allowance, tolerance=self._tolerance
            )
            if again.failure is not None:
                kind = again.failure.kind
                raise ReferenceFailure(
                    kind, f"the reference, made anew: {again.failure.message}"
                ) from again.failure
        return worker

    def _start_worker(self) -> WorkerProcess:
        self._open.clear()
        self._ran_last = None
        try:
            if self._cargo is None:
                self._cargo = pack(self._with_served())
            worker = WorkerProcess(
                self._cargo, output_bytes=self._limits.output_bytes, niceness=self._niceness
            )
        except OSError as error:
            raise ReferenceFailure(
                FailureKind.UNAVAILABLE, f"no process for trials could be started: {error}"
            ) from error
        with self._lock:
            self._worker = worker
        if self._cancelled:
            worker.interrupt()
        return worker

    def _with_served(self) -> TrialSet:
        """Adds what the live session gives for the live input, so that its stand-in can be held against it."""
        trials = replace(self._trials, request=self._trials.request.detached())
        if self._live_run is None:
            return trials
        # Its own copies: the live session may write to what it is fed, as any other may.
        feeds = {name: np.array(array) for name, array in trials.request.feeds.items()}
        try:
            outputs = self._live_run(trials.request.output_names, feeds, None)
        except Exception as error:  # noqa: BLE001 - the stand-in has to fail as well, and the trials will say so
            return replace(trials, served=Served(None, in_short(error)))
        if (size := output_bytes(outputs)) > self._limits.output_bytes:
            raise too_large(size, self._limits.output_bytes, of_the_reference=True)
        return replace(trials, served=Served(outputs))

    def _make_allowance(self, worker: WorkerProcess, candidate: int) -> None:
        """Sets what the process may take, anew for each session that is made."""
        if candidate != self._trials.reference:
            self._ran_last = candidate
        session = (candidate, self._as_served)
        if session in self._open:
            return
        self._open.add(session)
        limits = self._limits
        memory, whose = limits.memory_bytes, "limits.memory_bytes"
        if memory is None:
            held, left = worker.held_bytes(), available_bytes()
            if held is not None and left is not None:
                memory, whose = held + left - min(left // 2, _reserve(left)), "this machine could spare,"
        self._allowance = Allowance(limits.create_s, limits.run_s, memory, whose)

    def _replace_worker(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._forget_worker()

    def _forget_worker(self) -> None:
        with self._lock:
            self._worker = None
        self._open.clear()


def _reserve(left: int) -> int:
    return max(_RESERVE_BYTES, left // _RESERVE_SHARE)


def _rejected(note: str, fault: Fault | None) -> TuneFailure:
    return TuneFailure(FailureKind.REJECTED, note, fault)


def _cancelled() -> TrialsCancelled:
    return TrialsCancelled(FailureKind.REJECTED, "the trials were cancelled")
