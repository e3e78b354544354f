"""Real models, tuned for real: outputs and errors are the raw session's, choices outlive the process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tuning import CPU

from ort_stacktune import DecisionSource, Mode, StackPolicy, StackTuner, Tolerance, TunedSession, Validation
from ort_stacktune.verify import compare

pytestmark = pytest.mark.models

FindModel = Callable[[str], Path]

# Which of two candidates wins is not what these tests ask, so little is spent on finding out.
POLICY = StackPolicy(
    samples=3,
    max_samples=3,
    repeats=1,
    warmups=1,
    confidence=0.51,
    max_candidates=2,
    budget_s=120.0,
    max_relative_mad=10.0,
)


@dataclass(frozen=True)
class Case:
    """A model with inputs of one signature."""

    model: str
    feed: dict[str, Any]


def _ocr(width: int, seed: int = 0) -> Case:
    image = np.random.default_rng(seed).uniform(-1, 1, (1, 3, 48, width)).astype(np.float32)
    return Case("ppocr4-rec.onnx", {"x": image})


def _magika(seed: int = 0) -> Case:
    return Case("magika.onnx", {"bytes": np.random.default_rng(seed).integers(0, 256, (1, 2048), np.int32)})


def _silero(rate: int, samples: int, seed: int = 0) -> Case:
    draw = np.random.default_rng(seed)
    feed = {
        "input": draw.normal(0, 0.1, (1, samples)).astype(np.float32),
        "state": draw.normal(0, 0.1, (2, 1, 128)).astype(np.float32),
        "sr": np.array(rate, np.int64),
    }
    return Case("silero-vad.onnx", feed)


MAKE: dict[str, Callable[[int], Case]] = {
    "ocr at width 96": lambda seed: _ocr(96, seed),
    "ocr at width 160": lambda seed: _ocr(160, seed),
    "magika": _magika,
    "silero at 16 kHz": lambda seed: _silero(16000, 576, seed),
    "silero at 8 kHz": lambda seed: _silero(8000, 288, seed),
}


def quiet() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


def tuned(path: Path, tuner: StackTuner) -> TunedSession:
    return TunedSession(str(path), quiet(), providers=CPU, tuner=tuner)


def raw(path: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(path), quiet(), providers=CPU)


def assert_same(ours: TunedSession, theirs: ort.InferenceSession, feed: dict[str, Any]) -> None:
    names = [output.name for output in theirs.get_outputs()]
    assert compare(theirs.run(None, feed), ours.run(None, feed), names, Tolerance()) is Validation.PASSED


def check_cases(find: FindModel, cache: Path, mode: Mode) -> list[dict[str, Any]]:
    """Runs every case on a tuned and on a raw session, and returns what decided each."""
    tuner = StackTuner(replace(POLICY, mode=mode), cache)
    sessions: dict[str, tuple[TunedSession, ort.InferenceSession]] = {}
    found = []
    for make in MAKE.values():
        case = make(0)
        path = find(case.model)
        ours, theirs = sessions.setdefault(case.model, (tuned(path, tuner), raw(path)))
        decision = ours.tune(case.feed)
        # Inputs that nobody has validated on, through the table that serves decided signatures.
        for seed in (0, 1, 2):
            assert_same(ours, theirs, make(seed).feed)
        found.append({"source": decision.source.name, "name": decision.name, "verified": decision.verified})
    stats = tuner.stats()
    assert stats.invalidations == stats.cache_warnings == 0
    assert stats.tunes == (len(MAKE) if mode is Mode.EXPLORE else 0)
    return found


def test_outputs_are_the_raw_sessions_and_the_next_process_takes_every_choice_from_disk(
    model_file: FindModel, tmp_path: Path
) -> None:
    first = check_cases(model_file, tmp_path, Mode.EXPLORE)
    assert {found["source"] for found in first} == {"TUNED"}
    script = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import test_real_models as here\n"
        "paths = json.loads(sys.argv[3])\n"
        "find = lambda name: Path(paths[name])\n"
        "print(json.dumps(here.check_cases(find, Path(sys.argv[2]), here.Mode.CACHE_ONLY)))\n"
    )
    paths = {make(0).model: str(model_file(make(0).model)) for make in MAKE.values()}
    done = subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path), json.dumps(paths)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    second = json.loads(done.stdout)
    assert {found["source"] for found in second} == {"DISK_CACHE"}
    assert [found["name"] for found in second] == [found["name"] for found in first]
    assert all(found["verified"] for found in second)


def test_a_choice_made_for_one_sample_rate_is_not_used_for_the_other(model_file: FindModel) -> None:
    path, tuner = model_file("silero-vad.onnx"), StackTuner(POLICY)
    ours, theirs = tuned(path, tuner), raw(path)
    wide, narrow = _silero(16000, 288).feed, _silero(8000, 288).feed
    assert ours.tune(wide).source is DecisionSource.TUNED
    assert ours.decision(narrow) is None
    assert_same(ours, theirs, narrow)
    assert tuner.stats().tunes == 2
    for feed in (wide, narrow, wide):
        assert_same(ours, theirs, feed)
        assert ours.decision(feed) is not None
    assert tuner.stats().tunes == 2


def test_state_that_goes_round_stays_with_the_raw_sessions(model_file: FindModel) -> None:
    path = model_file("silero-vad.onnx")
    ours, theirs = tuned(path, StackTuner(POLICY)), raw(path)
    states = [np.zeros((2, 1, 128), np.float32)] * 2
    for step in range(25):
        feed = _silero(16000, 576, step).feed
        outputs = []
        for which, session in enumerate((ours, theirs)):
            output, states[which] = session.run(None, {**feed, "state": states[which]})
            outputs.append(output)
        np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-2, atol=1e-3)


def _error(session: ort.InferenceSession, feed: Any, names: Any = None) -> type[BaseException] | None:
    try:
        session.run(names, feed)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("name", ["magika", "silero at 16 kHz"])
def test_errors_are_the_raw_sessions_before_and_after_a_decision(name: str, model_file: FindModel) -> None:
    case = MAKE[name](0)
    path, tuner = model_file(case.model), StackTuner(POLICY)
    ours, theirs = tuned(path, tuner), raw(path)
    label, value = next(iter(case.feed.items()))
    bad: list[tuple[Any, Any]] = [
        ({}, None),
        ({**case.feed, "nope": value}, None),
        ({**case.feed, label: value.astype(np.float64)}, None),
        ({**case.feed, label: value[0]}, None),
        (case.feed, ["nope"]),
    ]
    if "sr" in case.feed:
        # The 8 kHz branch does not take as many samples: only running it shows.
        bad.append(({**case.feed, "sr": np.array(8000)}, None))
    expected = [_error(theirs, feed, names) for feed, names in bad]
    assert None not in expected
    assert [_error(ours, feed, names) for feed, names in bad] == expected
    assert_same(ours, theirs, case.feed)
    assert [_error(ours, feed, names) for feed, names in bad] == expected
    assert tuner.stats().tunes == 1
