"""Owns the part of a page that shows all signatures at once: the figures on top and the table of who serves."""

from __future__ import annotations

from ort_stacktune.report import phrases, svg, words
from ort_stacktune.report.cards import anchor, name
from ort_stacktune.report.markup import Child, Markup, element
from ort_stacktune.report.scale import axis_for, span
from ort_stacktune.report.svg import Mark, Shape
from ort_stacktune.report.view import Extreme, Overview, ReportView, SignatureView, Standing

_GRID = "g-all"


def tiles(overview: Overview) -> Markup:
    """Returns the figures of an overview."""
    kept = overview.signatures - overview.left_reference
    share = f"{overview.left_reference} / {overview.signatures}"
    figures: list[tuple[str, str, Child]] = [
        ("left the reference", share, words.number_of(overview.models, "model"))
    ]
    if overview.left_reference:
        least = f"{words.number_of(kept, 'reference')} kept" if kept else _who(overview.least)
        figures += [
            ("mean gain", words.speedup(overview.mean_ratio), "geometric, kept references included"),
            ("best", words.speedup(overview.best.ratio), _who(overview.best)),
            ("least", words.speedup(overview.least.ratio), least),
        ]
    if overview.slowest is not None:
        slowest = words.gain(overview.slowest.ratio).removesuffix(" slower")
        who = ["slower: ", _who(overview.slowest), ", had it been taken unmeasured"]
        figures.append(("slowest guess", slowest, who))
    figures.append(("searching", words.long_time(overview.elapsed_ns), phrases.trials(overview)))
    return element(
        "dl",
        (
            element(
                "div",
                element("dt", label),
                element("dd", element("strong", phrases.typeset(figure)), element("span", note)),
            )
            for label, figure, note in figures
        ),
        class_="tiles gained" if overview.left_reference else "tiles",
    )


def _who(extreme: Extreme) -> Child:
    return [
        element("a", name(extreme.candidate, 28), href=f"#s-{extreme.id}"),
        " on ",
        name(extreme.model, 28),
    ]


def overview_table(view: ReportView) -> Markup:
    """Returns all signatures on one axis, one a row, with controls that wait for the script."""
    marked = [(signature, _overview_marks(signature)) for signature in view.signatures]
    axis = axis_for(mark.span for _, marks in marked for mark in marks)
    leasts = {
        signature.strictness.min_speedup if signature.strictness else None for signature in view.signatures
    }
    least = leasts.pop() if len(leasts) == 1 else None
    head = element(
        "tr",
        element("th", "signature", scope="col", data_sort="text"),
        element(
            "th",
            element("span", "← slower", class_="end"),
            svg.scale(axis),
            element("span", "faster →", class_="end"),
            scope="col",
            class_="axis",
            aria_label="gain",
            data_sort="down",
        ),
        element("th", "served by", scope="col", data_sort="text"),
        element("th", "one run", scope="col", class_="n", data_sort="down"),
        element("th", "search", scope="col", class_="n", data_sort="down"),
    )
    rows = (
        _overview_row(signature, svg.strip(axis, _GRID, marks, _told(signature), labels_at_end=True))
        for signature, marks in marked
    )
    tools = element(
        "div",
        element(
            "label",
            "filter ",
            element("input", type="search", id="filter", placeholder="model, signature or candidate"),
        ),
        element("label", element("input", type="checkbox", id="left"), " only those that left the reference"),
        element("output", for_="filter", id="shown"),
        class_="tools",
        hidden=True,
    )
    table = element(
        "table",
        element("caption", "All signatures"),
        element("thead", head),
        element("tbody", rows),
        class_="plot all",
    )
    return element(
        "section", element("h2", "All signatures"), tools, svg.grid(_GRID, axis, least), table, id="all"
    )


def _overview_row(signature: SignatureView, strip: Markup) -> Markup:
    times = words.duration(signature.reference_ns)
    if signature.left_reference:
        times += f" → {words.duration(signature.selected_ns)}"
    return element(
        "tr",
        element(
            "th",
            element("a", name(signature.model), href=f"#{anchor(signature)}"),
            element("span", name(phrases.signature_text(signature), phrases.LONGEST_SIGNATURE), class_="sig"),
            scope="row",
            data_key=f"{signature.model} {signature.signature}",
        ),
        element("td", strip, class_="at", data_key=f"{1 / signature.ratio:.6g}"),
        element("td", name(signature.winner), class_="who", data_key=signature.winner),
        element("td", phrases.typeset(times), class_="n", data_key=signature.selected_ns),
        element("td", words.seconds(signature.elapsed_ns), class_="n", data_key=signature.elapsed_ns),
        class_="selected" if signature.left_reference else "kept",
    )


def _overview_marks(signature: SignatureView) -> list[Mark]:
    """Returns the timed losers as dabs and the one that serves over them."""
    marks = []
    for candidate in signature.candidates:
        ratio = candidate.evidence.ratio
        if ratio is not None and candidate.standing not in (Standing.SELECTED, Standing.REFERENCE):
            marks.append(Mark(span(ratio, None), Shape.TICK, "other"))
    chosen = signature.chosen
    interval = None if chosen is None else chosen.evidence.interval
    if signature.left_reference:
        label = phrases.typeset(words.gain(signature.ratio))
        marks.append(Mark(span(signature.ratio, interval), Shape.DISC, "selected", label))
    else:
        marks.append(Mark(span(1.0, None), Shape.RING, "reference", "no change"))
    return marks


def _told(signature: SignatureView) -> str:
    if not signature.left_reference:
        return "keeps the reference"
    return phrases.typeset(f"{signature.winner}: {words.gain(signature.ratio)}")
