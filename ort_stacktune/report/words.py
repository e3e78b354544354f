"""Owns the words and numbers in which evidence is told, the same on a terminal and on a page. Pure.

Must never judge: a verdict and a note are told as they were written.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from ort_stacktune.failures import TuneFailure
from ort_stacktune.identity import parse_fields
from ort_stacktune.vocabulary import CandidateReport, Decision, DecisionSource, TuneReport

NOTHING = "-"
SAME = "no faster"

_TINY_GAIN = 0.1
_ELLIPSIS = "..."


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
        return NOTHING
    faster = 1 / ratio
    return times(faster) if faster >= _TINY_GAIN else f"{faster:.2g}x"


def gain(ratio: float) -> str:
    """Returns a ratio of times as people say it: ``1.25x faster``, ``3.10x slower`` or ``no faster``."""
    if f"{ratio:.2f}" == "1.00" or f"{1 / ratio:.2f}" == "1.00":
        return SAME
    return f"{times(1 / ratio)} faster" if ratio < 1 else f"{times(ratio)} slower"


def times(factor: float) -> str:
    """Returns a factor with about three digits, such as ``1.42x`` or ``400x``."""
    return f"{_three_digits(factor)}x"


def gain_interval(interval: tuple[float, float] | None) -> str:
    """Returns an interval of ratios as one of speed-ups, such as ``1.38-1.47``."""
    # The bounds change places: what is low as a ratio of times is high as a speed-up.
    return NOTHING if interval is None else f"{1 / interval[1]:.2f}-{1 / interval[0]:.2f}"


def seconds(elapsed_ns: int) -> str:
    """Returns a duration of a search, in seconds."""
    return f"{elapsed_ns / 1e9:.1f} s"


def long_time(elapsed_ns: int) -> str:
    """Returns a duration of many searches, such as ``2 min 14 s``."""
    whole = round(elapsed_ns / 1e9)
    if whole < 60:
        return seconds(elapsed_ns)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def duration(elapsed_ns: int | None) -> str:
    """Returns the duration of a run with three digits, such as ``1.58 ms``."""
    if elapsed_ns is None:
        return NOTHING
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        # What would round up to 1000 of the smaller unit is 1.00 of this one.
        if elapsed_ns >= 0.9995 * size:
            return f"{_three_digits(elapsed_ns / size)} {unit}"
    return f"{elapsed_ns} ns"


def memory(peak_bytes: int | None) -> str:
    """Returns an amount of memory, such as ``17.0 MiB``."""
    return NOTHING if peak_bytes is None else f"{peak_bytes / 2**20:.1f} MiB"


def utc(created_s: float) -> str:
    """Returns a Unix time as a date in UTC, such as ``2026-03-01T12:00:00Z``."""
    try:
        return datetime.fromtimestamp(int(created_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return "a date out of range"


def failure_kind(candidate: CandidateReport) -> str:
    """Returns what kind of failure ended a candidate, such as ``rejected, time-out``; empty for none."""
    if candidate.rejection is None:
        return ""
    fault = "" if candidate.fault is None else f", {candidate.fault.value}"
    return candidate.rejection.value + fault


def reason(candidate: CandidateReport) -> str:
    """Returns why a candidate won, lost or was left out, as it was written."""
    return candidate.note or candidate.verdict


def model_name(operation: str) -> tuple[str, str]:
    """Returns a problem's operation as the model's name and its digest; the whole text where it is no model."""
    try:
        kind, name, digest = parse_fields(operation)
    except (TuneFailure, ValueError):
        return operation, ""
    return (name or "unnamed", digest) if kind == "onnx" else (operation, "")


def model_text(operation: str) -> str:
    """Returns a problem's operation as people write it: the model's name and the start of its digest."""
    name, digest = model_name(operation)
    return f"{name} {digest[:8]}" if digest else name


def labelled(text: str) -> list[tuple[str, str]]:
    """Takes identity text of labels and values apart; text of another make is one value."""
    try:
        parts = parse_fields(text)
    except (TuneFailure, ValueError):
        parts = []
    if not parts or len(parts) % 2:
        return [("", text)]
    return list(zip(parts[::2], parts[1::2], strict=True))


def printable(text: str) -> str:
    """Returns text in which nothing can steer a terminal or the order of a line: names come from others."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, most: int) -> str:
    """Returns text of at most so many characters; what is left out is in its middle."""
    if len(text) <= most:
        return text
    head = (most - len(_ELLIPSIS) + 1) // 2
    tail = most - len(_ELLIPSIS) - head
    return f"{text[:head]}{_ELLIPSIS}{text[len(text) - tail :]}"


def number_of(count: int, thing: str) -> str:
    """Returns a count with its noun, such as ``1 model`` or ``3 models``."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _three_digits(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"
