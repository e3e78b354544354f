from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import candidates, problem, raising

from ort_stacktune import Candidate, FailureKind, Mode, Scope, StackPolicy, cache_key, fields, workload_digest
from ort_stacktune.identity import parse_fields

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"])))


@given(texts, texts)
def test_two_different_lists_of_texts_never_meet(left: list[str], right: list[str]) -> None:
    assert (fields(left) == fields(right)) == (left == right)


@given(texts)
def test_joined_texts_come_apart_again(parts: list[str]) -> None:
    assert parse_fields(fields(parts)) == parts


def test_lengths_are_counted_in_utf8_bytes() -> None:
    assert fields(["é", "ab"]) == "2:é,2:ab,"


@pytest.mark.parametrize("broken", ["x", "2:a,", "3:ab,", "2:abx", ":a,", "9" * 30])
def test_text_of_another_form_is_refused(broken: str) -> None:
    with raising(FailureKind.INVALID_INPUT):
        parse_fields(broken)


_ONE = problem(workload="w")


def _key(**changes: object) -> str:
    given_ = {"problem": _ONE, "candidates": candidates("a", "b"), "reference": 0, "policy": StackPolicy()}
    return cache_key(**{**given_, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"problem": problem(workload="w", scope=Scope.OPERATOR)},
        {"problem": problem(workload="w", operation="other")},
        {"problem": problem(workload="w", environment="other")},
        {"problem": problem(workload="other")},
        {"problem": problem(workload="w", execution_context="other")},
        {"reference": 1},
        {"candidates": candidates("b", "a")},
        {"candidates": candidates("a")},
        {"candidates": [Candidate("a"), Candidate("b", revision="2")]},
        {"candidates": [Candidate("a"), Candidate("b", workspace_bytes=0)]},
        {"candidates": [Candidate("a"), Candidate("b", eligible=False)]},
        {"policy": StackPolicy(min_speedup=1.1)},
        {"policy": StackPolicy(require_validation=False)},
        {"policy": StackPolicy(workspace_limit=1)},
        {"policy": StackPolicy(max_relative_mad=0.2)},
        {"policy": StackPolicy(confidence=0.9)},
        {"policy": StackPolicy(expected_calls=10)},
        {"policy": StackPolicy(concurrency=2)},
    ],
    ids=str,
)
def test_everything_that_shapes_the_answer_is_in_the_key(changes: dict[str, object]) -> None:
    assert _key(**changes) != _key()


@pytest.mark.parametrize(
    "policy",
    [
        StackPolicy(mode=Mode.CACHE_ONLY),
        StackPolicy(samples=9),
        StackPolicy(max_samples=99),
        StackPolicy(repeats=5),
        StackPolicy(budget_s=1.0),
        StackPolicy(warmups=9),
        StackPolicy.quick(),
        StackPolicy.thorough(),
        StackPolicy(min_speedup=1.05),
    ],
    ids=str,
)
def test_mode_and_effort_are_not_in_the_key(policy: StackPolicy) -> None:
    assert _key(policy=policy) == _key()


def test_an_identity_text_over_384_kib_is_refused() -> None:
    with raising(FailureKind.INVALID_INPUT, "393216"):
        _key(problem=problem(workload="x" * 400_000))


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_workload_digest_tells_contents_apart(left: bytes, right: bytes) -> None:
    assert (workload_digest(left) == workload_digest(right)) == (left == right)


def test_a_workload_digest_is_128_bits_of_any_bytes_like_object(tmp_path: Path) -> None:
    data = np.arange(1000, dtype=np.float32)
    path = tmp_path / "data"
    path.write_bytes(data.tobytes())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        digests = {
            workload_digest(mapped),
            workload_digest(data.tobytes()),
            workload_digest(bytearray(data.tobytes())),
            workload_digest(data),
        }
    assert len(digests) == 1
    assert len(digests.pop()) == 32
