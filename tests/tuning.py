"""What tests of tuned sessions share: a reference that is slow on purpose and a twin that is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import graphs
from ort_stacktune import SessionRecipe, StackPolicy, StackTuner, TunedSession

CPU = ["CPUExecutionProvider"]
# The spread of a timing says nothing about what these tests ask, and a busy machine would fail them.
QUICK = StackPolicy(budget_s=20.0, max_relative_mad=10.0)


def one_thread() -> ort.SessionOptions:
    """Returns options that keep tests from fighting over the cores."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return options


def save(model: onnx.ModelProto, path: Path) -> str:
    """Saves a model and returns its path as text."""
    onnx.save_model(model, path)
    return str(path)


def fast_twin(tmp_path: Path, base: onnx.ModelProto) -> tuple[str, SessionRecipe]:
    """Returns the path of a slowed model, and the recipe of its fast twin."""
    slow = save(graphs.slowed(base, links=60), tmp_path / "slow.onnx")
    fast = save(base, tmp_path / "fast.onnx")
    return slow, SessionRecipe("fast", model=fast, providers=CPU, session_options={"intra_op_num_threads": 1})


def tuned_pair(
    tmp_path: Path, base: onnx.ModelProto, tuner: StackTuner | None = None, **keywords: Any
) -> tuple[TunedSession, ort.InferenceSession, StackTuner]:
    """Returns a tuned session that will choose the fast twin, the raw session it replaces, and its tuner."""
    tuner = tuner or StackTuner(QUICK)
    slow, fast = fast_twin(tmp_path, base)
    tuned = TunedSession(slow, one_thread(), providers=CPU, candidates=[fast], tuner=tuner, **keywords)
    return tuned, ort.InferenceSession(slow, one_thread(), providers=CPU), tuner


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns standard normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)
