"""Owns how a search's evidence reads: the table of its candidates and the sentence of its decision.

Must never decide, measure or leave anything out: every candidate has its line, and a verdict is printed as
it was written. Needs no ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ort_stacktune.vocabulary import CandidateReport, Decision, DecisionSource, TuneReport

_WIDE = 110
"""Columns from which the verdict stands beside the numbers; in narrower places it stands below them."""

_HEADS = ("candidate", "speed-up", "time", "spread", "interval", "pairs", "verified")
_NOTHING = "-"
_TINY_GAIN = 0.1


def report_table(report: TuneReport, reference: str = "reference") -> RenderableType:
    """Returns the evidence of a search, to be printed by a rich console of any width.

    ``speed-up`` is the reference's time over the candidate's in median, ``interval`` its confidence interval,
    ``spread`` the median absolute deviation of the pairs over their median.

    Args:
        report: The evidence.
        reference: The reference's name.
    """
    return _ReportTable(report, reference)


@dataclass(frozen=True, slots=True)
class _ReportTable:
    report: TuneReport
    reference: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width >= _WIDE:
            yield self._wide()
        else:
            yield self._narrow()

    def _wide(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for head in _HEADS:
            table.add_column(head, justify="left" if head == "candidate" else "right", no_wrap=True)
        table.add_column("verdict", ratio=1)
        for candidate, verdict in _verdicts(self.report, self.reference):
            style = "bold" if candidate.name == self.report.winner else ""
            # As Text, because a console may read brackets in a plain string as markup.
            cells = (*_cells(candidate), verdict)
            table.add_row(*(Text(printable(cell)) for cell in cells), style=style)
        return table

    def _narrow(self) -> Ledger:
        return Ledger(
            _HEADS,
            [
                LedgerRow(_cells(candidate), verdict, bold=candidate.name == self.report.winner)
                for candidate, verdict in _verdicts(self.report, self.reference)
            ],
        )


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A line of a ledger.

    Attributes:
        cells: Short texts, as many as there are heads.
        remark: Longer text.
        bold: Whether it stands out.
    """

    cells: tuple[str, ...]
    remark: str
    bold: bool = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """Lines of short aligned cells, each with its longer remark below it.

    Rich's tables can't let a cell span columns, and a remark that is squeezed in beside the cells on a narrow
    terminal becomes one word a line.

    Attributes:
        heads: Column heads; the first column is aligned to the left, all others to the right.
        rows: The lines.
    """

    heads: tuple[str, ...]
    rows: Sequence[LedgerRow]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields what rich prints."""
        lines = [self.heads, *(row.cells for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        yield Text(_aligned(self.heads, widths), style="bold")
        for row in self.rows:
            style = "bold" if row.bold else ""
            yield Text(_aligned(row.cells, widths), style=style)
            yield Padding(Text(printable(row.remark), style=style), (0, 0, 0, 4))


def ordered(report: TuneReport, reference: str = "reference") -> list[CandidateReport]:
    """Returns the candidates for reading: the winner, the reference, then by ratio, the untimed last."""

    def place(candidate: CandidateReport) -> tuple[int, float]:
        if candidate.name in (report.winner, reference):
            return (0 if candidate.name == report.winner else 1, 0.0)
        return (3, 0.0) if candidate.ratio is None else (2, candidate.ratio)

    return sorted(report.candidates, key=place)


def decision_line(decision: Decision, report: TuneReport | None = None, *, age: str = "") -> str:
    """Returns what was decided and how it is known, in one sentence.

    Args:
        decision: The decision.
        report: The evidence behind it, where there is any.
        age: For a choice from the disk, how old it is, such as ``5 min``.
    """
    if decision.source is DecisionSource.TUNED:
        known = f"found in {seconds(report.elapsed_ns)}" if report is not None else "found just now"
    elif decision.source is DecisionSource.DISK_CACHE:
        checked = "" if decision.is_reference else " and validated again in this process"
        known = f"from the disk cache, found {age or 'some time'} ago{checked}"
    else:
        known = f"source: {decision.source.value}"
    if decision.ratio is None:
        return f"{decision.name} serves, nothing was measured ({known})."
    if decision.is_reference:
        spent = report is not None and report.budget_exhausted
        why = "the budget ended before a candidate had won" if spent else "no candidate won"
        return f"{decision.name} stays: {why} ({known})."
    checked = "its outputs agree" if decision.verified else "its outputs were NOT checked"
    return f"{decision.name} wins: {speedup(decision.ratio)} as fast as the reference, {checked} ({known})."


def speedup(ratio: float | None) -> str:
    """Returns a ratio of times as a speed-up, such as ``1.25x`` for 0.8."""
    if ratio is None:
        return _NOTHING
    gain = 1 / ratio
    return f"{gain:.2f}x" if gain >= _TINY_GAIN else f"{gain:.2g}x"


def seconds(elapsed_ns: int) -> str:
    """Returns a duration of a search, in seconds."""
    return f"{elapsed_ns / 1e9:.1f} s"


def duration(elapsed_ns: int | None) -> str:
    """Returns the duration of a run with three digits, such as ``1.58 ms``."""
    if elapsed_ns is None:
        return _NOTHING
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if elapsed_ns >= size:
            return f"{elapsed_ns / size:#.3g} {unit}".replace(". ", " ")
    return f"{elapsed_ns} ns"


def printable(text: str) -> str:
    """Returns text in which nothing can steer a terminal: names come from models and files of others."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _verdicts(report: TuneReport, reference: str) -> Iterator[tuple[CandidateReport, str]]:
    """Yields each candidate with why it won, lost or was left out, and where its nodes ran.

    The nodes of a candidate are named where they ran elsewhere than the reference's.
    """
    usual = next((each.facts.get("nodes") for each in report.candidates if each.name == reference), None)
    for candidate in ordered(report, reference):
        parts = [candidate.note or candidate.verdict]
        nodes = candidate.facts.get("nodes")
        if nodes is not None and (nodes != usual or candidate.name == reference):
            parts.append(f"nodes: {nodes}")
        kind = "" if candidate.rejection is None else f"{candidate.rejection.value}: "
        yield candidate, kind + "; ".join(parts)


def _cells(candidate: CandidateReport) -> tuple[str, ...]:
    interval, spread = candidate.interval, candidate.relative_mad
    tried = candidate.samples or candidate.verified or candidate.rejection is not None
    return (
        candidate.name,
        speedup(candidate.ratio),
        duration(candidate.median_ns),
        # One pair has no spread; it would read as none at all.
        _NOTHING if spread is None or candidate.samples < 2 else f"{spread:.2f}",
        # The bounds change places: what is low as a ratio of times is high as a speed-up.
        _NOTHING if interval is None else f"{1 / interval[1]:.2f}-{1 / interval[0]:.2f}",
        str(candidate.samples) if candidate.samples else _NOTHING,
        ("yes" if candidate.verified else "no") if tried else _NOTHING,
    )


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    texts = map(printable, cells)
    name, *numbers = zip(texts, widths, strict=True)
    return "  ".join([name[0].ljust(name[1]), *(cell.rjust(width) for cell, width in numbers)])
