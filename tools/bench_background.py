"""Measures what a background search costs those who serve meanwhile.

Eight threads serve a real model at four signatures, each at its own pace, three times: alone, beside a process of
low priority that keeps a core busy, and beside the searches. What a call took is shown for each; the searches may
cost what the busy process costs, and no call may wait for one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fetch_models
import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

from ort_stacktune import StackPolicy, StackTuner, TunedSession
from ort_stacktune.verify import compare

ROOT = Path(__file__).resolve().parent.parent
CPU = ["CPUExecutionProvider"]
WIDTHS = (96, 160, 224, 320)
THREADS = 8
PAUSE_S = 0.05
# As modest as a search's process.
NICENESS = 10

Feed = dict[str, npt.NDArray[np.float32]]


@dataclass
class Served:
    """What the callers met.

    Attributes:
        seconds: Duration of every call.
        wrong: Answers that differ from the reference's, and errors.
    """

    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def main() -> int:
    """Runs the benchmark; the status says whether every answer was right and every signature was decided."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for each search")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds without a search")
    arguments = parser.parse_args()
    model = fetch_models.fetch(["ppocr4-rec"], ROOT / ".models")["ppocr4-rec"]
    draw = np.random.default_rng(7)
    feeds: list[Feed] = [{"x": draw.standard_normal((1, 3, 48, width), np.float32)} for width in WIDTHS]
    policy = StackPolicy(search="background", budget_s=arguments.budget)
    tuner = StackTuner(policy)
    plain = ort.InferenceSession(model, providers=CPU)
    expected = [plain.run(None, feed) for feed in feeds]
    names = [output.name for output in plain.get_outputs()]

    def for_a_while(served: Served) -> bool:
        return len(served.seconds) > 0 and time.monotonic() < ends

    ends = time.monotonic() + arguments.seconds
    alone = serve(lambda feed: plain.run(None, feed), feeds, expected, names, for_a_while)
    ends = time.monotonic() + arguments.seconds
    with busy_process():
        busy = serve(lambda feed: plain.run(None, feed), feeds, expected, names, for_a_while)
    tuned = TunedSession(model, providers=CPU, tuner=tuner)
    searching = serve(
        lambda feed: tuned.run(None, feed),
        feeds,
        expected,
        names,
        lambda _: any(tuned.decision(feed) is None for feed in feeds),
    )
    report(Console(), {"alone": alone, "beside a busy process": busy, "beside the searches": searching})
    for width, feed in zip(WIDTHS, feeds, strict=True):
        decision = tuned.decision(feed)
        print(f"width {width}: {'undecided' if decision is None else decision.name}")
    tuner.close()
    wrong = [*alone.wrong, *busy.wrong, *searching.wrong]
    for sentence in wrong[:5]:
        print(f"wrong: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


def serve(
    run: Callable[[Feed], list[Any]],
    feeds: list[Feed],
    expected: list[list[Any]],
    names: list[str],
    going_on: Callable[[Served], bool],
) -> Served:
    """Serves from eight threads for as long as it is to go on."""
    served = Served()
    stop = threading.Event()

    def caller(number: int) -> None:
        turn = number
        while not stop.wait(PAUSE_S):
            turn += 1
            which = turn % len(feeds)
            started = time.perf_counter()
            try:
                outputs = run(feeds[which])
                served.seconds.append(time.perf_counter() - started)
                compare(expected[which], outputs, names, StackPolicy().tolerance)
            except Exception as error:  # noqa: BLE001 - whatever a caller meets is what this looks for
                served.wrong.append(f"width {WIDTHS[which]}: {error}")

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    while going_on(served):
        time.sleep(0.2)
    stop.set()
    for thread in threads:
        thread.join()
    return served


@contextmanager
def busy_process() -> Any:
    """Keeps one process of low priority busy on as many threads as a session has."""
    code = f"import os; os.nice({NICENESS})\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def report(console: Console, found: dict[str, Served]) -> None:
    """Prints what calls took."""
    table = Table("callers", "calls", "median ms", "99 % ms", "longest ms", "wrong")
    for title, served in found.items():
        times = sorted(served.seconds)
        table.add_row(
            title,
            str(len(times)),
            f"{statistics.median(times) * 1e3:.1f}",
            f"{times[int(0.99 * (len(times) - 1))] * 1e3:.1f}",
            f"{times[-1] * 1e3:.1f}",
            str(len(served.wrong)),
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
