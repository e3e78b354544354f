"""Holds the ratios that trials in a process of their own measure against those measured in this process.

For each real model, the same candidate is paired with the same reference by both, in interleaved blocks that a coin
orders, so that whatever else the machine does falls on both. What isolation must not do is change the answer.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import fetch_models
from bench_regret import Feed, cases
from rich.console import Console
from rich.table import Table

from ort_stacktune import SessionRecipe, Tolerance
from ort_stacktune.isolation import IsolatedTrials
from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.request import OutputTarget, Request
from ort_stacktune.ort.trials import SessionTrials

ROOT = Path(__file__).resolve().parent.parent
CPU = "CPUExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
BLOCK = 5
REPEATS = 3
LIMIT = 0.05

Trials = SessionTrials | IsolatedTrials


@dataclass(frozen=True)
class Row:
    """What both measured for one model and signature.

    Attributes:
        title: Model and signature.
        here: Candidate over reference time in this process.
        there: The same in a process of its own.
        noise: How far the two halves of this process's pairs are apart.
    """

    title: str
    here: float
    there: float
    noise: float

    @property
    def difference(self) -> float:
        """How far the two are apart, relative to this process's."""
        return abs(self.there / self.here - 1.0)


def main() -> int:
    """Runs the benchmark; exit status 1 where the median difference is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40, help="pairs of each, for each model")
    parser.add_argument("--only", default="", help="measure only titles that contain this text")
    parser.add_argument("--candidate", choices=("threads-1", "openvino"), default="threads-1")
    arguments = parser.parse_args()
    chosen = [case for case in cases() if arguments.only in case[0]]
    models = fetch_models.fetch(sorted({case[1] for case in chosen}), ROOT / ".models")
    console = Console()
    rows = []
    for title, name, feed in chosen:
        row = compare(title, models[name], feed, arguments.candidate, arguments.pairs)
        rows.append(row)
        console.print(f"{title}: {row.here:.3f} here, {row.there:.3f} there, {row.difference:.1%} apart")
    median = statistics.median(row.difference for row in rows)
    print_table(console, rows, median)
    return 0 if median <= LIMIT else 1


def compare(title: str, model: Path, feed: Feed, candidate: str, pairs: int) -> Row:
    """Measures one candidate by both kinds of trials."""
    recipes = (SessionRecipe("reference", providers=[CPU]), recipe_of(candidate))
    source = ModelSource.of(model)
    session = onnxruntime().InferenceSession(str(model), providers=[CPU])
    outputs = tuple(OutputTarget(output.name) for output in session.get_outputs())
    del session
    request = Request(feed, outputs)
    both: list[Trials] = [
        SessionTrials(recipes, 0, source, request),
        IsolatedTrials(recipes, 0, source, request),
    ]
    ratios: list[list[float]] = [[], []]
    try:
        for trials in both:
            for index in (0, 1):
                trials.measure(index)
                trials.validate(0, index, Tolerance(1e-2, 1e-2))
        coin = random.Random(title)
        for block in range(-(-pairs // BLOCK)):
            for which in coin.sample((0, 1), 2):
                for number in range(BLOCK):
                    both[which].begin_round(block * BLOCK + number, as_served=False)
                    ratios[which].append(pair(both[which], coin))
    finally:
        for trials in both:
            trials.close()
    here, there = map(statistics.median, ratios)
    halves = statistics.median(ratios[0][::2]) / statistics.median(ratios[0][1::2])
    return Row(title, here, there, abs(halves - 1.0))


def recipe_of(candidate: str) -> SessionRecipe:
    """Returns the candidate's recipe."""
    if candidate == "openvino":
        return SessionRecipe(
            "openvino", providers=[(OPENVINO, {"device_type": "CPU"}), CPU], allow_partial=True
        )
    return SessionRecipe("threads-1", providers=[CPU], session_options={"intra_op_num_threads": 1})


def pair(trials: Trials, coin: random.Random) -> float:
    """Returns candidate over reference time of one pair, the best of a few runs each, as a search takes it."""
    first = coin.randrange(2)
    times = {index: min(trials.measure(index) for _ in range(REPEATS)) for index in (first, 1 - first)}
    return times[1] / times[0]


def print_table(console: Console, rows: list[Row], median: float) -> None:
    """Prints all rows and the verdict."""
    table = Table(title="Candidate over reference time")
    for column in ("model", "in this process", "in its own", "apart", "noise"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        table.add_row(
            row.title,
            f"{row.here:.3f}",
            f"{row.there:.3f}",
            f"{row.difference:.1%}",
            f"{row.noise:.1%}",
        )
    console.print(table)
    console.print(
        f"median difference {median:.1%} over {len(rows)} models and signatures (limit {LIMIT:.0%})"
    )


if __name__ == "__main__":
    sys.exit(main())
