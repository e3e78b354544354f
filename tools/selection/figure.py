"""Owns the picture: false promotions of both rules, and how often they find a true gain. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .cells import QUIET, RAISED, SPEEDUPS, TARGET, TEN
from .rows import CONDITIONS
from .rules import RULES
from .tables import LEAST_FOUND, LEAST_FOUND_QUIET, MOST_FALSE, Findings, false_rate, found_rate, mean

_COLOURS = {"ours": "#0b6e99", "usual": "#d1495b"}
_MARKERS = {"ours": "o", "usual": "D"}
_TITLES = {
    "spinning": "Recorded: idle pools spin",
    "spinning_busy": "Recorded: idle pools spin, machine busy",
    "spinning_stopped": "Recorded: spinning stopped",
}
_MADE_UP = "Made up"
_STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
_GREY = "#6b7280"


def draw(findings: Findings, path: Path) -> None:
    """Draws the findings into a PNG file."""
    with mpl.rc_context(_STYLE):
        picture = Figure(figsize=(13, 8.6), layout="constrained")
        canvas = FigureCanvasAgg(picture)
        left, right = picture.subfigures(1, 2, width_ratios=(1.25, 1))
        _draw_false(findings, left.subplots())
        conditions = findings.recorded()
        panels = right.subplots(len(conditions), 1, sharex=True, squeeze=False)[:, 0]
        for condition, axes in zip(conditions, panels, strict=True):
            _draw_power(findings, condition, axes)
        panels[0].annotate(
            "A true gain is found: one of ten candidates is faster\n",
            (0, 1.06),
            xycoords="axes fraction",
            fontsize=11,
            fontweight="bold",
            va="bottom",
        )
        panels[-1].set_xlabel("true gain (line: mean of the models, band: worst to best)")
        canvas.print_figure(path, dpi=130, facecolor="white")


def _draw_false(findings: Findings, axes: Axes) -> None:
    at, group = -1.0, ""
    ticks, labels = [], []
    for condition, name in findings.places():
        title = _TITLES.get(condition, _MADE_UP)
        if title != group:
            group, at = title, at + 1.6
            axes.annotate(
                title,
                (0, at),
                xycoords=axes.get_yaxis_transform(),
                xytext=(-8, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontweight="bold",
            )
        at += 1.0
        ticks.append(at)
        labels.append(name if condition in CONDITIONS else f"{condition}, {name}")
        for rule in reversed(RULES):
            _draw_rate(findings, condition, name, rule, at, axes)
    names = {
        "ours": f"ours, max_samples={findings.max_samples}",
        "usual": "usual rule: median of seven pairs, 15 % spread limit",
    }
    for rule in RULES:
        axes.plot([], [], _MARKERS[rule], color=_COLOURS[rule], markersize=5, label=names[rule])
    axes.axvline(100 * MOST_FALSE, color=_GREY, linestyle="--", linewidth=1, zorder=1)
    axes.set_xscale("symlog", linthresh=1.0, linscale=0.6)
    axes.set_xlim(-0.03, 100)
    axes.set_xticks([0, 0.5, 1, 3, 10, 30, 100], ["0", "0.5", "1", "3", "10", "30", "100 %"])
    axes.set_yticks(ticks, labels)
    axes.set_ylim(at + 0.8, -0.2)
    axes.grid(axis="x", alpha=0.25)
    axes.set_xlabel("searches that promote one of ten identical candidates (bar: 95 % interval)")
    axes.set_title("False promotions: at most 1 % is wanted", loc="left", fontweight="bold", fontsize=11)
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.06), ncols=2, frameon=False)


def _draw_rate(findings: Findings, condition: str, name: str, rule: str, at: float, axes: Axes) -> None:
    asked = {"condition": condition, "name": name, "rule": rule, "candidates": TEN, "speedup": 1.0}
    for found in findings.cells(**asked):
        rate = false_rate(found)
        ends = [100 * end for end in rate.interval]
        axes.plot(ends, [at, at], color=_COLOURS[rule], alpha=0.35, linewidth=3, zorder=2)
        axes.plot(
            [100 * rate.value],
            [at],
            _MARKERS[rule],
            color=_COLOURS[rule],
            markersize=5,
            clip_on=False,
            zorder=3,
        )


def _draw_power(findings: Findings, condition: str, axes: Axes) -> None:
    places = range(len(SPEEDUPS))
    target = SPEEDUPS.index(TARGET)
    for rule in reversed(RULES):
        shares = [_shares(findings, condition, rule, gain, findings.max_samples) for gain in SPEEDUPS]
        low, high = [min(share) for share in shares], [max(share) for share in shares]
        axes.fill_between(places, low, high, color=_COLOURS[rule], alpha=0.12, linewidth=0)
        axes.plot(
            places,
            [mean(share) for share in shares],
            marker=_MARKERS[rule],
            markersize=5,
            color=_COLOURS[rule],
            clip_on=False,
            zorder=3,
        )
    wanted = 100 * (LEAST_FOUND_QUIET if condition == QUIET else LEAST_FOUND)
    _draw_raised(findings, condition, wanted, axes)
    axes.plot([target - 0.1, target + 0.1], [wanted, wanted], color="black", linewidth=1.5, zorder=5)
    axes.annotate(
        f"wanted: {wanted:.0f} %",
        (target + 0.12, wanted),
        xytext=(0, -9 if condition == QUIET else 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
    )
    axes.set_xticks(places, [f"{gain:g}x" for gain in SPEEDUPS])
    axes.set_ylim(0, 103)
    axes.set_yticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
    axes.grid(axis="y", alpha=0.25)
    axes.set_title(_TITLES[condition], loc="left", fontsize=9, fontweight="bold")


def _draw_raised(findings: Findings, condition: str, wanted: float, axes: Axes) -> None:
    """Marks what a larger max_samples finds, up to the first that finds enough."""
    target = SPEEDUPS.index(TARGET)
    for samples in RAISED:
        share = _shares(findings, condition, "ours", TARGET, samples)
        if not share or samples == findings.max_samples:
            continue
        axes.plot([target], [mean(share)], "o", markerfacecolor="white", color=_COLOURS["ours"], zorder=6)
        axes.annotate(
            f"max_samples={samples}",
            (target, mean(share)),
            xytext=(-8, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=7,
            color=_COLOURS["ours"],
        )
        if mean(share) >= wanted:
            return


def _shares(findings: Findings, condition: str, rule: str, gain: float, samples: int) -> list[float]:
    cells = findings.cells(condition=condition, rule=rule, candidates=TEN, speedup=gain, max_samples=samples)
    return [100 * found_rate(found).value for found in cells]
