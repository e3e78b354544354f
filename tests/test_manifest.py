"""Holds what a manifest may say, and that every mistake in it is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ort_stacktune import FailureKind, StackPolicy, TuneFailure
from ort_stacktune.prewarm.manifest import Manifest, ModelEntry, SignatureEntry, read_manifest
from ort_stacktune.prewarm.shares import allotment, in_order, planned

WHOLE = """\
version: 1
budget: 8h
policy:
  effort: thorough
  min_speedup: 1.1
  tolerance: {absolute: 1e-4, relative: 1e-3}
  limits: {create_s: 20, memory_bytes: 4000000000}
  budget: 90s
traffic: [traffic]
models:
  - path: models/det.onnx
    providers:
      - CPUExecutionProvider: {use_arena: "1"}
    session_options: {intra_op_num_threads: 2}
    config: {session.intra_op.allow_spinning: false}
    steering_inputs: [length]
    candidates:
      - {name: one thread, session_options: {intra_op_num_threads: 1}}
    budget: 60
    signatures:
      - dims: {N: 1, W: 320}
        shapes: {x: [1, 3, 48, 320], length: []}
        fill: {sr: 16000, flag: true, noise: uniform}
        inputs: sample.npz
        outputs: [y]
        weight: 120
      - {}
"""


def read(tmp_path: Path, text: str) -> Manifest:
    path = tmp_path / "manifest.yaml"
    path.write_text(text)
    return read_manifest(path)


def test_everything_that_the_schema_shows_is_read(tmp_path: Path) -> None:
    manifest = read(tmp_path, WHOLE)
    assert manifest.budget_s == 8 * 3600
    assert manifest.policy.max_samples == StackPolicy.thorough().max_samples
    assert (manifest.policy.min_speedup, manifest.policy.budget_s) == (1.1, 90.0)
    assert manifest.policy.limits.create_s == 20
    assert manifest.policy.isolation == "process"
    assert manifest.traffic == (tmp_path / "traffic",)
    model = manifest.models[0]
    assert model.path == tmp_path / "models" / "det.onnx"
    assert model.providers == (("CPUExecutionProvider", {"use_arena": "1"}),)
    assert model.session_options == {"intra_op_num_threads": 2}
    assert model.config == {"session.intra_op.allow_spinning": "0"}
    assert model.candidates is not None
    assert model.candidates[0].name == "one thread"
    assert model.signatures[0] == SignatureEntry(
        {"N": 1, "W": 320},
        {"x": (1, 3, 48, 320), "length": ()},
        {"sr": "16000", "flag": "true", "noise": "uniform"},
        tmp_path / "sample.npz",
        ("y",),
        120.0,
        21,
    )
    assert model.signatures[1] == SignatureEntry(line=27)


def test_the_version_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(TuneFailure, match="lacks 'version'"):
        read(tmp_path, "models: []\n")


MISTAKES = {
    "version: 2\nmodels: []": (1, "expected 1"),
    "version: 1": (1, "neither models nor traffic"),
    "version: 1\nmodels: []": (2, "an empty list; expected a list of at least one item"),
    "version: 1\nmodel: []": (2, "no field 'model'; did you mean 'models'"),
    "version: 1\nmodels:\n  - path: a.onnx": (3, "lacks the field 'signatures'"),
    "version: 1\nmodels:\n  - path: a.onnx\n    signatures: [{dims: {N: x}}]": (
        4,
        "expected a whole number of 1",
    ),
    "version: 1\nmodels:\n  - path: a.onnx\n    signatures: [{dims: {N: 0}}]": (4, "'0'; expected a whole"),
    "version: 1\nmodels:\n  - path: a.onnx\n    signatures: [{weight: -1}]": (4, "expected a number above 0"),
    "version: 1\nmodels:\n  - path: ''\n    signatures: [{}]": (3, "expected nonempty text"),
    "version: 1\nmodels:\n  - path: a\n    path: b\n    signatures: [{}]": (4, "names 'path' twice"),
    "version: 1\nbudget: 8 days\nmodels: [{path: a, signatures: [{}]}]": (2, "such as 90, 90s, 30m or 8h"),
    "version: 1\npolicy: {effort: heroic}\nmodels: [{path: a, signatures: [{}]}]": (
        2,
        "quick, default, thorough",
    ),
    "version: 1\npolicy:\n  samples: 4\nmodels: [{path: a, signatures: [{}]}]": (3, "expected an odd whole"),
    "version: 1\npolicy: {min_speedup: much}\nmodels: [{path: a, signatures: [{}]}]": (
        2,
        "expected a finite",
    ),
    "version: 1\npolicy: {timing: never}\nmodels: [{path: a, signatures: [{}]}]": (2, "device or end_to_end"),
    "version: 1\npolicy: {limits: {run: 3}}\nmodels: [{path: a, signatures: [{}]}]": (
        2,
        "did you mean 'run_s'",
    ),
    "version: 1\nmodels:\n  - path: a\n    signatures: [{}]\n    candidates:\n"
    "      - {name: x, config: {session.force_spinning_stop: maybe}}": (6, "expected one of 0, 1"),
    "version: 1\nmodels:\n  - path: a\n    signatures: [{}]\n    candidates: [{name: x}, {name: x}]": (
        5,
        "two candidates named 'x'",
    ),
    "version: 1\nmodels: [": (2, "this is no YAML"),
    "- 1": (1, "a list; expected names with values"),
}


@pytest.mark.parametrize("text", MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    line, reason = MISTAKES[text]
    with pytest.raises(TuneFailure) as caught:
        read(tmp_path, text)
    assert caught.value.kind is FailureKind.INVALID_INPUT
    assert f"manifest.yaml:{line}: " in caught.value.message
    assert reason in caught.value.message


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"\xff\xfe", b"version: 1\n" + b"[" * 5000])
def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "manifest.yaml"
    path.write_bytes(content)
    with pytest.raises(TuneFailure) as caught:
        read_manifest(path)
    assert caught.value.kind is FailureKind.INVALID_INPUT


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(TuneFailure, match=r"none\.yaml can't be read: No such file"):
        read_manifest(tmp_path / "none.yaml")


def test_a_document_cannot_name_code(tmp_path: Path) -> None:
    with pytest.raises(TuneFailure):
        read(tmp_path, "version: !!python/object/apply:os.getcwd []\nmodels: [{path: a, signatures: [{}]}]")


def model(path: str, *weights: float) -> ModelEntry:
    signatures = tuple(SignatureEntry(weight=weight, line=line) for line, weight in enumerate(weights, 1))
    return ModelEntry(Path(path), (), {}, {}, (), (), None, None, signatures, 1)


def test_the_heaviest_signatures_come_first_and_equals_stay_with_their_model() -> None:
    order = in_order([model("a", 1, 5, 1), model("b", 1, 9)])
    assert [(task.model.path.name, task.signature.weight) for task in order] == [
        ("b", 9),
        ("a", 5),
        ("a", 1),
        ("a", 1),
        ("b", 1),
    ]


def test_without_a_budget_each_signature_gets_the_most() -> None:
    assert allotment(None, [1, 1], 30) == 30


def test_a_heavy_signature_gets_its_part_and_a_rare_one_an_equal_part() -> None:
    assert allotment(100, [8, 1, 1], 1000) == pytest.approx(80)
    assert allotment(100, [1, 8, 1], 1000) == pytest.approx(100 / 3)
    assert allotment(100, [8, 1, 1], 30) == 30


def test_shares_taken_in_turn_never_exceed_the_budget() -> None:
    left, weights, taken = 60.0, [5.0, 3.0, 1.0, 1.0], 0.0
    while weights:
        share = allotment(left, weights, 1000)
        left, taken, weights = left - share, taken + share, weights[1:]
    assert taken == pytest.approx(60.0)


def test_what_each_gets_in_turn_is_planned_from_budget_and_weights() -> None:
    assert planned(None, [5, 1], [30, 60]) == [30, 60]
    assert planned(60, [5, 3, 1, 1], [1000] * 4) == pytest.approx([30, 18, 6, 6])
    assert planned(60, [5, 3, 1, 1], [10] * 4) == [10] * 4
