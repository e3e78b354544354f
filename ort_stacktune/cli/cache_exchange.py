"""Owns the commands ``cache export`` and ``cache import``: stored choices as one file, out and in."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ort_stacktune.cli.arguments import cache_directory
from ort_stacktune.cli.console import Output, complain, working
from ort_stacktune.cli.differences import difference_from_here
from ort_stacktune.cli.store import (
    is_leftover,
    opened_store,
    prepared_directory,
    reasons,
    record_files,
    record_id,
)
from ort_stacktune.cli.tables import age_text
from ort_stacktune.failures import invalid
from ort_stacktune.policy import StackPolicy
from ort_stacktune.report import Ledger, LedgerRow, model_text, speedup
from ort_stacktune.signature import describe_workload
from ort_stacktune.store import Record
from ort_stacktune.store.bundle import read_bundle, write_bundle
from ort_stacktune.store.merge import Fate, Merged, merge, pairs_behind

_HEADS = ("id", "stays", "pairs here", "pairs in bundle", "age here", "age in bundle")

_WORDS = {
    Fate.ADDED: "new",
    Fate.BETTER: "with better evidence for the same winner",
    Fate.WON: "with better evidence for another winner",
    Fate.SAME: "here already",
    Fate.WORSE: "with no better evidence for the same winner",
    Fate.LOST: "with no better evidence for another winner",
}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the commands to the parser's."""
    parser = commands.add_parser(
        "export",
        parents=[common],
        allow_abbrev=False,
        help="write all stored choices into one file, to be imported elsewhere",
        description="Writes all stored choices into one file, a bundle. Equal choices give equal bytes.",
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="the file to write")
    parser.set_defaults(run=run_export)
    parser = commands.add_parser(
        "import",
        parents=[common],
        allow_abbrev=False,
        help="bring the choices of a bundle in; exit status 1 where another winner was here",
        description="Brings the choices of a bundle in, all or none. Of two answers to one question the one"
        " with more timed pairs stays, then the newer one; an answer too old for a policy of default ttl_s"
        " gives way. Choices of another environment are kept, and never serve here.",
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="a file that cache export wrote")
    parser.set_defaults(run=run_import)


def run_export(args: argparse.Namespace, output: Output) -> int:
    """Runs ``cache export``."""
    directory = cache_directory(args.cache)
    with working("reading records"):
        good, bad = record_files(directory)
    unreadable = [entry for entry in bad if not is_leftover(entry)]
    for entry in unreadable:
        complain(f"{entry.path} is left out because {entry.reason}", "warning")
    if not good:
        raise invalid(f"there is nothing to export: no choices are stored in {directory}")
    path = _path(args.bundle)
    with working("writing the bundle"):
        size = write_bundle(path, (file.record for file in good))
    if output.as_json:
        output.document(
            {
                "bundle": path,
                "directory": directory,
                "records": len(good),
                "bytes": size,
                "unreadable": reasons(unreadable),
            }
        )
    else:
        output.show_whole(f"Exported {_records(len(good))} from {directory}.")
        output.show_whole(f"Written to {path}, {size} bytes")
    return 1 if unreadable else 0


def run_import(args: argparse.Namespace, output: Output) -> int:
    """Runs ``cache import``."""
    directory = cache_directory(args.cache)
    path = _path(args.bundle)
    with working("reading the bundle"):
        records = read_bundle(path)
    prepared_directory(directory)
    warnings: list[str] = []
    store = opened_store(directory, warnings)
    with working("importing"):
        merged = merge(store, records, time.time())
    conflicts = [each for each in merged if each.conflict]
    elsewhere = _elsewhere(records)
    stale = sum(not 0 <= time.time() - each.created_s <= StackPolicy().ttl_s for each in records)
    if output.as_json:
        output.document(
            {
                "bundle": path,
                "directory": directory,
                "records": len(records),
                "counts": {fate.name: sum(each.fate is fate for each in merged) for fate in Fate},
                "merged": [_as_json(each) for each in merged],
                "other_environments": None
                if elsewhere is None
                else [{"records": number, "first_difference": why} for why, number in elsewhere],
                "stale": stale,
            }
        )
        return 1 if conflicts else 0
    _show(output, path, directory, merged, elsewhere, stale)
    return 1 if conflicts else 0


def _show(
    output: Output,
    path: Path,
    directory: Path,
    merged: Sequence[Merged],
    elsewhere: list[tuple[str, int]] | None,
    stale: int,
) -> None:
    taken = sum(each.taken for each in merged)
    output.show_whole(f"Imported {taken} of {_records(len(merged))} from {path} into {directory}.")
    for fate, words in _WORDS.items():
        if number := sum(each.fate is fate for each in merged):
            output.show(f"  {number} {words}")
    conflicts = [each for each in merged if each.conflict]
    if conflicts:
        output.show("", "Another winner was here for the same question:")
        output.show(Ledger(_HEADS, [_row(each) for each in conflicts]))
    if elsewhere is None:
        output.show("", "Whether they serve here is unknown: no ONNX Runtime can be loaded.")
    elif elsewhere:
        output.show("", "Of another environment, so that they never serve here:")
        for why, number in elsewhere:
            output.show(f"  {_records(number)}: {why}")
    if stale:
        days = StackPolicy().ttl_s / 86400
        output.show(
            "",
            f"{_records(stale)} not of the last {days:g} days: only a policy with a longer ttl_s uses them.",
        )


def _row(merged: Merged) -> LedgerRow:
    record, here = merged.record, merged.here
    assert here is not None
    now_s = time.time()
    return LedgerRow(
        (
            record_id(record),
            "bundle's" if merged.taken else "the one here",
            str(pairs_behind(here)),
            str(pairs_behind(record)),
            age_text(now_s - here.created_s),
            age_text(now_s - record.created_s),
        ),
        f"here {here.winner} {speedup(here.ratio)}, in the bundle {record.winner} {speedup(record.ratio)},"
        f" for {model_text(record.report.operation)}: {describe_workload(record.report.workload)}",
    )


def _as_json(merged: Merged) -> dict[str, Any]:
    return {
        "id": record_id(merged.record),
        "fate": merged.fate,
        "winner": merged.record.winner,
        "ratio": merged.record.ratio,
        "pairs": pairs_behind(merged.record),
        "here": None
        if merged.here is None
        else {
            "winner": merged.here.winner,
            "ratio": merged.here.ratio,
            "pairs": pairs_behind(merged.here),
        },
    }


def _elsewhere(records: Sequence[Record]) -> list[tuple[str, int]] | None:
    """Returns why records are of other environments, with their numbers; ``None`` where nobody can tell."""
    found: Counter[str] = Counter()
    try:
        for record in records:
            if (differs := difference_from_here(record)) is not None:
                found[differs.words("here", "there")] += 1
    except ImportError:
        return None
    return found.most_common()


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise invalid(f"the bundle is {text!r}; expected the path of a file")
    return Path(text).absolute()


def _records(number: int) -> str:
    return "1 record" if number == 1 else f"{number} records"
