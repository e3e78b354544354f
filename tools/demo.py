"""The main job on real models: tune, remember, and serve the choice in another process.

Tunes the PP-OCRv4 recogniser at two widths, magika and Silero VAD at both sample rates, and prints for each
signature what every candidate did and why it lost. Then a second process takes every choice from disk, never
times a candidate, checks its outputs against the raw session's and measures the speed-ups afresh.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import fetch_models
import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

from ort_stacktune import DecisionSource, Mode, StackPolicy, StackTuner, TunedSession
from ort_stacktune.report import decision_line, report_table
from ort_stacktune.verify import compare

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "out" / "demo-cache"
CPU = ["CPUExecutionProvider"]
POLICY = StackPolicy(budget_s=30.0)

# Idle threads of the other session spin for about 40 ms after its run.
QUIET_S = 0.06
BLOCKS = 15
BLOCK_S = 0.05

Feed = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Case:
    """A model with one input signature."""

    title: str
    model: str
    feed: Feed


def cases() -> Iterator[Case]:
    """Yields what is tuned."""
    draw = np.random.default_rng(7)
    for width in (320, 640):
        image = draw.uniform(-1, 1, (1, 3, 48, width)).astype(np.float32)
        yield Case(f"PP-OCRv4 recogniser, width {width}", "ppocr4-rec", {"x": image})
    text = np.frombuffer((Path(__file__).read_bytes() * 8)[:2048], np.uint8)
    yield Case("magika", "magika", {"bytes": text.astype(np.int32).reshape(1, 2048)})
    for rate, samples in ((16000, 576), (8000, 288)):
        tone = np.sin(np.arange(samples) * 2 * np.pi * 440 / rate).astype(np.float32)
        feed: Feed = {
            "input": (0.2 * tone).reshape(1, samples),
            "state": np.zeros((2, 1, 128), np.float32),
            "sr": np.array(rate, np.int64),
        }
        yield Case(f"Silero VAD at {rate // 1000} kHz", "silero-vad", feed)


def main() -> int:
    """Runs the demo; the second process is this file with ``--serve``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", action="store_true", help="serve from the cache of an earlier run")
    arguments = parser.parse_args()
    console = Console()
    models = fetch_models.fetch(sorted({case.model for case in cases()}), ROOT / ".models")
    if arguments.serve:
        return serve(console, models)
    shutil.rmtree(CACHE, ignore_errors=True)
    tune(console, models)
    console.rule("a second process, from disk")
    return subprocess.run([sys.executable, __file__, "--serve"], check=False).returncode


def tune(console: Console, models: dict[str, Path]) -> None:
    """Tunes every case and prints its report."""
    tuner = StackTuner(POLICY, CACHE)
    console.print(f"ONNX Runtime {ort.__version__}: {', '.join(ort.get_available_providers())}")
    for case in cases():
        session = TunedSession(models[case.model], providers=CPU, tuner=tuner)
        started = time.monotonic()
        with console.status(f"tuning {case.title}"):
            decision = session.tune(case.feed)
        report = session.report(case.feed)
        console.rule(f"{case.title} ({time.monotonic() - started:.1f} s)")
        if report is not None:
            console.print(report_table(report))
        console.print(decision_line(decision))


def serve(console: Console, models: dict[str, Path]) -> int:
    """Serves every case from disk, checks it against the raw session and measures both; 1 on a difference."""
    policy = StackPolicy(mode=Mode.CACHE_ONLY)
    tuner = StackTuner(policy, CACHE)
    table = Table("signature", "served by", "choice from", "speed-up afresh", "quartiles", "outputs")
    failed = False
    for case in cases():
        raw = ort.InferenceSession(models[case.model], providers=CPU)
        tuned = TunedSession(models[case.model], providers=CPU, tuner=tuner)
        decision = tuned.tune(case.feed)
        names = [output.name for output in raw.get_outputs()]
        compare(raw.run(None, case.feed), tuned.run(None, case.feed), names, policy.tolerance)
        low, middle, high = speedups(partial(raw.run, None, case.feed), partial(tuned.run, None, case.feed))
        failed |= decision.source is not DecisionSource.DISK_CACHE
        table.add_row(
            case.title,
            decision.name,
            decision.source.value,
            f"{middle:.2f}x",
            f"{low:.2f}-{high:.2f}",
            "agree",
        )
    console.print(table)
    console.print(f"{tuner.stats().disk_hits} choices from disk, {tuner.stats().tunes} searches")
    return int(failed)


def speedups(raw: Callable[[], object], tuned: Callable[[], object]) -> tuple[float, float, float]:
    """Returns quartiles of raw over tuned time, in pairs of blocks whose order a coin decides."""
    coin = random.Random(0)
    ratios = []
    for _ in range(BLOCKS):
        times = {}
        for call in sorted((raw, tuned), key=lambda _: coin.random()):
            time.sleep(QUIET_S)
            times[call] = block(call)
        ratios.append(times[raw] / times[tuned])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return low, middle, high


def block(call: Callable[[], object]) -> float:
    """Returns the shortest of the calls that fit into a block, seconds, after an untimed one."""
    call()
    ends = time.perf_counter() + BLOCK_S
    shortest = float("inf")
    while True:
        started = time.perf_counter()
        call()
        now = time.perf_counter()
        shortest = min(shortest, now - started)
        if now >= ends:
            return shortest


if __name__ == "__main__":
    sys.exit(main())
