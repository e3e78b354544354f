"""Selects, by experiment at run time, the fastest verified way to execute an ONNX model.

Importing this package is cheap and loads no ONNX Runtime: names that need it are imported when they
are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ort_stacktune.failures import FailureKind, Fault, TuneFailure
from ort_stacktune.identity import fields, workload_digest
from ort_stacktune.installed import enable_stack_autotune, stack_autotuner
from ort_stacktune.policy import Candidate, StackPolicy, TrialLimits
from ort_stacktune.question import cache_key
from ort_stacktune.statistics import median, paired_score
from ort_stacktune.tuner import StackTuner, is_tuning
from ort_stacktune.vocabulary import (
    CandidateReport,
    Decision,
    DecisionSource,
    MemoryEviction,
    Mode,
    Problem,
    RuntimeEnvironment,
    Scope,
    Stats,
    Timing,
    Tolerance,
    TrialRunner,
    TuneReport,
    Validation,
)

if TYPE_CHECKING:
    from ort_stacktune.environment import runtime_environment
    from ort_stacktune.ort.recipes import SessionRecipe
    from ort_stacktune.session import TunedSession
    from ort_stacktune.tunables import TunableSet, try_execute_stack

__version__ = "0.1.0"

_NEED_ORT = {
    "SessionRecipe": "ort_stacktune.ort.recipes",
    "TunableSet": "ort_stacktune.tunables",
    "TunedSession": "ort_stacktune.session",
    "runtime_environment": "ort_stacktune.environment",
    "try_execute_stack": "ort_stacktune.tunables",
}

__all__ = [
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


def __getattr__(name: str) -> object:
    module = _NEED_ORT.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
