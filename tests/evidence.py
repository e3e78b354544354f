"""Records as searches leave them, for tests of what is told about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ort_stacktune.failures import FailureKind, Fault
from ort_stacktune.identity import fields
from ort_stacktune.policy import Candidate, StackPolicy
from ort_stacktune.question import cache_key
from ort_stacktune.store import Record
from ort_stacktune.vocabulary import CandidateReport, Problem, Scope, TuneReport

ENVIRONMENT = fields(
    (
        "ONNX Runtime package",
        "onnxruntime-openvino 1.24.1",
        "processor",
        "AMD EPYC 9B45",
        "system",
        "Linux x86_64",
        "cores by affinity",
        "2",
    )
)
REFERENCE = CandidateReport(
    "reference",
    samples=9,
    ratio=1.0,
    verified=True,
    median_ns=3_160_000,
    verdict="reference",
    create_ns=20_000_000,
    first_run_ns=4_000_000,
    peak_bytes=9 * 2**20,
)
WINNER = CandidateReport(
    "openvino",
    samples=20,
    ratio=0.5,
    relative_mad=0.02,
    verified=True,
    note="2.00x faster, confirmed on 7 fresh pairs; repays its first costs after 64 calls",
    interval=(0.4, 0.8),
    median_ns=1_580_000,
    facts={"nodes": "OpenVINO 9 of 9"},
    verdict="selected",
    create_ns=100_000_000,
    first_run_ns=2_000_000,
    switch_ns=41_000_000,
    peak_bytes=17 * 2**20,
)
SLOWER = CandidateReport(
    "parallel",
    samples=3,
    ratio=400.0,
    relative_mad=0.5,
    verified=True,
    note="slower by 1.25x or more in all 3 pairs",
    median_ns=1_200_000_000,
    verdict="not faster",
)
LUCKY = CandidateReport(
    "threads-2",
    samples=3,
    ratio=0.95,
    verified=True,
    note="behind openvino by 1.90x after 3 pairs",
    median_ns=3_000_000,
    verdict="not faster",
)
WRONG = CandidateReport(
    "fp16",
    note="output 'y' differs by 0.5 where 0.0001 is allowed",
    rejection=FailureKind.REJECTED,
    verdict="rejected",
)
HANGING = CandidateReport(
    "plugin",
    note="its session was not made within 30 s",
    rejection=FailureKind.REJECTED,
    fault=Fault.TIMEOUT,
    verdict="rejected",
)
LATE = CandidateReport("later", note="not tried: the budget was spent", verdict="not tried")

ALL = (REFERENCE, WINNER, SLOWER, LUCKY, WRONG, HANGING, LATE)


def signature_text(*shape: int, name: str = "x") -> str:
    """Returns the workload text of a call with one input."""
    tensor = fields((name, "f4", "x".join(map(str, shape)), "cpu", ""))
    return fields(("run", fields([tensor]), fields([fields(("y", "", "", "cpu", ""))]), fields(())))


def record(
    model: str = "detector",
    shape: Sequence[int] = (1, 3, 48, 320),
    candidates: Sequence[CandidateReport] = ALL,
    *,
    winner: str = "openvino",
    environment: str = ENVIRONMENT,
    policy: StackPolicy | None = None,
    digest: str = "",
    **changes: Any,
) -> Record:
    """Returns the record of a search."""
    digest = digest or (model.encode().hex() + "0" * 32)[:32]
    problem = Problem(
        Scope.GRAPH, fields(("onnx", model, digest)), environment, signature_text(*shape), "isolated"
    )
    chosen = next(each for each in candidates if each.name == winner)
    report = TuneReport(
        problem.operation,
        environment,
        problem.workload,
        problem.execution_context,
        winner=winner,
        elapsed_ns=8_000_000_000,
        budget_exhausted=False,
        candidates=tuple(candidates),
        seed=7,
        phases_ns={"reference": 500_000_000, "rounds": 7_000_000_000},
    )
    values: dict[str, Any] = {
        "key": cache_key(
            problem, [Candidate(each.name) for each in candidates], 0, policy or StackPolicy(min_speedup=1.1)
        ),
        "scope": Scope.GRAPH,
        "winner": winner,
        "winner_revision": "5b1c",
        "reference": "reference",
        "reference_revision": "1",
        "created_s": 1_764_000_000.0,
        "reference_ns": 3_160_000,
        "selected_ns": chosen.median_ns,
        "ratio": chosen.ratio,
        "verified": True,
        "report": report,
        "effort": {"samples": 7.0},
    }
    return Record(**(values | changes))


def kept(model: str = "segmenter", shape: Sequence[int] = (1, 8)) -> Record:
    """Returns the record of a search after which the reference stayed."""
    return record(model, shape, (REFERENCE, SLOWER, WRONG), winner="reference", reference_ns=3_160_000)
