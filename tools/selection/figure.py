"""Owns the picture: false promotions of both rules and how often they find a true gain. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from .cells import QUIET, SPEEDUPS, TEN
from .rows import CONDITIONS
from .tables import LEAST_FOUND, LEAST_FOUND_QUIET, MOST_FALSE, Findings, false_rate, found_rate, mean

_COLOURS = {"ours": "#0b6e99", "usual": "#d1495b"}
_NAMES = {"ours": "this rule", "usual": "usual rule: median of seven pairs, 15 % spread limit"}
_MARKERS = {"ours": "o", "usual": "D"}
_TITLES = {
    "spinning": "pools spin",
    "spinning_busy": "pools spin, machine busy",
    "spinning_stopped": "spinning stopped",
}
_GREY = "#6b7280"


def draw(findings: Findings, path: Path) -> None:
    """Draws the findings into a PNG file."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    picture = plt.figure(figsize=(13, 8.2), layout="constrained")
    left, right = picture.subfigures(1, 2, width_ratios=(1.25, 1))
    _draw_false(findings, left.subplots())
    panels = right.subplots(len(CONDITIONS), 1, sharex=True)
    for condition, axes in zip(CONDITIONS, panels, strict=True):
        _draw_power(findings, condition, axes)
    panels[0].set_title("A true gain is found, one of ten candidates", loc="left", fontweight="bold")
    panels[-1].set_xlabel("true gain")
    picture.savefig(path, dpi=130, facecolor="white")
    plt.close(picture)


def _draw_false(findings: Findings, axes: Axes) -> None:
    places = findings.places()
    ticks: list[tuple[float, str]] = []
    y = 0.0
    previous = None
    for condition, name in places:
        first_of_its_kind = condition != previous and (condition in CONDITIONS or previous in CONDITIONS)
        if first_of_its_kind and previous is not None:
            y += 1.0
        previous = condition
        for rule in ("usual", "ours"):
            cells = findings.cells(condition=condition, name=name, rule=rule, candidates=TEN, speedup=1.0)
            rate = false_rate(cells[0])
            low, high = rate.interval
            axes.plot([100 * low, 100 * high], [y, y], color=_COLOURS[rule], alpha=0.35, linewidth=3)
            axes.plot(
                [100 * rate.value],
                [y],
                _MARKERS[rule],
                color=_COLOURS[rule],
                markersize=5,
                clip_on=False,
                zorder=3,
                label=_NAMES[rule] if not ticks else None,
            )
        ticks.append((y, f"{_TITLES.get(condition, condition)}: {name}"))
        y += 1.0
    axes.axvline(100 * MOST_FALSE, color=_GREY, linestyle="--", linewidth=1)
    axes.annotate(
        f"{MOST_FALSE:.0%}",
        (100 * MOST_FALSE, -0.7),
        textcoords="offset points",
        xytext=(3, 4),
        color=_GREY,
    )
    axes.set_xscale("symlog", linthresh=1.0, linscale=0.6)
    axes.set_xlim(-0.03, 100)
    axes.set_xticks([0, 0.5, 1, 3, 10, 30, 100], ["0", "0.5", "1", "3", "10", "30", "100 %"])
    axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    axes.set_ylim(y - 0.3, -1.2)
    axes.grid(axis="x", alpha=0.25)
    axes.set_xlabel("searches that promote one of ten identical candidates (bar: 95 % interval)")
    axes.set_title("False promotions", loc="left", fontweight="bold")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.07), ncols=2, frameon=False)


def _draw_power(findings: Findings, condition: str, axes: Axes) -> None:
    for rule in ("usual", "ours"):
        cells = [
            findings.cells(condition=condition, rule=rule, candidates=TEN, speedup=gain) for gain in SPEEDUPS
        ]
        places = range(len(SPEEDUPS))
        shares = [[100 * found_rate(f).value for f in group] for group in cells]
        axes.fill_between(
            places, [min(s) for s in shares], [max(s) for s in shares], color=_COLOURS[rule], alpha=0.12, lw=0
        )
        axes.plot(
            places,
            [mean(s) for s in shares],
            marker=_MARKERS[rule],
            markersize=5,
            color=_COLOURS[rule],
            clip_on=False,
            zorder=3,
        )
    wanted = LEAST_FOUND_QUIET if condition == QUIET else LEAST_FOUND
    axes.plot([SPEEDUPS.index(1.2)], [100 * wanted], "_", color=_GREY, markersize=18, markeredgewidth=1.5)
    axes.set_xticks(range(len(SPEEDUPS)), [f"{gain:g}x" for gain in SPEEDUPS])
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
    axes.grid(axis="y", alpha=0.25)
    axes.set_ylabel("found")
    axes.text(0.01, 0.93, _TITLES[condition], transform=axes.transAxes, fontweight="bold", va="top")
