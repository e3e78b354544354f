"""Owns the plan of the benchmark: its cells, how they are run on all cores, and what a cell found."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

import numpy as np

from ort_stacktune.policy import StackPolicy

from .noise import made_up
from .rows import CONDITIONS, Source, recorded
from .rules import RULES

SPEEDUPS = (1.05, 1.1, 1.2, 1.5, 2.0)
TARGET = 1.2
TEN = 10
QUIET = "spinning_stopped"
RAISED = (41, 101, 201, 301)

_Z_95 = 1.959964
_BATCH = 50


@dataclass(frozen=True, slots=True)
class Cell:
    """One question to one rule.

    Attributes:
        condition: Kind of noise.
        name: Model, or severity.
        rule: Who decides.
        candidates: How many there are; all but the sped up one are identical to the reference.
        speedup: True gain of one of them; 1.0 where all are identical.
        max_samples: As in the policy.
        searches: How often it is asked.
    """

    condition: str
    name: str
    rule: str
    candidates: int
    speedup: float
    max_samples: int
    searches: int


@dataclass(frozen=True, slots=True)
class Found:
    """What the searches of a cell came to.

    Attributes:
        cell: The cell.
        false: Searches in which a candidate was promoted that is identical to the reference.
        true: Searches in which the faster one was promoted.
        pairs: Pairs spent, all searches together.
        misses: Why the faster one was not promoted, and how often.
    """

    cell: Cell
    false: int
    true: int
    pairs: int
    misses: dict[str, int]


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of searches.

    Attributes:
        hits: Searches that count.
        of: All of them.
    """

    hits: int
    of: int

    @property
    def value(self) -> float:
        """The share itself."""
        return self.hits / self.of

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval with a confidence of 95 %."""
        n, p, zz = self.of, self.value, _Z_95 * _Z_95
        centre = (p + zz / (2 * n)) / (1 + zz / n)
        half = _Z_95 * math.sqrt(p * (1 - p) / n + zz / (4 * n * n)) / (1 + zz / n)
        return max(0.0, centre - half), min(1.0, centre + half)


@lru_cache(maxsize=1)
def sources() -> dict[tuple[str, str], Source]:
    """Returns all noise by condition and name: recorded first, then made up."""
    return {(source.condition, source.name): source for source in [*recorded(), *made_up()]}


def plan(searches: int, max_samples: int, conditions: Sequence[str] = ()) -> list[Cell]:
    """Returns the cells of the benchmark.

    Args:
        searches: Searches of the cells with up to ten identical candidates on recorded noise; the others
            take a part of that.
        max_samples: As in the policy; the cells that show what more would cost raise it.
        conditions: Kinds of noise; all of them where it is empty.
    """
    cells = []
    places = [place for place in sources() if not conditions or place[0] in conditions]

    def add(
        where: list[tuple[str, str]], candidates: int, speedup: float, share: float, samples: int
    ) -> None:
        number = max(2, round(searches * share))
        rules = RULES if samples == max_samples else ["ours"]
        for condition, name in where:
            for rule in rules:
                cells.append(Cell(condition, name, rule, candidates, speedup, samples, number))

    on_traces = [place for place in places if place[0] in CONDITIONS]
    made = [place for place in places if place[0] not in CONDITIONS]
    for candidates, share in ((1, 1.0), (TEN, 1.0), (30, 0.1)):
        add(on_traces, candidates, 1.0, share, max_samples)
    add(made, TEN, 1.0, 0.4, max_samples)
    for speedup in SPEEDUPS:
        add(on_traces, TEN, speedup, 0.1, max_samples)
    add(on_traces, 1, TARGET, 0.1, max_samples)
    add(made, TEN, TARGET, 0.1, max_samples)
    noisy = [place for place in on_traces if place[0] != QUIET]
    for more in RAISED:
        if more > max_samples:
            add(noisy, TEN, 1.0, 0.03, more)
            add(noisy, TEN, TARGET, 0.06, more)
    return cells


def run_cell(cell: Cell, seed: int, start: int = 0, stop: int | None = None) -> Found:
    """Runs the searches of a cell, or a range of them; each depends on the seed, the cell and its number alone."""
    source = sources()[cell.condition, cell.name]
    policy = StackPolicy(max_samples=cell.max_samples)
    rule = RULES[cell.rule]
    false = true = pairs = 0
    misses: Counter[str] = Counter()
    # One name for both rules: they are shown the same noise.
    question = f"{cell.condition}/{cell.name}/{cell.candidates}"
    for i in range(start, cell.searches if stop is None else stop):
        rng = random.Random(f"{seed}/{question}/{i}")
        rows = source.draw(np.random.default_rng([seed, crc32(question.encode()), i]))
        speedups = [1.0] * cell.candidates
        faster = rng.randrange(cell.candidates)
        speedups[faster] = cell.speedup
        trial = rule(rows, speedups, policy, rng)
        pairs += trial.pairs
        if trial.winner is not None and speedups[trial.winner] == 1.0:
            false += 1
        elif trial.winner is not None:
            true += 1
        if cell.speedup != 1.0 and trial.winner != faster:
            misses[trial.reasons[faster]] += 1
    return Found(cell, false, true, pairs, dict(misses))


def run_cells(cells: Sequence[Cell], seed: int, jobs: int) -> list[Found]:
    """Runs cells on so many processes; the result is the same for any number of them."""
    batches = [
        (cell, seed, start, min(start + _BATCH, cell.searches))
        for cell in cells
        for start in range(0, cell.searches, _BATCH)
    ]
    if jobs == 1:
        parts = [run_cell(*batch) for batch in batches]
    else:
        with ProcessPoolExecutor(jobs) as pool:
            parts = list(pool.map(run_cell, *zip(*batches, strict=True)))
    by_cell: dict[Cell, list[Found]] = {cell: [] for cell in cells}
    for part in parts:
        by_cell[part.cell].append(part)
    return [_together(cell, parts) for cell, parts in by_cell.items()]


def _together(cell: Cell, parts: list[Found]) -> Found:
    misses: Counter[str] = Counter()
    for part in parts:
        misses.update(part.misses)
    return Found(
        cell,
        sum(part.false for part in parts),
        sum(part.true for part in parts),
        sum(part.pairs for part in parts),
        dict(misses),
    )
