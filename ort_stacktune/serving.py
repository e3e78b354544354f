"""Owns the way from a request to the session that serves it, for one model and its reference.

It holds the live winners and closes them when their choice is gone. It must never run the live request:
that is the caller's, once, on the session it gets from here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from ort_stacktune.candidates import Situation, generate
from ort_stacktune.environment import runtime_environment
from ort_stacktune.failures import FailureKind, NotReproduced, TuneFailure, invalid
from ort_stacktune.identity import fields
from ort_stacktune.isolation import IsolatedTrials, TrialsCancelled, why_not_elsewhere
from ort_stacktune.machine import sessions_that_fit, usable_cores
from ort_stacktune.nvidia import PROVIDERS as NVIDIA
from ort_stacktune.nvidia import driver_is_absent
from ort_stacktune.ort.callers import Feeds
from ort_stacktune.ort.captured import captures
from ort_stacktune.ort.devices import why_unreachable
from ort_stacktune.ort.ep_caches import EpCaches
from ort_stacktune.ort.graph import GraphFacts
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.plugins import plugins_here
from ort_stacktune.ort.recipes import SessionRecipe, available_providers, variant
from ort_stacktune.ort.request import Request, RunSettings
from ort_stacktune.ort.sessions import make_session
from ort_stacktune.ort.trials import SessionTrials
from ort_stacktune.policy import Candidate
from ort_stacktune.traffic import HitCount
from ort_stacktune.tuner import StackTuner
from ort_stacktune.verify import compare
from ort_stacktune.vocabulary import (
    CandidateReport,
    Decision,
    DecisionSource,
    MemoryEviction,
    Mode,
    Problem,
    Scope,
    TuneReport,
)

_log = logging.getLogger("ort_stacktune")

# How long an answer that may change on its own is acted on without asking again.
_MISS_S = 5.0
_FAULT_S = 60.0
_LRU_TOUCH_S = 1.0
_DEFERRED_S = 0.2

# What a search in the background adds to its niceness, to leave the cores to those who serve.
_LOW = 10

_REMEMBERED = 1024

# Integers divided by zero end some builds of ONNX Runtime, so no zero is drawn for them.
_DIVIDING = frozenset({"Div", "Mod"})
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})

_Value = TypeVar("_Value")

Trials: TypeAlias = SessionTrials | IsolatedTrials

# A value that steers is part of the key, so one that is new in every call would cost a search in every
# call. Beyond this many values for one set of shapes the reference serves.
_MAX_STEERED_VALUES = 16

_DECIDED = frozenset(
    {
        DecisionSource.TUNED,
        DecisionSource.MEMORY_CACHE,
        DecisionSource.DISK_CACHE,
        DecisionSource.VALIDATION_UNAVAILABLE,
        DecisionSource.CACHE_MISS,
    }
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Who serves a request.

    Attributes:
        decision: The controller's decision; ``None`` where the controller was not asked or failed.
        session: The session that won; ``None`` for the reference.
        run_options: Run options that its recipe asks for, ``None`` without any.
        good_for_s: Seconds for which the same signature may be served the same way without asking.
        counts: Whether serving it so is a memory hit of the controller's.
        reason: Why the controller was not asked.
        hits: Where serving by it without asking is counted; ``None`` for the usual place.
    """

    decision: Decision | None = None
    session: Any = None
    run_options: Any = None
    good_for_s: float = 0.0
    counts: bool = False
    reason: str = ""
    hits: HitCount | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A request's question: the problem and the recipes that could answer it."""

    problem: Problem
    recipes: tuple[SessionRecipe, ...]
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """A model as questions name it.

    Attributes:
        source: Where it is.
        digest: Digest of its content.
        facts: What its graph says; ``None`` where it can't be read.
        size_bytes: Bytes of the model and its external data.
    """

    source: ModelSource
    digest: str
    facts: GraphFacts | None
    size_bytes: int

    @classmethod
    def of(cls, source: ModelSource) -> ModelIdentity:
        """Reads a model.

        Raises:
            TuneFailure: ``INVALID_INPUT`` where it can't be read.
        """
        return cls(source, source.digest(), source.graph(), source.size_bytes())


