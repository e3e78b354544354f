"""Holds the names, defaults and order that users build on."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any

import onnxruntime as ort
import pytest

import ort_stacktune
from ort_stacktune import (
    Candidate,
    CandidateReport,
    Decision,
    DecisionSource,
    FailureKind,
    MemoryEviction,
    Mode,
    Problem,
    RuntimeEnvironment,
    Scope,
    SessionRecipe,
    StackPolicy,
    StackTuner,
    Stats,
    Timing,
    Tolerance,
    TunedSession,
    TuneFailure,
    TuneReport,
    Validation,
)
from ort_stacktune.failures import invalid

REQUIRED = dataclasses.MISSING
EMPTY = inspect.Parameter.empty

NAMES = [
    "Candidate",
    "CandidateReport",
    "Decision",
    "DecisionSource",
    "FailureKind",
    "Fault",
    "MemoryEviction",
    "Mode",
    "Problem",
    "RuntimeEnvironment",
    "Scope",
    "SessionRecipe",
    "StackPolicy",
    "StackTuner",
    "Stats",
    "Timing",
    "Tolerance",
    "TrialLimits",
    "TrialRunner",
    "TunableSet",
    "TuneFailure",
    "TuneReport",
    "TunedSession",
    "Validation",
    "cache_key",
    "enable_stack_autotune",
    "fields",
    "is_tuning",
    "median",
    "paired_score",
    "runtime_environment",
    "stack_autotuner",
    "try_execute_stack",
    "workload_digest",
]

MEMBERS: dict[type[Enum], list[str]] = {
    Mode: ["EXPLORE", "CACHE_ONLY", "DISABLED"],
    Timing: ["DEVICE", "END_TO_END"],
    Validation: ["PASSED", "UNSUPPORTED"],
    Scope: ["OPERATOR", "GRAPH", "PIPELINE"],
    DecisionSource: [
        "TUNED",
        "MEMORY_CACHE",
        "DISK_CACHE",
        "CACHE_MISS",
        "DISABLED",
        "BUSY",
        "NESTED",
        "VALIDATION_UNAVAILABLE",
        "DEFERRED",
    ],
    FailureKind: ["INVALID_INPUT", "REJECTED", "UNAVAILABLE", "DEVICE", "QUARANTINED"],
    MemoryEviction: ["FIFO", "LRU"],
}

FIELDS: dict[type, dict[str, Any]] = {
    Problem: {
        "scope": REQUIRED,
        "operation": REQUIRED,
        "environment": REQUIRED,
        "workload": REQUIRED,
        "execution_context": "",
        "persistent": True,
    },
    Candidate: {"name": REQUIRED, "revision": "1", "workspace_bytes": None, "eligible": True},
    Tolerance: {"absolute": 1e-4, "relative": 1e-3, "max_bytes": 64 * 1024 * 1024},
    Decision: dict.fromkeys(
        ("index", "reference_index", "name", "source", "verified", "ratio", "cache_key"), REQUIRED
    ),
    CandidateReport: {
        "name": REQUIRED,
        "samples": 0,
        "ratio": None,
        "relative_mad": None,
        "verified": False,
        "note": "",
    },
    TuneReport: dict.fromkeys(
        (
            "operation",
            "environment",
            "workload",
            "execution_context",
            "winner",
            "elapsed_ns",
            "budget_exhausted",
            "candidates",
        ),
        REQUIRED,
    ),
    Stats: dict.fromkeys(
        (
            "memory_hits",
            "disk_hits",
            "misses",
            "busy_fallbacks",
            "tunes",
            "cache_warnings",
            "invalidations",
            "device_failures",
        ),
        0,
    ),
    RuntimeEnvironment: dict.fromkeys(("fingerprint", "persistent", "execution_context"), REQUIRED),
    StackPolicy: {
        "mode": Mode.EXPLORE,
        "timing": Timing.END_TO_END,
        "require_validation": True,
        "tolerance": Tolerance(),
        "warmups": 2,
        "samples": 7,
        "max_samples": 41,
        "repeats": 3,
        "confidence": 0.99,
        "max_candidates": 32,
        "budget_s": 30.0,
        "min_speedup": 1.05,
        "max_relative_mad": 0.15,
        "workspace_limit": None,
        "capacity": 1024,
        "max_parallel_tunes": 1,
        "ttl_s": 604800.0,
        "regression_pairs": 7,
        "regression_ratio": 1.15,
    },
    SessionRecipe: {
        "name": REQUIRED,
        "model": None,
        "providers": None,
        "session_options": {},
        "config": {},
        "run_config": {},
        "custom_op_libraries": (),
        "workspace_bytes": None,
        "eligible": True,
    },
}

POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
KEYWORD = inspect.Parameter.KEYWORD_ONLY

# Callable -> its parameters: kind and default.
SIGNATURES: dict[str, dict[str, tuple[Any, Any]]] = {
    "fields": {"parts": (POSITIONAL, EMPTY)},
    "cache_key": dict.fromkeys(("problem", "candidates", "reference", "policy"), (POSITIONAL, EMPTY)),
    "workload_digest": {"data": (POSITIONAL, EMPTY)},
    "median": {"values": (POSITIONAL, EMPTY)},
    "paired_score": {"pairs": (POSITIONAL, EMPTY), "policy": (POSITIONAL, EMPTY)},
    "is_tuning": {},
    "stack_autotuner": {},
    "enable_stack_autotune": {
        "policy": (POSITIONAL, None),
        "cache_directory": (POSITIONAL, None),
        "memory_eviction": (KEYWORD, MemoryEviction.FIFO),
    },
    "try_execute_stack": {
        "name": (POSITIONAL, EMPTY),
        "tunables": (POSITIONAL, EMPTY),
        "inputs": (POSITIONAL, EMPTY),
        "output_names": (KEYWORD, None),
        "run_options": (KEYWORD, None),
    },
    "StackTuner": {
        "policy": (POSITIONAL, None),
        "cache_directory": (POSITIONAL, None),
        "memory_eviction": (KEYWORD, MemoryEviction.FIFO),
    },
    "StackTuner.stats": {},
    "StackTuner.reports": {},
    "StackTuner.select": dict.fromkeys(("problem", "candidates", "reference", "runner"), (POSITIONAL, EMPTY)),
    "StackTuner.invalidate": {"decision": (POSITIONAL, EMPTY), "ban_candidate": (POSITIONAL, False)},
    "StackTuner.record_comparison": dict.fromkeys(
        ("decision", "reference_ns", "selected_ns", "correctness_checked"), (POSITIONAL, EMPTY)
    ),
    "StackTuner.lower_level_fingerprint": {},
    "TunedSession.tune": {"input_feed": (POSITIONAL, EMPTY), "output_names": (POSITIONAL, None)},
    "TunedSession.decision": {"input_feed": (POSITIONAL, EMPTY), "output_names": (POSITIONAL, None)},
    "TunedSession.report": {"input_feed": (POSITIONAL, EMPTY), "output_names": (POSITIONAL, None)},
    "TunableSet": {
        "name": (POSITIONAL, EMPTY),
        "reference": (POSITIONAL, EMPTY),
        "candidates": (POSITIONAL, EMPTY),
        "scope": (KEYWORD, Scope.GRAPH),
        "workload": (KEYWORD, None),
    },
    "StackPolicy.validate": {},
    "StackPolicy.accuracy_key": {},
    "Candidate.fits": {"policy": (POSITIONAL, EMPTY)},
    "TrialRunner.validate": dict.fromkeys(("reference", "candidate", "tolerance"), (POSITIONAL, EMPTY)),
    "TrialRunner.measure": {"candidate": (POSITIONAL, EMPTY)},
}


def parameters(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    found = inspect.signature(function).parameters
    return {name: (p.kind, p.default) for name, p in found.items() if name != "self"}


def find(path: str) -> Any:
    found: Any = ort_stacktune
    for name in path.split("."):
        found = getattr(found, name)
    return found


def test_every_promised_name_is_there_and_listed() -> None:
    assert set(NAMES) <= set(ort_stacktune.__all__)
    assert set(ort_stacktune.__all__) <= set(dir(ort_stacktune))
    for name in ort_stacktune.__all__:
        assert getattr(ort_stacktune, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        ort_stacktune.no_such_name  # noqa: B018


@pytest.mark.parametrize("kind", MEMBERS, ids=lambda kind: kind.__name__)
def test_enumerations_have_the_promised_members(kind: type[Enum]) -> None:
    assert list(kind.__members__) == MEMBERS[kind]


def test_scopes_are_numbered_from_the_smallest() -> None:
    assert issubclass(Scope, IntEnum)
    assert [int(scope) for scope in Scope] == [0, 1, 2]


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_values_have_the_promised_fields_in_order_with_their_defaults(kind: type) -> None:
    found = {
        field.name: field.default if field.default_factory is REQUIRED else field.default_factory()
        for field in dataclasses.fields(kind)
    }
    promised = FIELDS[kind]
    assert list(found)[: len(promised)] == list(promised)
    assert {name: found[name] for name in promised} == promised
    # What came later has a default, so that older code goes on working.
    later = dataclasses.fields(kind)[len(promised) :]
    assert all(found[field.name] is not REQUIRED or not field.init for field in later)


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_values_are_frozen_and_have_slots(kind: type) -> None:
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__slots__" in vars(kind)


@pytest.mark.parametrize("path", SIGNATURES)
def test_functions_and_methods_take_what_was_promised(path: str) -> None:
    found = parameters(find(path))
    promised = SIGNATURES[path]
    assert {name: found[name] for name in promised} == promised
    positional = [name for name, (kind, _) in found.items() if kind is POSITIONAL]
    assert positional == [name for name, (kind, _) in promised.items() if kind is POSITIONAL]
    assert all(default is not EMPTY for name, (_, default) in found.items() if name not in promised)


def test_a_tuned_session_takes_what_an_inference_session_takes_and_ours_by_keyword_only() -> None:
    theirs, ours = parameters(ort.InferenceSession), parameters(TunedSession)
    assert issubclass(TunedSession, ort.InferenceSession)
    for name, (kind, default) in theirs.items():
        assert ours[name] == (kind, default)
    own = ("candidates", "tuner", "scope", "probes", "steering_inputs")
    assert [ours[name] for name in own] == [
        (KEYWORD, None),
        (KEYWORD, None),
        (KEYWORD, Scope.GRAPH),
        (KEYWORD, ()),
        (KEYWORD, ()),
    ]


def test_a_tuned_session_has_every_method_of_an_inference_session_with_its_parameters() -> None:
    for name, method in inspect.getmembers(ort.InferenceSession, inspect.isfunction):
        if name.startswith("_"):
            continue
        assert list(parameters(getattr(TunedSession, name))) == list(parameters(method)), name


def test_a_failure_has_a_kind_for_programs_and_a_sentence_for_people() -> None:
    failure = TuneFailure(FailureKind.REJECTED, "output 'y' differs")
    assert isinstance(failure, Exception)
    assert (failure.kind, failure.message) == (FailureKind.REJECTED, "output 'y' differs")
    assert "rejected" in str(failure)
    assert "output 'y' differs" in str(failure)
    assert invalid("bad").kind is FailureKind.INVALID_INPUT


def test_the_policy_of_a_controller_can_be_read() -> None:
    policy = StackPolicy(samples=9)
    assert StackTuner(policy).policy is policy
    assert StackTuner().policy == StackPolicy()
