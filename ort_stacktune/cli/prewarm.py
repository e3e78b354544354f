"""Owns the command ``prewarm``: decides all that a manifest names, shows how far it is, and sums it up."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from ort_stacktune.cli.arguments import cache_directory
from ort_stacktune.cli.console import Output, complain, warnings_gathered
from ort_stacktune.cli.running import load_onnxruntime
from ort_stacktune.cli.store import prepared_directory
from ort_stacktune.failures import FailureKind
from ort_stacktune.report import Ledger, LedgerRow, printable, speedup
from ort_stacktune.signature import describe_workload

# What needs onnx is imported where it is used: it takes longer to load than most commands take to run.
if TYPE_CHECKING:
    from ort_stacktune.prewarm.campaign import Campaign, Outcome, Turn

# Each redraw takes time from whatever is being measured meanwhile.
_REDRAW_S = 0.5
_TERMINATED = 143
_INTERRUPTED = 130
_REFERENCE_FAILED = 3
_HEADS = ("model", "status", "speed-up", "rejected", "seconds")
_NOTHING = "-"


class _Terminated(KeyboardInterrupt):
    """The process was asked to end."""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command to the parser's."""
    parser = commands.add_parser(
        "prewarm",
        parents=[common],
        allow_abbrev=False,
        help="decide everything that a manifest names, unattended",
        description="Decides every signature that a manifest names, the heaviest first, each trial in a process"
        " of its own, and stores the choices. It can be interrupted at any point: run again, it goes on with"
        " what is missing.",
        epilog="Exit status: 0 every signature has a stored choice, 1 some have none, 2 the manifest is wrong,"
        " 3 a reference failed.",
    )
    parser.add_argument("manifest", metavar="MANIFEST", help="the manifest, a YAML file")
    parser.add_argument("--check", action="store_true", help="check the manifest and end")
    parser.add_argument(
        "--retry-failed", action="store_true", help="try candidates again that crashed or hung earlier"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, output: Output) -> int:
    """Runs the command."""
    load_onnxruntime()
    from ort_stacktune.prewarm.campaign import Campaign
    from ort_stacktune.prewarm.manifest import read_manifest

    manifest = read_manifest(Path(args.manifest))
    directory = cache_directory(args.cache)
    with _Display() as display, warnings_gathered() as warnings:
        campaign = Campaign(manifest, directory, watch=display.show, retry_failed=args.retry_failed)
        campaign.check()
        # Now, not with the warnings at the end: a night is not to be spent on what nobody can keep.
        for sentence in campaign.unstorable():
            complain(sentence, "warning")
        if args.check:
            return _checked(output, args.manifest, campaign)
        prepared_directory(directory)
        started_s = time.monotonic()
        outcomes, status = _carried_out(campaign, display)
        elapsed_s = time.monotonic() - started_s
    if output.as_json:
        output.document(
            {
                "manifest": args.manifest,
                "cache": directory,
                "elapsed_s": elapsed_s,
                "status": status,
                "outcomes": [_as_document(outcome) for outcome in outcomes],
                "warnings": warnings,
            }
        )
    else:
        _sum_up(output, outcomes, len(campaign.tasks), elapsed_s)
    return status


def _checked(output: Output, manifest: str, campaign: Campaign) -> int:
    total = len(campaign.tasks)
    if output.as_json:
        output.document({"manifest": manifest, "signatures": total})
    else:
        output.show(f"{manifest} is in order: {total} signature{'' if total == 1 else 's'} to decide.")
    return 0


def _carried_out(campaign: Campaign, display: _Display) -> tuple[list[Outcome], int]:
    """Runs a campaign until it ends or is ended, and returns what it reached with the exit status."""
    outcomes: list[Outcome] = []
    with _termination_as_interruption():
        try:
            for outcome in campaign.run():
                outcomes.append(outcome)
                display.finished(outcome, len(outcomes), len(campaign.tasks))
        except KeyboardInterrupt as interruption:
            complain("interrupted; run the same command again to go on", "note")
            return outcomes, _TERMINATED if isinstance(interruption, _Terminated) else _INTERRUPTED
    return outcomes, _status(outcomes)


def _status(outcomes: Sequence[Outcome]) -> int:
    from ort_stacktune.prewarm.campaign import Status

    found = {outcome.status for outcome in outcomes}
    if Status.FAILED in found:
        return _REFERENCE_FAILED
    return 0 if found <= {Status.DECIDED, Status.KNOWN} else 1


