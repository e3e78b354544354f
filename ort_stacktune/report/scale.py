"""Owns the axis of a plot of speed-ups: its ends, where a value lies on it and which marks it bears. Pure.

The axis is logarithmic, so that twice as fast and twice as slow are equally far from no gain. It reaches as far
as the fastest; what is slower than that by much, or beyond any reason, lies outside and is told in words: a
candidate that is 400 times slower must not squeeze the gains, which are what is looked for, into one spot.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_LEAST_REACH = 1.25
_SLOW_SIDE = 4.0
_MOST = 1e6
_MARGIN = 1.06
# How much further than its middle the end of an interval may stretch the axis.
_INTERVAL_STRETCH = 1.5
# Marks that are round come first; further ones where there is room.
_ROUND = (
    (10.0, 100.0, 1000.0, 1e4, 1e5, 1e6),
    (2.0, 5.0, 20.0, 50.0, 200.0, 500.0),
    (1.5, 3.0, 1.2, 30.0, 300.0),
    (1.1, 1.3, 1.4),
)
_ROOM_BETWEEN = 0.11
_ROOM_AT_ENDS = 0.02


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis of speed-ups.

    Attributes:
        low: Speed-up at its left end, below 1.
        high: Speed-up at its right end, above 1.
    """

    low: float
    high: float

    def place(self, speedup: float) -> float:
        """Returns where a speed-up lies, 0 at the left end and 1 at the right; what is outside at an end."""
        inside = min(max(speedup, self.low), self.high)
        return math.log(inside / self.low) / math.log(self.high / self.low)

    def beyond(self, speedup: float) -> int:
        """Returns -1 for a speed-up left of the axis, 1 for one right of it, 0 for one on it."""
        return (speedup > self.high) - (speedup < self.low)

    def ticks(self) -> list[float]:
        """Returns the speed-ups that are marked, no gain always among them, in order."""
        chosen = [1.0]
        for factor in (factor for group in _ROUND for factor in group):
            for speedup in (factor, 1 / factor):
                if self._has_room(speedup, chosen):
                    chosen.append(speedup)
        return sorted(chosen)

    def _has_room(self, speedup: float, chosen: Sequence[float]) -> bool:
        if self.beyond(speedup):
            return False
        place = self.place(speedup)
        at_end = min(place, 1 - place) < _ROOM_AT_ENDS
        return not at_end and all(abs(place - self.place(other)) >= _ROOM_BETWEEN for other in chosen)


Span = tuple[float, float, float]
"""A median speed-up with the low and the high end of its interval."""


def span(ratio: float, interval: tuple[float, float] | None) -> Span:
    """Returns a ratio of times and its interval as speed-ups, kept within what a number can hold."""
    low, high = (ratio, ratio) if interval is None else interval
    return _speedup(ratio), _speedup(high), _speedup(low)


def axis_for(spans: Iterable[Span], least_gain: float = 1.0) -> Axis:
    """Returns the axis for a plot.

    Args:
        spans: What is to be shown.
        least_gain: A speed-up that has to be on it as well.
    """
    ends = list(_ends(spans))
    fastest = max([_LEAST_REACH, least_gain, *ends]) * _MARGIN
    slowest = min([1 / _LEAST_REACH, *ends]) / _MARGIN
    return Axis(max(slowest, 1 / max(_SLOW_SIDE, fastest)), fastest)


def _ends(spans: Iterable[Span]) -> Iterator[float]:
    for middle, low, high in spans:
        yield min(high, middle * _INTERVAL_STRETCH)
        yield max(low, middle / _INTERVAL_STRETCH)


def _speedup(ratio: float) -> float:
    return min(max(1 / max(ratio, 1 / _MOST), 1 / _MOST), _MOST)
