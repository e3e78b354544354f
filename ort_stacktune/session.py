"""Owns :class:`TunedSession`, the drop-in for ``onnxruntime.InferenceSession``.

The session the user asked for is the reference and stays as it is. The live request runs once, on the
session that was selected before; nothing is ever replayed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy.typing as npt

from ort_stacktune.failures import FailureKind, TuneFailure, invalid
from ort_stacktune.installed import stack_autotuner
from ort_stacktune.ort.faults import failure_of
from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.recipes import SessionRecipe
from ort_stacktune.ort.request import Request
from ort_stacktune.ort.sessions import CPU
from ort_stacktune.serving import Choice, Lane, refusal_report
from ort_stacktune.traffic import TrafficRecorder, recorder_for
from ort_stacktune.tuner import StackTuner
from ort_stacktune.vocabulary import Decision, Mode, Scope, TuneReport

# Before the modules that import it by name: without a build, the clear sentence has to come first.
InferenceSession = onnxruntime().InferenceSession

from ort_stacktune.bindings import TunedBinding  # noqa: E402
from ort_stacktune.reading import CallReader, Read, Refusal, output_names_key, values_of  # noqa: E402
from ort_stacktune.recording import Recording  # noqa: E402
from ort_stacktune.reference import Reference, TuningOptions  # noqa: E402
from ort_stacktune.routes import Route, RouteTable  # noqa: E402

_log = logging.getLogger("ort_stacktune")

_facts_of = attrgetter("__class__", "dtype", "shape")
_now = time.monotonic
_OUTPUT_LISTS = (list, tuple)

# While calls are only counted, this long passes before a controller installed meanwhile is noticed.
_UNDECIDED = Choice(good_for_s=1.0, reason="no controller")


class TunedSession(InferenceSession):  # type: ignore[misc,valid-type]
    """An ``onnxruntime.InferenceSession`` that serves each exact input signature the fastest verified way.

    Without a controller (:func:`enable_stack_autotune` or ``tuner=``) it behaves exactly like the session
    it replaces. With one, the first request of a new signature is preceded by a search; requests that cannot
    be tuned run on the reference, and :meth:`report` says why. Requests through ``run``,
    ``run_with_iobinding`` (on a binding from :meth:`io_binding`) and ``run_with_ort_values`` are tuned;
    ``run_async`` uses choices already in memory and never waits for a search; ``run_with_ortvaluevector``
    always runs on the reference.

    Args:
        path_or_bytes: As for ``InferenceSession``.
        sess_options: As for ``InferenceSession``.
        providers: As for ``InferenceSession``.
        provider_options: As for ``InferenceSession``.
        candidates: Recipes to choose from beside the reference; ``None`` has them generated for this model,
            machine and signature.
        tuner: The controller; ``None`` for the installed one.
        scope: The level of the decisions.
        probes: Further feeds, input name -> array, to validate candidates on where the signature fits.
        steering_inputs: Names of inputs whose values decide what is computed, beyond those found.
        reduced_precision: What generated candidates may compute in below the reference's own precision:
            ``tf32``, ``bf16``, ``fp16``, ``int8``. Their outputs still have to be within the tolerance.
        record: Directory where the exact signatures of all calls are counted, for a later pre-warming, or a
            :class:`~ort_stacktune.traffic.TrafficRecorder`; ``None`` for the controller's, if it has one.
            Calls of ``run_with_ortvaluevector`` are not counted.
        record_samples: Sample inputs to keep for each signature, 0 to 16, where ``record`` is a directory.
        **kwargs: As for ``InferenceSession``.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for a bad argument of ours; all else as ``InferenceSession``.
    """

    # Sessions made from a model package skip __init__: they have no model to tune.
    _reference: Reference | None = None
    _reader: CallReader | None = None
    _tuner: StackTuner | None = None
    _recording: Recording | None = None
    _counted_as: tuple[Any, Scope] | None = None
    _table: RouteTable | None = None
    _routes: dict[Any, Route] = {}  # noqa: RUF012 - never written to; each tunable session has its own
    _steering: tuple[str, ...] = ()

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        candidates: Sequence[SessionRecipe] | None = None,
        tuner: StackTuner | None = None,
        scope: Scope = Scope.GRAPH,
        probes: Sequence[Mapping[str, npt.NDArray[Any]]] = (),
        steering_inputs: Sequence[str] = (),
        reduced_precision: Sequence[str] = (),
        record: str | os.PathLike[str] | TrafficRecorder | None = None,
        record_samples: int = 0,
        **kwargs: Any,
    ) -> None:
        options = TuningOptions.checked(candidates, tuner, scope, probes, steering_inputs, reduced_precision)
        recorder = None if record is None else recorder_for(record, record_samples)
        super().__init__(path_or_bytes, sess_options, providers, provider_options, **kwargs)
        inputs = [meta.name for meta in self.get_inputs()]
        for name in steering_inputs:
            if name not in inputs:
                raise invalid(f"steering input {name!r} is not an input; the model has {', '.join(inputs)}")
        self._tuner = tuner
        self._table = RouteTable()
        self._routes = self._table.routes
        self._reader = CallReader(self)
        self._reference = Reference(path_or_bytes, options, self._table.choice_gone)
        self._reference.ask(providers, provider_options)
        self._counted_as = path_or_bytes if isinstance(path_or_bytes, str | os.PathLike) else None, scope
        if recorder is not None:
            self._recording = Recording(recorder, *self._counted_as)
        if kwargs.get("disabled_optimizers"):
            self._reference.reason = "it was made with disabled_optimizers"

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """As ``InferenceSession.run``: once, on the session selected for the request's exact signature."""
        if (
            self._routes
            and run_options is None
            and input_feed.__class__ is dict
            and (output_names is None or output_names.__class__ in _OUTPUT_LISTS)
        ):
            try:
                key: tuple[Any, ...]
                if output_names is None:
                    key = (*input_feed, *map(_facts_of, input_feed.values()))
                else:
                    key = (
                        output_names.__class__,
                        *output_names,
                        *input_feed,
                        *map(_facts_of, input_feed.values()),
                    )
                if self._steering:
                    key += values_of(self._steering, input_feed)
                route = self._routes.get(key)
            except (AttributeError, KeyError, TypeError, ValueError):
                route = None
            if route is not None and _now() < route.expires_s:
                route.hits.value += 1
                if route.run is None:
                    return super().run(output_names, input_feed)
                try:
                    return route.run(route.outputs, input_feed, route.run_options)
                except Exception as error:
                    self._winner_failed(route, error, None)
                    raise
        return self._run_undecided(output_names, input_feed, run_options)

    def run_async(
        self,
        output_names: Any,
        input_feed: Any,
        callback: Any,
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """As ``InferenceSession.run_async``, on the session that a choice in memory names; never searches."""
        recording = self._recording_under(self._controller())
        if recording is not None:
            with contextlib.suppress(Exception):
                recording.read(lambda: self._read(output_names, input_feed, run_options), self._lane)
        choice = self._known_choice(output_names, input_feed, run_options)
        if choice is None or choice.session is None or not _runs_async(choice.session):
            super().run_async(output_names, input_feed, callback, user_data, run_options)
            return

        def watching(results: Any, data: Any, error: str) -> None:
            if error:
                self._winner_failed(choice, None, run_options)
            callback(results, data, error)

        choice.session.run_async(
            output_names, input_feed, watching, user_data, run_options or choice.run_options
        )

    def run_with_ort_values(
        self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None
    ) -> Any:
        """As ``InferenceSession.run_with_ort_values``, on the session selected for the signature."""
        choice = self._choose(lambda: self._read_ort_values(output_names, input_dict_ort_values, run_options))
        if choice is None or choice.session is None:
            return super().run_with_ort_values(output_names, input_dict_ort_values, run_options)
        try:
            return choice.session.run_with_ort_values(
                output_names, input_dict_ort_values, run_options or choice.run_options
            )
        except Exception as error:
            self._winner_failed(choice, error, run_options)
            raise

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """As ``InferenceSession.run_with_iobinding``; a binding from :meth:`io_binding` is tuned."""
        if iobinding.__class__ is not TunedBinding or iobinding.owner is not self._sess:
            super().run_with_iobinding(iobinding, run_options)
            return
        route = iobinding.route
        if route is None or run_options is not None or _now() >= route.expires_s:
            route = self._route_binding(iobinding, run_options)
        else:
            route.hits.value += 1
        if route is None or route.run is None:
            iobinding.move_to(self._sess)
            super().run_with_iobinding(iobinding, run_options)
            return
        if iobinding.bound_now is not route.native:
            iobinding.move_to(route.native)
        try:
            route.run(iobinding._iobinding, run_options or route.run_options)
        except Exception as error:
            self._winner_failed(route, error, run_options)
            raise

    def io_binding(self) -> Any:
        """Returns a binding that works with whichever session is selected."""
        if self._reference is None or (self._controller() is None and self._recording is None):
            return super().io_binding()
        return TunedBinding(self)

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """As ``InferenceSession.set_providers``: the reference changes, so earlier choices are void."""
        if self._table is not None:
            # Before, so that a call that fails leaves no route to a session that is gone.
            self._table.clear()
        super().set_providers(providers, provider_options)
        if self._reference is not None:
            self._reference.ask(providers, provider_options)

    def set_ep_dynamic_options(self, options: dict[str, str]) -> None:
        """As ``InferenceSession.set_ep_dynamic_options``; from then on the reference serves all requests."""
        super().set_ep_dynamic_options(options)
        if self._reference is not None:
            self._reference.reason = "dynamic options were set on its execution provider"
            self._table_of_routes().clear()

    def tune(self, input_feed: Mapping[str, Any], output_names: Sequence[str] | None = None) -> Decision:
        """Decides who serves a signature, by experiment where needed, without running a live request.

        Args:
            input_feed: Input name -> value, as for :meth:`run`.
            output_names: Outputs wanted; ``None`` for all.

        Raises:
            TuneFailure: ``INVALID_INPUT`` without a controller, or for a request that cannot be tuned or that
                the session would refuse; otherwise as :meth:`StackTuner.select`.
        """
        tuner = self._controller()
        if tuner is None:
            raise invalid("no controller: call enable_stack_autotune() first or pass tuner=StackTuner(...)")
        request = self._read(output_names, input_feed, None)
        if request is None:
            raise invalid("the feed does not fit the model's inputs and outputs; run() would refuse it")
        if isinstance(request, Refusal):
            raise invalid(f"this request can't be tuned: {request.reason}")
        choice = self._lane().resolve(tuner, request)
        if choice.decision is None:
            raise invalid(f"this request can't be tuned: {choice.reason}")
        self._add_route(output_names, input_feed, request, choice, tuner)
        return choice.decision

    def decision(
        self, input_feed: Mapping[str, Any], output_names: Sequence[str] | None = None
    ) -> Decision | None:
        """Returns the choice in memory for a signature, or ``None``. Asks, never tunes."""
        choice = self._known_choice(output_names, input_feed, None)
        return None if choice is None else choice.decision

    def report(
        self, input_feed: Mapping[str, Any], output_names: Sequence[str] | None = None
    ) -> TuneReport | None:
        """Returns the evidence behind the choice for a signature, or why none was made; else ``None``."""
        tuner = self._controller()
        if tuner is None:
            return None
        try:
            request = self._read(output_names, input_feed, None)
            if isinstance(request, Refusal):
                return refusal_report(request.reason)
            return None if request is None else self._lane().report(tuner, request)
        except TuneFailure as failure:
            return refusal_report(failure.message)

    def _controller(self) -> StackTuner | None:
        return self._tuner or stack_autotuner()

    def _recording_under(self, tuner: StackTuner | None) -> Recording | None:
        """Returns what counts the calls: this session's own, or else the controller's."""
        if self._recording is None and self._counted_as is not None and tuner is not None:
            recorder = tuner.recorder
            self._recording = None if recorder is None else Recording(recorder, *self._counted_as)
        return self._recording

    def _lane(self) -> Lane:
        assert self._reference is not None
        return self._reference.lane(self)

    def _read(self, output_names: Any, input_feed: Any, run_options: Any) -> Read:
        reader = self._reader
        if reader is None:
            return None
        return self._unless_left_alone(reader.of_run(output_names, input_feed, run_options))

    def _read_ort_values(self, output_names: Any, values: Any, run_options: Any) -> Read:
        assert self._reader is not None
        return self._unless_left_alone(self._reader.of_ort_values(output_names, values, run_options))

    def _unless_left_alone(self, request: Read) -> Read:
        if self._reference is None or not isinstance(request, Request):
            return request
        self._lane()
        return request if self._reference.reason is None else Refusal(self._reference.reason)

    def _run_undecided(self, output_names: Any, input_feed: Any, run_options: Any) -> Any:
        def add_route(request: Request, made: Choice, tuner: StackTuner | None) -> None:
            if run_options is None:
                self._add_route(output_names, input_feed, request, made, tuner)

        choice = self._choose(lambda: self._read(output_names, input_feed, run_options), add_route)
        if choice is None or choice.session is None:
            return super().run(output_names, input_feed, run_options)
        try:
            return choice.session.run(output_names, input_feed, run_options or choice.run_options)
        except Exception as error:
            self._winner_failed(choice, error, run_options)
            raise

    def _choose(
        self,
        read: Callable[[], Read],
        then: Callable[[Request, Choice, StackTuner | None], None] | None = None,
    ) -> Choice | None:
        """Decides who serves a request; ``None`` for the reference, in whatever doubt."""
        tuner = self._controller()
        recording = self._recording_under(tuner)
        idle = tuner is None or tuner.policy.mode is Mode.DISABLED
        # A set_providers() that failed leaves ONNX Runtime's session without its native half.
        if self._reference is None or self._sess is None or (idle and recording is None):
            return None
        if tuner is not None and tuner.policy.search == "background" and not self._reference.is_ready(self):
            # To read a model and this machine takes as long as many calls.
            return None
        try:
            request = read() if recording is None else recording.read(read, self._lane)
            if not isinstance(request, Request):
                return None
            choice = _UNDECIDED if idle or tuner is None else self._lane().resolve(tuner, request, wait=False)
        except TuneFailure as failure:
            # The caller gets the reference's own result or error, not ours.
            _log.log(logging.DEBUG if idle else logging.WARNING, "served by the reference: %s", failure)
            return None
        except Exception:  # noqa: BLE001 - doubt of any kind means the reference
            _log.exception("served by the reference after an error of the tuner's own")
            return None
        if then is not None:
            then(request, choice, tuner)
        return choice

    def _known_choice(self, output_names: Any, input_feed: Any, run_options: Any) -> Choice | None:
        tuner = self._controller()
        if tuner is None or tuner.policy.mode is Mode.DISABLED or self._sess is None:
            return None
        try:
            request = self._read(output_names, input_feed, run_options)
            return self._lane().known(tuner, request) if isinstance(request, Request) else None
        except TuneFailure as failure:
            _log.warning("served by the reference: %s", failure)
            return None

    def _add_route(
        self, output_names: Any, input_feed: Any, request: Request, choice: Choice, tuner: StackTuner | None
    ) -> None:
        wanted = output_names_key(output_names)
        if choice.good_for_s <= 0.0 or wanted is None:
            return
        native = self._native(choice)
        run = None if native is None else native.run
        steering = tuple(sorted(self._lane().steering))
        try:
            facts = tuple(map(_facts_of, input_feed.values()))
        except AttributeError:
            return
        self._steering = steering
        key = (*wanted, *input_feed, *facts, *values_of(steering, input_feed))
        route = Route(run, native, request.output_names, choice, tuner)
        if (recording := self._recording_under(tuner)) is not None:
            recording.follow(route, request, self._lane(), tuner if choice.counts else None)
        self._table_of_routes().add(key, route, tuner)

    def _route_binding(self, binding: TunedBinding, run_options: Any) -> Route | None:
        reader, tuner = self._reader, self._controller()
        assert reader is not None
        question = None if run_options is not None else reader.question_of(binding)
        known: Route | None = None if question is None else binding.routes.get(question)
        if known is not None and _now() < known.expires_s:
            known.hits.value += 1
            binding.route = known
            return known
        requests: list[Request] = []
        choice = self._choose(
            lambda: self._unless_left_alone(reader.of_binding(binding, run_options)),
            lambda request, *_: requests.append(request),
        )
        binding.route = None
        if choice is None:
            return None
        native = self._native(choice)
        run = None if native is None else native.run_with_iobinding
        route = Route(run, native, [], choice, tuner)
        # A value that steers may change in the caller's buffer from one run to the next.
        if question is not None and not self._lane().steering:
            if (recording := self._recording_under(tuner)) is not None:
                recording.follow(route, requests[0], self._lane(), tuner if choice.counts else None)
            binding.take(question, route)
            self._table_of_routes().add_bound(route, tuner)
        return route

    def _native(self, choice: Choice) -> Any:
        """Returns the native session to call; ``None`` where ONNX Runtime's own method has to be used."""
        if choice.session is not None:
            return choice.session._sess
        # Only on the CPU is the native call all there is to ONNX Runtime's own: elsewhere it may fall back to
        # another provider or has captured graphs to look after.
        return self._sess if self.get_providers() == [CPU] else None

    def _winner_failed(self, served: Route | Choice, error: Exception | None, run_options: Any) -> None:
        """Takes back a choice on which the live request failed. The request is not run again."""
        ended_by_the_caller = run_options is not None and run_options.terminate
        # An argument of a wrong kind is the caller's mistake and would fail anywhere.
        if ended_by_the_caller or isinstance(error, TypeError | AttributeError):
            return
        tuner = self._controller()
        if served.session is not None and served.decision is not None and tuner is not None:
            tuner.invalidate(served.decision, ban_candidate=True)
            if error is not None and (failure := failure_of(error)).kind is FailureKind.DEVICE:
                tuner.device_fault(served.decision, failure.message)

    def _table_of_routes(self) -> RouteTable:
        assert self._table is not None
        return self._table


def _runs_async(session: Any) -> bool:
    """Whether a session has threads to run on while its caller goes on."""
    options = getattr(session, "get_session_options", None)
    return options is not None and options().intra_op_num_threads != 1
