"""Owns the carrying out of a manifest: each signature is looked up, searched for where it is missing, and kept.

What one signature runs into costs that signature alone. Must never search for what the cache holds already, or
go on beyond the budget.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any

from ort_stacktune.environment import describe, runtime_environment
from ort_stacktune.failures import FailureKind, TuneFailure, invalid
from ort_stacktune.feeds import FeedRequest, make_feeds, read_npz
from ort_stacktune.ort.graph import GraphFacts
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.recipes import SessionRecipe
from ort_stacktune.ort.request import OutputTarget, Request
from ort_stacktune.ort.sessions import CPU, make_session
from ort_stacktune.prewarm.manifest import Manifest, ModelEntry, SignatureEntry, entries_of_traffic
from ort_stacktune.prewarm.shares import Task, allotment, in_order, planned
from ort_stacktune.prewarm.turns import turn_to_measure
from ort_stacktune.reference import REFERENCE, recipe_of_session
from ort_stacktune.replay import feeds_for, request_for
from ort_stacktune.serving import Lane, ModelIdentity
from ort_stacktune.store import Record, RecordStore
from ort_stacktune.traffic import TrafficEntry, read_traffic
from ort_stacktune.tuner import StackTuner
from ort_stacktune.vocabulary import Decision, DecisionSource, Mode, Progress, TuneReport

_log = logging.getLogger("ort_stacktune")

# Less than this does not even make a session and validate it.
_LEAST_S = 0.5
# A search that its budget ended is made again where the manifest plans at least this many times its seconds; a
# plan is never kept to the second, and what one run of a manifest has decided must hold in the next.
_WORTH_A_SECOND_SEARCH = 2.0


class Status(Enum):
    """What became of one signature."""

    DECIDED = "decided"
    """Searched for and stored."""

    KNOWN = "known"
    """The cache held its choice already, and it validated."""

    NOT_STORED = "not stored"
    """Decided, but the choice could not be kept."""

    UNTUNABLE = "untunable"
    """It can't be tuned; the reference serves it."""

    FAILED = "failed"
    """Its reference failed."""

    NOT_REACHED = "not reached"
    """The budget was spent before its turn."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one signature, and why.

    Attributes:
        task: The signature.
        status: What became of it.
        decision: The choice, if there is one.
        report: The evidence behind it, if there is any.
        note: The reason, for a status without a choice.
        seconds: Time spent on it.
    """

    task: Task
    status: Status
    decision: Decision | None = None
    report: TuneReport | None = None
    note: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What is being done now, for a person who waits.

    Attributes:
        task: The signature.
        number: How many came before it.
        total: How many there are.
        left_s: Seconds of the budget that are left; ``None`` without a budget.
        doing: What is being done.
        search: Where its search is; ``None`` outside a search.
    """

    task: Task
    number: int
    total: int
    left_s: float | None
    doing: str
    search: Progress | None = None


class Campaign:
    """Carries out a manifest.

    Args:
        manifest: What is asked for; models of recorded traffic among its models.
        cache: Directory of the choices.
        watch: Told what is being done.
        retry_failed: Whether candidates that crashed or hung earlier are tried again, in signatures that have a
            choice too.
        clock_s: Monotonic clock in seconds. For tests.
    """

    def __init__(
        self,
        manifest: Manifest,
        cache: Path,
        *,
        watch: Callable[[Turn], None] = lambda _: None,
        retry_failed: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manifest = manifest
        self._cache = cache
        self._watch = watch
        self._retry_failed = retry_failed
        self._clock_s = clock_s
        self._made_s = time.time()
        self._store = RecordStore(cache, warn=lambda _: None)
        recorded = (read_traffic(path, _log.warning) for path in manifest.traffic)
        self.tasks = in_order((*manifest.models, *entries_of_traffic(chain.from_iterable(recorded))))
        weights = [task.signature.weight for task in self.tasks]
        mosts_s = [self._most_s(task) for task in self.tasks]
        shares_s = planned(manifest.budget_s, weights, mosts_s)
        self._planned_s = {task.number: share_s for task, share_s in zip(self.tasks, shares_s, strict=True)}

    def check(self) -> None:
        """Forms every question once, so that a mistake is found before anything runs.

        Raises:
            TuneFailure: ``INVALID_INPUT`` that names the line of the manifest, or that there is nothing to decide.
        """
        if not self.tasks:
            raise invalid(
                f"{self._manifest.path}: the recorded traffic holds no call that can be tuned; there is nothing to"
                " decide"
            )
        for task in sorted(self.tasks, key=lambda task: task.number):
            try:
                Question.of(task)
            except TuneFailure as failure:
                line = task.signature.line or task.model.line
                where = f"{self._manifest.path}:{line}: " if line else ""
                raise invalid(f"{where}{failure.message}") from failure

    def unstorable(self) -> list[str]:
        """Returns a sentence for each model whose choices, and faults, can't be kept on disk here."""
        sentences: dict[int, str] = {}
        for task in sorted(self.tasks, key=lambda task: task.number):
            names = _providers_named(task.model)
            if not runtime_environment(providers=names).persistent:
                line = f":{task.model.line}" if task.model.line else ""
                sentences.setdefault(
                    id(task.model),
                    f"{self._manifest.path}{line}: {task.model.path.name}: {_why_not_stored(names)}",
                )
        return list(sentences.values())

    def run(self) -> Iterator[Outcome]:
        """Decides every signature, the heaviest first, and yields each outcome when it is known."""
        started_s = self._clock_s()
        for number, task in enumerate(self.tasks):
            left_s = self._left_s(started_s)
            if left_s is not None and left_s < _LEAST_S:
                yield Outcome(task, Status.NOT_REACHED, note="the budget was spent")
                continue
            weights = [later.signature.weight for later in self.tasks[number:]]
            most_s = self._most_s(task)
            turn = Turn(task, number, len(self.tasks), left_s, "")
            began_s = self._clock_s()
            outcome = self._one(turn, lambda left, w=weights, m=most_s: allotment(left, w, m), started_s)  # type: ignore[misc]
            yield replace(outcome, seconds=self._clock_s() - began_s)

    def _most_s(self, task: Task) -> float:
        return task.model.budget_s or self._manifest.policy.budget_s

    def _left_s(self, started_s: float) -> float | None:
        budget_s = self._manifest.budget_s
        return None if budget_s is None else budget_s - (self._clock_s() - started_s)

    def _one(self, turn: Turn, share: Callable[[float | None], float], started_s: float) -> Outcome:
        task = turn.task
        try:
            self._watch(replace(turn, doing="looking it up"))
            question = Question.of(task)
            if (known := self._known(task, question)) is not None:
                return known
            waiting = replace(turn, doing="waiting for another process that is measuring")
            with turn_to_measure(
                waiting=lambda: self._watch(waiting), give_up_s=self._left_s(started_s)
            ) as ours:
                if not ours:
                    return Outcome(task, Status.NOT_REACHED, note="other processes measured all the time")
                # Whoever had the turn before may have decided this very signature.
                if (known := self._known(task, question)) is not None:
                    return known
                left_s = self._left_s(started_s)
                return self._searched(turn, question, share(left_s), started_s)
        except TuneFailure as failure:
            status = Status.UNTUNABLE if failure.kind is FailureKind.INVALID_INPUT else Status.FAILED
            return Outcome(task, status, note=failure.message)

    def _known(self, task: Task, question: Question) -> Outcome | None:
        """Returns the outcome of a signature whose stored choice is patient enough and still validates."""
        policy = replace(self._manifest.policy, mode=Mode.CACHE_ONLY)
        decision = question.lane.settle(StackTuner(policy, self._cache), question.request)
        if decision.source is not DecisionSource.DISK_CACHE:
            return None
        record = self._store.get(decision.cache_key)
        if record is None or not policy.is_met_by(record.effort, budget_exhausted=False):
            return None
        enough_s = record.effort.get("budget_s", 0.0) * _WORTH_A_SECOND_SEARCH
        if record.report.budget_exhausted and self._planned_s[task.number] >= enough_s:
            return None
        if self._is_to_be_retried(record):
            return None
        return Outcome(task, Status.KNOWN, decision, record.report)

    def _is_to_be_retried(self, record: Record) -> bool:
        # One that is newer than this campaign was made with the retry, here or by a process beside this one.
        return (
            self._retry_failed
            and record.created_s < self._made_s
            and any(candidate.fault is not None for candidate in record.report.candidates)
        )

    @contextmanager
    def _set_aside_for_a_retry(self, question: Question) -> Iterator[None]:
        """Takes away a choice that would be served in the place of a search, and brings it back if none ends."""
        record = None
        if self._retry_failed:
            tuner = StackTuner(replace(self._manifest.policy, mode=Mode.CACHE_ONLY), self._cache)
            record = self._store.get(question.lane.settle(tuner, question.request).cache_key)
        if record is None or not self._is_to_be_retried(record):
            yield
            return
        self._store.delete(record.key)
        try:
            yield
        finally:
            if self._store.get(record.key) is None:
                self._store.put(record)

    def _searched(self, turn: Turn, question: Question, budget_s: float, started_s: float) -> Outcome:
        task = turn.task

        def show(doing: str, progress: Progress | None = None) -> None:
            self._watch(replace(turn, left_s=self._left_s(started_s), doing=doing, search=progress))

        tuner = StackTuner(
            replace(self._manifest.policy, mode=Mode.EXPLORE, budget_s=max(budget_s, _LEAST_S)),
            self._cache,
            watch=lambda progress: show("searching", progress),
            retry_failed=self._retry_failed,
        )
        show("timing the reference")
        with self._set_aside_for_a_retry(question):
            decision = question.lane.settle(tuner, question.request)
        report = next(iter(tuner.reports()), None)
        if not decision.verified:
            note = "" if report is None else report.candidates[0].note
            return Outcome(task, Status.UNTUNABLE, decision, report, note or decision.source.value)
        record = self._store.get(decision.cache_key)
        if record is not None and decision.source is DecisionSource.DISK_CACHE:
            # What is left of the budget is less than what its search had.
            return Outcome(task, Status.KNOWN, decision, record.report)
        if record is None or record.report != report:
            return Outcome(
                task, Status.NOT_STORED, decision, report, _why_not_stored(_providers_named(task.model))
            )
        return Outcome(task, Status.DECIDED, decision, report)


