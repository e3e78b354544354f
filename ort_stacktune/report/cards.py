"""Owns the part of a page that shows one signature: its verdict, its candidates on an axis, and all figures."""

from __future__ import annotations

from collections.abc import Iterable

from ort_stacktune.report import phrases, svg, words
from ort_stacktune.report.markup import Child, Markup, element, joined
from ort_stacktune.report.scale import axis_for, span
from ort_stacktune.report.view import CandidateView, SignatureView, Standing

_GLYPHS = {
    Standing.SELECTED: "✓",
    Standing.REFERENCE: "○",
    Standing.PASSED: "✓",
    Standing.NOT_FASTER: "−",
    Standing.UNDECIDED: "?",
    Standing.REJECTED: "✕",
    Standing.NOT_TRIED: "·",
}
_FIGURES = (
    "candidate",
    "one run",
    "interval",
    "spread",
    "pairs",
    "outputs agree",
    "session",
    "first run",
    "other shape",
    "memory",
    "repaid after",
    "nodes",
)


def card(signature: SignatureView, environment: str) -> Markup:
    """Returns the part for one signature.

    Args:
        signature: What to show.
        environment: Letter of its environment; empty where there is only one.
    """
    title = element(
        "h3",
        element(
            "a",
            name(phrases.signature_text(signature), phrases.LONGEST_SIGNATURE),
            href=f"#{anchor(signature)}",
        ),
    )
    return element(
        "article",
        element(
            "header",
            title,
            element("p", phrases.typeset(phrases.verdict_sentence(signature)), class_="verdict"),
        ),
        _glance(signature, environment),
        _plot(signature),
        _details(signature),
        id=anchor(signature),
        class_="card left" if signature.left_reference else "card",
    )


def anchor(signature: SignatureView) -> str:
    """Returns the name of a signature's part, for links."""
    return f"s-{signature.id}"


def name(text: str, most: int = phrases.LONGEST_NAME) -> Markup:
    """Returns a name of somebody's choice, shortened where it is long, so that it can't disturb its line."""
    short = words.shortened(text, most)
    return element("bdi", short, title=None if short == text else text)


def pairs(entries: Iterable[tuple[str, Child]], class_: str) -> Markup:
    """Returns labels with their texts."""
    return element(
        "dl",
        (element("div", element("dt", label), element("dd", text)) for label, text in entries),
        class_=class_,
    )


def _glance(signature: SignatureView, environment: str) -> Markup:
    chosen = signature.chosen
    entries: list[tuple[str, Child]] = []
    if signature.left_reference:
        times = f"{words.duration(signature.reference_ns)} → {words.duration(signature.selected_ns)}"
        entries.append(("one run", phrases.typeset(times)))
    else:
        entries.append(("one run", phrases.typeset(words.duration(signature.reference_ns))))
    if chosen is not None:
        cost = chosen.evidence
        if cost.create_ns is not None:
            first = "" if cost.first_run_ns is None else f" + {words.duration(cost.first_run_ns)}"
            entries.append(("session + first run", phrases.typeset(words.duration(cost.create_ns) + first)))
        if chosen.break_even_calls is not None:
            entries.append(("repaid after", phrases.repaid(chosen)))
        if cost.peak_bytes is not None:
            entries.append(("memory", words.memory(cost.peak_bytes)))
        if phrases.nodes(chosen):
            entries.append(("nodes", phrases.nodes(chosen)))
    searched = words.seconds(signature.elapsed_ns)
    entries.append(("search", f"{searched}, ended by its budget" if signature.budget_exhausted else searched))
    if environment:
        entries.append(("environment", element("a", environment, href=f"#environment-{environment}")))
    return pairs(entries, "glance")


