"""OpenVINO over real models: it is chosen or refused for reasons that the report tells, and never wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from tuning import CPU, save

from ort_stacktune import StackPolicy, StackTuner, Tolerance, TunedSession, Validation
from ort_stacktune.verify import compare
from ort_stacktune.vocabulary import CandidateReport, TuneReport

OPENVINO = "OpenVINOExecutionProvider"

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(OPENVINO not in ort.get_available_providers(), reason="this build has no OpenVINO"),
]

FindModel = Callable[[str], Path]
Feed = dict[str, Any]

# The first two candidates are OpenVINO's; how fast they are is not what these tests ask.
POLICY = StackPolicy(
    samples=3,
    max_samples=3,
    repeats=1,
    warmups=1,
    confidence=0.51,
    max_candidates=2,
    budget_s=3.0,
    max_relative_mad=10.0,
)


def _floats(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


BYTES = np.random.default_rng(0).integers(0, 256, (1, 2048), np.int32)

FEEDS: dict[str, Callable[[], Feed]] = {
    "ppocr4-rec": lambda: {"x": _floats(1, 3, 48, 96)},
    "ppocr4-cls": lambda: {"x": _floats(1, 3, 48, 192)},
    "magika": lambda: {"bytes": BYTES},
    "speech-embedding": lambda: {"input_1": _floats(1, 76, 32, 1)},
    "melspectrogram": lambda: {"input": _floats(1, 16000)},
    "ddddocr-old": lambda: {"input1": _floats(1, 1, 64, 96)},
}


def _quiet() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


def _tuned(model: str | Path) -> TunedSession:
    return TunedSession(str(model), _quiet(), providers=CPU, tuner=StackTuner(POLICY))


def _raw(model: str | Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(model), _quiet(), providers=CPU)


def _report(session: TunedSession, feed: Feed) -> TuneReport:
    report = session.report(feed)
    assert report is not None
    return report


def _tried(report: TuneReport) -> list[CandidateReport]:
    return [c for c in report.candidates if c.name.startswith("openvino") and "not tried" not in c.note]


def _assert_right(model: str | Path, session: TunedSession, feed: Feed) -> None:
    raw = _raw(model)
    names = [output.name for output in raw.get_outputs()]
    assert compare(raw.run(None, feed), session.run(None, feed), names, Tolerance()) is Validation.PASSED


@pytest.mark.parametrize("name", FEEDS)
def test_it_is_chosen_or_every_refusal_says_why_and_the_outputs_are_the_raw_sessions(
    name: str, model_file: FindModel
) -> None:
    model, feed = model_file(f"{name}.onnx"), FEEDS[name]()
    session = _tuned(model)
    decision, report = session.tune(feed), _report(session, feed)
    assert decision.name == "reference" or decision.name.startswith("openvino")
    assert report.winner == decision.name
    assert any(candidate.name.startswith("openvino") for candidate in report.candidates)
    # The reference that lost has nothing to explain.
    assert all(candidate.note for candidate in report.candidates if candidate.name != "reference")
    for candidate in _tried(report):
        # What was measured says where its nodes went; what was not says what was wrong with it.
        assert ("OpenVINO" in candidate.facts.get("nodes", "")) == candidate.verified
        assert candidate.verified or candidate.rejection is not None
    _assert_right(model, session, feed)


def test_where_it_turns_nan_into_a_number_the_reference_serves(model_file: FindModel) -> None:
    model, feed = model_file("ppocr4-cls.onnx"), {"x": _floats(2, 3, 48, 192)}
    feed["x"][0] = np.nan
    session = _tuned(model)
    assert session.tune(feed).is_reference
    tried = _tried(_report(session, feed))
    assert tried
    for candidate in tried:
        assert "NaN or infinity is not where the reference has it" in candidate.note
    outputs = session.run(None, feed)[0]
    assert np.isnan(outputs[0]).all()
    assert np.isfinite(outputs[1]).all()


def test_where_every_output_is_nan_nothing_is_promoted(model_file: FindModel) -> None:
    model, feed = model_file("ppocr4-rec.onnx"), {"x": np.full((1, 3, 48, 96), np.nan, np.float32)}
    session = _tuned(model)
    assert session.tune(feed).is_reference
    assert any("no validator" in candidate.note for candidate in _report(session, feed).candidates)
    assert np.isnan(session.run(None, feed)[0]).all()


def _with_a_key(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with an identity number beside it, which becomes a key: three times it and one."""
    graph = model.graph
    graph.input.append(helper.make_tensor_value_info("id", TensorProto.INT64, [1]))
    graph.output.append(helper.make_tensor_value_info("key", TensorProto.INT64, [1]))
    for name, value in (("three", 3), ("one", 1)):
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    graph.node.append(helper.make_node("Mul", ["id", "three"], ["thrice"], name="thrice"))
    graph.node.append(helper.make_node("Add", ["thrice", "one"], ["key"], name="key"))
    return model


def test_where_its_integers_are_too_short_the_reference_serves(model_file: FindModel, tmp_path: Path) -> None:
    model = save(_with_a_key(onnx.load(model_file("magika.onnx"))), tmp_path / "m.onnx")
    session = _tuned(model)
    large = {"bytes": BYTES, "id": np.array([1_000_000_007])}
    assert session.tune(large).is_reference
    tried = _tried(_report(session, large))
    assert tried
    for candidate in tried:
        assert "output 'key': 1 of 1 elements differ" in candidate.note
    assert session.run(["key"], large)[0] == [3_000_000_022]


def _open_bias(model: onnx.ModelProto) -> onnx.TensorProto:
    """Declares a bias as an input that may be left out, as some exporters do with all weights; returns it."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and list(tensor.dims) == [1, 214]:
            declared = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(declared)
            return tensor
    raise AssertionError("the model has no bias of that shape")


def test_a_call_that_overrides_an_initializer_is_served_by_the_reference_and_told_so(
    model_file: FindModel, tmp_path: Path
) -> None:
    proto = onnx.load(model_file("magika.onnx"))
    bias = _open_bias(proto)
    model = save(proto, tmp_path / "m.onnx")
    session, plain = _tuned(model), {"bytes": BYTES}
    overriding = {**plain, bias.name: numpy_helper.to_array(bias) * np.float32(-1)}
    session.run(None, plain)
    # After a choice was made for the call without it.
    for feed in (overriding, plain, overriding):
        _assert_right(model, session, feed)
    assert not np.array_equal(session.run(None, plain)[0], session.run(None, overriding)[0])
    (told,) = _report(session, overriding).candidates
    assert f"overrides the initializer {bias.name!r}" in told.note