class BackgroundSearch:
    """One search that no caller waits for; a job of the controller's queue.

    Args:
        lane: Whose question it is.
        tuner: The controller.
        plan: The question.
        request: The request, on copies of its inputs.
        trials: Its trials, in a process of low priority where that is possible.
    """

    def __init__(self, lane: Lane, tuner: StackTuner, plan: Plan, request: Request, trials: Trials) -> None:
        self._lane = lane
        self._tuner = tuner
        self._plan = plan
        self._request = request
        self._trials = trials

    def run(self) -> None:
        """Searches, makes the winner and runs it once, so that no live call pays for its first run."""
        try:
            choice = self._lane.decide(self._tuner, self._plan, self._request, self._trials)
        except TuneFailure as failure:
            _log.warning("served by the reference: %s", failure)
            return
        if choice.session is not None and not self._request.bound:
            choice.session.run(self._request.output_names, dict(self._request.feeds), choice.run_options)

    def cancel(self) -> None:
        """Ends the process of its trials, if it has one."""
        if isinstance(self._trials, IsolatedTrials):
            self._trials.cancel()


class Lane:
    """Decisions and live winners for one model.

    Args:
        model: The model and what is known of it.
        reference: The reference's recipe.
        live_run: ``run`` of the session that serves the reference; ``None`` where there is none yet.
        candidates: Recipes to choose from; ``None`` to generate them for each signature.
        scope: Level of the decisions.
        probes: Further feeds to validate on.
        steering: Inputs whose values belong to the signature, beyond those found in the graph.
        reduced_precision: What generated candidates may compute in below the reference's own precision.
        operation: Name that goes into the operation beside the model's digest.
        workload: Makes the workload's text from the feeds; ``None`` derives it from the request.
        on_gone: Called with a cache key when its choice is void.
    """

    def __init__(
        self,
        model: ModelIdentity,
        reference: SessionRecipe,
        *,
        live_run: Callable[..., Any] | None,
        candidates: Sequence[SessionRecipe] | None,
        scope: Scope,
        probes: Sequence[Feeds] = (),
        steering: Sequence[str] = (),
        reduced_precision: Sequence[str] = (),
        operation: str = "",
        workload: Callable[[Mapping[str, Any]], str] | None = None,
        on_gone: Callable[[str], None] | None = None,
    ) -> None:
        self.model = model
        self.reference = reference
        self.steering = frozenset(steering) | frozenset(model.facts.steering if model.facts else ())
        self._live_run = live_run
        self._candidates = None if candidates is None else tuple(candidates)
        self._scope = scope
        self._probes = probes
        self._reduced_precision = tuple(reduced_precision)
        self._operation = fields(
            ("onnx", operation or (model.facts.name if model.facts else ""), model.digest)
        )
        self._workload = workload
        self._on_gone = on_gone
        self._lock = threading.Lock()
        self._winners: dict[str, Any] = {}
        self._users: dict[str, set[str]] = {}
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._faults: OrderedDict[str, float] = OrderedDict()
        self._calls: OrderedDict[str, HitCount] = OrderedDict()
        self._steered: OrderedDict[str, set[str]] = OrderedDict()
        self._vouched: set[tuple[str, str]] = set()
        self._not_reproduced: str | None = None
        self._subscribed: set[int] = set()

    def resolve(self, tuner: StackTuner, request: Request, *, wait: bool = True) -> Choice:
        """Decides who serves a request, by experiment where the policy allows it.

        Args:
            tuner: The controller.
            request: The request.
            wait: Whether the caller may have to wait for a search. Under ``search="background"`` one that may
                not is served by the reference, while the search waits for its turn.

        Raises:
            TuneFailure: As :meth:`StackTuner.select`, the first time only: for a minute the same signature
                gets the reference without another attempt.
        """
        if (reason := self._untunable(request, counting=True)) is not None:
            return Choice(good_for_s=_FAULT_S, reason=reason)
        plan = self._plan(tuner, request)
        workload = plan.problem.workload
        with self._lock:
            retry_at = self._faults.get(workload)
        if retry_at is not None and time.monotonic() < retry_at:
            return Choice(
                good_for_s=retry_at - time.monotonic(), reason="its last search failed less than a minute ago"
            )
        self._subscribe(tuner)
        if not wait and tuner.policy.search == "background":
            return self._put_off(tuner, plan, request)
        trials = self._trials(plan, request, tuner)
        return self.decide(tuner, plan, request, trials)

    def settle(self, tuner: StackTuner, request: Request) -> Decision:
        """Decides a request's question for others to find: the winner is not made.

        Raises:
            TuneFailure: ``INVALID_INPUT`` for a request that can't be tuned; otherwise as
                :meth:`StackTuner.select`.
        """
        if (reason := self._untunable(request)) is not None:
            raise invalid(f"it can't be tuned: {reason}")
        plan = self._plan(tuner, request)
        return self._selected(tuner, plan, self._trials(plan, request, tuner))

    def _selected(self, tuner: StackTuner, plan: Plan, trials: Trials) -> Decision:
        try:
            decision = tuner.select(plan.problem, plan.candidates, 0, trials)
        finally:
            trials.close()
        caches = ep_caches(tuner, plan.problem)
        if decision.source is DecisionSource.TUNED and caches is not None and caches.has_any:
            for index, recipe in enumerate(plan.recipes):
                if index not in (decision.index, decision.reference_index):
                    loser = recipe.inheriting(self.reference)
                    caches.forget(loser, loser.model_digest or self.model.digest)
        return decision

    def decide(self, tuner: StackTuner, plan: Plan, request: Request, trials: Trials) -> Choice:
        """Asks the controller, searching where it has to, and makes the winner; closes the trials.

        Raises:
            TuneFailure: As :meth:`resolve`.
        """
        try:
            decision = self._selected(tuner, plan, trials)
        except TrialsCancelled:
            return Choice()
        except NotReproduced as failure:
            self._not_reproduced = failure.message
            return Choice(good_for_s=_FAULT_S, reason=failure.message)
        except TuneFailure:
            with self._lock:
                _remember(self._faults, plan.problem.workload, time.monotonic() + _FAULT_S)
            raise
        return self._choice(tuner, plan, decision, request)

    def _put_off(self, tuner: StackTuner, plan: Plan, request: Request) -> Choice:
        """Serves what is ready without any work; otherwise the reference, and a search has its turn later."""
        known = tuner.recall(plan.problem, plan.candidates, 0)
        if known is not None and (known.is_reference or self._is_ready(plan, known)):
            return self._choice(tuner, plan, known, request)
        with self._lock:
            slot = f"{tuner.policy.concurrency} {request.settings.given} {plan.problem.workload}"
            calls = self._calls.get(slot) or _remember(self._calls, slot, HitCount())
        calls.value += 1
        if calls.value >= tuner.policy.search_after_calls:

            def make() -> Callable[[], BackgroundSearch]:
                # The caller's buffers are its own again when its call returns.
                kept = request.detached()
                return lambda: BackgroundSearch(
                    self, tuner, plan, kept, self._trials(plan, kept, tuner, niceness=_LOW)
                )

            tuner.searches.submit(f"{id(self)} {slot}", calls, request.size_bytes, make)
        return Choice(
            tuner.put_off(plan.problem, plan.candidates, 0),
            good_for_s=_DEFERRED_S,
            reason="its search has not ended yet",
            hits=calls,
        )

    def _is_ready(self, plan: Plan, decision: Decision) -> bool:
        """Whether a winner is made and trusted, so that serving it makes no call wait."""
        revision = plan.recipes[decision.index].revision
        with self._lock:
            return revision in self._winners and (
                self._live_run is None or (decision.cache_key, revision) in self._vouched
            )

    def prepare(self) -> None:
        """Reads what the first question would read of this machine."""
        runtime_environment(providers=sorted({name for name, _ in self.reference.provider_list}))

    def refusal(self, request: Request) -> str | None:
        """Returns why a request can't be tuned, ``None`` where it can; notes the values that steer it."""
        return self._untunable(request, counting=True)

    def known(self, tuner: StackTuner, request: Request) -> Choice | None:
        """Returns who serves a request by a choice in memory, or ``None``; never searches."""
        if self._untunable(request) is not None:
            return None
        plan = self._plan(tuner, request)
        decision = tuner.peek(plan.problem, plan.candidates, 0)
        return None if decision is None else self._choice(tuner, plan, decision, request)

    def report(self, tuner: StackTuner, request: Request) -> TuneReport | None:
        """Returns the evidence behind the choice for a request, or why there was none to make."""
        plan = self._plan(tuner, request)
        if (reason := self._untunable(request)) is not None:
            return refusal_report(reason, plan.problem, self.reference.name)
        decision = tuner.peek(plan.problem, plan.candidates, 0)
        if decision is not None:
            return tuner.report_for(decision.cache_key)
        for report in reversed(tuner.reports()):
            if (report.operation, report.workload) == (plan.problem.operation, plan.problem.workload):
                return report
        return None

    def choice_gone(self, cache_key: str) -> None:
        """Closes the winner behind a key unless another key uses it, and passes the word on."""
        with self._lock:
            self._vouched = {pair for pair in self._vouched if pair[0] != cache_key}
            for revision, users in list(self._users.items()):
                users.discard(cache_key)
                if not users:
                    self._users.pop(revision)
                    self._winners.pop(revision, None)
        if self._on_gone is not None:
            self._on_gone(cache_key)

    def live_winners(self) -> int:
        """Returns how many winning sessions are in memory beside the reference."""
        with self._lock:
            return len(self._winners)

    def _choice(self, tuner: StackTuner, plan: Plan, decision: Decision, request: Request) -> Choice:
        recipe = plan.recipes[decision.index]
        session = None
        self._close_replaced(decision.cache_key, recipe.revision)
        if not decision.is_reference:
            try:
                session = self._winner(recipe, decision.cache_key, ep_caches(tuner, plan.problem))
                if not self._vouched_for(decision, recipe, session, request, tuner):
                    # Without a reason it was the input's fault, and the next one is asked about again.
                    return Choice(
                        good_for_s=_FAULT_S if self._not_reproduced else 0.0,
                        reason=self._not_reproduced or "",
                    )
            except TuneFailure as failure:
                # It could be made a moment ago; whatever changed, the reference is there.
                _log.warning("the winner %s can't be made again: %s", recipe.name, failure.message)
                tuner.invalidate(decision, ban_candidate=True)
                return Choice()
        return Choice(
            decision,
            session,
            RunSettings().make(recipe.run_config),
            self._good_for_s(tuner, decision),
            counts=decision.source
            in (DecisionSource.TUNED, DecisionSource.MEMORY_CACHE, DecisionSource.DISK_CACHE),
        )

    def _vouched_for(
        self, decision: Decision, recipe: SessionRecipe, session: Any, request: Request, tuner: StackTuner
    ) -> bool:
        """Whether this session's own answer was seen to agree with a winner's.

        A choice in memory may come from another session, whose options or weights differ from this one's where
        nobody can read it.
        """
        if decision.source is not DecisionSource.MEMORY_CACHE or self._live_run is None:
            with self._lock:
                self._vouched.add((decision.cache_key, recipe.revision))
            return True
        with self._lock:
            if (decision.cache_key, recipe.revision) in self._vouched:
                return True
        feeds = request.detached().feeds
        try:
            served = self._live_run(request.output_names, feeds, None)
        except Exception:  # noqa: BLE001 - the input is at fault; the next one may show whether they agree
            return False
        try:
            found = session.run(request.output_names, feeds)
            compare(served, found, request.output_names, tuner.policy.tolerance)
        except Exception as error:  # noqa: BLE001 - whatever differs, it is doubt
            self._not_reproduced = f"it does not answer as the session its choice was made with ({error})"
            _log.warning("served by the reference: %s", self._not_reproduced)
            return False
        with self._lock:
            self._vouched.add((decision.cache_key, recipe.revision))
        return True

    def _close_replaced(self, cache_key: str, revision: str) -> None:
        """Closes a winner of a key that another one follows, unless another key uses it."""
        with self._lock:
            for other, users in list(self._users.items()):
                if other != revision:
                    users.discard(cache_key)
                if not users:
                    self._users.pop(other)
                    self._winners.pop(other, None)

    @staticmethod
    def _good_for_s(tuner: StackTuner, decision: Decision) -> float:
        if decision.source is DecisionSource.CACHE_MISS:
            # Soon enough to see what a pre-warming process has stored meanwhile.
            return _MISS_S
        if decision.source is DecisionSource.VALIDATION_UNAVAILABLE:
            return _FAULT_S
        if decision.source not in _DECIDED:
            return 0.0
        seconds = tuner.seconds_fresh(decision.cache_key)
        # The controller learns of recency only when it is asked.
        return min(seconds, _LRU_TOUCH_S) if tuner.memory_eviction is MemoryEviction.LRU else seconds

    def _winner(self, recipe: SessionRecipe, cache_key: str, caches: EpCaches | None) -> Any:
        with self._lock:
            session = self._winners.get(recipe.revision)
            if session is not None:
                self._users[recipe.revision].add(cache_key)
                return session
        if recipe.model is None and self.model.source.digest() != self.model.digest:
            raise invalid("the model's file has changed since the session was made; make the session anew")
        made = make_session(recipe, self.model.source, self.reference, trial=False, caches=caches)
        with self._lock:
            session = self._winners.setdefault(recipe.revision, made.session)
            self._users.setdefault(recipe.revision, set()).add(cache_key)
        return session

    def _trials(self, plan: Plan, request: Request, tuner: StackTuner, *, niceness: int = 0) -> Trials:
        policy = tuner.policy
        facts = self.model.facts
        details: dict[str, Any] = {
            "steering": self.steering,
            "probes": self._probes,
            "live_run": self._live_run,
            "timing": policy.timing,
            "room": lambda: sessions_that_fit(self.model.size_bytes),
            "concurrency": policy.concurrency,
            "zeros_are_safe": facts is not None and not _DIVIDING & set(facts.op_types),
            "dims": {fact.name: fact.dims or () for fact in facts.inputs} if facts else {},
            "ep_caches": ep_caches(tuner, plan.problem),
        }
        if policy.isolation == "process" or niceness:
            reason = why_not_elsewhere(plan.recipes)
            if reason is None:
                return IsolatedTrials(
                    plan.recipes,
                    0,
                    self.model.source,
                    request,
                    limits=policy.limits,
                    niceness=niceness,
                    **details,
                )
            _log.warning("tried in this process, not in one of its own: %s", reason)
        return SessionTrials(plan.recipes, 0, self.model.source, request, **details)

    def _subscribe(self, tuner: StackTuner) -> None:
        with self._lock:
            if id(tuner) in self._subscribed:
                return
            self._subscribed.add(id(tuner))
        tuner.subscribe(self)

    def _untunable(self, request: Request, *, counting: bool = False) -> str | None:
        if self._not_reproduced is not None:
            return self._not_reproduced
        facts = self.model.facts
        if facts is None:
            return "its graph can't be read, so what steers it is unknown"
        if facts.random:
            return f"it draws random numbers: {', '.join(facts.random[:3])}"
        overridden = sorted(set(request.feeds) & set(facts.overridable))
        if overridden:
            return f"the call overrides the initializer {overridden[0]!r}"
        unseen = sorted(self.steering & set(request.inputs_on_devices()))
        if unseen:
            return f"input {unseen[0]!r} steers the computation, and its value lies in a device's memory"
        return None if self._workload is not None else self._too_many_values(request, counting)

    def _too_many_values(self, request: Request, counting: bool) -> str | None:
        steering = self.steering & set(request.feeds)
        if not steering:
            return None
        shapes = request.signature(frozenset()).text()
        exact = request.signature(self.steering).text()
        with self._lock:
            seen = self._steered.get(shapes)
            if seen is None:
                seen = _remember(self._steered, shapes, set())
            if exact in seen:
                return None
            if len(seen) < _MAX_STEERED_VALUES:
                if counting:
                    seen.add(exact)
                return None
        return (
            f"the value of {', '.join(sorted(steering))} steers the computation and has changed more than"
            f" {_MAX_STEERED_VALUES} times for these shapes"
        )

    def _plan(self, tuner: StackTuner, request: Request) -> Plan:
        workload = self._workload_text(request)
        # A caller's options object can't be copied, so a recipe's run config can't be added to it; and an IO
        # binding belongs to one session, so a pool can't serve it.
        own_options = request.settings.given
        callers = tuner.policy.concurrency
        slot = f"{own_options} {callers} {workload}"
        with self._lock:
            plan = self._plans.get(slot)
        if plan is not None:
            return plan
        recipes = (
            self.reference,
            *(
                variant(recipe, recipe.name, eligible=False)
                if (_needs_own_options(recipe) and own_options)
                or (_takes_no_binding(recipe) and request.bound)
                else recipe
                for recipe in self._reaching(request, self._recipes(request, callers))
            ),
        )
        # Only what takes part decides: a device that nobody uses must not void a choice, nor its driver's
        # being unknown keep it from the disk.
        environment = runtime_environment(
            providers=sorted({name for recipe in recipes for name, _ in recipe.provider_list})
        )
        plan = Plan(
            Problem(
                self._scope,
                self._operation,
                environment.fingerprint,
                workload,
                environment.execution_context,
                environment.persistent,
            ),
            recipes,
            tuple(recipe.candidate() for recipe in recipes),
        )
        with self._lock:
            return _remember(self._plans, slot, plan)

    def _workload_text(self, request: Request) -> str:
        signature = request.signature(self.steering)
        if self._workload is None:
            return signature.text()
        text = self._workload(request.feeds)
        if not isinstance(text, str) or not text:
            raise invalid(f"workload() returned {text!r}; expected nonempty text, the exact signature")
        # It is told of the inputs alone; a choice for some outputs says nothing about others.
        return fields((text, replace(signature, inputs=()).text()))

    def _reaching(self, request: Request, recipes: tuple[SessionRecipe, ...]) -> tuple[SessionRecipe, ...]:
        """Leaves out what was generated and can't reach the request's memory; a trial refuses what was given."""
        if self._candidates is not None:
            return recipes
        asked = self.reference.provider_list
        return tuple(
            recipe
            for recipe in recipes
            if not why_unreachable(request.memories(), recipe.inheriting(self.reference).provider_list, asked)
        )

    def _recipes(self, request: Request, callers: int) -> tuple[SessionRecipe, ...]:
        if self._candidates is not None:
            return self._candidates
        shapes = {name: array.shape for name, array in request.feeds.items()}
        inputs = self.model.facts.inputs if self.model.facts else ()
        op_types = self.model.facts.op_types if self.model.facts else {}
        providers = available_providers()
        if driver_is_absent():
            # The build has them all the same; a candidate that can't work would only spoil the identity.
            providers = tuple(name for name in providers if name not in NVIDIA)
        dynamic = any(
            not isinstance(dim, int) for fact in inputs if fact.name in shapes for dim in fact.dims or ()
        )
        return generate(
            Situation(
                self.reference,
                shapes,
                dynamic,
                bool(_CONTROL_FLOW & set(op_types)),
                usable_cores().count,
                providers,
                callers if sessions_that_fit(self.model.size_bytes) >= 2 * callers else 1,
                op_types=op_types,
                reduced_precision=self._reduced_precision,
                on_device=request.lies_on_devices,
                capturable=not request.bound,
                libraries=plugins_here(),
            )
        )