def _plot(signature: SignatureView) -> Markup:
    least = None if signature.strictness is None else signature.strictness.min_speedup
    timed = [each.evidence for each in signature.candidates if each.evidence.ratio is not None]
    axis = axis_for((span(each.ratio or 1.0, each.interval) for each in timed), least or 1.0)
    grid = f"g-{signature.id}"
    head = element(
        "tr",
        element("th", "candidate", scope="col"),
        element(
            "th",
            element("span", "← slower", class_="end"),
            svg.scale(axis),
            element("span", "faster →", class_="end"),
            scope="col",
            class_="axis",
            aria_label="speed against the reference",
        ),
        element("th", "one run", scope="col", class_="n"),
        element("th", "verdict", scope="col"),
    )
    rows = (
        _row(candidate, svg.strip(axis, grid, _marks(candidate), phrases.told(candidate)))
        for candidate in signature.tried
    )
    caption = element(
        "caption", f"Candidates for {words.shortened(signature.signature, phrases.LONGEST_SIGNATURE)}"
    )
    table = element(
        "table",
        caption,
        element("thead", head),
        element("tbody", rows, map(_left_out, signature.left_out)),
        class_="plot",
    )
    return joined((svg.grid(grid, axis, least), table))


def _marks(candidate: CandidateView) -> list[svg.Mark]:
    mark = phrases.mark(candidate)
    return [] if mark is None else [mark]


def _row(candidate: CandidateView, strip: Markup) -> Markup:
    return element(
        "tr",
        element("th", name(candidate.evidence.name), scope="row"),
        element("td", strip, class_="at"),
        element("td", phrases.typeset(words.duration(candidate.evidence.median_ns)), class_="n"),
        _verdict(candidate),
        class_=phrases.role(candidate) + ("" if candidate.evidence.ratio else " untimed"),
    )


def _left_out(candidates: tuple[CandidateView, ...]) -> Markup:
    names = [[name(each.evidence.name), ", "] for each in candidates]
    names[-1].pop()
    return element(
        "tr",
        element("th", names, scope="row", colspan=3),
        _verdict(candidates[0]),
        class_="not-tried",
    )


def _verdict(candidate: CandidateView) -> Markup:
    why = phrases.typeset(phrases.why(candidate))
    glyph = element("i", _GLYPHS[candidate.standing], aria_hidden="true")
    return element(
        "td",
        element("b", glyph, " ", phrases.standing(candidate)),
        element("span", why) if why else None,
        class_="why",
    )


def _details(signature: SignatureView) -> Markup:
    head = (
        element("th", text, scope="col", class_=None if text in ("candidate", "nodes") else "n")
        for text in _FIGURES
    )
    table = element(
        "table",
        element("thead", element("tr", head)),
        element("tbody", map(_figures, signature.tried)),
        class_="figures",
    )
    return element(
        "details",
        element("summary", "All figures, first costs and how it was asked"),
        element("div", table, class_="wide", tabindex=0, role="region", aria_label="all figures"),
        pairs(_how(signature), "facts"),
    )


def _figures(candidate: CandidateView) -> Markup:
    evidence = candidate.evidence
    spread = evidence.relative_mad
    numbers = (
        words.duration(evidence.median_ns),
        words.gain_interval(evidence.interval),
        # One pair has no spread; it would read as none at all.
        words.NOTHING if spread is None or evidence.samples < 2 else f"{spread:.2f}",
        str(evidence.samples or words.NOTHING),
        "yes" if evidence.verified else "no" if evidence.samples or evidence.rejection else words.NOTHING,
        words.duration(evidence.create_ns),
        words.duration(evidence.first_run_ns),
        words.duration(evidence.switch_ns),
        words.memory(evidence.peak_bytes),
        phrases.repaid(candidate),
    )
    return element(
        "tr",
        element("th", name(evidence.name), scope="row"),
        (element("td", phrases.typeset(number), class_="n") for number in numbers),
        element("td", phrases.nodes(candidate) or "–"),
        class_=phrases.role(candidate),
    )


def _how(signature: SignatureView) -> list[tuple[str, Child]]:
    phases = ", ".join(f"{phase} {words.seconds(spent)}" for phase, spent in signature.phases_ns.items())
    effort = ", ".join(f"{label} {value:g}" for label, value in signature.effort.items())
    entries: list[tuple[str, Child]] = [
        ("record", signature.id),
        ("searched", signature.created),
        ("signature", element("bdi", signature.signature)),
        ("winner", element("bdi", f"{signature.winner} (revision {signature.winner_revision})")),
        ("demanded", phrases.demands(signature.strictness)),
        ("effort", effort),
        ("phases", phases),
        ("seed", str(signature.seed)),
        ("scope", signature.scope.name.lower()),
        ("execution context", signature.execution_context),
    ]
    return [entry for entry in entries if entry[1]]
