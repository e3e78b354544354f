"""Owns the comparison of two sets of stored choices: which question stands for which, and what is different.

Pure. Must never call noise a difference: a speed has moved only where it is beyond what both searches saw
their own pairs vary by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ort_stacktune.cli.differences import Difference, difference, environment_of
from ort_stacktune.question import parts_of_key
from ort_stacktune.statistics import median
from ort_stacktune.store import Record
from ort_stacktune.vocabulary import CandidateReport

# A smaller change is not worth telling, and the load of a machine alone makes it.
_LEAST_MOVE = 0.05
# The noise of a time whose search told nothing of it.
_UNKNOWN_NOISE = 0.10


@dataclass(frozen=True, slots=True)
class Change:
    """One question in two sets of choices.

    Attributes:
        before: Its record in the first set; ``None`` where it is only in the second.
        after: Its record in the second set; ``None`` where it is only in the first.
        environment: The first field in which their environments differ, if they do.
        choice: Whether another candidate, or another recipe of the same name, was chosen.
        moved: What of ``reference``, ``selected`` and ``ratio`` moved beyond noise.
        appeared: Candidates that only the second search knew.
        vanished: Candidates that only the first search knew.
        altered: Candidates of both whose recipe is another one.
    """

    before: Record | None
    after: Record | None
    environment: Difference | None = None
    choice: bool = False
    moved: tuple[str, ...] = ()
    appeared: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()

    @property
    def record(self) -> Record:
        """The newer record there is."""
        record = self.after or self.before
        assert record is not None
        return record

    @property
    def differs(self) -> bool:
        """Whether there is anything to tell beside another environment."""
        return (
            self.before is None
            or self.after is None
            or bool(self.choice or self.moved or self.appeared or self.vanished or self.altered)
        )


def compare_choices(before: Iterable[Record], after: Iterable[Record]) -> list[Change]:
    """Returns every question of two sets of choices, those that differ first.

    Records of one key are one question. Of the others, those with the same operation, workload, context and
    strictness are one question in two environments, or with other candidates; of several the newest count.
    A question that is new in the second set is held against the first set's newest record of it, even where
    that is in both.
    """
    first = {record.key: record for record in before}
    second = {record.key: record for record in after}
    changes = [_change(first[key], second[key]) for key in first if key in second]
    gone = _by_question(record for key, record in first.items() if key not in second)
    known = _by_question(first.values())
    for question, records in _by_question(r for key, r in second.items() if key not in first).items():
        left = gone.get(question, [])
        for record in records:
            partner = left.pop(0) if left else next(iter(known.get(question, ())), None)
            changes.append(_change(partner, record))
    changes += [Change(record, None) for records in gone.values() for record in records]
    return sorted(changes, key=lambda change: (not change.differs, change.record.report.operation))


def _by_question(records: Iterable[Record]) -> dict[tuple[str, ...], list[Record]]:
    """Returns records by what they answer anywhere, the newest first."""
    found: dict[tuple[str, ...], list[Record]] = {}
    for record in sorted(records, key=lambda record: -record.created_s):
        parts = parts_of_key(record.key)
        report = record.report
        question = (
            record.scope.name,
            report.operation,
            report.workload,
            report.execution_context,
            "" if parts is None else parts.accuracy_key,
        )
        found.setdefault(question, []).append(record)
    return found


def _change(before: Record | None, after: Record | None) -> Change:
    if before is None or after is None or before == after:
        return Change(before, after)
    old, new = _revisions(before), _revisions(after)
    return Change(
        before,
        after,
        environment=difference(environment_of(before), environment_of(after)),
        choice=(before.winner, before.winner_revision) != (after.winner, after.winner_revision),
        moved=tuple(_moved(before, after)),
        appeared=tuple(name for name in new if name not in old),
        vanished=tuple(name for name in old if name not in new),
        altered=tuple(name for name in new if name in old and new[name] != old[name]),
    )


def _revisions(record: Record) -> dict[str, str]:
    """Returns the candidates of a question, each with the revision of its recipe where that is known."""
    parts = parts_of_key(record.key)
    if parts is None:
        return {candidate.name: "" for candidate in record.report.candidates}
    return {candidate.name: candidate.revision for candidate in parts.candidates}


def _moved(before: Record, after: Record) -> Iterator[str]:
    noise = math.log1p(_noise(before)) + math.log1p(_noise(after))
    least = max(noise, math.log1p(_LEAST_MOVE))
    for label, old, new in (
        ("reference", before.reference_ns, after.reference_ns),
        ("selected", before.selected_ns, after.selected_ns),
    ):
        if abs(math.log(new / old)) > least:
            yield label
    old_interval, new_interval = _interval(before), _interval(after)
    if old_interval is None or new_interval is None:
        apart = abs(math.log(after.ratio / before.ratio)) > least
    else:
        apart = old_interval[1] < new_interval[0] or new_interval[1] < old_interval[0]
    if apart and abs(math.log(after.ratio / before.ratio)) > math.log1p(_LEAST_MOVE):
        yield "ratio"


def _noise(record: Record) -> float:
    """Returns how far a time may be off, as a part of it: half the width of what the ratio may be.

    Where the reference stayed, its own times are in every pair, so the middle of all candidates counts.
    """
    if record.winner != record.reference:
        widths = [_half_width(each) for each in record.report.candidates if each.name == record.winner]
    else:
        widths = [_half_width(each) for each in record.report.candidates if each.name != record.reference]
    return median([width for width in widths if width is not None and width > 0]) or _UNKNOWN_NOISE


def _half_width(report: CandidateReport) -> float | None:
    if report.interval is None or report.ratio is None:
        return None
    low, high = report.interval
    return (high - low) / 2 / report.ratio


def _interval(record: Record) -> tuple[float, float] | None:
    for report in record.report.candidates:
        if report.name == record.winner:
            return report.interval
    return None


def counted(changes: Sequence[Change]) -> dict[str, int]:
    """Returns how many questions differ in what way; one may be in several of them."""
    both = [change for change in changes if change.before is not None and change.after is not None]
    return {
        "questions": len(changes),
        "same": sum(not change.differs for change in changes),
        "choice changed": sum(change.choice for change in both),
        "speed moved": sum(bool(change.moved) for change in both),
        "candidates changed": sum(bool(c.appeared or c.vanished or c.altered) for c in both),
        "appeared": sum(change.before is None for change in changes),
        "vanished": sum(change.after is None for change in changes),
    }