def _needs_own_options(recipe: SessionRecipe) -> bool:
    return bool(recipe.run_config) or captures(recipe.provider_list)


def _takes_no_binding(recipe: SessionRecipe) -> bool:
    # A binding belongs to one session, and brings buffers of its own to one that has its own already.
    return recipe.instances > 1 or captures(recipe.provider_list)


def ep_caches(tuner: StackTuner, problem: Problem) -> EpCaches | None:
    """Returns where execution providers keep files for a question: beside its choice, where that may be kept."""
    if tuner.cache_directory is None or not problem.persistent:
        return None
    read_only = tuner.policy.mode is not Mode.EXPLORE
    return EpCaches(tuner.cache_directory, problem.environment, read_only)


def refusal_report(reason: str, problem: Problem | None = None, name: str = "reference") -> TuneReport:
    """Returns the report of a request that is left to the reference, with the reason in its note."""
    note = CandidateReport(name, note=f"not tuned: {reason}", rejection=FailureKind.UNAVAILABLE)
    if problem is None:
        return TuneReport("", "", "", "", name, 0, False, (note,))
    return TuneReport(
        problem.operation,
        problem.environment,
        problem.workload,
        problem.execution_context,
        name,
        0,
        False,
        (note,),
    )


def _remember(table: OrderedDict[str, _Value], key: str, value: _Value) -> _Value:
    """Keeps a value in a bounded table, the oldest leaving first."""
    table[key] = value
    while len(table) > _REMEMBERED:
        table.popitem(last=False)
    return value
