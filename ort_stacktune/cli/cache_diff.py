"""Owns the command ``cache diff``: what changed between two sets of stored choices."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ort_stacktune.cli.comparing import Change, compare_choices, counted
from ort_stacktune.cli.console import Output, complain, working
from ort_stacktune.cli.store import is_leftover, record_files, record_id
from ort_stacktune.failures import invalid
from ort_stacktune.report import Ledger, LedgerRow, duration, model_text, speedup
from ort_stacktune.signature import describe_workload
from ort_stacktune.store import Record
from ort_stacktune.store.bundle import read_bundle

_HEADS = ("id", "choice", "speed-up", "reference", "selected")
_NOTHING = "-"


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command to the parser's."""
    parser = commands.add_parser(
        "diff",
        parents=[common],
        allow_abbrev=False,
        help="compare two sets of stored choices; exit status 1 where they differ",
        description="Compares two sets of stored choices, such as those of before and after an upgrade. A"
        " question asked in two environments is compared with itself. A speed has moved (marked *) where"
        " the change is beyond the noise of both searches and at least 5 %.",
    )
    for name, text in (("before", "the older"), ("after", "the newer")):
        parser.add_argument(
            name, metavar=name.upper(), help=f"{text} choices: a cache directory or a bundle of cache export"
        )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, output: Output) -> int:
    """Runs the command."""
    with working("reading records"):
        changes = compare_choices(_records(args.before), _records(args.after))
    different = [change for change in changes if change.differs]
    counts = counted(changes)
    if output.as_json:
        output.document(
            {
                "before": args.before,
                "after": args.after,
                "counts": counts,
                "changes": [_as_json(change) for change in different],
            }
        )
        return 1 if different else 0
    if different:
        output.show(Ledger(_HEADS, [_row(change) for change in different]), "")
    output.show(_summary(counts))
    return 1 if different else 0


def _records(place: str) -> list[Record]:
    if not place or "\0" in place:
        raise invalid(f"{place!r} is neither a cache directory nor a bundle")
    path = Path(place).absolute()
    if not path.exists():
        raise invalid(f"there is no cache directory or bundle {path}")
    if not path.is_dir():
        return read_bundle(path)
    good, bad = record_files(path)
    for entry in bad:
        if not is_leftover(entry):
            complain(f"{entry.path} is left out because {entry.reason}", "warning")
    return [file.record for file in good]


def _summary(counts: dict[str, int]) -> str:
    total, same = counts["questions"], counts["same"]
    found = [f"{number} {what}" for what, number in counts.items() if number and what != "questions"]
    if same == total:
        return f"The same choices for all {total} questions." if total else "There are no choices in either."
    return f"Of {total} questions: {', '.join(found)}."


def _row(change: Change) -> LedgerRow:
    before, after = change.before, change.after
    return LedgerRow(
        (
            record_id(change.record),
            "new" if before is None else "gone" if after is None else "changed" if change.choice else "same",
            _speeds(change),
            _times(change, "reference"),
            _times(change, "selected"),
        ),
        "; ".join(_remarks(change)),
        bold=change.choice,
    )


def _speeds(change: Change) -> str:
    before, after = (None if each is None else speedup(each.ratio) for each in (change.before, change.after))
    return _arrow(before, after, "ratio" in change.moved)


def _times(change: Change, which: str) -> str:
    def time_of(record: Record | None) -> str | None:
        if record is None:
            return None
        return duration(record.reference_ns if which == "reference" else record.selected_ns)

    return _arrow(time_of(change.before), time_of(change.after), which in change.moved)


def _arrow(before: str | None, after: str | None, moved: bool) -> str:
    return f"{before or _NOTHING}->{after or _NOTHING}{' *' if moved else ''}"


def _remarks(change: Change) -> list[str]:
    before, after, report = change.before, change.after, change.record.report
    who = change.record.winner
    if before is not None and after is not None and change.choice:
        renewed = " (another recipe)" if before.winner == after.winner else ""
        who = f"{before.winner} -> {after.winner}{renewed}"
    remarks = [f"{who} for {model_text(report.operation)}: {describe_workload(report.workload)}"]
    if change.environment is not None:
        remarks.append(change.environment.words("before", "after"))
    for label, names in (
        ("new candidates", change.appeared),
        ("candidates gone", change.vanished),
        ("candidates with another recipe", change.altered),
    ):
        if names:
            remarks.append(f"{label}: {', '.join(names)}")
    return remarks


def _as_json(change: Change) -> dict[str, Any]:
    return {
        "operation": change.record.report.operation,
        "workload": change.record.report.workload,
        "before": _side(change.before),
        "after": _side(change.after),
        "environment": change.environment,
        "choice_changed": change.choice,
        "moved": change.moved,
        "candidates": {
            "appeared": change.appeared,
            "vanished": change.vanished,
            "altered": change.altered,
        },
    }


def _side(record: Record | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "id": record_id(record),
        "winner": record.winner,
        "winner_revision": record.winner_revision,
        "ratio": record.ratio,
        "reference_ns": record.reference_ns,
        "selected_ns": record.selected_ns,
        "created_s": record.created_s,
    }
