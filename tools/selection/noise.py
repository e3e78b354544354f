"""Owns the made-up noise: each kind, modest and severe, in rows like the recorded ones. Runs no rule.

A kind is a function that returns how much slower than usual each of ``size`` runs in a row is, as a logarithm.
Both sessions see the same noise, in the order they ran: what drifts makes the one that ran second slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from .rows import Rows, Source, rows_of

Slowdowns = NDArray[np.float64]

SEVERITIES = ("modest", "severe")
_ROWS = 256
_RUNS_A_ROW = 6
_USUAL_NS = 1_000_000
# exp() of this is a run of an hour instead of a millisecond; enough of a tail.
_WORST = 15.0


def made_up() -> list[Source]:
    """Returns a source for each kind of noise, modest and severe."""
    return [
        Source(kind, severity, _drawing(make, severity == "severe"))
        for kind, make in KINDS.items()
        for severity in SEVERITIES
    ]


def _drawing(
    make: Callable[[np.random.Generator, int, bool], Slowdowns], severe: bool
) -> Callable[..., Rows]:
    def draw(rng: np.random.Generator) -> Rows:
        slowdowns = np.minimum(make(rng, _ROWS * _RUNS_A_ROW, severe), _WORST)
        times = np.maximum(1, (_USUAL_NS * np.exp(slowdowns)).astype(np.int64)).reshape(_ROWS, 2, 3)
        first = rng.integers(2, size=_ROWS)
        # The first three runs of a row belong to whoever ran first.
        by_session = np.where((first == 0)[:, None, None], times, times[:, ::-1])
        return rows_of(np.concatenate([first[:, None], by_session.reshape(_ROWS, _RUNS_A_ROW)], axis=1))

    return draw


def _lognormal(rng: np.random.Generator, size: int, severe: bool) -> Slowdowns:
    return rng.normal(0.0, 0.5 if severe else 0.1, size)


def _student(rng: np.random.Generator, size: int, severe: bool) -> Slowdowns:
    """Outliers to both sides."""
    noise = 0.15 * rng.standard_t(1.2, size) if severe else 0.04 * rng.standard_t(2.5, size)
    return np.maximum(noise, -1.0)


def _pareto(rng: np.random.Generator, size: int, severe: bool) -> Slowdowns:
    """Outliers to the slow side only, without a mean where severe."""
    noise = 0.3 * rng.pareto(0.9, size) if severe else 0.05 * rng.pareto(2.5, size)
    return np.log1p(noise)


def _drift(rng: np.random.Generator, size: int, severe: bool) -> Slowdowns:
    """Up and down steadily: by a fifth within 600 runs, or to twenty times the time and back within 300."""
    highest, period = (math.log(20.0), 300) if severe else (math.log(1.2), 600)
    phase = (np.arange(size) + rng.integers(period)) % period / period
    return highest * (1.0 - np.abs(2.0 * phase - 1.0)) + rng.normal(0.0, 0.03, size)


def _random_walk(rng: np.random.Generator, size: int, severe: bool) -> Slowdowns:
    walk = np.cumsum(rng.normal(0.0, 0.05 if severe else 0.005, size))
    slowdowns: Slowdowns = np.clip(walk - walk.min(), 0.0, _WORST) + rng.normal(0.0, 0.03, size)
    return slowdowns


def _bursts(rng: np.random.Generator, size: int, severe: bool) -> Slowdowns:
    """A neighbour that is busy on and off: a tenth or half of the time, for 12 runs or so, slower by 1.5x or 4x."""
    share, slower = (0.5, 4.0) if severe else (0.1, 1.5)
    busy = _on_and_off(rng, size, length=12.0, share=share)
    return np.where(busy, math.log(slower), 0.0) + rng.normal(0.0, 0.1 if severe else 0.03, size)


def _two_modes(rng: np.random.Generator, size: int, severe: bool) -> Slowdowns:
    """A clock with two speeds, each held for long or for a few runs."""
    length, slower = (5.0, 1.6) if severe else (120.0, 1.3)
    slow = _on_and_off(rng, size, length=length, share=0.5)
    return np.where(slow, math.log(slower), 0.0) + rng.normal(0.0, 0.02, size)


def _correlated(rng: np.random.Generator, size: int, severe: bool) -> Slowdowns:
    """A first-order autoregression: what a run took says much about the next."""
    memory, spread = (0.95, 0.4) if severe else (0.8, 0.1)
    steps = rng.normal(0.0, spread * math.sqrt(1.0 - memory**2), size).tolist()
    level = rng.normal(0.0, spread)
    levels = []
    for step in steps:
        level = memory * level + step
        levels.append(level)
    return np.array(levels)


def _on_and_off(rng: np.random.Generator, size: int, *, length: float, share: float) -> NDArray[np.bool_]:
    """Returns when a two-state chain is on: for ``length`` runs on average, and ``share`` of the time."""
    off_length = length * (1.0 - share) / share
    lengths = rng.geometric(1.0 / np.tile([length, off_length], 2 + int(size / (length + off_length) * 2)))
    on = np.tile([True, False], len(lengths) // 2)
    start = int(rng.integers(1 + int(length + off_length)))
    states = np.repeat(on, lengths)[start:]
    while len(states) < size:
        states = np.concatenate([states, ~states[-1:], states])
    return states[:size]


KINDS: Mapping[str, Callable[[np.random.Generator, int, bool], Slowdowns]] = {
    "lognormal": _lognormal,
    "student": _student,
    "pareto": _pareto,
    "drift": _drift,
    "random walk": _random_walk,
    "bursts": _bursts,
    "two modes": _two_modes,
    "correlated": _correlated,
}
