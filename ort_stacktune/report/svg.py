"""Owns the drawing of candidates on an axis: a strip for each, with lines that run on from strip to strip.

Places are percentages of the strip's width, so that one drawing suits every screen. What a strip shows is told in
words as well. Must never hold a colour: those are the style sheet's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ort_stacktune.report.markup import Child, Markup, element
from ort_stacktune.report.scale import Axis, Span

# The axis ends where a label right of the last dot still fits.
_LEFT, _RIGHT = 2.5, 77.0
_LABEL_GAP = 11


class Shape(Enum):
    """What marks a median; no two standings are told apart by colour alone."""

    DISC = "disc"
    RING = "ring"
    CROSS = "cross"
    TICK = "tick"


@dataclass(frozen=True, slots=True)
class Mark:
    """One median on a strip.

    Attributes:
        span: Its speed-up and interval.
        shape: Its shape.
        role: Class for the style sheet.
        label: Words beside it; none where empty.
    """

    span: Span
    shape: Shape
    role: str
    label: str = ""


def grid(name: str, axis: Axis, least_gain: float | None) -> Markup:
    """Returns the definition of a grid that strips refer to by its name."""
    lines: list[Child] = [_upright(axis, speedup, "tick") for speedup in axis.ticks() if speedup != 1.0]
    lines.append(_upright(axis, 1.0, "one"))
    if least_gain is not None:
        at = _x(axis, least_gain)
        lines.insert(
            0, element("rect", class_="enough", x=_percent(at), y=0, height="100%", width=_percent(100 - at))
        )
        lines.append(_upright(axis, least_gain, "least"))
    return element(
        "svg", element("symbol", lines, id=name), class_="defs", width=0, height=0, aria_hidden="true"
    )


def scale(axis: Axis) -> Markup:
    """Returns the words of an axis."""
    words: list[Child] = [
        element(
            "text",
            "1×" if speedup == 1.0 else tick_words(speedup),
            x=_percent(_x(axis, speedup)),
            y="100%",
            dy=-4,
        )
        for speedup in axis.ticks()
    ]
    return element("svg", words, class_="scale", aria_hidden="true")


def tick_words(speedup: float) -> str:
    """Returns what a mark of the axis says: how many times, on either side."""
    factor = max(speedup, 1 / speedup)
    return f"{factor:,.4g}×"


def strip(
    axis: Axis, grid_name: str, marks: Sequence[Mark], told: str, *, labels_at_end: bool = False
) -> Markup:
    """Returns a strip.

    Args:
        axis: The axis.
        grid_name: Name of its grid.
        marks: What it shows, the most important last.
        told: The same in words.
        labels_at_end: Whether labels stand at the strip's end, where there may be marks beside one another.
    """
    drawn: list[Child] = [element("use", href=f"#{grid_name}")]
    drawn += [_drawn(axis, mark, labels_at_end) for mark in marks]
    return element("svg", drawn, class_="strip", role="img", aria_label=told)


def sample(shape: Shape, role: str) -> Markup:
    """Returns a mark by itself, for a legend."""
    return element("svg", element("g", _shape(shape, 50.0), class_=role), class_="sample", aria_hidden="true")


def _drawn(axis: Axis, mark: Mark, label_at_end: bool) -> Markup:
    middle, low, high = mark.span
    left, at, right = _x(axis, low), _x(axis, middle), _x(axis, high)
    parts: list[Child] = []
    if right - left > 0.01:
        ends = {"x1": _percent(left), "x2": _percent(right), "y1": "50%", "y2": "50%"}
        parts += [element("line", class_="bar", **ends), element("line", class_="wire", **ends)]
    beyond = axis.beyond(middle)
    parts.append(_arrow(at, beyond) if beyond else _shape(mark.shape, at))
    if mark.label and label_at_end:
        parts.append(element("text", mark.label, x="99%", y="50%", dy="0.34em", text_anchor="end"))
    elif mark.label:
        x = _percent(max(at, right))
        parts.append(element("text", mark.label, x=x, y="50%", dx=_LABEL_GAP, dy="0.34em"))
    return element("g", parts, class_=mark.role)


def _shape(shape: Shape, at: float) -> Markup:
    if shape is Shape.TICK:
        return element("line", class_="dab", x1=_percent(at), x2=_percent(at), y1="32%", y2="68%")
    if shape is Shape.CROSS:
        return _placed("M-4-4L4 4M-4 4L4-4", "cross", at)
    return element("circle", class_=shape.value, cx=_percent(at), cy="50%")


def _arrow(at: float, direction: int) -> Markup:
    return _placed("M-3-5L4 0L-3 5" if direction > 0 else "M3-5L-4 0L3 5", "arrow", at)


def _placed(path: str, role: str, at: float) -> Markup:
    # A path knows no percentages; a drawing within the drawing does.
    return element("svg", element("path", class_=role, d=path), x=_percent(at), y="50%", overflow="visible")


def _upright(axis: Axis, speedup: float, role: str) -> Markup:
    at = _percent(_x(axis, speedup))
    return element("line", class_=role, x1=at, x2=at, y1=0, y2="100%")


def _x(axis: Axis, speedup: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * axis.place(speedup)


def _percent(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") + "%"
