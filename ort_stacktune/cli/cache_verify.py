"""Owns the command ``cache verify``: whether files can be relied on, and whether stored winners still hold."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ort_stacktune.cli import arguments
from ort_stacktune.cli.arguments import cache_directory, named
from ort_stacktune.cli.console import Output, complain, working
from ort_stacktune.cli.store import RecordFile, files_text, is_leftover, reasons, record_files, record_id
from ort_stacktune.cli.tables import age_text, facts_table
from ort_stacktune.cli.verifying import Finding, Inputs, Verified, Verifier
from ort_stacktune.failures import invalid
from ort_stacktune.feeds import read_npz
from ort_stacktune.report import Ledger, LedgerRow, model_text, speedup
from ort_stacktune.signature import Array, describe_workload
from ort_stacktune.traffic import read_traffic

_HEADS = ("id", "finding", "speed-up", "age")
_BAD = frozenset((Finding.DROPPED, Finding.FAILED, Finding.NOT_VERIFIED))


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command to the parser's."""
    parser = commands.add_parser(
        "verify",
        parents=[common],
        allow_abbrev=False,
        help="check every file, and the winners of the models given; exit status 1 where one fails",
        description="Checks every file. With models, also validates each of their winners once against the"
        " reference, as serving from disk would, and drops what fails. Options marked * may be given several"
        " times.",
        epilog="A question can be asked again where its session had no other options than --providers and"
        " --threads say, and its candidates were generated.",
    )
    parser.add_argument(
        "models", metavar="MODEL", nargs="*", help="files of models whose winners to validate"
    )
    parser.add_argument(
        "--inputs",
        metavar="FILE.npz",
        action="append",
        default=[],
        help="* arrays by input name, for the signature that they have",
    )
    parser.add_argument("--traffic", metavar="DIR", help="recorded traffic, for the samples of inputs in it")
    parser.add_argument(
        "--fill",
        metavar="INPUT=FILL",
        action="append",
        default=[],
        help="* content of an input without samples, as for tune",
    )
    parser.add_argument("--seed", metavar="N", type=arguments.count, default=0, help="seed of made-up inputs")
    parser.add_argument(
        "--providers",
        metavar="NAME",
        action="append",
        default=[],
        help="* execution provider of the references, in order (default: CPU)",
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=arguments.positive,
        help="threads within an operator of the references (default: ONNX Runtime's)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, output: Output) -> int:
    """Runs the command."""
    directory = cache_directory(args.cache)
    with working("reading records"):
        good, bad = record_files(directory)
    leftovers = [entry for entry in bad if is_leftover(entry)]
    unreadable = [entry for entry in bad if not is_leftover(entry)]
    verified = _verified(args, directory, good)
    failed = bool(unreadable) or any(each.finding in _BAD for each in verified)
    if output.as_json:
        document = {
            "directory": directory,
            "good": len(good),
            "unreadable": reasons(unreadable),
            "leftovers": reasons(leftovers),
        }
        if args.models:
            document["winners"] = [_as_json(each) for each in verified]
        output.document(document)
        return 1 if failed else 0
    for title, entries in (("can't be relied on", unreadable), ("left over", leftovers)):
        if entries:
            output.show(f"{files_text(len(entries))} {title}:")
            output.show(facts_table((entry.path.name, entry.reason or "") for entry in entries), "")
    output.show(f"{len(good)} of {len(good) + len(unreadable)} records in {directory} are good.")
    if args.models:
        _show(output, verified)
    return 1 if failed else 0


def _verified(args: argparse.Namespace, directory: Path, files: Sequence[RecordFile]) -> list[Verified]:
    if not args.models:
        for option in ("inputs", "traffic", "fill", "providers", "threads"):
            if getattr(args, option):
                raise invalid(f"--{option} is for validating winners; name their models")
        return []
    inputs = Inputs(_samples(args), named("--fill", args.fill, arguments.fill), args.seed)
    with working("loading models"):
        verifier = Verifier(directory, args.models, inputs, providers=args.providers, threads=args.threads)
    with working("validating winners"):
        return [verifier.verify(file.record) for file in files]


def _samples(args: argparse.Namespace) -> list[dict[str, Array]]:
    paths = list(args.inputs)
    if args.traffic is not None:
        entries = read_traffic(args.traffic, lambda sentence: complain(sentence, "warning"))
        paths += [str(path) for entry in entries for path in entry.samples[:1]]
    return [read_npz(path) for path in paths]


def _show(output: Output, verified: Sequence[Verified]) -> None:
    if verified:
        output.show("", Ledger(_HEADS, [_row(each) for each in verified]), "")
    counts = {finding: sum(each.finding is finding for each in verified) for finding in Finding}
    words = {
        Finding.HOLDS: "validated",
        Finding.REFERENCE: "the reference itself",
        Finding.DROPPED: "dropped",
        Finding.FAILED: "failed and could not be removed",
        Finding.NOT_VERIFIED: "could not be verified",
        Finding.NOT_ASKED: "not asked",
    }
    told = [f"{counts[finding]} {text}" for finding, text in words.items() if counts[finding]]
    output.show(f"Of {len(verified)} stored winners: {', '.join(told) or 'none'}.")


def _row(verified: Verified) -> LedgerRow:
    record = verified.record
    because = f"; {verified.reason}" if verified.reason else ""
    return LedgerRow(
        (
            record_id(record),
            verified.finding.value,
            speedup(record.ratio),
            age_text(time.time() - record.created_s),
        ),
        f"{record.winner} for {model_text(record.report.operation)}:"
        f" {describe_workload(record.report.workload)}{because}",
        bold=verified.finding in _BAD,
    )


def _as_json(verified: Verified) -> dict[str, Any]:
    record = verified.record
    return {
        "id": record_id(record),
        "finding": verified.finding,
        "reason": verified.reason,
        "winner": record.winner,
        "ratio": record.ratio,
        "operation": record.report.operation,
        "workload": record.report.workload,
    }
