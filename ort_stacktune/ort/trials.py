"""Owns trials on real sessions: isolated copies of the request, validation, and timing of completed work.

The caller's buffers and the caller's own session are never timed or written to. Every session here stops
spinning at the end of its run: an idle pool that spins disturbs the other side of the pair by more than
most gains are worth.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ort_stacktune.failures import FailureKind, NotReproduced, ReferenceFailure, TuneFailure
from ort_stacktune.machine import MemoryWatch
from ort_stacktune.ort.callers import Caller, Feeds, Outputs
from ort_stacktune.ort.completion import DeviceEvents, events_for
from ort_stacktune.ort.devices import why_unreachable
from ort_stacktune.ort.ep_caches import EpCaches
from ort_stacktune.ort.faults import failure_of, in_short
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.recipes import SessionRecipe
from ort_stacktune.ort.request import Request
from ort_stacktune.ort.sessions import CPU, MadeSession, give_back_memory, make_session
from ort_stacktune.ort.tensors import TrialMemory, before_exit, read_back
from ort_stacktune.signature import feeds_of_other_shapes, further_draws
from ort_stacktune.verify import compare
from ort_stacktune.vocabulary import FirstCosts, Timing, Tolerance, Validation

# A run shorter than this is timed in a loop, or the clock and the interpreter would be timed instead.
_SHORT_RUN_NS = 200_000
_LOOP_NS = 400_000

# The pause when sides change takes far longer than a short run, so a timing of one is the best of as many as fit
# into this, up to a limit: on a shared machine the same session runs in two or three modes that last milliseconds.
_TIMING_NS = 3_000_000
_MOST_TRIES = 8
_MAX_LOOP = 100

# A shorter run is preceded by an untimed one after the other side ran; for a longer one, the best of the
# repeats takes care of cold caches.
_COLD_MATTERS_NS = 5_000_000

# Idle threads that spin, and another provider's own pool, come to rest this long after their last run.
_SETTLE_S = 0.06

_RUNS_PER_VALIDATION = 2


class SessionTrials:
    """Runs the candidates of one request; the controller's :class:`TrialRunner`.

    Sessions and copies are made when first needed, so that a lookup that hits costs nothing.

    Args:
        recipes: All candidates, the reference included.
        reference: Position of the reference.
        model: The reference's model.
        request: What is repeated.
        steering: Inputs whose values belong to the signature; they are kept in every draw.
        probes: Further feeds of the same signature to validate on.
        live_run: ``run`` of the session that serves the reference; a clone that does not reproduce its
            outputs is no stand-in for it.
        timing: Clock asked for.
        room: Tells how many candidates may be open at one time.
        concurrency: Callers at one time while a candidate is timed.
        zeros_are_safe: Whether a zero may be drawn for an integer input that holds ones alone.
        dims: Declared dimensions of the inputs, to find another shape of the same request.
        ep_caches: Where execution providers may keep files; ``None`` for nowhere.
    """

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
    ) -> None:
        self._recipes = recipes
        self._reference = reference
        self._model = model
        self._request = request
        self._steering = steering
        self._probes = probes
        self._live_run = live_run
        self._timing = timing
        self._room = room
        self._concurrency = concurrency
        self._zeros_are_safe = zeros_are_safe
        self._dims = dims or {}
        self._ep_caches = ep_caches
        self._memory = TrialMemory(request.inputs_on_devices(), recipes[reference].provider_list)
        self._live: Feeds | None = None
        self._events: dict[int, DeviceEvents | TuneFailure] = {}
        self._callers: dict[tuple[int, bool], Caller] = {}
        self._as_served = False
        self._touched: set[int] = set()
        self._costs: dict[int, FirstCosts] = {}
        self._other_shape: Feeds | None = None
        self._expected: list[tuple[Feeds, Outputs | None]] = []
        self._timed_feeds: list[Feeds] = []
        self._loops = 1
        self._tries = 1
        self._reference_ns = 0
        self._round = 0
        self._last: int | None = None

    def validate(self, reference: int, candidate: int, tolerance: Tolerance) -> Validation:
        """Compares a candidate with the reference on the live inputs, further draws and the probes.

        Each is run twice: what a first run leaves behind must not change the second. An input on which the
        reference raises has to make the candidate raise too.
        """
        if reference != self._reference:
            raise ValueError(f"this runner's reference is {self._reference}, not {reference}")
        if not self._expected:
            self._expect(tolerance)
        verdict = Validation.PASSED
        for number, (feeds, expected) in enumerate(self._expected):
            found = self._check(candidate, feeds, expected, tolerance)
            # A draw without a validator says nothing; the live input has to have one.
            if number == 0:
                verdict = found
        if candidate == self._reference:
            self._calibrate()
        return verdict

    def measure(self, candidate: int) -> int:
        """Returns ns of one completed run: inputs in, work done, outputs where the caller wants them."""
        if isinstance(events := self._events_of(candidate), TuneFailure):
            raise events
        caller = self._caller(candidate)
        prepared = self._feeds_to_time()
        feeds = prepared[self._round % len(prepared)]
        with self._naming_failures():
            if self._last != candidate:
                self._settle(candidate)
                if self._reference_ns < _COLD_MATTERS_NS:
                    caller.run(feeds)
            self._last = candidate
            with _no_garbage_collection():
                return min(caller.time(feeds, self._loops) for _ in range(self._tries))

    def begin_round(self, index: int, *, as_served: bool) -> None:
        """Moves to the next prepared input, for both sides of the coming pair."""
        self._round = index
        if as_served is not self._as_served:
            self._as_served = as_served
            self._last = None

    def room(self) -> int:
        """Returns how many sessions of this model fit into half of the memory that is left."""
        return self._room()

    def release(self, candidate: int) -> None:
        """Closes a candidate's session."""
        open_ones = [key for key in self._callers if key[0] == candidate]
        for key in open_ones:
            self._callers[key].close()
            # Not popped into a name: what is still held here can't be given back.
            del self._callers[key]
        self._last = None if self._last == candidate else self._last
        if candidate in self._touched:
            # Also where it failed before it was open: by then it may have taken all there was.
            self._touched.discard(candidate)
            give_back_memory()

    def facts(self, candidate: int) -> Mapping[str, str]:
        """Returns the share of nodes on each provider, where it is not the CPU's alone."""
        nodes = self._caller(candidate).made.nodes
        total = sum(nodes.values())
        if not nodes or set(nodes) == {CPU}:
            return {}
        shares = (
            f"{name.removesuffix('ExecutionProvider')} {count} of {total}"
            for name, count in sorted(nodes.items())
        )
        return {"nodes": ", ".join(shares)}

    def costs(self, candidate: int) -> FirstCosts:
        """Returns what making a session, its first run and a change of shape cost."""
        costs = self._costs[candidate]
        if self._other_shape is None:
            reference, live = self._caller(self._reference), self._feeds_to_time()[0]
            self._other_shape = self._find_other_shape(reference, live) or {}
        if not self._other_shape or self._recipes[candidate].shapes:
            return costs
        caller, live = self._caller(candidate), self._feeds_to_time()[0]
        try:
            caller.time(self._other_shape, 1)
            return replace(costs, switch_ns=caller.time(live, 1))
        except Exception as error:  # noqa: BLE001 - it may fail where the live shape does not
            _raise_device_fault(error)
            return costs

    def close(self) -> None:
        """Closes every session of the trial and gives their memory back."""
        opened = bool(self._callers)
        while self._callers:
            # Not left in a name: what is still held here can't be given back.
            self._callers.popitem()[1].close()
        self._expected.clear()
        self._memory.close()
        if opened:
            give_back_memory()

    def _caller(self, index: int) -> Caller:
        caller = self._callers.get((index, self._as_served))
        if caller is None:
            if not self._callers:
                before_exit(self.close)
            caller = self._callers[index, self._as_served] = self._make_caller(index)
        return caller

    def _make_caller(self, index: int) -> Caller:
        self._touched.add(index)
        feeds = self._feeds_to_time()[0]
        with MemoryWatch() as memory:
            started_ns = time.perf_counter_ns()
            made = self._make_session(index)
            created_ns = time.perf_counter_ns()
            caller = None
            try:
                caller = self._open_caller(index, made)
                caller.run(feeds)
            except Exception as error:
                if caller is not None:
                    caller.close()
                if made.files is not None:
                    made.files.discard()
                raise self._failure_of(error, index) from error
            ran_ns = time.perf_counter_ns()
        if made.files is not None:
            made.files.publish()
        self._costs.setdefault(
            index, FirstCosts(created_ns - started_ns, ran_ns - created_ns, None, memory.most_added_bytes)
        )
        return caller

    def _open_caller(self, index: int, made: MadeSession) -> Caller:
        events = self._events_of(index)
        return Caller(
            made,
            self._recipe(index),
            self._request,
            self._concurrency,
            self._memory,
            events if isinstance(events, DeviceEvents) else None,
        )

    def _recipe(self, index: int) -> SessionRecipe:
        """Returns a recipe as its session is made here: with its providers, and on the events' stream."""
        recipe = self._recipes[index].inheriting(self._recipes[self._reference])
        events = self._events_of(index)
        return events.on_stream(recipe) if isinstance(events, DeviceEvents) else recipe

    def _events_of(self, index: int) -> DeviceEvents | TuneFailure | None:
        """Returns the device's clock for a candidate, why it has none, or ``None`` for the host's clock."""
        if self._timing is not Timing.DEVICE:
            return None
        found = self._events.get(index)
        if found is None:
            recipe = self._recipes[index].inheriting(self._recipes[self._reference])
            try:
                found = events_for(recipe, self._concurrency)
            except TuneFailure as failure:
                found = failure
            self._events[index] = found
        return found

    def _refuse_what_can_not_reach(self, index: int) -> None:
        """Refuses a candidate, before anything of it is made, that would compute from memory it can't read."""
        reference = self._recipes[self._reference]
        recipe = self._recipes[index].inheriting(reference)
        reason = why_unreachable(self._request.memories(), recipe.provider_list, reference.provider_list)
        if reason is not None:
            raise TuneFailure(FailureKind.REJECTED, reason)

    def _make_session(self, index: int) -> MadeSession:
        self._refuse_what_can_not_reach(index)
        try:
            return make_session(
                self._recipe(index),
                self._model,
                self._recipes[self._reference],
                trial=not self._as_served,
                check_placement=index != self._reference,
                caches=self._ep_caches,
            )
        except TuneFailure as failure:
            if index != self._reference or failure.kind is FailureKind.DEVICE:
                raise
            raise NotReproduced(
                FailureKind.UNAVAILABLE,
                f"a session like yours can't be made again to compare with: {failure.message}",
            ) from failure

    def _expect(self, tolerance: Tolerance) -> None:
        """Runs the reference on everything that candidates will be held against."""
        live = self._live_feeds()
        self._feeds_to_time()
        caller = self._caller(self._reference)
        try:
            outputs = caller.run(live)
        except Exception as error:
            raise self._failure_of(error, self._reference) from error
        self._recognise_live_session(live, outputs, tolerance)
        expected: list[tuple[Feeds, Outputs | None]] = [(live, outputs)]
        for draw in further_draws(live, sorted(self._steering), zeros_are_safe=self._zeros_are_safe):
            drawn = _outputs_or_none(caller, draw)
            # Values drawn from the live ones may be no legal input; the caller's probes are.
            if drawn is not None:
                expected.append((draw, drawn))
        probed = [(feeds, _outputs_or_none(caller, feeds)) for feeds in self._fitting_probes(live)]
        self._expected = expected + probed
        self._timed_feeds += [feeds for feeds, outputs_ in probed if outputs_ is not None]

    def _find_other_shape(self, caller: Caller, live: Feeds) -> Feeds | None:
        """Returns feeds of another shape that the reference takes, to see what a change of shape costs."""
        for feeds in feeds_of_other_shapes(live, self._dims):
            if _outputs_or_none(caller, feeds) is not None:
                return feeds
        return None

    def _fitting_probes(self, live: Feeds) -> Iterator[Feeds]:
        """Yields copies of the probes that have the live inputs' exact signature; others say nothing."""
        for probe in self._probes:
            if set(probe) != set(live):
                continue
            feeds = {name: np.array(probe[name], order="C") for name in live}
            if all(
                feeds[name].shape == live[name].shape
                and feeds[name].dtype == live[name].dtype
                and (name not in self._steering or np.array_equal(feeds[name], live[name]))
                for name in live
            ):
                yield feeds

    def _recognise_live_session(self, live: Feeds, outputs: Outputs, tolerance: Tolerance) -> None:
        if self._live_run is None:
            return
        try:
            served = self._live_run(self._request.output_names, dict(live), None)
            compare(served, outputs, self._request.output_names, tolerance)
        except Exception as error:
            _raise_device_fault(error)
            raise NotReproduced(
                FailureKind.UNAVAILABLE,
                "a session rebuilt from your options does not reproduce yours, so it can't stand in for it;"
                f" some options can't be read back ({in_short(error)})",
            ) from error

    def _check(
        self, candidate: int, feeds: Feeds, expected: Outputs | None, tolerance: Tolerance
    ) -> Validation:
        caller = self._caller(candidate)
        verdict = Validation.PASSED
        for _ in range(_RUNS_PER_VALIDATION):
            if expected is None:
                if _outputs_or_none(caller, feeds) is not None:
                    raise TuneFailure(
                        FailureKind.REJECTED, "it answers a probe on which the reference raises an error"
                    )
                continue
            with self._naming_failures():
                outputs = caller.run(feeds)
            try:
                verdict = compare(expected, outputs, self._request.output_names, tolerance)
            except TuneFailure as failure:
                if candidate != self._reference:
                    raise
                raise ReferenceFailure(
                    FailureKind.UNAVAILABLE,
                    f"the reference disagrees with itself between runs: {failure.message}",
                ) from failure
        return verdict

    def _calibrate(self) -> None:
        """Finds how many runs make one timing, and of how many the best counts; the same for every candidate."""
        caller = self._caller(self._reference)
        feeds = self._feeds_to_time()[0]
        with self._naming_failures():
            shortest = min(caller.time(feeds, 1) for _ in range(3))
        self._reference_ns = shortest
        if shortest < _SHORT_RUN_NS:
            self._loops = min(_MAX_LOOP, -(-_LOOP_NS // shortest))
        self._tries = max(1, min(_MOST_TRIES, _TIMING_NS // (shortest * self._loops)))

    def _feeds_to_time(self) -> list[Feeds]:
        """Prepared inputs to rotate: copies at other addresses, so that no side keeps one hot, and probes."""
        if not self._timed_feeds:
            live = self._live_feeds()
            self._timed_feeds = [{name: array.copy() for name, array in live.items()} for _ in range(2)]
        return self._timed_feeds

    def _live_feeds(self) -> Feeds:
        """Returns the live inputs in host memory, copied or read back once."""
        if self._live is None:
            try:
                self._live = read_back(self._request.feeds)
            except Exception as error:
                raise self._failure_of(error, self._reference) from error
        return self._live

    def _settle(self, candidate: int) -> None:
        if self._last is None:
            return
        spins = self._as_served and self._recipes[self._last].may_spin
        if spins or self._other_providers(self._last) != self._other_providers(candidate):
            time.sleep(_SETTLE_S)

    def _other_providers(self, index: int) -> set[str]:
        return {name for name in self._caller(index).made.nodes if name != CPU}

    @contextmanager
    def _naming_failures(self) -> Iterator[None]:
        """Turns an error of a trial run into a failure, which says whether its work is known to be over."""
        try:
            yield
        except TuneFailure:
            raise
        except Exception as error:
            raise failure_of(error) from error

    def _failure_of(self, error: Exception, index: int) -> TuneFailure:
        """Returns what an error of one session is, and says so where the reference is to blame."""
        failure = failure_of(error)
        if index != self._reference:
            return failure
        return ReferenceFailure(failure.kind, f"the reference: {failure.message}", failure.fault)


def _outputs_or_none(caller: Caller, feeds: Feeds) -> Outputs | None:
    try:
        return caller.run(feeds)
    except Exception as error:  # noqa: BLE001 - that it raises is the finding
        _raise_device_fault(error)
        return None


def _raise_device_fault(error: Exception) -> None:
    """Raises an error after which nothing is known; from one of any other kind the trial may go on."""
    failure = failure_of(error)
    if failure.kind is FailureKind.DEVICE:
        raise failure from error


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
