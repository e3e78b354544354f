"""Replays recorded and made-up noise through the search that ships and through the usual rule.

All candidates of a search are identical to the reference, or one of them is faster by a known factor; so it is
known what is false and what is missed. The usual rule takes seven pairs of single timings of each candidate and
promotes the lowest median ratio, unless the ratios spread by more than 15 %.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from selection import cells, tables

from ort_stacktune.failures import TuneFailure
from ort_stacktune.policy import StackPolicy


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark."""
    kinds = list(dict.fromkeys(condition for condition, _ in cells.sources()))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--searches", type=int, default=1000, help="searches a cell of ten identical candidates"
    )
    parser.add_argument("--quick", action="store_true", help="a look that takes seconds: 20 searches a cell")
    parser.add_argument(
        "--noise",
        nargs="+",
        default=[],
        metavar="KIND",
        choices=kinds,
        help=f"only these: {', '.join(kinds)}",
    )
    parser.add_argument("--max-samples", type=int, default=StackPolicy().max_samples, help="as in the policy")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same result")
    parser.add_argument(
        "--jobs", type=int, default=usable_cores(), help="processes; the result stays the same"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all cells there")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw there; needs matplotlib (extra bench)"
    )
    given = parser.parse_args(arguments)
    if given.searches < 1 or given.jobs < 1 or given.seed < 0:
        parser.error("--searches and --jobs take a whole number of 1 or more, --seed one of 0 or more")
    if given.plot and find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: install the extra `bench` or leave --plot out")
    try:
        StackPolicy(max_samples=given.max_samples).validate()
    except TuneFailure as failure:
        parser.error(failure.message)
    started = time.monotonic()
    plan = cells.plan(20 if given.quick else given.searches, given.max_samples, given.noise)
    searches = sum(cell.searches for cell in plan)
    print(f"running {searches} searches on {given.jobs} processes", file=sys.stderr)
    found = cells.run_cells(plan, given.seed, given.jobs)
    findings = tables.Findings(found, given.max_samples)
    tables.write(findings)
    searches = sum(cell.searches for cell in plan)
    print(
        f"\n{searches} searches, seed {given.seed}, {time.monotonic() - started:.0f} s on {given.jobs} processes"
    )
    if given.json:
        given.json.write_text(json.dumps(tables.as_values(findings, found, given.seed), indent=1) + "\n")
    if given.plot:
        from selection import figure  # matplotlib is optional

        figure.draw(findings, given.plot)
    return 0


def usable_cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main())
