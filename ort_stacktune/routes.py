"""Owns a session's table of routes: how exact signatures are served without asking the controller again.

Reading the table takes no lock; adding to it and voiding a choice do. A route may never outlive its choice:
whoever adds one asks the controller once more afterwards.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

from ort_stacktune.serving import Choice
from ort_stacktune.traffic import HitCount
from ort_stacktune.tuner import StackTuner

_MAX_ROUTES = 4096


class Route:
    """How one exact signature is served.

    Attributes:
        run: The native call that serves it; ``None`` where ONNX Runtime's own method has to.
        native: The native session behind it.
        outputs: Names of the requested outputs.
        expires_s: Monotonic time from which it has to be asked for again; 0 once its choice is void.
        hits: Where serving by it is counted.
        session: The winner; ``None`` for the reference.
        run_options: What the winner's recipe asks of every run; ``None`` for nothing.
        decision: The decision behind it, if there was one.
    """

    __slots__ = (
        "__weakref__",
        "decision",
        "expires_s",
        "hits",
        "native",
        "outputs",
        "run",
        "run_options",
        "session",
    )

    def __init__(
        self, run: Any, native: Any, outputs: list[str], choice: Choice, tuner: StackTuner | None
    ) -> None:
        self.run = run
        self.native = native
        self.outputs = outputs
        self.expires_s = time.monotonic() + choice.good_for_s
        self.hits = tuner.table_hits if tuner is not None and choice.counts else choice.hits or HitCount()
        self.session = choice.session
        self.run_options = choice.run_options
        self.decision = choice.decision


class RouteTable:
    """The routes of one session."""

    def __init__(self) -> None:
        self.routes: dict[Any, Route] = {}
        self._bound: weakref.WeakSet[Route] = weakref.WeakSet()
        self._lock = threading.Lock()

    def add(self, key: Any, route: Route, tuner: StackTuner | None) -> None:
        """Adds the route of a signature."""
        with self._lock:
            if len(self.routes) >= _MAX_ROUTES:
                self.routes.clear()
            self.routes[key] = route
        _drop_if_void(route, tuner)

    def add_bound(self, route: Route, tuner: StackTuner | None) -> None:
        """Takes note of a route that a binding holds."""
        with self._lock:
            self._bound.add(route)
        _drop_if_void(route, tuner)

    def clear(self) -> None:
        """Voids every route."""
        with self._lock:
            for route in (*self.routes.values(), *self._bound):
                route.expires_s = 0.0
            self.routes.clear()

    def choice_gone(self, cache_key: str) -> None:
        """Voids the routes of one choice."""
        with self._lock:
            for route in (*self.routes.values(), *self._bound):
                if route.decision is not None and route.decision.cache_key == cache_key:
                    route.expires_s = 0.0


def _drop_if_void(route: Route, tuner: StackTuner | None) -> None:
    # A choice taken back between the decision and the route's being added was told to nobody.
    if tuner is None or route.session is None or route.decision is None:
        return
    if not tuner.holds(route.decision):
        route.expires_s = 0.0
