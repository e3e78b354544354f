"""Owns the noise that is replayed: rows of paired timings, recorded or made up. Runs no rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TRACES = Path(__file__).resolve().parent.parent / "data" / "traces"
CONDITIONS = ("spinning", "spinning_busy", "spinning_stopped")

Timings = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Rows:
    """Paired timings of two identical sessions, in the order they were taken.

    Attributes:
        first: For each row, which session ran first, 0 or 1.
        times_ns: For each row, three consecutive timings of session 0 and of session 1.
        following: ``following[who][i]`` is the first row at or after ``i``, the end joined to the beginning, in
            which session ``who`` ran first.
    """

    first: list[int]
    times_ns: list[tuple[Timings, Timings]]
    following: tuple[list[int], list[int]]

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True, slots=True)
class Source:
    """Where the rows of a search come from.

    Attributes:
        condition: What kind of noise it is.
        name: The model, or how severe the noise is.
        draw: Returns the rows of one search; made-up noise is made anew with the generator.
    """

    condition: str
    name: str
    draw: Callable[[np.random.Generator], Rows]


def rows_of(table: NDArray[np.int32] | NDArray[np.int64]) -> Rows:
    """Returns rows from a table ``[rows, 7]``: who ran first, three timings of session 0, three of session 1.

    Raises:
        ValueError: Another shape, a time that is not positive, or a session that never ran first.
    """
    if table.ndim != 2 or table.shape[1] != 7:
        raise ValueError(f"a table of rows has the shape {table.shape}; expected (rows, 7)")
    if (table[:, 1:] <= 0).any():
        raise ValueError("a table of rows holds a time of 0 ns or less; expected completed runs")
    first: list[int] = table[:, 0].tolist()
    if set(first) != {0, 1}:
        raise ValueError("in a table of rows column 0 says who ran first; expected both 0 and 1 in it")
    times: list[tuple[Timings, Timings]] = [
        ((a, b, c), (d, e, f)) for a, b, c, d, e, f in table[:, 1:].tolist()
    ]
    return Rows(first, times, (_following(first, 0), _following(first, 1)))


def recorded(directory: Path = TRACES) -> list[Source]:
    """Returns a source for each model of each condition recorded in a directory."""
    sources = []
    for condition in CONDITIONS:
        with np.load(directory / f"{condition}.npz") as tables:
            for model in tables.files:
                rows = rows_of(tables[model])
                sources.append(Source(condition, model, lambda _, rows=rows: rows))  # type: ignore[misc]
    return sources


def _following(first: list[int], who: int) -> list[int]:
    following = [0] * len(first)
    latest = first.index(who)
    for i in range(len(first) - 1, -1, -1):
        latest = i if first[i] == who else latest
        following[i] = latest
    return following
