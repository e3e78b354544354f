from __future__ import annotations

import importlib.util
import json
import random
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import bench_selection
from selection.cells import Cell, Rate, plan, run_cells, sources
from selection.noise import made_up
from selection.replay import Player, ReplayRunner, run_search
from selection.rows import CONDITIONS, Rows, recorded, rows_of

from ort_stacktune import StackPolicy

QUIET = Cell("spinning_stopped", "magika", "ours", 10, 1.0, 41, 6)


def numbered(count: int = 40, seed: int = 0) -> Rows:
    """Rows whose times tell where they are: row * 100, plus 10 for session 1, plus the number of the run."""
    first = [*np.random.default_rng(seed).integers(2, size=count - 2).tolist(), 0, 1]
    times = [
        [row * 100 + session * 10 + run + 1 for session in (0, 1) for run in range(3)] for row in range(count)
    ]
    return rows_of(np.array([[f, *t] for f, t in zip(first, times, strict=True)], dtype=np.int64))


def of(cell: Cell, **changes: object) -> Cell:
    return Cell(**{**{name: getattr(cell, name) for name in Cell.__slots__}, **changes})  # type: ignore[arg-type]


def test_a_pair_is_one_row_whole_and_rows_come_in_the_order_recorded() -> None:
    rows = numbered()
    player = Player(rows, 1.0, random.Random(3))
    coin = random.Random(4)
    seen = []
    for _ in range(12):
        reference, candidate = player.pair(candidate_first=coin.random() < 0.5)
        row = (reference[0] - 1) // 100
        assert sorted((reference, candidate)) == sorted(rows.times_ns[row])
        seen.append(row)
    steps = [(after - before) % len(rows) for before, after in pairwise(seen)]
    assert all(1 <= step <= 12 for step in steps)
    assert sum(steps) <= len(rows)


def test_who_runs_first_gets_the_times_of_a_session_that_ran_first() -> None:
    rows = numbered()
    player = Player(rows, 1.0, random.Random(5))
    sessions = set()
    for candidate_first in (True, False, False, True, True, False) * 3:
        _, candidate = player.pair(candidate_first=candidate_first)
        row, session = divmod(candidate[0] - 1, 100)
        sessions.add(session // 10)
        assert (rows.first[row] == session // 10) == candidate_first
    assert len(sessions) == 1


def test_a_true_gain_divides_the_times_of_the_candidate_alone() -> None:
    rows = numbered()
    plain, faster = (Player(rows, speedup, random.Random(6)) for speedup in (1.0, 2.0))
    for _ in range(5):
        (reference, candidate), (same, halved) = (p.pair(candidate_first=True) for p in (plain, faster))
        assert same == reference
        assert halved == tuple(max(1, time // 2) for time in candidate)


def test_a_search_sees_the_same_pairs_that_the_replay_dealt() -> None:
    outcome, pairs = run_search(numbered(), [1.0, 1.0], StackPolicy(), random.Random(1))
    assert sum(report.samples for report in outcome.reports[1:]) == pairs > 0


def test_a_pair_that_is_cut_short_is_an_error_and_not_a_wrong_time() -> None:
    runner = ReplayRunner(numbered(), [1.0], random.Random(1))
    runner.announce(1)
    runner.measure(1)
    runner.announce(1)
    with pytest.raises(RuntimeError, match="3 timings"):
        runner.measure(1)


def test_a_seed_gives_the_same_result_on_any_number_of_processes() -> None:
    cells = [of(QUIET, searches=60, candidates=2), of(QUIET, condition="bursts", name="severe", candidates=2)]
    once = run_cells(cells, seed=7, jobs=1)
    assert once == run_cells(cells, seed=7, jobs=2)
    assert [f.pairs for f in once] != [f.pairs for f in run_cells(cells, seed=8, jobs=1)]


def test_the_usual_rule_promotes_identical_candidates_and_ours_does_not() -> None:
    noisy = of(QUIET, condition="spinning", name="aecmos_stage0", searches=20)
    ours, usual = run_cells([noisy, of(noisy, rule="usual")], seed=0, jobs=1)
    assert ours.false == 0
    assert usual.false >= 15
    assert usual.pairs == 20 * 70


def test_a_true_gain_of_a_fifth_is_always_found_where_spinning_is_stopped() -> None:
    cells = [
        of(QUIET, name=source.name, speedup=1.2, searches=5)
        for source in recorded()
        if source.condition == "spinning_stopped"
    ]
    assert [(f.true, f.misses) for f in run_cells(cells, seed=0, jobs=1)] == [(5, {})] * 6


def test_a_miss_is_reported_with_its_reason() -> None:
    hopeless = of(QUIET, condition="lognormal", name="severe", speedup=1.05, searches=5)
    (found,) = run_cells([hopeless], seed=0, jobs=1)
    assert found.true == 0
    assert sum(found.misses.values()) == 5
    assert all(reason and not any(map(str.isdigit, reason)) for reason in found.misses)


@pytest.mark.parametrize("source", made_up(), ids=lambda source: f"{source.condition}-{source.name}")
def test_made_up_noise_favours_neither_session(source: object) -> None:
    signs = []
    for seed in range(4):
        rows = source.draw(np.random.default_rng(seed))  # type: ignore[attr-defined]
        signs += [min(a) < min(b) for a, b in rows.times_ns]
    assert 0.4 < np.mean(signs) < 0.6


def test_every_recorded_condition_has_six_models() -> None:
    assert [source.condition for source in recorded()] == [c for c in CONDITIONS for _ in range(6)]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (np.ones((4, 6), np.int64), "expected"),
        (np.zeros((4, 7), np.int64), "0 ns"),
        (np.ones((4, 7), np.int64), "both 0 and 1"),
    ],
)
def test_a_table_that_holds_no_rows_is_refused(table: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rows_of(table)


def test_an_interval_is_wide_for_few_searches_and_never_leaves_0_to_1() -> None:
    assert Rate(0, 1000).interval == pytest.approx((0.0, 0.00383), abs=1e-5)
    low, high = Rate(5, 10).interval
    assert (low, high) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert Rate(10, 10).interval[1] <= 1.0


def test_the_plan_asks_both_rules_the_same_questions() -> None:
    cells = [cell for cell in plan(1000, 41) if cell.max_samples == 41]
    ours, usual = ([of(c, rule="") for c in cells if c.rule == rule] for rule in ("ours", "usual"))
    assert ours == usual
    assert {(c.condition, c.name) for c in ours} == set(sources())


def test_the_tool_prints_tables_and_writes_json_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--searches",
        "2",
        "--jobs",
        "1",
        "--noise",
        "spinning_stopped",
        "--json",
        str(tmp_path / "a.json"),
    ]
    if importlib.util.find_spec("matplotlib"):
        arguments += ["--plot", str(tmp_path / "a.png")]
    assert bench_selection.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "met    a true 1.2x found in 99% with spinning stopped" in printed
    cells = json.loads((tmp_path / "a.json").read_text())["cells"]
    assert {cell["speedup"] for cell in cells} == {1.0, 1.05, 1.1, 1.2, 1.5, 2.0}
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-samples", "40"], "odd"),
        (["--searches", "0"], "1 or more"),
        (["--noise", "hum"], "invalid choice"),
    ],
)
def test_a_wrong_option_is_refused_in_a_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        bench_selection.main(arguments)
    assert stop.value.code == 2
    assert words in capsys.readouterr().err
