"""Owns the command ``tune``: finds and stores who serves one model for one signature, and shows why."""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_stacktune.cli import arguments
from ort_stacktune.cli.arguments import cache_directory, named
from ort_stacktune.cli.console import Output, warnings_gathered, working
from ort_stacktune.cli.running import checked_outputs, declared, open_model
from ort_stacktune.cli.store import prepared_directory
from ort_stacktune.cli.tables import age_text, facts_table
from ort_stacktune.feeds import FILLS, FeedRequest, make_feeds, read_npz
from ort_stacktune.policy import StackPolicy
from ort_stacktune.report import decision_line, report_table
from ort_stacktune.signature import describe_workload
from ort_stacktune.store import Record, RecordStore
from ort_stacktune.tuner import StackTuner
from ort_stacktune.vocabulary import Decision, Tolerance, TuneReport


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command to the parser's."""
    parser = commands.add_parser(
        "tune",
        parents=[common],
        allow_abbrev=False,
        help="find and store the fastest way to run a model",
        description="Finds by experiment the fastest way to run a model for one input signature, checks its"
        " outputs against the plain session's, and stores the choice. What is not known of the inputs is"
        " asked for by name.",
        epilog="An application finds the stored choice if its session has the same model, providers and"
        " options, its request the same signature, and its policy the same strictness.",
    )
    parser.add_argument("model", metavar="MODEL", help="the model's file")
    _add_inputs(parser.add_argument_group("inputs", "options marked * may be given several times"))
    _add_reference(parser.add_argument_group("reference"))
    _add_policy(parser.add_argument_group("search"))
    parser.set_defaults(run=run)


def _add_inputs(group: Any) -> None:
    group.add_argument("--inputs", metavar="FILE.npz", help="arrays by input name; they come before all else")
    group.add_argument(
        "--dim", metavar="NAME=SIZE", action="append", default=[], help="* size of a named dimension"
    )
    group.add_argument(
        "--shape",
        metavar="INPUT=1x3x48x320",
        action="append",
        default=[],
        help="* shape of an input; scalar for none",
    )
    group.add_argument(
        "--fill",
        metavar="INPUT=FILL",
        action="append",
        default=[],
        help=f"* content of an input: a number, {', '.join(FILLS)} (default for floating inputs: normal;"
        " others are asked for)",
    )
    group.add_argument(
        "--output", metavar="NAME", action="append", default=[], help="* output wanted (default: all)"
    )


def _add_reference(group: Any) -> None:
    group.add_argument(
        "--providers",
        metavar="NAME",
        action="append",
        default=[],
        help="* execution provider of the reference, in order (default: CPU)",
    )
    group.add_argument(
        "--threads",
        metavar="N",
        type=arguments.positive,
        help="threads within an operator of the reference (default: ONNX Runtime's)",
    )


def _add_policy(group: Any) -> None:
    policy = StackPolicy()
    for option, read, metavar, text in (
        ("--budget", arguments.number, "SECONDS", f"time for the search (default: {policy.budget_s:g})"),
        (
            "--confidence",
            arguments.number,
            "P",
            "chance that a search over equally fast candidates promotes none"
            f" (default: {policy.confidence:g})",
        ),
        (
            "--min-speedup",
            arguments.number,
            "X",
            f"least gain worth leaving the reference for (default: {policy.min_speedup:g})",
        ),
        (
            "--tolerance",
            arguments.tolerance,
            "ABS,REL",
            "how far outputs may differ"
            f" (default: {policy.tolerance.absolute:g},{policy.tolerance.relative:g})",
        ),
        (
            "--reduced-precision",
            arguments.words,
            "P,...",
            "what candidates may compute in below the reference's precision, of tf32, bf16, fp16, int8"
            " (default: none)",
        ),
        ("--seed", arguments.count, "N", "seed of generated inputs and of the order of trials"),
    ):
        group.add_argument(option, metavar=metavar, type=read, help=text)


def run(args: argparse.Namespace, output: Output) -> int:
    """Runs the command."""
    request = FeedRequest(
        dims=named("--dim", args.dim, arguments.size),
        shapes=named("--shape", args.shape, arguments.shape),
        fills=named("--fill", args.fill, arguments.fill),
        arrays={} if args.inputs is None else read_npz(args.inputs),
        seed=args.seed or 0,
    )
    directory = cache_directory(args.cache)
    coin = None if args.seed is None else random.Random(args.seed)
    tuner = StackTuner(_policy(args), directory, coin=coin)
    with warnings_gathered() as warnings:
        with working(f"loading {Path(args.model).name}"):
            session = open_model(
                args.model,
                tuner,
                providers=args.providers,
                threads=args.threads,
                reduced_precision=args.reduced_precision or (),
            )
        inputs, overridable = declared(session, args.model)
        outputs = checked_outputs(session, args.output)
        feeds = make_feeds(inputs, request, overridable)
        prepared_directory(directory)
        with working("searching", tuner.policy.budget_s):
            decision = session.tune(feeds, outputs)
        report = session.report(feeds, outputs)
        kept = _kept(directory, decision, report, warnings)
    if output.as_json:
        output.document(
            {
                "model": args.model,
                "decision": decision,
                "report": report,
                "stored": kept.path,
                "not_stored": kept.why_not,
                "warnings": warnings,
            }
        )
    else:
        _show(output, args.model, decision, report, kept)
    return 0


@dataclass(frozen=True, slots=True)
class _Kept:
    """Where a decision was stored, or why not."""

    path: Path | None
    record: Record | None
    why_not: str | None


def _policy(args: argparse.Namespace) -> StackPolicy:
    given = {
        "budget_s": args.budget,
        "confidence": args.confidence,
        "min_speedup": args.min_speedup,
        "tolerance": None if args.tolerance is None else Tolerance(*args.tolerance),
    }
    return StackPolicy(**{name: value for name, value in given.items() if value is not None})


def _kept(directory: Path, decision: Decision, report: TuneReport | None, warnings: list[str]) -> _Kept:
    store = RecordStore(directory, warn=lambda _: None)
    record = store.get(decision.cache_key)
    # Under this key may still lie an earlier choice that could not be replaced.
    if record is not None and record.report == report:
        return _Kept(store.path_of(decision.cache_key), record, None)
    return _Kept(None, None, _why_not(decision, warnings))


def _why_not(decision: Decision, warnings: list[str]) -> str:
    from ort_stacktune.environment import describe, runtime_environment

    if not runtime_environment().persistent:
        gaps = describe()["choices can be stored"].removeprefix("no: ")
        return f"this environment can't be identified: {gaps}"
    if not decision.verified:
        return "nothing was verified"
    return "; ".join(warnings) or "the cache could not be written"


def _show(output: Output, model: str, decision: Decision, report: TuneReport | None, kept: _Kept) -> None:
    facts = [("model", model)]
    if report is not None:
        facts.append(("signature", describe_workload(report.workload)))
    output.show(facts_table(facts), "")
    if report is not None:
        output.show(report_table(report), "")
    age = "" if kept.record is None else age_text(time.time() - kept.record.created_s)
    output.show(decision_line(decision, report, age=age))
    if report is not None and report.budget_exhausted:
        output.show("The budget ended the search early; give it more with --budget SECONDS.")
    if kept.path is not None:
        output.show_whole(f"Stored in {kept.path}")
    else:
        output.show(f"Not stored: {kept.why_not}.")
