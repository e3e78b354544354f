"""Owns the calling of one trial session: once for its outputs, in a loop or by several callers for its time.

The way in is the request's: arrays and device tensors through ``run``, or buffers through an IO binding, each
in the memory where the request has it. Whatever the request would not pay for (clones, binding) is done
before the clock starts; the device is idle then, and its work done when the clock stops. Must never touch a
buffer that is not the trial's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ort_stacktune.ort.completion import UNSYNCHRONISED, DeviceEvents, Wait, waiting_for
from ort_stacktune.ort.devices import binding_word
from ort_stacktune.ort.recipes import Provider, SessionRecipe
from ort_stacktune.ort.request import Request
from ort_stacktune.ort.sessions import MadeSession
from ort_stacktune.ort.tensors import TrialMemory, let_go
from ort_stacktune.signature import Array

Feeds = Mapping[str, Array]
Outputs = list[object]


class Caller:
    """Calls one trial session the way the request calls the live one.

    Args:
        made: The session.
        recipe: Its recipe, providers included.
        request: The request that is repeated.
        concurrency: Callers at one time while it is timed.
        memory: The trial's clones and buffers on devices.
        events: The device's own clock; ``None`` for the host's.
    """

    def __init__(
        self,
        made: MadeSession,
        recipe: SessionRecipe,
        request: Request,
        concurrency: int,
        memory: TrialMemory,
        events: DeviceEvents | None = None,
    ) -> None:
        self.made = made
        self._request = request
        self._memory = memory
        self._events = events
        self._options = request.settings.make({**recipe.run_config, **(UNSYNCHRONISED if events else {})})
        self._names = request.output_names
        self._concurrency = concurrency
        self._waits: list[Wait | None] = []
        self._bindings: list[_Binding] = []
        self._opened: list[Any] = []
        try:
            self._open(recipe.provider_list)
        except BaseException:
            self.close()
            raise

    def run(self, feeds: Feeds) -> Outputs:
        """Runs once and returns outputs that belong to the trial, in host memory."""
        if self._request.bound:
            self._work(feeds, 0)(1)
            self._wait(0)
            return self._bindings[0].outputs()
        return list(self.made.session.run(self._names, self._memory.place(feeds), self._options))

    def time(self, feeds: Feeds, loops: int) -> int:
        """Returns ns in which every caller completes one run, the mean over a loop of them."""
        works = [self._work(feeds, number) for number in range(self._concurrency)]
        for number in range(self._concurrency):
            self._wait(number)
        if self._events is not None:
            return max(1, self._events.time(partial(works[0], loops)) // loops)
        if len(works) == 1:
            started_ns = time.perf_counter_ns()
            works[0](loops)
            return max(1, (time.perf_counter_ns() - started_ns) // loops)
        return max(1, _time_together(works, loops) // loops)

    def close(self) -> None:
        """Drops what must not outlive the session."""
        self._bindings.clear()
        self._waits.clear()
        let_go(self._opened)

    def _open(self, providers: Sequence[Provider]) -> None:
        if not hasattr(self.made.session, "io_binding"):
            # A pool: it returns outputs in host memory only, and their copy comes after the work.
            self._waits = [None] * self._concurrency
            return
        # Each caller its own: two threads on one binding crash, and some waits are runs of a binding.
        for _ in range(self._concurrency):
            port = partial(self._memory.port_of, providers)
            self._waits.append(waiting_for(self._open_binding, providers, port))
            if self._request.bound:
                binding = self._open_binding()
                self._bindings.append(_Binding(binding, self._request, self._memory))

    def _open_binding(self) -> Any:
        binding = self.made.session.io_binding()
        self._opened.append(binding)
        return binding

    def _wait(self, number: int) -> None:
        wait = self._waits[number]
        if wait is not None:
            wait()

    def _work(self, feeds: Feeds, number: int) -> Callable[[int], None]:
        session, options, names = self.made.session, self._options, self._names
        if not self._request.bound:
            placed = self._memory.place(feeds)

            # What it returns was copied to the host, and the copy comes after the work.
            def through_run(loops: int) -> None:
                for _ in range(loops):
                    session.run(names, placed, options)

            return through_run
        bound = self._bindings[number].bound_to(feeds)
        wait = None if self._events is not None else self._waits[number]

        def through_binding(loops: int) -> None:
            for _ in range(loops):
                session.run_with_iobinding(bound, options)
                if wait is not None:
                    wait()

        return through_binding


class _Binding:
    """A binding of the trial's own, with buffers like those the request brings, where it has them."""

    def __init__(self, binding: Any, request: Request, memory: TrialMemory) -> None:
        self._binding = binding
        self._memory = memory
        self._feeds: Feeds | None = None
        # A bound value over an array does not keep that array alive.
        self._buffers = []
        for target in request.outputs:
            if target.given is None:
                self._binding.bind_output(target.name, binding_word(target.memory), target.memory.id)
            else:
                dtype, shape = target.given
                buffer = memory.buffer(target.memory, np.zeros(shape, np.dtype(dtype)))
                self._buffers.append(buffer)
                self._binding.bind_ortvalue_output(target.name, buffer)

    def bound_to(self, feeds: Feeds) -> Any:
        if self._feeds is not feeds:
            for name, value in self._memory.place(feeds).items():
                if isinstance(value, np.ndarray):
                    self._binding.bind_cpu_input(name, value)
                else:
                    self._binding.bind_ortvalue_input(name, value)
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
