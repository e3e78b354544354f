"""Owns the words: what the cells found, as tables for people and as plain values for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

from .cells import QUIET, RAISED, SPEEDUPS, TARGET, TEN, Found, Rate
from .rows import CONDITIONS
from .rules import RULES

MOST_FALSE = 0.01
LEAST_FOUND_QUIET = 0.99
LEAST_FOUND = 0.90

_OF_TEN = {"rule": "ours", "candidates": TEN}


class Findings:
    """The cells of one run, by what is asked of them."""

    def __init__(self, found: Sequence[Found], max_samples: int) -> None:
        self._found = found
        self.max_samples = max_samples

    def cells(self, **wanted: object) -> list[Found]:
        """Returns the cells with these fields; at the run's own ``max_samples`` unless another is asked for."""
        wanted.setdefault("max_samples", self.max_samples)
        return [f for f in self._found if all(getattr(f.cell, key) == value for key, value in wanted.items())]

    def recorded(self) -> list[str]:
        """Returns the recorded conditions among them, in order."""
        return [condition for condition in CONDITIONS if self.cells(condition=condition)]

    def places(self) -> list[tuple[str, str]]:
        """Returns every condition and name, in order."""
        return list(dict.fromkeys((f.cell.condition, f.cell.name) for f in self._found))


def false_rate(found: Found) -> Rate:
    """Returns how often an identical candidate was promoted."""
    return Rate(found.false, found.cell.searches)


def found_rate(found: Found) -> Rate:
    """Returns how often the faster one was promoted."""
    return Rate(found.true, found.cell.searches)