@contextmanager
def _termination_as_interruption() -> Iterator[None]:
    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Display:
    """Shows on standard error what is being done: a live line on a terminal, else a line for each outcome."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._drawn_s = 0.0
        self._progress = Progress(
            BarColumn(10),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[left]}"),
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            expand=True,
            console=Console(file=sys.stderr, markup=False, emoji=False, highlight=False),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._bar = self._progress.add_task("", total=1, left="")

    def __enter__(self) -> _Display:
        if self._live:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._progress.stop()

    def show(self, turn: Turn) -> None:
        """Shows what is being done now."""
        now_s = time.monotonic()
        if not self._live or (turn.search is not None and now_s - self._drawn_s < _REDRAW_S):
            return
        self._drawn_s = now_s
        self._progress.update(
            self._bar,
            completed=turn.number,
            total=turn.total,
            left="" if turn.left_s is None else f"{_clock(turn.left_s)} left",
            description=printable(_in_words(turn)),
        )
        self._progress.refresh()

    def finished(self, outcome: Outcome, number: int, total: int) -> None:
        """Says what became of one signature."""
        line = printable(
            f"{number}/{total} {_title(outcome.task)}: {outcome.status.value}"
            f" {_choice(outcome)} ({outcome.seconds:.1f} s) {outcome.note}".rstrip()
        )
        if self._live:
            self._progress.console.print(line, soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)


def _in_words(turn: Turn) -> str:
    parts = [_title(turn.task)]
    if turn.search is None:
        parts.append(turn.doing)
    else:
        # The best comes first: on a narrow terminal the end is cut off.
        parts.append(f"best so far: {turn.search.best} {speedup(turn.search.ratio)}")
        parts.append(f"trying {turn.search.trying}")
    return ", ".join(parts)


def _title(task: Any) -> str:
    entry = task.signature
    if entry.recorded is not None:
        return f"{task.model.path.name} {describe_workload(entry.recorded.workload)}"
    sizes = [f"{name}={size}" for name, size in entry.dims.items()]
    sizes += [f"{name}={'x'.join(map(str, shape)) or 'scalar'}" for name, shape in entry.shapes.items()]
    if entry.inputs is not None:
        sizes.append(entry.inputs.name)
    return " ".join([task.model.path.name, *sizes])


def _choice(outcome: Outcome) -> str:
    decision = outcome.decision
    if decision is None:
        return ""
    return "the reference stays" if decision.is_reference else f"{decision.name} {speedup(decision.ratio)}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _as_document(outcome: Outcome) -> dict[str, Any]:
    entry = outcome.task.signature
    return {
        "model": outcome.task.model.path,
        "line": entry.line,
        "weight": entry.weight,
        "status": outcome.status,
        "note": outcome.note,
        "seconds": outcome.seconds,
        "decision": outcome.decision,
        "report": outcome.report,
    }


def _sum_up(output: Output, outcomes: Sequence[Outcome], total: int, elapsed_s: float) -> None:
    if outcomes:
        in_place = sorted(outcomes, key=lambda outcome: outcome.task.number)
        output.show(Ledger(_HEADS, [_row(outcome) for outcome in in_place]), "")
    for line in _faults(outcomes):
        output.show_whole(line)
    counts = Counter(outcome.status.value for outcome in outcomes)
    missing = total - len(outcomes)
    if missing:
        counts["not reached"] += missing
    output.show(f"{', '.join(f'{n} {name}' for name, n in counts.items())} in {_clock(elapsed_s)}.")


def _row(outcome: Outcome) -> LedgerRow:
    decision, report = outcome.decision, outcome.report
    what = describe_workload(report.workload) if report else _title(outcome.task).partition(" ")[2]
    remarks = [what if decision is None else f"{decision.name} for {what}"]
    if report and report.budget_exhausted:
        remarks.append("the budget ended its search")
    if outcome.note:
        remarks.append(outcome.note)
    rejected = sum(
        candidate.rejection not in (None, FailureKind.UNAVAILABLE)
        for candidate in (report.candidates if report else ())
    )
    return LedgerRow(
        (
            outcome.task.model.path.name,
            outcome.status.value,
            _NOTHING if decision is None or decision.ratio is None else speedup(decision.ratio),
            str(rejected) if rejected else _NOTHING,
            f"{outcome.seconds:.1f}",
        ),
        "; ".join(remarks),
    )


def _faults(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yields a line for each candidate whose process did not survive its trial."""
    for outcome in outcomes:
        for candidate in outcome.report.candidates if outcome.report else ():
            if candidate.fault is not None:
                yield f"{_title(outcome.task)}: {candidate.name}: {candidate.fault.value}: {candidate.note}"
