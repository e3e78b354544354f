"""A runner that follows a script and a clock that moves only when told, for tests of the rules alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from ort_stacktune import Candidate, Problem, Scope, TuneFailure, Validation
from ort_stacktune.vocabulary import FirstCosts, Tolerance


@dataclass
class Clock:
    """A clock that moves only when told."""

    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns

    def seconds(self) -> float:
        return self.now_ns / 1e9


@dataclass
class ScriptedRunner:
    """Runs candidates by script.

    Attributes:
        times_ns: For each candidate a number of ns, or a function that returns the next one.
        failures: Candidate -> failure raised when it is validated.
        run_failures: Candidate -> failure raised when it is measured.
        verdicts: Candidate -> what its validation returns; passed where absent.
        clock: Moved on by every measurement.
    """

    times_ns: list[int | Callable[[], int]]
    failures: dict[int, BaseException] = field(default_factory=dict)
    run_failures: dict[int, BaseException] = field(default_factory=dict)
    verdicts: dict[int, Validation] = field(default_factory=dict)
    clock: Clock | None = None
    validated: list[int] = field(default_factory=list)
    measured: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    during: Callable[[], None] = lambda: None
    space: int = 1000
    first_costs: dict[int, FirstCosts] = field(default_factory=dict)

    def validate(self, reference: int, candidate: int, tolerance: Tolerance) -> Validation:
        self.validated.append(candidate)
        self.during()
        if candidate in self.failures:
            raise self.failures[candidate]
        return self.verdicts.get(candidate, Validation.PASSED)

    def measure(self, candidate: int) -> int:
        self.measured.append(candidate)
        if candidate in self.run_failures:
            raise self.run_failures[candidate]
        script = self.times_ns[candidate]
        elapsed = script() if callable(script) else script
        if self.clock is not None:
            self.clock.now_ns += elapsed
        return elapsed

    def begin_round(self, index: int, *, as_served: bool) -> None:
        """Takes no notice: its inputs are all the same."""

    def room(self) -> int:
        return self.space

    def release(self, candidate: int) -> None:
        self.released.append(candidate)

    def facts(self, candidate: int) -> dict[str, str]:
        return {}

    def costs(self, candidate: int) -> FirstCosts:
        return self.first_costs.get(candidate, FirstCosts())


def noisy(centre_ns: int, spread: float, seed: int) -> Callable[[], int]:
    """Returns a source of times around a centre, log-normal with the given spread."""
    rng = random.Random(seed)
    return lambda: max(1, int(centre_ns * rng.lognormvariate(0.0, spread)))


def candidates(*names: str) -> list[Candidate]:
    """Returns plain candidates."""
    return [Candidate(name) for name in names]


_fresh = count()


def problem(**changes: object) -> Problem:
    """Returns a problem, a new question each time unless told otherwise."""
    base: dict[str, object] = {
        "scope": Scope.GRAPH,
        "operation": "matmul",
        "environment": "a machine",
        "workload": f"x f4[{next(_fresh)}]",
    }
    return Problem(**{**base, **changes})  # type: ignore[arg-type]


@contextmanager
def raising(kind: object, *words: str) -> Iterator[None]:
    """Expects a failure of a kind whose sentence holds all the words."""
    try:
        yield
    except TuneFailure as failure:
        assert failure.kind is kind, failure
        for word in words:
            assert word in failure.message, failure.message
    else:
        raise AssertionError(f"expected a {kind} failure")
