"""Owns the command ``cache``: what is stored, and how old records leave; its other commands have modules."""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ort_stacktune.cli import arguments, cache_diff, cache_exchange, cache_show, cache_verify
from ort_stacktune.cli.arguments import cache_directory
from ort_stacktune.cli.console import Output, complain, working
from ort_stacktune.cli.store import RecordFile, files_text, is_leftover, opened_store, reasons, record_files
from ort_stacktune.cli.tables import age_text
from ort_stacktune.failures import TuneFailure, invalid
from ort_stacktune.identity import parse_fields
from ort_stacktune.policy import StackPolicy
from ort_stacktune.report import Ledger, LedgerRow, model_text, speedup
from ort_stacktune.signature import describe_workload

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
    cache_verify.add(own, common)
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
    cache_exchange.add(own, common)
    cache_diff.add(own, common)


def run_list(args: argparse.Namespace, output: Output) -> int:
    """Runs ``cache list``."""
    directory = cache_directory(args.cache)
    with working("reading records"):
        good, bad = record_files(directory)
    unreadable = [entry for entry in bad if not is_leftover(entry)]
    if output.as_json:
        output.document(
            {
                "directory": directory,
                "records": [_summary(file) for file in good],
                "unreadable": reasons(unreadable),
            }
        )
        return 0
    if good:
        output.show(Ledger(_HEADS, [_row(file) for file in good]))
    else:
        output.show(f"No choices are stored in {directory}.")
    if unreadable:
        output.show("", f"{files_text(len(unreadable))} can't be relied on; see ort-stacktune cache verify.")
    return 0


def run_prune(args: argparse.Namespace, output: Output) -> int:
    """Runs ``cache prune``."""
    if args.keep is None and args.older_than is None:
        raise invalid("nothing says what to remove; pass --keep N, --older-than AGE or both")
    directory = cache_directory(args.cache)
    warnings: list[str] = []
    store = opened_store(directory, warnings)
    keep = StackPolicy().capacity if args.keep is None else args.keep
    removed = store.prune(keep=keep, older_than_s=args.older_than)
    emptied = _prune_ep_caches(directory)
    for sentence in warnings:
        complain(sentence, "warning")
    if output.as_json:
        output.document(
            {"directory": directory, "removed": removed, "ep_caches_removed": emptied, "warnings": warnings}
        )
    else:
        output.show(f"Removed {files_text(len(removed))} from {directory}.")
        if emptied:
            output.show(f"Removed what execution providers kept for {emptied} candidates that nothing needs.")
    return 1 if warnings else 0


def _prune_ep_caches(directory: Path) -> int:
    from ort_stacktune.ort.ep_caches import prune_ep_caches

    good, _ = record_files(directory)
    live = set()
    for file in good:
        with suppress(TuneFailure, ValueError, IndexError):
            digest = parse_fields(file.record.report.operation)[-1]
            live.add((digest, file.record.report.environment))
    return prune_ep_caches(directory, live, time.time())


def _row(file: RecordFile) -> LedgerRow:
    record = file.record
    workload = describe_workload(record.report.workload)
    return LedgerRow(
        (
            file.id,
            speedup(record.ratio),
            "yes" if record.verified else "no",
            age_text(time.time() - record.created_s),
            record.scope.name.lower(),
            {None: "unknown", True: "yes", False: "no"}[file.is_current],
        ),
        f"{record.winner} for {model_text(record.report.operation)}: {workload}",
    )


def _summary(file: RecordFile) -> dict[str, Any]:
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
        "environment_is_current": file.is_current,
    }