def mean(values: Iterable[float]) -> float:
    """Returns the mean, nan of nothing."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else float("nan")


def pairs_a_search(found: Sequence[Found]) -> float:
    """Returns the pairs spent on one search, on average over the cells."""
    return mean(f.pairs / f.cell.searches for f in found)


def as_values(findings: Findings, found: Sequence[Found], seed: int) -> dict[str, object]:
    """Returns everything for JSON."""
    rows = []
    for f in found:
        rate = false_rate(f) if f.cell.speedup == 1.0 else found_rate(f)
        rows.append(
            {
                **asdict(f.cell),
                "false": f.false,
                "true": f.true,
                "interval": rate.interval,
                "pairs": f.pairs,
                "misses": f.misses,
            }
        )
    return {"version": 1, "seed": seed, "max_samples": findings.max_samples, "cells": rows}


def write(findings: Findings, say: Callable[[str], None] = print) -> None:
    """Says everything in tables."""
    _write_false(findings, say)
    _write_power(findings, say)
    _write_pairs(findings, say)
    _write_target_by_place(findings, say)
    _write_cost(findings, say)
    _write_targets(findings, say)


def _write_false(findings: Findings, say: Callable[[str], None]) -> None:
    say("False promotions: % of searches over candidates that are all identical to the reference")
    say("(in brackets the upper end of the 95 % interval)\n")
    sizes = (1, TEN, 30)
    say(f"{'':<40}{'ours, candidates':^45}{'usual rule, candidates':^45}")
    say(f"{'noise':<40}" + "".join(f"{n:>15}" for _ in RULES for n in sizes))
    for condition, name in findings.places():
        line = f"{condition + ', ' + name:<40}"
        for rule in RULES:
            for size in sizes:
                cells = findings.cells(
                    condition=condition, name=name, rule=rule, candidates=size, speedup=1.0
                )
                line += f"{_percent_below(false_rate(cells[0])) if cells else '':>15}"
        say(line.rstrip())
    say("")


def _write_power(findings: Findings, say: Callable[[str], None]) -> None:
    say("Found: % of searches that promote the one of ten that is truly faster, mean over the models\n")
    say(f"{'':<36}" + "".join(f"{gain:>8g}x" for gain in SPEEDUPS))
    for condition in findings.recorded():
        for rule in RULES:
            line = f"{condition:<20}{rule:<16}"
            for gain in SPEEDUPS:
                cells = findings.cells(condition=condition, rule=rule, candidates=TEN, speedup=gain)
                line += f"{100 * mean(found_rate(f).value for f in cells):>9.1f}"
            say(line)
    say("")


def _write_pairs(findings: Findings, say: Callable[[str], None]) -> None:
    say(
        "Pairs spent on a search over ten candidates, mean over the models; the usual rule always spends 70\n"
    )
    say(f"{'':<36}{'identical':>10}" + "".join(f"{gain:>8g}x" for gain in SPEEDUPS))
    for condition in findings.recorded():
        line = f"{condition:<20}{'ours':<17}"
        for gain in (1.0, *SPEEDUPS):
            cells = findings.cells(condition=condition, rule="ours", candidates=TEN, speedup=gain)
            line += f"{pairs_a_search(cells):>9.0f}"
        say(line)
    say("")


def _write_target_by_place(findings: Findings, say: Callable[[str], None]) -> None:
    say(f"A true {TARGET:g}x: found in % of searches, and why ours missed it among ten\n")
    say(f"{'noise':<40}{'usual':>7}{'ours':>7}{'alone':>7}{'pairs':>7}  misses of ours")
    for condition, name in findings.places():
        line = f"{condition + ', ' + name:<40}"
        for rule, size in (("usual", TEN), ("ours", TEN), ("ours", 1)):
            cells = findings.cells(condition=condition, name=name, rule=rule, candidates=size, speedup=TARGET)
            line += f"{100 * found_rate(cells[0]).value:>7.1f}" if cells else f"{'':>7}"
        for f in findings.cells(condition=condition, name=name, rule="ours", candidates=TEN, speedup=TARGET):
            line += f"{f.pairs / f.cell.searches:>7.0f}  {_misses(f)}"
        say(line.rstrip())
    say("")


def _write_cost(findings: Findings, say: Callable[[str], None]) -> None:
    say(f"What max_samples buys and costs where noise is not stopped: a true {TARGET:g}x, one of ten\n")
    conditions = [condition for condition in findings.recorded() if condition != QUIET]
    say(
        f"{'max_samples':<14}"
        + "".join(f"{f'found, {condition}':>24}" for condition in conditions)
        + f"{'pairs, found':>16}{'pairs, all identical':>24}"
    )
    for samples in dict.fromkeys((findings.max_samples, *RAISED)):
        line = f"{samples:<14}"
        gained, identical = [], []
        for condition in conditions:
            asked = {"condition": condition, "rule": "ours", "candidates": TEN, "max_samples": samples}
            cells = findings.cells(**asked, speedup=TARGET)
            gained += cells
            identical += findings.cells(**asked, speedup=1.0)
            line += f"{100 * mean(found_rate(f).value for f in cells):>24.1f}"
        if gained:
            say(line + f"{pairs_a_search(gained):>16.0f}{pairs_a_search(identical):>24.0f}")
    say("")


def _write_targets(findings: Findings, say: Callable[[str], None]) -> None:
    say("What has to hold: ours, recorded noise, ten candidates")
    recorded = findings.recorded()
    identical = [f for c in recorded for f in findings.cells(condition=c, **_OF_TEN, speedup=1.0)]
    if identical:
        worst = max(identical, key=lambda f: false_rate(f).value)
        rate = false_rate(worst).value
        say(
            f"  {_met(rate <= MOST_FALSE)} false promotions at most {MOST_FALSE:.0%} everywhere:"
            f" worst {rate:.2%} ({worst.cell.condition}, {worst.cell.name})"
        )
    quiet = [found_rate(f).value for f in findings.cells(condition=QUIET, **_OF_TEN, speedup=TARGET)]
    if quiet:
        say(
            f"  {_met(min(quiet) >= LEAST_FOUND_QUIET)} a true {TARGET:g}x found in {LEAST_FOUND_QUIET:.0%} with"
            f" spinning stopped: worst model {min(quiet):.1%}"
        )
    for samples in dict.fromkeys((findings.max_samples, *RAISED)):
        asked = {**_OF_TEN, "speedup": TARGET, "max_samples": samples}
        rates = [
            found_rate(f).value for c in recorded if c != QUIET for f in findings.cells(condition=c, **asked)
        ]
        if rates:
            say(
                f"  {_met(mean(rates) >= LEAST_FOUND)} a true {TARGET:g}x found in {LEAST_FOUND:.0%} on average"
                f" elsewhere: {mean(rates):.1%} with max_samples={samples}"
            )


def _met(holds: bool) -> str:
    return "met   " if holds else "missed"


def _percent_below(rate: Rate) -> str:
    return f"{100 * rate.value:.1f} (<{100 * rate.interval[1]:.1f})"


def _misses(found: Found) -> str:
    total = found.cell.searches
    return ", ".join(
        f"{reason} {100 * times / total:.0f}" for reason, times in Counter(found.misses).most_common(3)
    )
