from __future__ import annotations

import math

import pytest
from scripted import raising

from ort_stacktune import Candidate, FailureKind, StackPolicy, StackTuner, Tolerance


def test_the_defaults_are_a_valid_policy() -> None:
    StackPolicy().validate()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "explore"),
        ("timing", None),
        ("require_validation", 1),
        ("tolerance", (1e-4, 1e-3)),
        ("tolerance", Tolerance(absolute=-1.0)),
        ("tolerance", Tolerance(relative=math.nan)),
        ("tolerance", Tolerance(max_bytes=0)),
        ("warmups", 0),
        ("warmups", 101),
        ("samples", 4),
        ("samples", 1),
        ("samples", 103),
        ("samples", True),
        ("max_samples", 5),
        ("max_samples", 40),
        ("max_samples", 1003),
        ("repeats", 0),
        ("repeats", 102),
        ("confidence", 0.5),
        ("confidence", 1.0),
        ("max_candidates", 0),
        ("max_candidates", 4097),
        ("budget_s", 0.0),
        ("budget_s", math.inf),
        ("min_speedup", 0.99),
        ("min_speedup", math.nan),
        ("max_relative_mad", -0.1),
        ("workspace_limit", -1),
        ("workspace_limit", 1.5),
        ("capacity", 0),
        ("capacity", 65537),
        ("max_parallel_tunes", 0),
        ("max_parallel_tunes", 257),
        ("ttl_s", 0.0),
        ("ttl_s", math.inf),
        ("regression_pairs", 2),
        ("regression_pairs", 103),
        ("regression_ratio", 1.0),
        ("expected_calls", 0),
        ("expected_calls", 1.5),
        ("concurrency", 0),
        ("concurrency", 257),
    ],
)
def test_a_field_out_of_its_range_is_named_before_anything_runs(field: str, value: object) -> None:
    policy = StackPolicy(**{field: value})  # type: ignore[arg-type]
    with raising(FailureKind.INVALID_INPUT, field, "expected"):
        policy.validate()
    with raising(FailureKind.INVALID_INPUT, field):
        StackTuner(policy)


def test_quick_and_thorough_are_valid_and_take_changes() -> None:
    for make in (StackPolicy.quick, StackPolicy.thorough):
        make().validate()
        assert make(min_speedup=1.2).min_speedup == 1.2
        assert make(budget_s=3.0).budget_s == 3.0


def test_effort_is_an_order_and_a_more_patient_answer_satisfies_a_quicker_request() -> None:
    quick, default, thorough = StackPolicy.quick(), StackPolicy(), StackPolicy.thorough()
    for asked, given, satisfied in (
        (quick, default, True),
        (quick, thorough, True),
        (default, thorough, True),
        (default, default, True),
        (default, quick, False),
        (thorough, default, False),
    ):
        assert asked.is_met_by(given.effort(), budget_exhausted=False) is satisfied


def test_a_budget_counts_only_where_it_ended_the_search() -> None:
    asked, given = StackPolicy(budget_s=30.0), StackPolicy(budget_s=5.0)
    assert asked.is_met_by(given.effort(), budget_exhausted=False)
    assert not asked.is_met_by(given.effort(), budget_exhausted=True)


def test_an_unknown_workspace_does_not_fit_an_enabled_limit() -> None:
    limited = StackPolicy(workspace_limit=100)
    assert not Candidate("a").fits(limited)
    assert Candidate("a", workspace_bytes=100).fits(limited)
    assert not Candidate("a", workspace_bytes=101).fits(limited)
    assert Candidate("a").fits(StackPolicy())
