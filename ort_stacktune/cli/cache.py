"""Owns the command ``cache``: what is stored, whether it can be relied on, and how old records leave."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Any

from ort_stacktune.cli import arguments, cache_show
from ort_stacktune.cli.arguments import cache_directory
from ort_stacktune.cli.console import Output, complain, working
from ort_stacktune.cli.store import RecordFile, identity_here, is_leftover, opened_store, record_files
from ort_stacktune.cli.tables import age_text, facts_table, model_text
from ort_stacktune.failures import invalid
from ort_stacktune.policy import StackPolicy
from ort_stacktune.report import Ledger, LedgerRow, speedup
from ort_stacktune.signature import describe_workload
from ort_stacktune.store import StoredEntry

_HEADS = ("id", "speed-up", "verified", "age", "scope", "this environment")


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command and its own commands to the parser's."""
    parser = commands.add_parser(
        "cache",
        allow_abbrev=False,
        help="look after the stored choices",
        description="Looks after stored choices.",
    )
    own = parser.add_subparsers(metavar="COMMAND", required=True)
    listing = own.add_parser(
        "list", parents=[common], allow_abbrev=False, help="list the stored choices, oldest first"
    )
    listing.set_defaults(run=run_list)
    cache_show.add(own, common)
    verify = own.add_parser(
        "verify",
        parents=[common],
        allow_abbrev=False,
        help="check every file; exit status 1 where one can't be relied on",
    )
    verify.set_defaults(run=run_verify)
    prune = own.add_parser(
        "prune",
        parents=[common],
        allow_abbrev=False,
        help="remove old records, and what writers that died left behind",
    )
    prune.add_argument("--keep", metavar="N", type=arguments.count, help="keep at most the newest N records")
    prune.add_argument(
        "--older-than", metavar="AGE", type=arguments.age, help="remove what is older, such as 30d or 12h"
    )
    prune.set_defaults(run=run_prune)


def run_list(args: argparse.Namespace, output: Output) -> int:
    """Runs ``cache list``."""
    directory = cache_directory(args.cache)
    with working("reading records"):
        good, bad = record_files(directory)
    here = identity_here()
    unreadable = [entry for entry in bad if not is_leftover(entry)]
    if output.as_json:
        output.document(
            {
                "directory": directory,
                "records": [_summary(file, here) for file in good],
                "unreadable": _reasons(unreadable),
            }
        )
        return 0
    if good:
        output.show(Ledger(_HEADS, [_row(file, here) for file in good]))
    else:
        output.show(f"No choices are stored in {directory}.")
    if unreadable:
        output.show("", f"{_files(len(unreadable))} can't be relied on; see ort-stacktune cache verify.")
    return 0


def run_verify(args: argparse.Namespace, output: Output) -> int:
    """Runs ``cache verify``."""
    directory = cache_directory(args.cache)
    with working("reading records"):
        good, bad = record_files(directory)
    leftovers = [entry for entry in bad if is_leftover(entry)]
    unreadable = [entry for entry in bad if not is_leftover(entry)]
    if output.as_json:
        output.document(
            {
                "directory": directory,
                "good": len(good),
                "unreadable": _reasons(unreadable),
                "leftovers": _reasons(leftovers),
            }
        )
        return 1 if unreadable else 0
    for title, entries in (("can't be relied on", unreadable), ("left over", leftovers)):
        if entries:
            output.show(f"{_files(len(entries))} {title}:")
            output.show(facts_table((entry.path.name, entry.reason or "") for entry in entries), "")
    output.show(f"{len(good)} of {len(good) + len(unreadable)} records in {directory} are good.")
    return 1 if unreadable else 0


def run_prune(args: argparse.Namespace, output: Output) -> int:
    """Runs ``cache prune``."""
    if args.keep is None and args.older_than is None:
        raise invalid("nothing says what to remove; pass --keep N, --older-than AGE or both")
    directory = cache_directory(args.cache)
    warnings: list[str] = []
    store = opened_store(directory, warnings)
    keep = StackPolicy().capacity if args.keep is None else args.keep
    removed = store.prune(keep=keep, older_than_s=args.older_than)
    for sentence in warnings:
        complain(sentence, "warning")
    if output.as_json:
        output.document({"directory": directory, "removed": removed, "warnings": warnings})
    else:
        output.show(f"Removed {_files(len(removed))} from {directory}.")
    return 1 if warnings else 0


def _row(file: RecordFile, here: str | None) -> LedgerRow:
    record = file.record
    workload = describe_workload(record.report.workload)
    return LedgerRow(
        (
            file.id,
            speedup(record.ratio),
            "yes" if record.verified else "no",
            age_text(time.time() - record.created_s),
            record.scope.name.lower(),
            {None: "unknown", True: "yes", False: "no"}[file.is_current(here)],
        ),
        f"{record.winner} for {model_text(record.report.operation)}: {workload}",
    )


def _summary(file: RecordFile, here: str | None) -> dict[str, Any]:
    record = file.record
    return {
        "id": file.id,
        "path": file.path,
        "operation": record.report.operation,
        "workload": record.report.workload,
        "scope": record.scope,
        "reference": record.reference,
        "winner": record.winner,
        "ratio": record.ratio,
        "verified": record.verified,
        "created_s": record.created_s,
        "environment_is_current": file.is_current(here),
    }


def _reasons(entries: Iterable[StoredEntry]) -> list[dict[str, Any]]:
    return [{"path": entry.path, "reason": entry.reason} for entry in entries]


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"
