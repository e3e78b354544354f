"""Measures what a decided `TunedSession` costs over the raw session, in interleaved pairs on a tiny model.

Prints a table, or JSON with `--json`. Ratios are tuned over raw time: 1.00 is no cost, below is a gain. Each
pair is two blocks of calls whose order a coin decides; the median over the pairs is the figure. With
`--record` the raw side is a decided session as well, and the tuned side has its calls counted: what recording
traffic costs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

import graphs
from ort_stacktune import SessionRecipe, StackPolicy, StackTuner, TunedSession
from ort_stacktune.traffic import TrafficRecorder

CPU = ["CPUExecutionProvider"]


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        call: How the session was called.
        served_by: Who was selected.
        inputs: Number of inputs of the model.
        ratio: Median of tuned over raw time.
        low: Lower quartile of the pairs' ratios.
        high: Upper quartile.
        raw_us: Median time of a raw call in microseconds.
        tuned_us: Median time of a tuned call in microseconds.
        pairs: Number of pairs.
    """

    call: str
    served_by: str
    inputs: int
    ratio: float
    low: float
    high: float
    raw_us: float
    tuned_us: float
    pairs: int


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=101, help="pairs of blocks for each row")
    parser.add_argument("--calls", type=int, default=500, help="calls in a block")
    parser.add_argument("--record", action="store_true", help="measure what counting calls costs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    rows = []
    for inputs in (1, 3, 8):
        for served_by in ("reference", "candidate"):
            rows += measure(inputs, served_by, arguments.pairs, arguments.calls, record=arguments.record)
    if arguments.json:
        print(json.dumps({"onnxruntime": ort.__version__, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print_table(rows)
    return 0


def measure(inputs: int, served_by: str, pairs: int, calls: int, *, record: bool = False) -> list[Row]:
    """Measures `run` and `run_with_iobinding` of a model with so many inputs."""
    model = graphs.sum_of(inputs).SerializeToString()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    raw = ort.InferenceSession(model, options, providers=CPU)
    feed = {meta.name: np.ones((1, 4), np.float32) for meta in raw.get_inputs()}
    recorder = TrafficRecorder(tempfile.mkdtemp(), sample_count=2) if record else None
    tuned = decided(model, options, inputs, served_by, feed, recorder)
    if record:
        raw = decided(model, options, inputs, served_by, feed, None)
    bound = [bind(session, feed) for session in (raw, tuned)]
    for session, binding in zip((raw, tuned), bound, strict=True):
        session.run_with_iobinding(binding)
    ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "run": (lambda: raw.run(None, feed), lambda: tuned.run(None, feed)),
        "run_with_iobinding": (
            lambda: raw.run_with_iobinding(bound[0]),
            lambda: tuned.run_with_iobinding(bound[1]),
        ),
    }
    return [
        Row(call, served_by, inputs, *compare(raw_call, tuned_call, pairs, calls), pairs)
        for call, (raw_call, tuned_call) in ways.items()
    ]


def decided(
    model: bytes,
    options: ort.SessionOptions,
    inputs: int,
    served_by: str,
    feed: dict[str, np.ndarray],
    recorder: TrafficRecorder | None,
) -> TunedSession:
    """Returns a session that has decided for the reference, or for a twin of it that always wins."""
    session = undecided(model, options, inputs, served_by, recorder)
    session.run(None, feed)
    choice = session.decision(feed)
    if choice is None or choice.name != served_by:
        raise SystemExit(f"expected {served_by} to be selected, not {choice}")
    return session


def undecided(
    model: bytes,
    options: ort.SessionOptions,
    inputs: int,
    served_by: str,
    recorder: TrafficRecorder | None,
) -> TunedSession:
    """Returns a session that will decide as it is told.

    A twin as fast as the reference would win on no honest measurement, so the runner's clock is not asked:
    the reference is a model with more work in it, and the raw session it is held against is the twin.
    """
    policy = StackPolicy(max_relative_mad=10.0)
    if served_by == "reference":
        return TunedSession(
            model, options, providers=CPU, candidates=[], tuner=StackTuner(policy), record=recorder
        )
    directory = Path(sys.argv[0]).resolve().parent.parent / "out"
    directory.mkdir(exist_ok=True)
    path = directory / f"sum_of_{inputs}.onnx"
    path.write_bytes(model)
    recipe = SessionRecipe(
        "candidate", model=str(path), providers=CPU, session_options={"intra_op_num_threads": 1}
    )
    slow = graphs.slowed(graphs.sum_of(inputs), links=200).SerializeToString()
    return TunedSession(
        slow, options, providers=CPU, candidates=[recipe], tuner=StackTuner(policy), record=recorder
    )


def bind(session: ort.InferenceSession, feed: dict[str, np.ndarray]) -> ort.IOBinding:
    """Binds a feed and the outputs."""
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    for meta in session.get_outputs():
        binding.bind_output(meta.name)
    return binding


def compare(
    raw: Callable[[], object], tuned: Callable[[], object], pairs: int, calls: int
) -> tuple[float, float, float, float, float]:
    """Returns median ratio, its quartiles, and both medians in microseconds."""
    coin = random.Random(0)
    ratios, raws, tuneds = [], [], []
    for call in (raw, tuned):
        timed(call, calls)
    for _ in range(pairs):
        if coin.random() < 0.5:
            a, b = timed(raw, calls), timed(tuned, calls)
        else:
            b, a = timed(tuned, calls), timed(raw, calls)
        ratios.append(b / a)
        raws.append(a)
        tuneds.append(b)
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high, statistics.median(raws), statistics.median(tuneds)


def timed(call: Callable[[], object], calls: int) -> float:
    """Returns microseconds a call, over a block."""
    started = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - started) / calls / 1000


def print_table(rows: list[Row]) -> None:
    """Prints the rows for people."""
    print(f"ONNX Runtime {ort.__version__}; tuned / raw, median and quartiles of interleaved pairs\n")
    print(
        f"{'call':<20}{'served by':<12}{'inputs':>6}{'ratio':>8}"
        f"{'quartiles':>14}{'raw us':>9}{'tuned us':>10}"
    )
    for row in rows:
        print(
            f"{row.call:<20}{row.served_by:<12}{row.inputs:>6}{row.ratio:>8.3f}"
            f"{f'{row.low:.3f}-{row.high:.3f}':>14}{row.raw_us:>9.2f}{row.tuned_us:>10.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
