"""Measures what the selector's choices cost against an exhaustive long measurement of the same candidates.

For each real model and signature, the selector decides first. Then every candidate that is right is measured
at length, in interleaved blocks that a coin orders, each set up as it would serve; the fastest of these is the
oracle. Regret is how much longer the selector's choice takes than the oracle's. The oracle is named on one half
of the blocks and compared on the other, both ways round: the smallest of many noisy medians is too small, so that
on the same blocks even ten copies of one session would show a regret. A block during which other processes
took the processor is measured again, since it says nothing about the candidates.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fetch_models
import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

from ort_stacktune import SessionRecipe, StackPolicy, StackTuner, Tolerance, TunedSession, TuneFailure
from ort_stacktune.candidates import Situation, generate
from ort_stacktune.machine import usable_cores
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.sessions import give_back_memory, make_session
from ort_stacktune.verify import compare

ROOT = Path(__file__).resolve().parent.parent
CPU = ["CPUExecutionProvider"]
REFERENCE = SessionRecipe("reference", providers=CPU)
QUIET_S = 0.06

# Share of one core that others may take during a block, and how often a disturbed block is measured again.
FOREIGN_SHARE = 0.15
MOST_TRIES = 20

Feed = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Row:
    """What was found for one signature.

    Attributes:
        model: Model and signature.
        selected: The selector's choice.
        oracle: The fastest of the long measurement.
        regret: Selected over oracle time, minus 1, on blocks that did not name the oracle.
        gain: Reference over selected time in the long measurement.
        search_s: What the search took.
        oracle_s: What the long measurement took.
        ratios: Candidate -> its time over the oracle's, on all blocks.
        blocks: Candidate -> its times in seconds, by block.
    """

    model: str
    selected: str
    oracle: str
    regret: float
    gain: float
    search_s: float
    oracle_s: float
    ratios: dict[str, float]
    blocks: dict[str, list[float]]


def cases() -> Iterator[tuple[str, str, Feed]]:
    """Yields title, model and feed: ten models, two signatures each."""
    draw = np.random.default_rng(11)

    def normal(*shape: int) -> npt.NDArray[np.float32]:
        return draw.standard_normal(shape, np.float32)

    for width in (160, 320):
        yield f"ppocr4-rec {width}", "ppocr4-rec", {"x": normal(1, 3, 48, width)}
    for side in (160, 320):
        yield f"ppocr4-det {side}", "ppocr4-det", {"x": normal(1, 3, side, side)}
    for batch in (1, 6):
        yield f"ppocr4-cls {batch}", "ppocr4-cls", {"x": normal(batch, 3, 48, 192)}
    for batch in (1, 4):
        text = draw.integers(0, 256, (batch, 2048)).astype(np.int32)
        yield f"magika {batch}", "magika", {"bytes": text}
    for rate, samples in ((16000, 576), (8000, 288)):
        yield (
            f"silero-vad {rate}",
            "silero-vad",
            {
                "input": 0.1 * normal(1, samples),
                "state": np.zeros((2, 1, 128), np.float32),
                "sr": np.array(rate, np.int64),
            },
        )
    for batch in (1, 2):
        yield f"open-nsfw {batch}", "open-nsfw", {"input:0": normal(batch, 224, 224, 3)}
    for batch in (1, 4):
        yield f"speech-embedding {batch}", "speech-embedding", {"input_1": normal(batch, 76, 32, 1)}
    for samples in (1760, 16000):
        yield f"melspectrogram {samples}", "melspectrogram", {"input": 0.1 * normal(1, samples)}
    for width in (96, 200):
        yield f"ddddocr-old {width}", "ddddocr-old", {"input1": normal(1, 1, 64, width)}
    for batch in (1, 2):
        feed = {"serving_default_input_2:0": 0.1 * normal(batch, 43844, 1)}
        yield f"basic-pitch {batch}", "basic-pitch", feed


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--blocks", type=int, default=60, help="blocks of each candidate in the long measurement"
    )
    parser.add_argument("--only", default="", help="measure only titles that contain this text")
    parser.add_argument("--json", type=Path, help="write the rows to this file; those in it are kept")
    arguments = parser.parse_args()
    chosen = [case for case in cases() if arguments.only in case[0]]
    models = fetch_models.fetch(sorted({case[1] for case in chosen}), ROOT / ".models")
    console = Console(soft_wrap=True)
    rows = kept_rows(arguments.json)
    for title, name, feed in chosen:
        if any(row.model == title for row in rows):
            continue
        row = examine(title, models[name], feed, arguments.blocks)
        rows.append(row)
        console.print(
            f"{title}: {row.selected}, oracle {row.oracle}, regret {row.regret:.1%},"
            f" {row.search_s:.1f} s against {row.oracle_s:.1f} s"
        )
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    print_table(console, rows)
    return 0


def kept_rows(path: Path | None) -> list[Row]:
    """Returns the rows that an earlier run left in a file."""
    if path is None or not path.exists():
        return []
    return [Row(**row) for row in json.loads(path.read_text())]


def examine(title: str, model: Path, feed: Feed, blocks: int) -> Row:
    """Lets the selector decide, then measures all its candidates at length."""
    candidates = candidates_for(model, feed)
    tuned = TunedSession(model, providers=CPU, candidates=candidates, tuner=StackTuner(StackPolicy()))
    started = time.monotonic()
    selected = tuned.tune(feed).name
    search_s = time.monotonic() - started
    del tuned
    started = time.monotonic()
    times = exhaustive(model, candidates, feed, blocks)
    oracle_s = time.monotonic() - started
    everything = slice(None)
    oracle = fastest(times, everything)
    return Row(
        title,
        selected,
        oracle,
        regret_of(selected, times),
        paired(REFERENCE.name, selected, times, everything),
        search_s,
        oracle_s,
        {name: paired(name, oracle, times, everything) for name in sorted(times)},
        times,
    )


def fastest(times: dict[str, list[float]], part: slice) -> str:
    """Returns the candidate with the smallest median over a part of the blocks."""
    return min(times, key=lambda name: statistics.median(times[name][part]))


def paired(name: str, other: str, times: dict[str, list[float]], part: slice) -> float:
    """Returns the median over a part of the blocks of one candidate's time over another's in the same block."""
    return statistics.median(a / b for a, b in zip(times[name][part], times[other][part], strict=True))


def regret_of(selected: str, times: dict[str, list[float]]) -> float:
    """Returns the mean of both ways to name the oracle on one half of the blocks and compare on the other."""
    even, odd = slice(0, None, 2), slice(1, None, 2)
    ways = ((even, odd), (odd, even))
    return statistics.fmean(
        paired(selected, fastest(times, named), times, compared) - 1 for named, compared in ways
    )


def candidates_for(model: Path, feed: Feed) -> tuple[SessionRecipe, ...]:
    """Returns what a tuned session would try in its own process for a model and a feed."""
    facts = ModelSource.of(model).graph()
    inputs = facts.inputs if facts is not None else ()
    situation = Situation(
        REFERENCE,
        {name: array.shape for name, array in feed.items()},
        dynamic=any(not isinstance(dim, int) for fact in inputs for dim in fact.dims or ()),
        control_flow="If" in (facts.op_types if facts is not None else {}),
        cores=usable_cores().count,
        providers=tuple(ort.get_available_providers()),
    )
    return tuple(recipe for recipe in generate(situation) if not recipe.risky)


def exhaustive(
    model: Path, candidates: tuple[SessionRecipe, ...], feed: Feed, blocks: int
) -> dict[str, list[float]]:
    """Returns candidate -> its best time of each block, for every candidate that is right."""
    sessions = right_sessions(model, candidates, feed)
    coin = random.Random(3)
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(blocks):
        for name in sorted(sessions, key=lambda _: coin.random()):
            times[name].append(undisturbed_block(sessions[name], feed))
    sessions.clear()
    give_back_memory()
    return times


def right_sessions(model: Path, candidates: tuple[SessionRecipe, ...], feed: Feed) -> dict[str, Any]:
    """Returns candidate -> session as it would serve, leaving out what fails or answers otherwise."""
    source = ModelSource.of(model)
    sessions = {REFERENCE.name: make_session(REFERENCE, source, REFERENCE, trial=False).session}
    expected = sessions[REFERENCE.name].run(None, feed)
    names = [output.name for output in sessions[REFERENCE.name].get_outputs()]
    for recipe in candidates:
        try:
            session = make_session(recipe, source, REFERENCE, trial=False).session
            compare(expected, session.run(None, feed), names, Tolerance())
        except TuneFailure:
            continue
        sessions[recipe.name] = session
    return sessions


def undisturbed_block(session: Any, feed: Feed) -> float:
    """Returns the time of a block that other processes left alone, or of the last one tried."""
    for _ in range(MOST_TRIES):
        started, busy_before = time.monotonic(), foreign_seconds()
        time.sleep(QUIET_S)
        seconds = best_of_a_block(session, feed)
        if foreign_seconds() - busy_before <= FOREIGN_SHARE * (time.monotonic() - started):
            break
    return seconds


def foreign_seconds() -> float:
    """Returns the processor time that other processes have taken since the start; 0 where nobody tells."""
    try:
        fields = Path("/proc/stat").read_text().split(maxsplit=9)
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, fields[1:9])
    own = os.times()
    total = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return total - own.user - own.system


def best_of_a_block(session: Any, feed: Feed, seconds: float = 0.03) -> float:
    """Returns the shortest run of a block, in seconds, after an untimed one; three runs at least."""
    session.run(None, feed)
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < ends:
        started = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - started)
    return min(times)


def print_table(console: Console, rows: list[Row]) -> None:
    """Prints the rows, the median and the worst regret."""
    table = Table("model", "selected", "oracle", "regret", "gain", "search s", "oracle s")
    for row in rows:
        table.add_row(
            row.model,
            row.selected,
            row.oracle,
            f"{row.regret:.1%}",
            f"{row.gain:.2f}x",
            f"{row.search_s:.1f}",
            f"{row.oracle_s:.1f}",
        )
    console.print(table)
    regrets = [row.regret for row in rows]
    searched, measured = sum(row.search_s for row in rows), sum(row.oracle_s for row in rows)
    console.print(
        f"regret: median {statistics.median(regrets):.1%}, worst {max(regrets):.1%};"
        f" {searched:.0f} s of search against {measured:.0f} s, {searched / measured:.0%}"
    )


if __name__ == "__main__":
    sys.exit(main())
