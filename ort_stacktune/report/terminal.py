"""Owns a report on a terminal: the overview and each signature's candidates, drawn with letters.

Must never need more than ASCII where the terminal has no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ort_stacktune.report import words
from ort_stacktune.report.phrases import gain_label, standing, trials, verdict_sentence, why
from ort_stacktune.report.scale import Axis, Span, axis_for, span
from ort_stacktune.report.table import Ledger, LedgerRow
from ort_stacktune.report.view import CandidateView, Overview, ReportView, SignatureView, Standing

_LONGEST_NAME = 30
_STRIP = range(14, 57)
_BESIDE_A_STRIP = 42


@dataclass(frozen=True, slots=True)
class _Signs:
    one: str
    least: str
    bar: str
    crossing: str
    selected: str
    reference: str
    other: str
    failed: str
    left: str
    right: str


_PLAIN = _Signs("|", ":", "-", "+", "@", "o", "*", "x", "<", ">")
_DRAWN = _Signs("│", "┊", "─", "┼", "◆", "○", "●", "×", "‹", "›")


@dataclass(frozen=True, slots=True)
class TerminalReport:
    """A report, to be printed by a rich console of any width.

    Attributes:
        view: What it shows.
    """

    view: ReportView

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields what rich prints."""
        if self.view.overview is None:
            return
        yield Text(overview_text(self.view.overview))
        for signature in self.view.signatures:
            yield Text()
            yield from _signature(signature, options)


def overview_text(overview: Overview) -> str:
    """Returns all searches in a sentence or two."""
    text = (
        f"{words.number_of(overview.signatures, 'signature')} of {words.number_of(overview.models, 'model')}:"
        f" {overview.left_reference} left the reference, geometric mean gain {words.speedup(overview.mean_ratio)},"
        f" best {words.speedup(overview.best.ratio)}, least {words.speedup(overview.least.ratio)}."
    )
    if overview.slowest is not None:
        text += f" The slowest guess would have been {words.gain(overview.slowest.ratio)}."
    return f"{text} {trials(overview)}; searches took {words.long_time(overview.elapsed_ns)}."


def _signature(signature: SignatureView, options: ConsoleOptions) -> Iterator[Text | Ledger]:
    title = f"{signature.model} {signature.digest[:8]}".strip()
    yield Text(words.printable(f"{title}   {signature.signature}"), style="bold")
    yield Text(words.printable(f"{verdict_sentence(signature)}  (record {signature.id})"))
    if costs := _costs(signature):
        yield Text(words.printable(costs))
    longest = min(max(options.max_width - _BESIDE_A_STRIP - _STRIP[0], 1), _LONGEST_NAME)
    names = [words.shortened(each.evidence.name, longest) for each in signature.tried]
    room = options.max_width - max(map(len, names), default=0) - _BESIDE_A_STRIP
    width = min(max(room, _STRIP[0]), _STRIP[-1])
    least = 1.0 if signature.strictness is None else signature.strictness.min_speedup
    timed = [each.evidence for each in signature.candidates if each.evidence.ratio is not None]
    axis = axis_for((span(each.ratio or 1.0, each.interval) for each in timed), least)
    canvas = _Canvas(axis, width, least, _PLAIN if options.ascii_only else _DRAWN)
    rows = [_row(candidate, name, canvas) for candidate, name in zip(signature.tried, names, strict=True)]
    yield Ledger(("candidate", canvas.head(), "gain", "interval", "one run"), rows)
    for group in signature.left_out:
        listed = ", ".join(each.evidence.name for each in group)
        text = f"{standing(group[0])}: {listed}" + (f" ({why(group[0])})" if why(group[0]) else "")
        yield Text(words.printable(text), style="dim")


def _costs(signature: SignatureView) -> str:
    chosen = signature.chosen
    if chosen is None or chosen.evidence.create_ns is None:
        return ""
    evidence = chosen.evidence
    parts = [f"session {words.duration(evidence.create_ns)}"]
    if evidence.first_run_ns is not None:
        parts.append(f"first run {words.duration(evidence.first_run_ns)}")
    if evidence.peak_bytes is not None:
        parts.append(f"memory {words.memory(evidence.peak_bytes)}")
    if "nodes" in evidence.facts:
        parts.append(f"nodes {evidence.facts['nodes']}")
    return f"First costs: {', '.join(parts)}."


def _row(candidate: CandidateView, name: str, canvas: _Canvas) -> LedgerRow:
    evidence = candidate.evidence
    return LedgerRow(
        (
            name,
            canvas.strip(candidate),
            gain_label(candidate) or words.NOTHING,
            words.gain_interval(evidence.interval),
            words.duration(evidence.median_ns),
        ),
        _remark(candidate),
        bold=candidate.standing is Standing.SELECTED,
        dim=candidate.standing is Standing.REJECTED,
    )


def _remark(candidate: CandidateView) -> str:
    written = words.reason(candidate.evidence)
    if candidate.standing is Standing.REFERENCE:
        return why(candidate)
    if written.startswith(standing(candidate)):
        return written
    return f"{standing(candidate)}: {written}"


@dataclass(frozen=True, slots=True)
class _Canvas:
    axis: Axis
    width: int
    least: float
    signs: _Signs

    def head(self) -> str:
        """Returns the words of the axis."""
        line = [" "] * self.width
        for speedup in sorted(self.axis.ticks(), key=lambda each: abs(each - 1)):
            factor = max(speedup, 1 / speedup)
            word = f"{factor:.4g}x"
            start = min(max(self._at(speedup) - len(word) // 2, 0), self.width - len(word))
            around = line[max(start - 1, 0) : start + len(word) + 1]
            if all(sign == " " for sign in around):
                line[start : start + len(word)] = word
        return "".join(line)

    def strip(self, candidate: CandidateView) -> str:
        """Returns a candidate's interval and median between the lines."""
        signs, line = self.signs, [" "] * self.width
        if self.least > 1:
            line[self._at(self.least)] = signs.least
        line[self._at(1.0)] = signs.one
        ratio = candidate.evidence.ratio
        if ratio is not None:
            self._draw(line, candidate, span(ratio, candidate.evidence.interval))
        return "".join(line)

    def _draw(self, line: list[str], candidate: CandidateView, values: Span) -> None:
        middle, low, high = values
        for place in range(self._at(low), self._at(high) + 1):
            line[place] = self.signs.crossing if line[place] == self.signs.one else self.signs.bar
        by_standing = {
            Standing.SELECTED: self.signs.selected,
            Standing.REFERENCE: self.signs.reference,
            Standing.REJECTED: self.signs.failed,
        }
        beyond = {-1: self.signs.left, 1: self.signs.right}.get(self.axis.beyond(middle))
        line[self._at(middle)] = beyond or by_standing.get(candidate.standing, self.signs.other)

    def _at(self, speedup: float) -> int:
        return round(self.axis.place(speedup) * (self.width - 1))
