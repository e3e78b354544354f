"""Owns the counting of one session's calls: which signature a call is of, and which samples are kept.

Must never change what a call returns or raises: whatever goes wrong here is logged, once, and the call goes on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ort_stacktune.failures import TuneFailure
from ort_stacktune.ort.request import Request
from ort_stacktune.reading import Read, Refusal
from ort_stacktune.routes import Route
from ort_stacktune.serving import Lane
from ort_stacktune.traffic import ModelUse, SignatureCount, TrafficRecorder
from ort_stacktune.tuner import StackTuner
from ort_stacktune.vocabulary import Scope

_log = logging.getLogger("ort_stacktune")

_NOT_READ = "ONNX Runtime refuses it, or it comes in a form that is not read"


class Recording:
    """Counts the calls to one session.

    Args:
        recorder: Keeps the counts.
        model: The model as it was given to the session.
        scope: The level of the session's decisions.
    """

    def __init__(self, recorder: TrafficRecorder, model: Any, scope: Scope) -> None:
        given = isinstance(model, str | os.PathLike)
        self._recorder = recorder
        self._model = _utf8(os.fspath(model)) if given else ""
        self._path = _utf8(str(Path(model).absolute())) if given else ""
        self._scope = scope
        self._lane: Lane | None = None
        self._use = ModelUse(self._model, self._path, "", scope)
        self._failed = False

    def read(self, read: Callable[[], Read], lane: Callable[[], Lane]) -> Read:
        """Reads a live call and counts it.

        Args:
            read: Reads the call.
            lane: Returns the session's lane.

        Raises:
            TuneFailure: As ``read``.
        """
        try:
            request = read()
        except TuneFailure as failure:
            reason = failure.message
            self._guarded(lambda: self._count_unread(reason))
            raise
        self._guarded(lambda: self._count(request, lane))
        return request

    def follow(self, route: Route, request: Request, lane: Lane, tuner: StackTuner | None) -> None:
        """Has the calls that a route will serve counted, and keep samples until there are enough.

        Args:
            route: The route, before it is used.
            request: The call that it was made for.
            lane: The session's lane.
            tuner: The controller whose memory hits these calls are; ``None`` for none.
        """

        def follow() -> None:
            count = self._of(request, lane)
            hits = count.hits_for(tuner)
            route.hits = hits if tuner is None else tuner.counting(hits)
            # A binding's call has no feeds to keep.
            if count.samples_wanted > 0 and route.run is not None and not request.bound:
                route.run = _Sampling(route, count, self._recorder)

        self._guarded(follow)

    def _count(self, request: Read, lane: Callable[[], Lane]) -> None:
        if isinstance(request, Request):
            count = self._of(request, lane())
            count.asked.value += 1
            self._offer(count, request.feeds)
        else:
            self._count_unread(request.reason if isinstance(request, Refusal) else _NOT_READ)

    def _offer(self, count: SignatureCount, feeds: Mapping[str, Any]) -> None:
        # What lies on a device would have to be copied off it while the call waits.
        if all(isinstance(tensor, np.ndarray) for tensor in feeds.values()):
            self._recorder.offer_sample(count, feeds)

    def _count_unread(self, reason: str) -> None:
        self._recorder.count_of(self._use, "", reason).asked.value += 1

    def _of(self, request: Request, lane: Lane) -> SignatureCount:
        refused = lane.refusal(request) or ""
        # A value that is new in every call would make every call a signature of its own.
        steering = frozenset[str]() if refused else lane.steering
        return self._recorder.count_of(self._use_under(lane), request.signature(steering).text(), refused)

    def _use_under(self, lane: Lane) -> ModelUse:
        if lane is not self._lane:
            self._use = ModelUse(
                self._model,
                self._path,
                lane.model.digest,
                self._scope,
                lane.reference.provider_list,
                dict(lane.reference.session_options),
                dict(lane.reference.config),
            )
            self._lane = lane
        return self._use

    def _guarded(self, count: Callable[[], None]) -> None:
        try:
            count()
        except Exception:  # noqa: BLE001 - a call is worth more than its being counted
            if not self._failed:
                _log.exception("some calls are not recorded")
            self._failed = True


class _Sampling:
    """Stands in for a route's native call until it has kept the inputs of enough calls."""

    def __init__(self, route: Route, count: SignatureCount, recorder: TrafficRecorder) -> None:
        self._route = route
        self._run = route.run
        self._count = count
        self._recorder = recorder

    def __call__(self, outputs: list[str], feeds: Mapping[str, Any], run_options: Any) -> Any:
        try:
            # Before the run, which may change what it is given.
            self._recorder.offer_sample(self._count, feeds)
        except Exception:  # noqa: BLE001 - a call is worth more than its sample
            _log.exception("a sample of a call's inputs could not be kept")
            self._count.samples_wanted = 0
        if self._count.samples_wanted < 1:
            self._route.run = self._run
        return self._run(outputs, feeds, run_options)


def _utf8(path: str | bytes) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")
