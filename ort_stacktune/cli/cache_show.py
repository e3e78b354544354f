"""Owns the command ``cache show``: everything that one record holds."""

from __future__ import annotations

import argparse
import time
from datetime import datetime
from typing import Any

from rich.table import Table

from ort_stacktune.cli.arguments import cache_directory
from ort_stacktune.cli.console import Output
from ort_stacktune.cli.store import RecordFile, find_record, identity_here
from ort_stacktune.cli.tables import age_text, facts_table, plain_table
from ort_stacktune.report import (
    duration,
    labelled,
    memory,
    model_text,
    ordered,
    report_table,
    seconds,
    speedup,
)
from ort_stacktune.signature import describe_workload
from ort_stacktune.store import Record


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command to the parser's."""
    parser = commands.add_parser(
        "show", parents=[common], allow_abbrev=False, help="show all evidence behind one stored choice"
    )
    parser.add_argument("id", metavar="ID", help="start of the record's id, as cache list prints it")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, output: Output) -> int:
    """Runs the command."""
    file = find_record(cache_directory(args.cache), args.id)
    record = file.record
    here = identity_here(record)
    if output.as_json:
        output.document(
            {
                "id": file.id,
                "path": file.path,
                "environment_is_current": file.is_current,
                "environment": dict(labelled(record.report.environment)),
                "record": record,
            }
        )
        return 0
    output.show_whole(str(file.path))
    output.show(facts_table(_facts(file)), "", report_table(record.report, record.reference), "")
    output.show("First costs:", _first_costs(record), "")
    title = {None: "", True: ", the same as here", False: ", another one than here"}[file.is_current]
    output.show(
        f"Environment{title}:", facts_table(_environment(record.report.environment, here)), "", "Key:"
    )
    output.show_whole(record.key)
    return 0


def _facts(file: RecordFile) -> list[tuple[str, str]]:
    record, report = file.record, file.record.report
    created = datetime.fromtimestamp(record.created_s).astimezone().isoformat(" ", "seconds")
    return [
        ("created", f"{created}, {age_text(time.time() - record.created_s)} ago"),
        ("model", model_text(report.operation)),
        ("signature", describe_workload(report.workload)),
        ("scope", record.scope.name.lower()),
        ("execution context", report.execution_context),
        ("reference", f"{record.reference}, {duration(record.reference_ns)}"),
        (
            "winner",
            f"{record.winner}, {duration(record.selected_ns)}, {speedup(record.ratio)},"
            f" {'verified' if record.verified else 'not verified'}",
        ),
        ("revision", record.winner_revision),
        (
            "search",
            f"{seconds(report.elapsed_ns)}, "
            + ("ended by its budget" if report.budget_exhausted else "complete")
            + "".join(f", {phase} {seconds(spent_ns)}" for phase, spent_ns in report.phases_ns.items()),
        ),
        ("effort", ", ".join(f"{label} {value:g}" for label, value in record.effort.items())),
        ("seed", str(report.seed)),
    ]


def _first_costs(record: Record) -> Table:
    """Returns what each candidate cost before it ran steadily; it does not decide, but it is paid once."""
    return plain_table(
        ("candidate", "session", "first run", "after another shape", "memory"),
        (
            (
                candidate.name,
                duration(candidate.create_ns),
                duration(candidate.first_run_ns),
                duration(candidate.switch_ns),
                memory(candidate.peak_bytes),
            )
            for candidate in ordered(record.report, record.reference)
        ),
        right=("session", "first run", "after another shape", "memory"),
    )


def _environment(stored: str, here: str | None) -> list[tuple[str, str]]:
    """Returns what identified the environment, and beside it what is different here."""
    then, now = dict(labelled(stored)), dict(labelled(here or stored))
    rows = []
    for label in {**then, **now}:
        text = then.get(label, "(not there)")
        different = then.get(label) != now.get(label)
        rows.append((label, f"{text}   [here: {now.get(label, 'not there')}]" if different else text))
    return rows
