"""Holds the queue of background searches: bounded, one at a time, the most frequent first, gone when closed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from ort_stacktune.deferred import DeferredSearches, Job
from ort_stacktune.traffic import HitCount


class _Job:
    def __init__(self, ran: list[str], name: str, gate: threading.Event | None = None) -> None:
        self._ran, self._name, self._gate = ran, name, gate
        self.cancelled = threading.Event()

    def run(self) -> None:
        self._ran.append(self._name)
        if self._gate is not None:
            while not self._gate.wait(0.01) and not self.cancelled.is_set():
                pass

    def cancel(self) -> None:
        self.cancelled.set()


def made(job: Job) -> Callable[[], Callable[[], Job]]:
    return lambda: lambda: job


def busy(queue: DeferredSearches, ran: list[str]) -> tuple[threading.Event, _Job]:
    """Occupies the queue's thread until the gate is opened."""
    gate = threading.Event()
    job = _Job(ran, "first", gate)
    assert queue.submit("first", HitCount(), 0, made(job))
    while not ran:
        pass
    return gate, job


def test_the_most_frequent_signature_is_searched_first() -> None:
    queue, ran = DeferredSearches(), []
    gate, _ = busy(queue, ran)
    counts = {name: HitCount() for name in ("rare", "frequent", "middling")}
    for name, count in counts.items():
        queue.submit(name, count, 0, made(_Job(ran, name)))
    # What counts is how often it was asked for when its turn comes, not when it was queued.
    for name, calls in (("rare", 1), ("frequent", 9), ("middling", 5)):
        counts[name].value = calls
    gate.set()
    assert queue.wait(10)
    assert ran == ["first", "frequent", "middling", "rare"]
    queue.close()


def test_a_signature_waits_once_however_often_it_is_asked_for() -> None:
    queue, ran = DeferredSearches(), []
    gate, _ = busy(queue, ran)
    assert queue.submit("first", HitCount(), 0, made(_Job(ran, "again")))
    for _ in range(3):
        assert queue.submit("second", HitCount(), 0, made(_Job(ran, "second")))
    assert queue.pending() == 2
    gate.set()
    assert queue.wait(10)
    assert ran == ["first", "second"]
    queue.close()


def test_beyond_its_bounds_it_refuses_without_copying_the_inputs() -> None:
    queue, ran = DeferredSearches(most_waiting=2, most_bytes=100), []
    gate, _ = busy(queue, ran)

    def never() -> Callable[[], Job]:
        raise AssertionError("the inputs were copied")

    assert queue.submit("large", HitCount(), 1000, made(_Job(ran, "large")))
    assert not queue.submit("another", HitCount(), 1, never)
    gate.set()
    assert queue.wait(10)
    gate, _ = busy_again(queue, ran)
    for name in ("a", "b"):
        assert queue.submit(name, HitCount(), 1, made(_Job(ran, name)))
    assert not queue.submit("c", HitCount(), 1, never)
    gate.set()
    queue.close()


def busy_again(queue: DeferredSearches, ran: list[str]) -> tuple[threading.Event, _Job]:
    ran.clear()
    return busy(queue, ran)


def test_one_that_fails_is_logged_and_the_next_has_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    queue, ran = DeferredSearches(), []

    class Failing(_Job):
        def run(self) -> None:
            raise RuntimeError("no luck")

    with caplog.at_level(logging.ERROR, "ort_stacktune"):
        queue.submit("failing", HitCount(), 0, made(Failing(ran, "failing")))
        assert queue.wait(10)
        queue.submit("next", HitCount(), 0, made(_Job(ran, "next")))
        assert queue.wait(10)
    assert ran == ["next"]
    assert "no luck" in caplog.text
    queue.close()


def test_closing_cancels_what_runs_and_drops_what_waits() -> None:
    queue, ran = DeferredSearches(), []
    _, job = busy(queue, ran)
    queue.submit("second", HitCount(), 0, made(_Job(ran, "second")))
    queue.close()
    assert job.cancelled.is_set()
    assert ran == ["first"]
    assert not queue.submit("third", HitCount(), 0, made(_Job(ran, "third")))
    assert threading.active_count() == 1 or all(
        "background search" not in thread.name for thread in threading.enumerate()
    )