@dataclass(frozen=True, slots=True)
class Question:
    """One signature as the controller is asked about it.

    Attributes:
        lane: The model with its reference; no session of it is made in this process.
        request: A request of the signature.
    """

    lane: Lane
    request: Request

    @classmethod
    def of(cls, task: Task) -> Question:
        """Forms the question of a signature.

        Raises:
            TuneFailure: ``INVALID_INPUT`` where model, reference or inputs can't be what the manifest says.
        """
        model = task.model
        if not model.path.is_file():
            there = "is not a file" if model.path.exists() else "does not exist"
            raise invalid(f"the model {model.path} {there}")
        source = ModelSource.of(str(model.path))
        facts = source.graph()
        if facts is None:
            raise invalid(f"the model {model.path} can't be read as ONNX; export it anew")
        recorded = task.signature.recorded
        if recorded is not None and recorded.use.digest != source.digest():
            raise invalid(
                f"the model {model.path} has changed since its traffic was recorded; record it anew"
            )
        for name in model.steering_inputs:
            if name not in {fact.name for fact in facts.inputs}:
                raise invalid(f"steering input {name!r} is not an input of the model")
        lane = Lane(
            ModelIdentity.of(source),
            _reference(model),
            live_run=None,
            candidates=model.candidates,
            scope=model.scope,
            steering=model.steering_inputs,
            reduced_precision=model.reduced_precision,
        )
        request = _request(task.signature, facts) if recorded is None else _recorded_request(recorded, facts)
        return cls(lane, request)


