"""Owns the calling of one trial session: once for its outputs, in a loop or by several callers for its time.

The way in is the request's: plain arrays through ``run``, or buffers through an IO binding. Must never
touch a buffer that is not the trial's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.recipes import SessionRecipe
from ort_stacktune.ort.request import Request
from ort_stacktune.ort.sessions import MadeSession
from ort_stacktune.signature import Array

Feeds = Mapping[str, Array]
Outputs = list[object]


class Caller:
    """Calls one trial session the way the request calls the live one.

    Args:
        made: The session.
        recipe: Its recipe, for the run config.
        request: The request that is repeated.
        concurrency: Callers at one time while it is timed.
    """

    def __init__(self, made: MadeSession, recipe: SessionRecipe, request: Request, concurrency: int) -> None:
        self.made = made
        self._request = request
        self._options = request.settings.make(recipe.run_config)
        self._names = request.output_names
        self._bindings = [_Binding(made.session, request) for _ in range(concurrency if request.bound else 0)]
        self._concurrency = concurrency

    def run(self, feeds: Feeds) -> Outputs:
        """Runs once and returns outputs that belong to the trial."""
        if self._request.bound:
            self._work(feeds, 0)(1)
            return self._bindings[0].outputs()
        return list(self.made.session.run(self._names, feeds, self._options))

    def time(self, feeds: Feeds, loops: int) -> int:
        """Returns ns in which every caller completes one run, the mean over a loop of them."""
        works = [self._work(feeds, number) for number in range(self._concurrency)]
        if len(works) == 1:
            started_ns = time.perf_counter_ns()
            works[0](loops)
            return max(1, (time.perf_counter_ns() - started_ns) // loops)
        return max(1, _time_together(works, loops) // loops)

    def _work(self, feeds: Feeds, number: int) -> Callable[[int], None]:
        session, options, names = self.made.session, self._options, self._names
        if not self._request.bound:

            def through_run(loops: int) -> None:
                for _ in range(loops):
                    session.run(names, feeds, options)

            return through_run
        bound = self._bindings[number].bound_to(feeds)

        def through_binding(loops: int) -> None:
            for _ in range(loops):
                session.run_with_iobinding(bound, options)
                bound.synchronize_outputs()

        return through_binding


class _Binding:
    """A binding of the trial's own, with buffers like those the request brings."""

    def __init__(self, session: Any, request: Request) -> None:
        self._binding = session.io_binding()
        self._feeds: Feeds | None = None
        # A bound value over an array does not keep that array alive.
        self._buffers = []
        for target in request.outputs:
            if target.given is None:
                self._binding.bind_output(target.name)
            else:
                dtype, shape = target.given
                buffer = onnxruntime().OrtValue.ortvalue_from_numpy(np.zeros(shape, np.dtype(dtype)))
                self._buffers.append(buffer)
                self._binding.bind_ortvalue_output(target.name, buffer)

    def bound_to(self, feeds: Feeds) -> Any:
        if self._feeds is not feeds:
            for name, array in feeds.items():
                self._binding.bind_cpu_input(name, array)
            self._binding.synchronize_inputs()
            self._feeds = feeds
        return self._binding

    def outputs(self) -> Outputs:
        # A given buffer is overwritten by the next run, so what is kept has to be a copy.
        return [np.array(output) for output in self._binding.copy_outputs_to_cpu()]


def _time_together(works: list[Callable[[int], None]], loops: int) -> int:
    """Returns ns from the moment all callers start until the last one is done.

    Raises:
        Exception: The first error that a caller met.
    """
    gate = threading.Barrier(len(works) + 1)
    errors: list[Exception] = []

    def call(work: Callable[[int], None]) -> None:
        gate.wait()
        try:
            work(loops)
        except Exception as error:  # noqa: BLE001 - it is raised again by the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=call, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    gate.wait()
    started_ns = time.perf_counter_ns()
    for thread in threads:
        thread.join()
    elapsed_ns = time.perf_counter_ns() - started_ns
    if errors:
        raise errors[0]
    return elapsed_ns
