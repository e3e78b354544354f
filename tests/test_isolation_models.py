"""A real model on a real execution provider that brings its process down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from tuning import CPU

from ort_stacktune import Fault, SessionRecipe, StackPolicy, StackTuner, TunedSession

pytestmark = pytest.mark.models

OPENVINO = "OpenVINOExecutionProvider"


@pytest.mark.skipif(
    OPENVINO not in ort.get_available_providers() or not ort.__version__.startswith("1.24."),
    reason="needs the OpenVINO build of ONNX Runtime 1.24, which aborts over this model",
)
def test_an_abort_of_openvino_costs_one_line_in_the_report(model_file: Callable[[str], Path]) -> None:
    draw = np.random.default_rng(0)
    feed = {
        "input": draw.normal(0, 0.1, (1, 288)).astype(np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(8000, np.int64),
    }
    candidates = [
        SessionRecipe(
            "openvino, shapes fixed",
            providers=[(OPENVINO, {"device_type": "CPU"}), *CPU],
            shapes={name: array.shape for name, array in feed.items()},
            allow_partial=True,
        ),
        SessionRecipe("one thread", providers=CPU, session_options={"intra_op_num_threads": 1}),
    ]
    policy = StackPolicy.quick(isolation="process", budget_s=60.0, max_relative_mad=10.0)
    tuned = TunedSession(
        str(model_file("silero-vad.onnx")), providers=CPU, candidates=candidates, tuner=StackTuner(policy)
    )
    tuned.tune(feed)
    report = tuned.report(feed)
    assert report is not None
    reference, crashed, healthy = report.candidates
    assert crashed.fault is Fault.SIGNAL
    assert "died by SIGABRT while its session was made" in crashed.note
    assert reference.verified
    assert healthy.verified
    assert healthy.samples > 0
