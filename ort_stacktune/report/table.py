"""Owns the evidence of one search as lines on a terminal, and the ledger that such lines are set in.

Must never assume a width: what does not fit beside the numbers stands below them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ort_stacktune.report.words import (
    NOTHING,
    duration,
    failure_kind,
    gain_interval,
    printable,
    reason,
    speedup,
)
from ort_stacktune.vocabulary import CandidateReport, TuneReport

_WIDE = 110
"""Columns from which the verdict stands beside the numbers; in narrower places it stands below them."""

_HEADS = ("candidate", "speed-up", "time", "spread", "interval", "pairs", "verified")


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
        remark: Longer text; none where it is empty.
        bold: Whether it stands out.
        dim: Whether it stands back.
    """

    cells: tuple[str, ...]
    remark: str
    bold: bool = False
    dim: bool = False


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
        lines = [[*map(printable, cells)] for cells in (self.heads, *(row.cells for row in self.rows))]
        widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
        yield Text(_aligned(lines[0], widths), style="bold")
        for row, cells in zip(self.rows, lines[1:], strict=True):
            style = "bold" if row.bold else "dim" if row.dim else ""
            yield Text(_aligned(cells, widths), style=style)
            if row.remark:
                yield Padding(Text(printable(row.remark), style=style), (0, 0, 0, 4))


def ordered(report: TuneReport, reference: str = "reference") -> list[CandidateReport]:
    """Returns the candidates for reading: the winner, the reference, then by ratio, the untimed last."""

    def place(candidate: CandidateReport) -> tuple[int, float]:
        if candidate.name in (report.winner, reference):
            return (0 if candidate.name == report.winner else 1, 0.0)
        return (3, 0.0) if candidate.ratio is None else (2, candidate.ratio)

    return sorted(report.candidates, key=place)


def _verdicts(report: TuneReport, reference: str) -> Iterator[tuple[CandidateReport, str]]:
    """Yields each candidate with why it won, lost or was left out, and where its nodes ran.

    The nodes of a candidate are named where they ran elsewhere than the reference's.
    """
    usual = next((each.facts.get("nodes") for each in report.candidates if each.name == reference), None)
    for candidate in ordered(report, reference):
        parts = [reason(candidate)]
        nodes = candidate.facts.get("nodes")
        if nodes is not None and (nodes != usual or candidate.name == reference):
            parts.append(f"nodes: {nodes}")
        kind = failure_kind(candidate)
        yield candidate, (f"{kind}: " if kind else "") + "; ".join(parts)


def _cells(candidate: CandidateReport) -> tuple[str, ...]:
    spread = candidate.relative_mad
    tried = candidate.samples or candidate.verified or candidate.rejection is not None
    return (
        candidate.name,
        speedup(candidate.ratio),
        duration(candidate.median_ns),
        # One pair has no spread; it would read as none at all.
        NOTHING if spread is None or candidate.samples < 2 else f"{spread:.2f}",
        gain_interval(candidate.interval),
        str(candidate.samples) if candidate.samples else NOTHING,
        ("yes" if candidate.verified else "no") if tried else NOTHING,
    )


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    # Counted in columns of the terminal: some letters take two.
    name, *numbers = [
        (cell, " " * (width - cell_len(cell))) for cell, width in zip(cells, widths, strict=True)
    ]
    return "  ".join([name[0] + name[1], *(room + cell for cell, room in numbers)])
