"""Owns the question that the controller answers: its checks, its key and the decisions it can get. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ort_stacktune.failures import TuneFailure, invalid
from ort_stacktune.identity import fields, parse_fields
from ort_stacktune.policy import Candidate, StackPolicy
from ort_stacktune.store import Record
from ort_stacktune.vocabulary import CandidateReport, Decision, DecisionSource, Problem, Scope, TuneReport

KEY_SCHEMA = "ort_stacktune/key/1"
MAX_KEY_BYTES = 384 * 1024
MAX_CANDIDATES = 4096
MAX_NAME_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Question:
    """A checked problem with its candidates and key.

    Attributes:
        problem: The exact question.
        candidates: All candidates, in order.
        reference: Position of the reference.
        key: Full identity text.
    """

    problem: Problem
    candidates: tuple[Candidate, ...]
    reference: int
    key: str

    def position(self, name: str, revision: str) -> int | None:
        """Returns where a recorded winner stands among today's candidates, ``None`` where it is gone."""
        for index, candidate in enumerate(self.candidates):
            if candidate.name == name and candidate.revision == revision:
                return index
        return None

    def serve(self, record: Record, source: DecisionSource) -> Decision:
        """Returns the decision that a record stands for."""
        index = self.position(record.winner, record.winner_revision)
        assert index is not None
        return Decision(index, self.reference, record.winner, source, record.verified, record.ratio, self.key)

    def serve_reference(self, source: DecisionSource) -> Decision:
        """Returns the answer to every doubt."""
        name = self.candidates[self.reference].name
        return Decision(self.reference, self.reference, name, source, False, None, self.key)

    def report(
        self, winner: str, elapsed_ns: int, exhausted: bool, reports: tuple[CandidateReport, ...]
    ) -> TuneReport:
        """Returns the report of a search for this question."""
        problem = self.problem
        return TuneReport(
            problem.operation,
            problem.environment,
            problem.workload,
            problem.execution_context,
            winner,
            elapsed_ns,
            exhausted,
            reports,
        )


def pose(problem: Problem, candidates: Sequence[Candidate], reference: int, policy: StackPolicy) -> Question:
    """Checks a question and forms its key, before anything runs.

    Raises:
        TuneFailure: ``INVALID_INPUT`` that says what is wrong.
    """
    if not 1 <= len(candidates) <= MAX_CANDIDATES:
        raise invalid(f"{len(candidates)} candidates were given; expected 1 to {MAX_CANDIDATES}")
    seen: set[str] = set()
    for candidate in candidates:
        if not candidate.name or len(candidate.name.encode()) > MAX_NAME_BYTES:
            raise invalid(
                f"candidate name {candidate.name[:60]!r} is empty or longer than {MAX_NAME_BYTES} bytes;"
                " give it a short name"
            )
        if candidate.name in seen:
            raise invalid(f"two candidates are named {candidate.name!r}; names have to be unique")
        seen.add(candidate.name)
    for label in ("operation", "environment", "workload"):
        if not getattr(problem, label):
            raise invalid(f"the problem's {label} is empty; expected text that identifies it exactly")
    if isinstance(reference, bool) or not isinstance(reference, int):
        raise invalid(f"reference is {reference!r}; expected a position among the candidates")
    if not 0 <= reference < len(candidates):
        raise invalid(f"reference {reference} is out of range for {len(candidates)} candidates")
    if not candidates[reference].fits(policy):
        raise invalid(
            f"the reference {candidates[reference].name!r} does not fit workspace_limit"
            f" {policy.workspace_limit}; declare its workspace_bytes or lift the limit"
        )
    key = cache_key(problem, candidates, reference, policy)
    return Question(problem, tuple(candidates), reference, key)


def environment_of(key: str) -> str:
    """Returns the environment that the question behind an identity text was asked in."""
    return parse_fields(key)[3]


def cache_key(problem: Problem, candidates: Sequence[Candidate], reference: int, policy: StackPolicy) -> str:
    """Returns the full identity text of a question: what is asked, of which candidates, how strictly.

    Args:
        problem: The question.
        candidates: All candidates, in order; order and every field of each are part of the identity.
        reference: Position of the reference among them.
        policy: Only its ``accuracy_key()`` counts; effort and mode do not.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where the text exceeds 384 KiB.
    """
    manifest = fields(
        fields(
            (
                candidate.name,
                candidate.revision,
                "" if candidate.workspace_bytes is None else str(candidate.workspace_bytes),
                "1" if candidate.eligible else "0",
            )
        )
        for candidate in candidates
    )
    key = fields(
        (
            KEY_SCHEMA,
            problem.scope.name,
            problem.operation,
            problem.environment,
            problem.workload,
            problem.execution_context,
            str(reference),
            manifest,
            policy.accuracy_key(),
        )
    )
    size = len(key.encode())
    if size > MAX_KEY_BYTES:
        raise invalid(
            f"the identity of this question takes {size} bytes, more than the {MAX_KEY_BYTES} allowed;"
            " shorten the operation or workload text, or pass fewer candidates"
        )
    return key


@dataclass(frozen=True, slots=True)
class KeyParts:
    """What :func:`cache_key` joined.

    Attributes:
        problem: The question; whether its environment is persistent is not in a key.
        candidates: All candidates, in order.
        reference: Position of the reference among them.
        accuracy_key: How strictly was asked.
    """

    problem: Problem
    candidates: tuple[Candidate, ...]
    reference: int
    accuracy_key: str


def parts_of_key(key: str) -> KeyParts | None:
    """Takes a cache key apart again; ``None`` for text of another make."""
    try:
        schema, scope, operation, environment, workload, context, reference, manifest, strict = parse_fields(
            key
        )
        if schema != KEY_SCHEMA:
            return None
        candidates = []
        for part in parse_fields(manifest):
            name, revision, workspace, eligible = parse_fields(part)
            candidates.append(
                Candidate(name, revision, int(workspace) if workspace else None, eligible == "1")
            )
        problem = Problem(Scope[scope], operation, environment, workload, context)
        return KeyParts(problem, tuple(candidates), int(reference), strict)
    except (TuneFailure, ValueError, KeyError):
        return None
