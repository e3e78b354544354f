"""Owns the tables and the words that several commands print alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from ort_stacktune.report import printable

_AGES = (("d", 86400), ("h", 3600), ("min", 60))


def plain_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> Table:
    """Returns a table without lines.

    Args:
        heads: Column heads.
        rows: Rows of as many cells.
        right: Heads of the columns that are aligned to the right.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    return table


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Returns labels with their texts, one a line."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for label, text in facts:
        table.add_row(printable(label), printable(text))
    return table


def age_text(age_s: float) -> str:
    """Returns an age in its largest whole unit, such as ``5 min``."""
    if age_s < 0:
        return "in the future"
    for unit, size in _AGES:
        if age_s >= size:
            return f"{age_s // size:.0f} {unit}"
    return f"{age_s:.0f} s"
