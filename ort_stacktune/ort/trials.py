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
from typing import Any

import numpy as np

from ort_stacktune.failures import FailureKind, TuneFailure
from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.recipes import SessionRecipe
from ort_stacktune.ort.request import Request
from ort_stacktune.ort.sessions import CPU, MadeSession, first_line, give_back_memory, make_session
from ort_stacktune.signature import Array, further_draws
from ort_stacktune.verify import compare
from ort_stacktune.vocabulary import Timing, Tolerance, Validation

Feeds = Mapping[str, Array]
Outputs = list[object]

# A run shorter than this is timed in a loop, or the clock and the interpreter would be timed instead.
_SHORT_RUN_NS = 200_000
_LOOP_NS = 400_000
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
        room: How many candidates may be open at one time.
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
        room: int = 1,
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
        self._callers: dict[tuple[int, bool], _Caller] = {}
        self._as_served = False
        self._expected: list[tuple[Feeds, Outputs | None]] = []
        self._timed_feeds: list[Feeds] = []
        self._loops = 1
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
        if self._timing is Timing.DEVICE:
            raise TuneFailure(
                FailureKind.UNAVAILABLE,
                "Timing.DEVICE needs device events, which this execution provider does not offer;"
                " use Timing.END_TO_END",
            )
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
                return caller.time(feeds, self._loops)

    def begin_round(self, index: int, *, as_served: bool) -> None:
        """Moves to the next prepared input, for both sides of the coming pair."""
        self._round = index
        if as_served is not self._as_served:
            self._as_served = as_served
            self._last = None

    def room(self) -> int:
        """Returns how many sessions of this model fit into half of the memory that is left."""
        return self._room

    def release(self, candidate: int) -> None:
        """Closes a candidate's session."""
        closed = [self._callers.pop((candidate, as_served), None) for as_served in (False, True)]
        if any(closed):
            self._last = None if self._last == candidate else self._last
            give_back_memory()

    def facts(self, candidate: int) -> Mapping[str, str]:
        """Returns the share of nodes on each provider and what creation cost."""
        caller = self._caller(candidate)
        facts = {"created in": f"{caller.created_ns / 1e6:.0f} ms"}
        nodes = caller.made.nodes
        total = sum(nodes.values())
        if nodes and set(nodes) != {CPU}:
            facts["nodes"] = ", ".join(
                f"{name.removesuffix('ExecutionProvider')} {count} of {total}"
                for name, count in sorted(nodes.items())
            )
        return facts

    def close(self) -> None:
        """Closes every session of the trial and gives their memory back."""
        if self._callers:
            self._callers.clear()
            self._expected.clear()
            give_back_memory()

    def _caller(self, index: int) -> _Caller:
        caller = self._callers.get((index, self._as_served))
        if caller is None:
            started_ns = time.perf_counter_ns()
            try:
                made = make_session(
                    self._recipes[index],
                    self._model,
                    self._recipes[self._reference],
                    trial=not self._as_served,
                    check_placement=index != self._reference,
                )
            except TuneFailure as failure:
                if index != self._reference:
                    raise
                raise TuneFailure(
                    FailureKind.UNAVAILABLE,
                    f"a session like yours can't be made again to compare with: {failure.message}",
                ) from failure
            created_ns = time.perf_counter_ns() - started_ns
            caller = _Caller(made, self._recipes[index], self._request, created_ns)
            self._callers[index, self._as_served] = caller
        return caller

    def _expect(self, tolerance: Tolerance) -> None:
        """Runs the reference on everything that candidates will be held against."""
        live = {name: array.copy() for name, array in self._request.feeds.items()}
        self._feeds_to_time()
        caller = self._caller(self._reference)
        with self._naming_failures():
            outputs = caller.run(live)
        self._recognise_live_session(live, outputs, tolerance)
        expected: list[tuple[Feeds, Outputs | None]] = [(live, outputs)]
        for draw in further_draws(live, sorted(self._steering)):
            drawn = _outputs_or_none(caller, draw)
            # Values drawn from the live ones may be no legal input; the caller's probes are.
            if drawn is not None:
                expected.append((draw, drawn))
        probed = [(feeds, _outputs_or_none(caller, feeds)) for feeds in self._fitting_probes(live)]
        self._expected = expected + probed
        self._timed_feeds += [feeds for feeds, outputs_ in probed if outputs_ is not None]

    def _fitting_probes(self, live: Feeds) -> Iterator[Feeds]:
        """Yields copies of the probes that have the live inputs' exact signature; others say nothing."""
        for probe in self._probes:
            if set(probe) != set(live):
                continue
            feeds = {name: np.array(probe[name]) for name in live}
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
            raise TuneFailure(
                FailureKind.UNAVAILABLE,
                "a session rebuilt from your options does not reproduce yours, so it can't stand in for it;"
                f" some options can't be read back ({first_line(error)})",
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
                raise TuneFailure(
                    FailureKind.UNAVAILABLE,
                    f"the reference disagrees with itself between runs: {failure.message}",
                ) from failure
        return verdict

    def _calibrate(self) -> None:
        """Finds how many runs make one timing, the same for every candidate."""
        caller = self._caller(self._reference)
        feeds = self._feeds_to_time()[0]
        with self._naming_failures():
            shortest = min(caller.time(feeds, 1) for _ in range(3))
        self._reference_ns = shortest
        if shortest < _SHORT_RUN_NS:
            self._loops = min(_MAX_LOOP, -(-_LOOP_NS // shortest))

    def _feeds_to_time(self) -> list[Feeds]:
        """Prepared inputs to rotate: copies at other addresses, so that no side keeps one hot, and probes."""
        if not self._timed_feeds:
            live = self._request.feeds
            self._timed_feeds = [{name: array.copy() for name, array in live.items()} for _ in range(2)]
        return self._timed_feeds

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
        """Turns an error of a trial run into a failure; on these providers its work is complete by then."""
        try:
            yield
        except TuneFailure:
            raise
        except Exception as error:
            raise TuneFailure(FailureKind.REJECTED, first_line(error)) from error


class _Caller:
    """Calls one trial session the way the request calls the live one."""

    def __init__(self, made: MadeSession, recipe: SessionRecipe, request: Request, created_ns: int) -> None:
        self.made = made
        self.created_ns = created_ns
        self._request = request
        self._options = request.settings.make(recipe.run_config)
        self._names = request.output_names
        self._bound_feeds: Feeds | None = None
        self._binding: Any = None
        self._buffers: dict[str, Any] = {}

    def run(self, feeds: Feeds) -> Outputs:
        """Runs once and returns outputs that belong to the trial."""
        self._prepare(feeds)(1)
        if self._request.bound:
            # A given buffer is overwritten by the next run, so what is kept has to be a copy.
            return [np.array(output) for output in self._binding.copy_outputs_to_cpu()]
        return list(self.made.session.run(self._names, feeds, self._options))

    def time(self, feeds: Feeds, loops: int) -> int:
        """Returns ns of one completed run, the mean over a loop of them."""
        work = self._prepare(feeds)
        started_ns = time.perf_counter_ns()
        work(loops)
        return max(1, (time.perf_counter_ns() - started_ns) // loops)

    def _prepare(self, feeds: Feeds) -> Callable[[int], None]:
        session, options, names = self.made.session, self._options, self._names
        if not self._request.bound:

            def through_run(loops: int) -> None:
                for _ in range(loops):
                    session.run(names, feeds, options)

            return through_run
        self._bind(feeds)
        binding = self._binding

        def through_binding(loops: int) -> None:
            for _ in range(loops):
                session.run_with_iobinding(binding, options)
                binding.synchronize_outputs()

        return through_binding

    def _bind(self, feeds: Feeds) -> None:
        if self._bound_feeds is feeds:
            return
        if self._binding is None:
            self._binding = self.made.session.io_binding()
            for target in self._request.outputs:
                if target.given is None:
                    self._binding.bind_output(target.name)
                else:
                    dtype, shape = target.given
                    value = onnxruntime().OrtValue.ortvalue_from_numpy(np.zeros(shape, np.dtype(dtype)))
                    self._buffers[target.name] = value
                    self._binding.bind_ortvalue_output(target.name, value)
        for name, array in feeds.items():
            self._binding.bind_cpu_input(name, np.ascontiguousarray(array))
        self._binding.synchronize_inputs()
        self._bound_feeds = feeds


def _outputs_or_none(caller: _Caller, feeds: Feeds) -> Outputs | None:
    try:
        return caller.run(feeds)
    except Exception:  # noqa: BLE001 - that it raises is the finding
        return None


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
