"""Owns a report as one page of HTML that needs nothing but itself: no network, no fonts, and no scripts to be read.

The same view gives the same page, byte by byte. The page allows itself its own style and its own script, by their
digests, and nothing else: what a name holds can be neither.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib import resources
from itertools import groupby

from ort_stacktune.report import phrases, svg, words
from ort_stacktune.report.cards import card, name, pairs
from ort_stacktune.report.markup import Child, Markup, element
from ort_stacktune.report.overview import overview_table, tiles
from ort_stacktune.report.svg import Shape
from ort_stacktune.report.view import EnvironmentView, Overview, ReportView, SignatureView

_TITLE = "ort-stacktune report"
_LEGEND = (
    (Shape.DISC, "selected", "selected: median of the paired ratios, with its confidence interval"),
    (Shape.DISC, "not-faster", "not selected"),
    (Shape.RING, "reference", "reference"),
    (Shape.CROSS, "rejected", "rejected"),
    (Shape.TICK, "other", "other candidates"),
)


def page(view: ReportView) -> str:
    """Returns the page of a report."""
    style, script = _file("page.css"), _file("page.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", _title(view)),
        element("style", Markup(style)),
    )
    body = element("body", _body(view), element("script", Markup(script)))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _body(view: ReportView) -> Child:
    if view.overview is None:
        return element(
            "main",
            element("h1", "Nothing is stored yet"),
            element("p", "ort-stacktune tune MODEL makes a choice."),
        )
    several = len(view.environments) > 1
    return element(
        "main",
        _top(view, view.overview),
        overview_table(view),
        _legend(),
        [
            _model(list(group), several)
            for _, group in groupby(view.signatures, key=lambda each: (each.model, each.digest))
        ],
        _environments(view.environments),
        element(
            "footer",
            "Made by ort-stacktune from its stored choices. Times are medians of completed runs; gains are medians"
            " of paired ratios, reference over candidate.",
        ),
    )


def _title(view: ReportView) -> str:
    return _TITLE if view.overview is None else f"{phrases.headline(view.overview)} · {_TITLE}"


def _top(view: ReportView, overview: Overview) -> Markup:
    dates: list[Child] = [element("time", overview.first)]
    if overview.last != overview.first:
        dates += [" to ", element("time", overview.last)]
    where = phrases.environment_line(view.environments[0])
    if len(view.environments) > 1:
        where += f" and {words.number_of(len(view.environments) - 1, 'further environment')}"
    return element(
        "header",
        element("p", _TITLE, class_="kicker"),
        element("button", "theme: system", type="button", id="theme", hidden=True),
        element("h1", phrases.headline(overview)),
        element("p", where, element("br"), "searched ", dates, class_="where"),
        tiles(overview),
        class_="top",
    )


def _legend() -> Markup:
    return element(
        "p",
        (element("span", svg.sample(shape, role), text) for shape, role, text in _LEGEND),
        element("span", element("i", class_="line one"), "as fast as the reference"),
        element("span", element("i", class_="line least"), "least gain worth a change"),
        element("span", "‹ slower than the logarithmic axis reaches"),
        class_="legend",
    )


def _model(signatures: list[SignatureView], several: bool) -> Markup:
    first = signatures[0]
    digest = element("small", element("code", first.digest[:8]), title=first.digest) if first.digest else None
    return element(
        "section",
        element("h2", name(first.model), " ", digest),
        (card(each, phrases.environment_letter(each.environment) if several else "") for each in signatures),
        class_="model",
    )


def _environments(environments: Iterable[EnvironmentView]) -> Markup:
    listed = list(environments)
    return element(
        "section",
        element("h2", "Environment" if len(listed) == 1 else "Environments"),
        (
            _environment(each, phrases.environment_letter(place), len(listed) > 1)
            for place, each in enumerate(listed)
        ),
        id="environments",
    )


def _environment(environment: EnvironmentView, letter: str, several: bool) -> Markup:
    entries: list[tuple[str, Child]] = [
        (
            label or "identity",
            [element("mark", "differs from A: ") if label in environment.differing else None, text],
        )
        for label, text in environment.facts
    ]
    title = f"{letter} · " if several else ""
    counted = words.number_of(environment.signatures, "signature")
    return element(
        "article",
        element("h3", f"{title}{phrases.environment_line(environment)}"),
        element(
            "p",
            f"Identity of the machine and its software, as it was for {counted}. A choice counts only where all"
            " of it is the same.",
            class_="note",
        ),
        pairs(entries, "facts"),
        id=f"environment-{letter}",
        class_="environment",
    )


def _file(file: str) -> str:
    return (resources.files(__package__) / file).read_text(encoding="utf-8").strip()


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
