"""Owns what a record holds and the text it is kept in, format 1.

Must never touch the disk, and must never turn doubtful bytes into a record: :func:`decode` either returns
exactly what :func:`encode` was given or raises :class:`Unreadable`.

The text is one header line with a checksum of all that follows, then indented JSON in UTF-8. The checksum
finds damage; it proves nothing about who wrote the file, so every field is checked as well.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ort_stacktune.failures import FailureKind, Fault
from ort_stacktune.store.checks import (
    Unreadable,
    exact_object,
    flag,
    items,
    mapping,
    member,
    positive,
    real,
    text,
    unique,
    whole,
)
from ort_stacktune.vocabulary import CandidateReport, Scope, TuneReport

FORMAT = 1

_HEADER = re.compile(rb"ort_stacktune record ([0-9]{1,9}) sha256=([0-9a-f]{64})\n")
_HEADER_BYTES = 128


@dataclass(frozen=True, slots=True)
class Record:
    """A choice as it is remembered: which recipe won which question, when, and on what evidence.

    Attributes:
        key: Whole cache key text of the question.
        scope: Level of the decision.
        winner: Name of the chosen candidate.
        winner_revision: Its revision.
        reference: Name of the reference.
        reference_revision: Its revision.
        created_s: Unix time of the search in seconds.
        reference_ns: Time of one completed run of the reference in ns, more than 0.
        selected_ns: Time of one completed run of the winner in ns, more than 0.
        ratio: Selected time over reference time, more than 0.
        verified: Whether the winner's outputs agreed with the reference's; only such records are written.
        report: Full report of the search.
        effort: How hard was searched, as label and number; not part of the question's identity.
    """

    key: str
    scope: Scope
    winner: str
    winner_revision: str
    reference: str
    reference_revision: str
    created_s: float
    reference_ns: int
    selected_ns: int
    ratio: float
    verified: bool
    report: TuneReport
    effort: Mapping[str, float]


# A field more or less is another format: the file of format 1 in the tests stops being readable.
_RECORD_FIELDS = frozenset(field.name for field in dataclasses.fields(Record)) | {"format"}
_REPORT_FIELDS = frozenset(field.name for field in dataclasses.fields(TuneReport))
_COSTS = ("create_ns", "first_run_ns", "switch_ns", "peak_bytes")
_CANDIDATE_FIELDS = frozenset(field.name for field in dataclasses.fields(CandidateReport))


def encode(record: Record) -> bytes:
    """Returns the text of a record.

    Raises:
        Unreadable: Where the text would not give back exactly this record, such as for a number that is
            not finite or out of its range, or for text that UTF-8 can't carry.
    """
    try:
        body = (json.dumps(_record_json(record), indent=1, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        raise Unreadable("it holds text with a lone surrogate, which UTF-8 can't carry") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise Unreadable(f"it holds a value of the wrong type or size ({error})") from None
    data = _header(body) + body
    if decode(data) != record:
        raise Unreadable("it holds a value that its text would not give back exactly")
    return data


def decode(data: bytes) -> Record:
    """Returns the record that a text holds.

    Raises:
        Unreadable: Where anything about the text is not as :func:`encode` writes it.
    """
    header = _HEADER.match(data[:_HEADER_BYTES])
    if header is None:
        raise Unreadable("its first line is not the header of a record")
    if int(header[1]) != FORMAT:
        raise Unreadable(f"it is of format {int(header[1])}; this version reads format {FORMAT}")
    body = data[header.end() :]
    if hashlib.sha256(body).hexdigest().encode() != header[2]:
        raise Unreadable("its checksum is wrong: the file was damaged, cut short or edited")
    try:
        # NaN and infinities come through here as floats and are refused, by name, where each number is
        # checked; no field escapes a check, because unknown fields are refused too.
        return _record(json.loads(body.decode(), object_pairs_hook=unique))
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"it is not the JSON of a record ({error})") from None


def _header(body: bytes) -> bytes:
    return f"ort_stacktune record {FORMAT} sha256={hashlib.sha256(body).hexdigest()}\n".encode()


def _record_json(record: Record) -> dict[str, object]:
    return {
        "format": FORMAT,
        "key": record.key,
        "scope": record.scope.name,
        "winner": record.winner,
        "winner_revision": record.winner_revision,
        "reference": record.reference,
        "reference_revision": record.reference_revision,
        "created_s": float(record.created_s),
        "reference_ns": record.reference_ns,
        "selected_ns": record.selected_ns,
        "ratio": float(record.ratio),
        "verified": record.verified,
        "report": _report_json(record.report),
        "effort": {label: float(value) for label, value in record.effort.items()},
    }


def _report_json(report: TuneReport) -> dict[str, object]:
    return {
        "operation": report.operation,
        "environment": report.environment,
        "workload": report.workload,
        "execution_context": report.execution_context,
        "winner": report.winner,
        "elapsed_ns": report.elapsed_ns,
        "budget_exhausted": report.budget_exhausted,
        "candidates": [_candidate_json(candidate) for candidate in report.candidates],
        "seed": report.seed,
        "phases_ns": dict(report.phases_ns),
    }


def _candidate_json(report: CandidateReport) -> dict[str, object]:
    interval = report.interval
    return {
        "name": report.name,
        "samples": report.samples,
        "ratio": None if report.ratio is None else float(report.ratio),
        "relative_mad": None if report.relative_mad is None else float(report.relative_mad),
        "verified": report.verified,
        "note": report.note,
        "rejection": None if report.rejection is None else report.rejection.name,
        "interval": None if interval is None else [float(bound) for bound in interval],
        "median_ns": report.median_ns,
        "facts": dict(report.facts),
        "verdict": report.verdict,
        "fault": None if report.fault is None else report.fault.name,
        **{cost: getattr(report, cost) for cost in _COSTS},
    }


def _record(value: object) -> Record:
    item = exact_object("the record", value, _RECORD_FIELDS)
    if whole("format", item["format"]) != FORMAT:
        raise Unreadable(f"its format is {item['format']}; this version reads format {FORMAT}")
    if not flag("verified", item["verified"]):
        raise Unreadable("it was never verified")
    effort = mapping("effort", item["effort"])
    return Record(
        key=text("key", item["key"]),
        scope=member("scope", item["scope"], Scope),
        winner=text("winner", item["winner"]),
        winner_revision=text("winner_revision", item["winner_revision"]),
        reference=text("reference", item["reference"]),
        reference_revision=text("reference_revision", item["reference_revision"]),
        created_s=real("created_s", item["created_s"]),
        reference_ns=whole("reference_ns", item["reference_ns"], least=1),
        selected_ns=whole("selected_ns", item["selected_ns"], least=1),
        ratio=positive("ratio", item["ratio"]),
        verified=True,
        report=_report(item["report"]),
        effort={
            text("a label of effort", label): real("a number of effort", number)
            for label, number in effort.items()
        },
    )


def _report(value: object) -> TuneReport:
    item = exact_object("the report", value, _REPORT_FIELDS)
    return TuneReport(
        operation=text("operation", item["operation"]),
        environment=text("environment", item["environment"]),
        workload=text("workload", item["workload"]),
        execution_context=text("execution_context", item["execution_context"]),
        winner=text("the report's winner", item["winner"]),
        elapsed_ns=whole("elapsed_ns", item["elapsed_ns"]),
        budget_exhausted=flag("budget_exhausted", item["budget_exhausted"]),
        candidates=tuple(_candidate(each) for each in items("candidates", item["candidates"])),
        seed=whole("seed", item["seed"]),
        phases_ns={
            text("a phase", phase): whole("a phase's duration", duration)
            for phase, duration in mapping("phases_ns", item["phases_ns"]).items()
        },
    )


def _candidate(value: object) -> CandidateReport:
    item = exact_object("a candidate's report", value, _CANDIDATE_FIELDS)
    ratio, spread, median = item["ratio"], item["relative_mad"], item["median_ns"]
    rejection = item["rejection"]
    return CandidateReport(
        name=text("a candidate's name", item["name"]),
        samples=whole("samples", item["samples"]),
        ratio=None if ratio is None else positive("a candidate's ratio", ratio),
        relative_mad=None if spread is None else real("relative_mad", spread),
        verified=flag("a candidate's verified", item["verified"]),
        note=text("note", item["note"]),
        rejection=None if rejection is None else member("rejection", rejection, FailureKind),
        interval=None if item["interval"] is None else _interval(item["interval"]),
        median_ns=None if median is None else whole("median_ns", median, least=1),
        facts={
            text("a label of facts", label): text("a fact", fact)
            for label, fact in mapping("facts", item["facts"]).items()
        },
        verdict=text("verdict", item["verdict"]),
        fault=None if item["fault"] is None else member("fault", item["fault"], Fault),
        **{cost: None if item[cost] is None else whole(cost, item[cost]) for cost in _COSTS},
    )


def _interval(value: object) -> tuple[float, float]:
    bounds = items("interval", value)
    if len(bounds) != 2:
        raise Unreadable(f"interval has {len(bounds)} bounds; expected a low and a high one")
    low, high = positive("interval", bounds[0]), positive("interval", bounds[1])
    if low > high:
        raise Unreadable(f"interval runs from {low} down to {high}")
    return low, high
