"""What a user asked of a tuned session: precision that may be given up, and providers that are not there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
from scripted import raising
from tuning import CPU, QUICK, floats, one_thread, save

import graphs
from ort_stacktune import FailureKind, StackTuner, TunedSession
from ort_stacktune.cli.main import main

OPENVINO = "OpenVINOExecutionProvider"
LACKING = next(
    name
    for name in ("CUDAExecutionProvider", "DmlExecutionProvider")
    if name not in ort.get_available_providers()
)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save(graphs.mlp(), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["fp16", "fp8"], ["'fp8'", "tf32, bf16, fp16, int8"]),
        ([16], ["16", "tf32, bf16, fp16, int8"]),
        ("fp16", ["reduced_precision", "'fp16'", "list"]),
    ],
    ids=str,
)
def test_a_precision_that_is_not_known_is_refused_by_name(given: Any, words: list[str], model: str) -> None:
    with raising(FailureKind.INVALID_INPUT, *words):
        TunedSession(model, one_thread(), providers=CPU, reduced_precision=given)


def test_the_command_refuses_it_in_the_same_words(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tune", model, "--dim", "N=2", "--cache", str(tmp_path), "--reduced-precision", "fp16,fp8"]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "reduced precision 'fp8' is not known; expected some of tf32, bf16, fp16, int8" in said


@pytest.mark.skipif(OPENVINO not in ort.get_available_providers(), reason="this build has no OpenVINO")
def test_what_the_user_allowed_reaches_the_candidates(model: str) -> None:
    names = []
    for allowed in ([], ["bf16"]):
        tuned = TunedSession(
            model, one_thread(), providers=CPU, tuner=StackTuner(QUICK), reduced_precision=allowed
        )
        feed = {"x": floats(2, 16)}
        tuned.tune(feed)
        report = tuned.report(feed)
        assert report is not None
        names.append([candidate.name for candidate in report.candidates])
    assert "openvino-fixed+bf16" not in names[0]
    assert "openvino-fixed+bf16" in names[1]


def test_a_provider_that_is_not_there_is_told_once_and_the_session_serves_as_the_raw_one(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = [LACKING, *CPU]
    with pytest.warns(UserWarning, match=LACKING):
        tuned = TunedSession(model, one_thread(), providers=asked, tuner=StackTuner(QUICK))
    with pytest.warns(UserWarning, match=LACKING):
        raw = ort.InferenceSession(model, one_thread(), providers=asked)
    with caplog.at_level(logging.WARNING, "ort_stacktune"):
        for rows in (1, 2):
            feed = {"x": floats(rows, 16)}
            assert tuned.run(None, feed)[0].shape == raw.run(None, feed)[0].shape
    told = [record.getMessage() for record in caplog.records if LACKING in record.getMessage()]
    assert told == [f"{LACKING} can't be used here, so the reference runs on CPUExecutionProvider"]
    report = tuned.report({"x": floats(1, 16)})
    assert report is not None
    assert not any(LACKING.removesuffix("ExecutionProvider") in str(c.facts) for c in report.candidates)
