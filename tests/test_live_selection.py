"""Live searches on real sessions, many of them: what the guarantee says must be seen to hold."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
from tuning import CPU, floats, save

import graphs
from ort_stacktune import SessionRecipe, StackPolicy, StackTuner, TunedSession

pytestmark = pytest.mark.slow

# Works and rests in turns, like a neighbour with requests of its own.
_NEIGHBOUR = """
import random, time
while True:
    end = time.monotonic() + random.uniform(0.02, 0.4)
    while time.monotonic() < end:
        pass
    time.sleep(random.uniform(0.02, 0.4))
"""


@contextmanager
def _busy_neighbour() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", _NEIGHBOUR])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _winners(
    model: str, recipes: list[SessionRecipe], rows: int, width: int, searches: int, **changes: Any
) -> Counter[str]:
    """Returns who won how many searches, each by a controller of its own."""
    policy = StackPolicy(budget_s=60.0, **changes)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    feed = {"x": floats(rows, width)}
    won: Counter[str] = Counter()
    for _ in range(searches):
        tuned = TunedSession(model, options, providers=CPU, candidates=recipes, tuner=StackTuner(policy))
        won[tuned.tune(feed).name] += 1
    return won


def test_ten_copies_of_the_reference_beside_a_busy_process_are_promoted_at_most_once_in_100_searches(
    tmp_path: Path,
) -> None:
    path = save(graphs.mlp(layers=8, width=128), tmp_path / "m.onnx")
    copies = [SessionRecipe(f"copy-{number}", providers=CPU) for number in range(10)]
    with _busy_neighbour():
        won = _winners(path, copies, 16, 128, 100)
    assert won["reference"] >= 99, won


def test_a_candidate_slowed_on_purpose_is_never_selected_in_50_searches(tmp_path: Path) -> None:
    base = graphs.mlp(layers=10, width=512)
    path = save(base, tmp_path / "base.onnx")
    slow = SessionRecipe(
        "slow", model=save(graphs.slowed(base, 3, 512), tmp_path / "slow.onnx"), providers=CPU
    )
    assert _winners(path, [slow], 1, 512, 50) == {"reference": 50}


def test_a_candidate_a_third_faster_is_selected_in_at_least_49_of_50_searches(tmp_path: Path) -> None:
    base = graphs.mlp(layers=10, width=512)
    # Three links more of the same width as its ten layers: about 1.3 times the work.
    path = save(graphs.slowed(base, 3, 512), tmp_path / "slow.onnx")
    fast = SessionRecipe("fast", model=save(base, tmp_path / "base.onnx"), providers=CPU)
    # More pairs than by default: the machine that runs this may be a noisy one.
    assert _winners(path, [fast], 1, 512, 50, max_samples=201)["fast"] >= 49