def _providers_named(model: ModelEntry) -> list[str]:
    """Returns the execution providers that an entry names; what is generated besides has none to add."""
    given = {name for name, _ in model.providers}
    given.update(name for recipe in model.candidates or () for name, _ in recipe.provider_list)
    return sorted(given)


def _why_not_stored(providers: list[str]) -> str:
    _, _, gaps = describe(providers=providers)["choices can be stored"].partition("no: ")
    return f"nothing is kept on disk: {gaps}" if gaps else "the choice could not be written to the cache"


def _request(entry: SignatureEntry, facts: GraphFacts) -> Request:
    asked = FeedRequest(
        dims=entry.dims,
        shapes=entry.shapes,
        fills=entry.fills,
        arrays={} if entry.inputs is None else read_npz(str(entry.inputs)),
        written="manifest",
    )
    known = [fact.name for fact in facts.outputs]
    for name in entry.outputs:
        if name not in known:
            raise invalid(f"the model has no output {name!r}; it has {', '.join(map(repr, known))}")
    wanted = tuple(dict.fromkeys(entry.outputs)) or known
    return Request(make_feeds(facts.inputs, asked), tuple(OutputTarget(name) for name in wanted))


def _recorded_request(recorded: TrafficEntry, facts: GraphFacts) -> Request:
    signature = recorded.signature()
    samples = [read_npz(str(path)) for path in recorded.samples]
    return request_for(signature, feeds_for(signature, facts.inputs, samples=samples))


def _reference(model: ModelEntry) -> SessionRecipe:
    """Describes the session that an application makes, as that session would describe itself."""
    given: dict[str, Any] = {"session_options": model.session_options, "config": model.config}
    recipe = SessionRecipe(REFERENCE, providers=list(model.providers), allow_partial=True, **given)
    if all(options or name == CPU for name, options in model.providers):
        return recipe
    # What a provider fills in for itself belongs to the recipe of a session too.
    made = make_session(recipe, ModelSource.of(str(model.path)), recipe, trial=False, check_placement=False)
    return recipe_of_session(made.session, {name: options for name, options in model.providers if options})
