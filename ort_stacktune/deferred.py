"""Owns the searches that live calls don't wait for: one at a time, the most frequent signature first.

Knows nothing of sessions or trials: a job is something to run and to cancel. Must never make a caller wait, hold
more than it may, or keep a process from ending.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ort_stacktune.traffic import HitCount

_log = logging.getLogger("ort_stacktune")

MOST_WAITING = 64
MOST_BYTES = 256 << 20


class Job(Protocol):
    """A search that was put off."""

    def run(self) -> None:
        """Searches; called once, on the thread of the queue."""
        ...

    def cancel(self) -> None:
        """Makes a search under way end soon; called on any thread, also when it has ended."""
        ...


@dataclass(slots=True)
class _Waiting:
    calls: HitCount
    make: Callable[[], Job]
    size_bytes: int


@dataclass(slots=True)
class DeferredSearches:
    """A bounded queue of searches with the thread that runs them; the thread starts with the first.

    Args:
        most_waiting: Most searches that wait; another one is refused until there is room.
        most_bytes: Most bytes of inputs that waiting searches hold.
    """

    most_waiting: int = MOST_WAITING
    most_bytes: int = MOST_BYTES
    _waiting: dict[str, _Waiting] = field(default_factory=dict)
    _running: Job | None = None
    _running_key: str | None = None
    _closed: bool = False
    _thread: threading.Thread | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def submit(
        self, key: str, calls: HitCount, size_bytes: int, make: Callable[[], Callable[[], Job]]
    ) -> bool:
        """Queues the search of a signature unless it waits or runs already.

        Args:
            key: What the signature is called here.
            calls: How often it was asked for, raised by whoever serves it.
            size_bytes: Bytes of the inputs that it will hold.
            make: Copies the inputs, where there is room for them, and returns what makes the job.

        Returns:
            Whether it waits or runs now.
        """
        with self._changed:
            if self._closed:
                return False
            if key in self._waiting or key == self._running_key:
                return True
            held = sum(waiting.size_bytes for waiting in self._waiting.values())
            # A single request that is larger than the limit has to be possible.
            if len(self._waiting) >= self.most_waiting or (held and held + size_bytes > self.most_bytes):
                return False
            self._waiting[key] = _Waiting(calls, make(), size_bytes)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="ort_stacktune background search", daemon=True
                )
                self._thread.start()
                # A process that ends must neither wait for a search nor leave one behind.
                atexit.register(self.close)
            self._changed.notify()
        return True

    def pending(self) -> int:
        """Returns how many searches wait or run."""
        with self._changed:
            return len(self._waiting) + (self._running_key is not None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until nothing waits or runs; returns whether that came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and self._running_key is None, timeout_s)

    def close(self) -> None:
        """Drops what waits, ends what runs, and takes nothing more."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            running, thread = self._running, self._thread
            self._changed.notify_all()
        atexit.unregister(self.close)
        if running is not None:
            running.cancel()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        while (waiting := self._next()) is not None:
            try:
                job = waiting.make()
                with self._changed:
                    self._running = job
                    closed = self._closed
                if not closed:
                    job.run()
            except Exception:  # noqa: BLE001 - the reference serves on, and the other searches have their turn
                _log.exception("a background search failed")
            finally:
                with self._changed:
                    self._running = self._running_key = None
                    self._changed.notify_all()

    def _next(self) -> _Waiting | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            key = max(self._waiting, key=lambda key: self._waiting[key].calls.value)
            self._running_key = key
            return self._waiting.pop(key)
