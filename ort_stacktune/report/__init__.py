"""Owns how evidence reads: the words, tables and pages that say what a search found and why.

Must never decide, measure or leave anything out: every candidate has its line, and a verdict is printed as
it was written. Needs no ONNX Runtime.
"""

from __future__ import annotations

from ort_stacktune.report.table import Ledger, LedgerRow, ordered, report_table
from ort_stacktune.report.words import (
    decision_line,
    duration,
    labelled,
    memory,
    model_text,
    printable,
    seconds,
    speedup,
)

__all__ = [
    "Ledger",
    "LedgerRow",
    "decision_line",
    "duration",
    "labelled",
    "memory",
    "model_text",
    "ordered",
    "printable",
    "report_table",
    "seconds",
    "speedup",
]
