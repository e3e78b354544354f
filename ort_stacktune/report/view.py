"""Owns what a report shows: the records as signatures, candidates, environments and one overview. Pure.

Must never know how it is shown, and never read a clock: the same records give the same view.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ort_stacktune.identity import text_digest
from ort_stacktune.report.strictness import Strictness, read_strictness
from ort_stacktune.report.table import ordered
from ort_stacktune.report.words import failure_kind, labelled, model_name, reason, utc
from ort_stacktune.signature import describe_workload
from ort_stacktune.store import Record
from ort_stacktune.vocabulary import CandidateReport, Scope

ID_LENGTH = 12


class Standing(Enum):
    """How a candidate came out of a search."""

    SELECTED = "selected"
    REFERENCE = "reference"
    PASSED = "passed"
    NOT_FASTER = "not faster"
    UNDECIDED = "undecided"
    REJECTED = "rejected"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class CandidateView:
    """A candidate of one search.

    Attributes:
        standing: How it came out.
        break_even_calls: Calls after which it has repaid its making and its slower first run; ``None`` where
            it was not proven to be faster or its costs are not known.
        evidence: All that was found out about it.
    """

    standing: Standing
    break_even_calls: int | None
    evidence: CandidateReport


@dataclass(frozen=True, slots=True)
class SignatureView:
    """The choice for one signature.

    Attributes:
        id: Start of the name of its record's file.
        model: The model's name: of its graph, or as the report's reader calls it.
        digest: Digest of the model's content; empty where the question is about no model.
        signature: The signature in words.
        scope: Level of the decision.
        created: When the search ended, in UTC.
        reference: Name of the reference.
        winner: Name of the chosen candidate.
        winner_revision: Revision of its recipe.
        ratio: Selected time over reference time.
        verified: Whether the winner's outputs agreed with the reference's.
        reference_ns: Time of one completed run of the reference in ns.
        selected_ns: Time of one completed run of the winner in ns.
        strictness: What was demanded of a winner; ``None`` where the key does not say.
        elapsed_ns: Duration of the search.
        phases_ns: Phase of the search -> its duration in ns.
        budget_exhausted: Whether the budget ended it.
        seed: Seed of the coin.
        effort: How hard was searched.
        execution_context: How the machine was shared.
        environment: Position of its environment in the report.
        candidates: The candidates, in reading order.
    """

    id: str
    model: str
    digest: str
    signature: str
    scope: Scope
    created: str
    reference: str
    winner: str
    winner_revision: str
    ratio: float
    verified: bool
    reference_ns: int
    selected_ns: int
    strictness: Strictness | None
    elapsed_ns: int
    phases_ns: Mapping[str, int]
    budget_exhausted: bool
    seed: int
    effort: Mapping[str, float]
    execution_context: str
    environment: int
    candidates: tuple[CandidateView, ...]

    @property
    def left_reference(self) -> bool:
        """Whether another candidate than the reference was chosen."""
        return self.winner != self.reference

    @property
    def tried(self) -> tuple[CandidateView, ...]:
        """The candidates that a trial was begun for, the reference included."""
        return tuple(each for each in self.candidates if each.standing is not Standing.NOT_TRIED)

    @property
    def left_out(self) -> tuple[tuple[CandidateView, ...], ...]:
        """The candidates that were not tried, those together that share a reason."""
        groups: dict[tuple[str, str], list[CandidateView]] = {}
        for each in self.candidates:
            if each.standing is Standing.NOT_TRIED:
                groups.setdefault((failure_kind(each.evidence), reason(each.evidence)), []).append(each)
        return tuple(map(tuple, groups.values()))

    @property
    def chosen(self) -> CandidateView | None:
        """The winner among the candidates; ``None`` in a record whose report lacks it."""
        return next((each for each in self.candidates if each.evidence.name == self.winner), None)


@dataclass(frozen=True, slots=True)
class Extreme:
    """A candidate that stands out among all searches.

    Attributes:
        id: Id of its signature.
        model: The model's name.
        signature: The signature in words.
        candidate: The candidate's name.
        ratio: Its time over the reference's.
    """

    id: str
    model: str
    signature: str
    candidate: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Overview:
    """All searches at a glance.

    Attributes:
        signatures: Number of signatures.
        models: Number of different models.
        left_reference: Signatures that another candidate than the reference serves.
        mean_ratio: Geometric mean of selected over reference time, signatures that keep it included.
        best: The winner with the largest gain.
        least: The winner with the smallest gain; the reference itself where it stayed.
        slowest: The candidate that was slowest against its reference: what a wrong guess costs.
        elapsed_ns: Duration of all searches.
        candidates: Candidates in all searches, references left out.
        tried: Those for which a trial was begun.
        rejected: Those that failed: wrong outputs, no support, or a fault.
        first: Date of the oldest search in UTC.
        last: Date of the newest.
    """

    signatures: int
    models: int
    left_reference: int
    mean_ratio: float
    best: Extreme
    least: Extreme
    slowest: Extreme | None
    elapsed_ns: int
    candidates: int
    tried: int
    rejected: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class EnvironmentView:
    """An environment in which searches ran.

    Attributes:
        signatures: Number of signatures searched in it.
        facts: Label and text of each part of its identity.
        differing: Labels whose texts differ from those of the report's first environment.
    """

    signatures: int
    facts: tuple[tuple[str, str], ...]
    differing: frozenset[str]


@dataclass(frozen=True, slots=True)
class ReportView:
    """All that a report shows.

    Attributes:
        overview: The whole at a glance; ``None`` where nothing is stored.
        signatures: The choices, ordered by model, digest, signature and date.
        environments: Where they were made, the most frequent first.
    """

    overview: Overview | None
    signatures: tuple[SignatureView, ...]
    environments: tuple[EnvironmentView, ...]


def build(records: Sequence[Record], titles: Mapping[str, str] | None = None) -> ReportView:
    """Returns what a report of these records shows, whatever order they come in.

    Args:
        records: The records.
        titles: Digest of a model -> what to call it; others bear the name of their graph.
    """
    fingerprints = [record.report.environment for record in records]
    places = sorted(set(fingerprints), key=lambda each: (-fingerprints.count(each), each))
    signatures = sorted(
        (_signature(record, places.index(record.report.environment), titles or {}) for record in records),
        key=lambda each: (each.model.lower(), each.digest, each.signature, each.created, each.id),
    )
    return ReportView(
        _overview(signatures) if signatures else None,
        tuple(signatures),
        tuple(_environment(each, fingerprints.count(each), places[0]) for each in places),
    )


def _signature(record: Record, environment: int, titles: Mapping[str, str]) -> SignatureView:
    report = record.report
    model, digest = model_name(report.operation)
    return SignatureView(
        id=text_digest(record.key)[:ID_LENGTH],
        model=titles.get(digest, model),
        digest=digest,
        signature=describe_workload(report.workload),
        scope=record.scope,
        created=utc(record.created_s),
        reference=record.reference,
        winner=record.winner,
        winner_revision=record.winner_revision,
        ratio=record.ratio,
        verified=record.verified,
        reference_ns=record.reference_ns,
        selected_ns=record.selected_ns,
        strictness=read_strictness(record.key),
        elapsed_ns=report.elapsed_ns,
        phases_ns=report.phases_ns,
        budget_exhausted=report.budget_exhausted,
        seed=report.seed,
        effort=record.effort,
        execution_context=report.execution_context,
        environment=environment,
        candidates=tuple(_candidate(each, record) for each in ordered(report, record.reference)),
    )


def _candidate(candidate: CandidateReport, record: Record) -> CandidateView:
    standing = _standing(candidate, record)
    return CandidateView(standing, _break_even(candidate, standing, record), candidate)


def _standing(candidate: CandidateReport, record: Record) -> Standing:
    if candidate.name == record.reference:
        return Standing.REFERENCE
    if candidate.name == record.winner:
        return Standing.SELECTED
    told = next((each for each in Standing if each.value == candidate.verdict), None)
    if told not in (None, Standing.SELECTED, Standing.REFERENCE):
        return told
    if candidate.rejection is not None:
        return Standing.REJECTED
    return Standing.NOT_TRIED if candidate.ratio is None else Standing.NOT_FASTER


def _break_even(candidate: CandidateReport, standing: Standing, record: Record) -> int | None:
    steady_ns, ratio = candidate.median_ns, candidate.ratio
    if standing not in (Standing.SELECTED, Standing.PASSED) or steady_ns is None or ratio is None:
        return None
    if ratio >= 1 or candidate.create_ns is None or candidate.first_run_ns is None:
        return None
    # Its own pairs say what the reference took beside it; for the winner the record says it exactly.
    reference_ns = record.reference_ns if standing is Standing.SELECTED else round(steady_ns / ratio)
    extra_ns = candidate.create_ns + max(0, candidate.first_run_ns - steady_ns)
    return math.ceil(extra_ns / max(1, reference_ns - steady_ns))


def _overview(signatures: Sequence[SignatureView]) -> Overview:
    by_gain = sorted(signatures, key=lambda each: each.ratio)
    others = [
        (each, candidate)
        for each in signatures
        for candidate in each.candidates
        if candidate.standing is not Standing.REFERENCE
    ]
    timed = [_extreme(each, c.evidence.name, c.evidence.ratio) for each, c in others if c.evidence.ratio]
    slowest = max(timed, key=lambda each: each.ratio, default=None)
    dates = sorted(each.created for each in signatures)
    return Overview(
        signatures=len(signatures),
        models=len({(each.model, each.digest) for each in signatures}),
        left_reference=sum(each.left_reference for each in signatures),
        mean_ratio=math.exp(math.fsum(math.log(each.ratio) for each in signatures) / len(signatures)),
        best=_extreme(by_gain[0], by_gain[0].winner, by_gain[0].ratio),
        least=_extreme(by_gain[-1], by_gain[-1].winner, by_gain[-1].ratio),
        slowest=slowest if slowest is not None and slowest.ratio > 1 else None,
        elapsed_ns=sum(each.elapsed_ns for each in signatures),
        candidates=len(others),
        tried=sum(candidate.standing is not Standing.NOT_TRIED for _, candidate in others),
        rejected=sum(candidate.standing is Standing.REJECTED for _, candidate in others),
        first=dates[0],
        last=dates[-1],
    )


def _extreme(signature: SignatureView, candidate: str, ratio: float) -> Extreme:
    return Extreme(signature.id, signature.model, signature.signature, candidate, ratio)


def _environment(fingerprint: str, signatures: int, first: str) -> EnvironmentView:
    facts, usual = labelled(fingerprint), dict(labelled(first))
    differing = frozenset(label for label, text in facts if usual.get(label) != text)
    return EnvironmentView(signatures, tuple(facts), differing)
