"""Holds that in the background mode no live call waits for a search, answers stay right, and choices arrive."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from tuning import CPU, QUICK, fast_twin, floats, one_thread

import graphs
from ort_stacktune import DecisionSource, Mode, StackTuner, TunedSession

BACKGROUND = replace(QUICK, search="background")


def session(tmp_path: Path, tuner: StackTuner) -> tuple[TunedSession, ort.InferenceSession]:
    slow, fast = fast_twin(tmp_path, graphs.mlp())
    tuned = TunedSession(slow, one_thread(), providers=CPU, candidates=[fast], tuner=tuner)
    return tuned, ort.InferenceSession(slow, one_thread(), providers=CPU)


def width(tuned: TunedSession) -> int:
    size = tuned.get_inputs()[0].shape[1]
    assert isinstance(size, int)
    return size


def until_asked(tuner: StackTuner, tuned: TunedSession, feed: dict[str, np.ndarray]) -> None:
    """Calls until a search waits or runs: the model is read on another thread first."""
    ends = time.monotonic() + 60
    while not tuner.searches.pending():
        tuned.run(None, feed)
        assert time.monotonic() < ends
        time.sleep(0.01)


def until_decided(tuner: StackTuner) -> None:
    assert tuner.searches.wait(120)


def test_a_call_is_served_by_the_reference_while_its_search_runs_and_by_the_winner_later(
    tmp_path: Path,
) -> None:
    tuner = StackTuner(BACKGROUND)
    tuned, raw = session(tmp_path, tuner)
    feed = {"x": floats(8, width(tuned))}
    expected = raw.run(None, feed)[0]
    np.testing.assert_array_equal(tuned.run(None, feed)[0], expected)
    until_asked(tuner, tuned, feed)
    assert tuned.decision(feed) is None
    until_decided(tuner)
    time.sleep(0.25)
    np.testing.assert_allclose(tuned.run(None, feed)[0], expected, 1e-3, 1e-4)
    decision = tuned.decision(feed)
    assert decision is not None
    assert decision.name == "fast"
    tuner.close()


def test_a_search_works_on_copies_so_the_caller_may_reuse_its_buffer(tmp_path: Path) -> None:
    tuner = StackTuner(BACKGROUND)
    tuned, _ = session(tmp_path, tuner)
    feed = {"x": floats(8, width(tuned))}
    until_asked(tuner, tuned, feed)
    feed["x"][:] = np.nan
    until_decided(tuner)
    feed["x"][:] = 1.0
    decision = tuned.decision(feed)
    assert decision is not None
    assert decision.verified
    tuner.close()


def test_a_rare_signature_waits_for_its_calls(tmp_path: Path) -> None:
    tuner = StackTuner(replace(BACKGROUND, search_after_calls=3))
    tuned, _ = session(tmp_path, tuner)
    feed = {"x": floats(8, width(tuned))}
    tuned.run(None, feed)
    while tuned._reference is None or not tuned._reference.is_ready(tuned):
        time.sleep(0.01)
    tuned.run(None, feed)
    assert tuner.searches.pending() == 0
    for _ in range(3):
        tuned.run(None, feed)
    time.sleep(0.25)
    tuned.run(None, feed)
    assert tuner.searches.pending() == 1
    tuner.close()


def test_tune_decides_at_once_all_the_same(tmp_path: Path) -> None:
    tuner = StackTuner(BACKGROUND)
    tuned, _ = session(tmp_path, tuner)
    decision = tuned.tune({"x": floats(8, width(tuned))})
    assert (decision.source, decision.name) == (DecisionSource.TUNED, "fast")
    assert tuner.searches.pending() == 0


def test_a_stored_choice_is_validated_in_the_background_too(tmp_path: Path) -> None:
    first = StackTuner(QUICK, tmp_path / "cache")
    tuned, raw = session(tmp_path, first)
    feed = {"x": floats(8, width(tuned))}
    assert tuned.tune(feed).name == "fast"
    second = StackTuner(replace(BACKGROUND, mode=Mode.CACHE_ONLY), tmp_path / "cache")
    tuned, raw = session(tmp_path, second)
    np.testing.assert_array_equal(tuned.run(None, feed)[0], raw.run(None, feed)[0])
    assert second.stats().disk_hits == 0
    until_asked(second, tuned, feed)
    until_decided(second)
    time.sleep(0.25)
    tuned.run(None, feed)
    assert second.stats().disk_hits == 1
    decision = tuned.decision(feed)
    assert decision is not None
    assert decision.name == "fast"
    second.close()


def test_closing_ends_the_search_and_what_is_known_serves_on(tmp_path: Path) -> None:
    tuner = StackTuner(BACKGROUND)
    tuned, raw = session(tmp_path, tuner)
    feed = {"x": floats(8, width(tuned))}
    until_asked(tuner, tuned, feed)
    tuner.close()
    assert not [thread for thread in threading.enumerate() if "background search" in thread.name]
    time.sleep(0.25)
    np.testing.assert_array_equal(tuned.run(None, feed)[0], raw.run(None, feed)[0])
    assert tuned.decision(feed) is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_a_process_that_ends_during_a_search_ends_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    fast_twin(tmp_path, graphs.mlp())
    code = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_background import BACKGROUND, session, width, floats, until_asked
from ort_stacktune import StackTuner
tuner = StackTuner(BACKGROUND)
tuned, _ = session(Path({str(tmp_path)!r}), tuner)
until_asked(tuner, tuned, {{"x": floats(8, width(tuned))}})
while not (job := tuner.searches._running) or job._trials.process_id is None: time.sleep(0.01)
print(job._trials.process_id, flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    stat = Path(f"/proc/{done.stdout.strip()}/stat")
    ends = time.monotonic() + 20
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < ends, "the worker outlives its process"
        time.sleep(0.05)


def test_eight_threads_are_served_rightly_while_four_signatures_are_decided(tmp_path: Path) -> None:
    tuner = StackTuner(BACKGROUND)
    tuned, raw = session(tmp_path, tuner)
    feeds = [{"x": floats(rows, width(tuned), seed=rows)} for rows in (4, 8, 12, 16)]
    expected = [raw.run(None, feed)[0] for feed in feeds]
    wrong: list[object] = []
    stop = threading.Event()

    def serve(offset: int) -> None:
        turn = offset
        while not stop.is_set():
            turn += 1
            feed, right = feeds[turn % 4], expected[turn % 4]
            try:
                found = tuned.run(None, feed)[0]
                if not np.allclose(found, right, 1e-3, 1e-4):
                    wrong.append((turn % 4, found))
            except Exception as error:
                wrong.append(error)
            time.sleep(0.005)

    threads = [threading.Thread(target=serve, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + 240
    while any(tuned.decision(feed) is None for feed in feeds) and time.monotonic() < ends:
        time.sleep(0.2)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(tuned.decision(feed) is not None for feed in feeds)
    tuner.close()
