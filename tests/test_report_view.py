"""What readers of a report rely on: figures, order, axis and words."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from itertools import pairwise

import pytest
from evidence import ALL, ENVIRONMENT, HANGING, LUCKY, REFERENCE, SLOWER, WINNER, WRONG, kept, record
from rich.console import Console

from ort_stacktune.identity import fields
from ort_stacktune.policy import StackPolicy
from ort_stacktune.report import words
from ort_stacktune.report.scale import axis_for, span
from ort_stacktune.report.strictness import read_strictness
from ort_stacktune.report.terminal import TerminalReport, overview_text
from ort_stacktune.report.view import Standing, build
from ort_stacktune.vocabulary import CandidateReport


def printed(records: list, width: int = 120, *, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", write_through=True)
    Console(file=file, width=width, markup=False, emoji=False, highlight=False).print(
        TerminalReport(build(records))
    )
    file.seek(0)
    return file.read()


def test_the_overview_counts_signatures_gains_and_search_time() -> None:
    overview = build([record(), record(shape=(1, 3, 48, 160)), kept()]).overview
    assert overview is not None
    assert (overview.signatures, overview.models, overview.left_reference) == (3, 2, 2)
    assert overview.mean_ratio == pytest.approx((0.5 * 0.5 * 1.0) ** (1 / 3))
    assert (overview.best.candidate, overview.best.ratio) == ("openvino", 0.5)
    assert (overview.least.candidate, overview.least.ratio) == ("reference", 1.0)
    assert overview.slowest is not None
    assert (overview.slowest.candidate, overview.slowest.ratio) == ("parallel", 400.0)
    assert overview.elapsed_ns == 24_000_000_000
    assert (overview.candidates, overview.rejected) == (14, 5)
    assert overview.first == "2025-11-24T16:00:00Z"


def test_nothing_stored_is_no_overview() -> None:
    view = build([])
    assert view.overview is None
    assert view.signatures == ()


def test_the_order_of_records_changes_nothing() -> None:
    records = [record(), record(shape=(2, 3, 48, 160)), kept(), record("another")]
    assert build(records) == build(records[::-1])


def test_signatures_stand_by_model_and_candidates_by_verdict_and_speed() -> None:
    view = build([kept(), record()])
    assert [each.model for each in view.signatures] == ["detector", "segmenter"]
    names = [each.evidence.name for each in view.signatures[0].candidates]
    assert names == ["openvino", "reference", "threads-2", "parallel", "fp16", "plugin", "later"]


def test_every_candidate_has_its_standing() -> None:
    found = {each.evidence.name: each.standing for each in build([record()]).signatures[0].candidates}
    assert found == {
        "openvino": Standing.SELECTED,
        "reference": Standing.REFERENCE,
        "threads-2": Standing.NOT_FASTER,
        "parallel": Standing.NOT_FASTER,
        "fp16": Standing.REJECTED,
        "plugin": Standing.REJECTED,
        "later": Standing.NOT_TRIED,
    }


def test_only_the_winner_is_called_selected_whatever_a_record_says() -> None:
    claims = [REFERENCE, WINNER, replace(SLOWER, verdict="selected"), replace(WRONG, verdict="odd words")]
    found = {
        each.evidence.name: each.standing
        for each in build([record(candidates=claims)]).signatures[0].candidates
    }
    assert found["parallel"] is Standing.NOT_FASTER
    assert found["fp16"] is Standing.REJECTED


def test_calls_to_break_even_are_those_of_the_search() -> None:
    chosen = build([record()]).signatures[0].chosen
    assert chosen is not None
    # (100 ms to make it + 0.42 ms more for the first run) over 1.58 ms gained by each call.
    assert chosen.break_even_calls == 64
    others = build([record()]).signatures[0].candidates[1:]
    assert [each.break_even_calls for each in others] == [None] * 6


def test_the_least_gain_is_read_from_the_key() -> None:
    found = read_strictness(
        record(policy=StackPolicy(min_speedup=1.23, confidence=0.9, expected_calls=50)).key
    )
    assert found is not None
    assert (found.min_speedup, found.confidence, found.expected_calls) == (1.23, 0.9, 50)


@pytest.mark.parametrize("key", ["", "a key", fields(("ort_stacktune/key/1", "x")), "9:short,"])
def test_a_key_of_another_make_says_nothing(key: str) -> None:
    assert read_strictness(key) is None
    assert build([record(key=key)]).signatures[0].strictness is None


def test_environments_are_told_apart_by_what_differs() -> None:
    other = ENVIRONMENT.replace("11:AMD EPYC".replace("11", "13"), "13:AMD EPYX")
    view = build([record(), record("another"), record(environment=other)])
    assert [each.signatures for each in view.environments] == [2, 1]
    assert view.environments[0].differing == frozenset()
    assert view.environments[1].differing == {"processor"}


# --- the axis -------------------------------------------------------------------------------------


def test_the_axis_is_as_far_on_the_slow_side_as_on_the_fast_one_and_no_further() -> None:
    axis = axis_for([span(0.02, None), span(400.0, None)])
    assert axis.beyond(50.0) == 0
    assert axis.beyond(1 / 400) == -1
    assert axis.place(1 / 400) == 0.0
    assert 0.4 < axis.place(1.0) < 0.6


def test_a_candidate_that_is_400_times_slower_does_not_squeeze_a_small_gain() -> None:
    axis = axis_for([span(1 / 1.42, (1 / 1.5, 1 / 1.3)), span(400.0, None)])
    assert axis.place(1.42) - axis.place(1.0) > 0.15


def test_a_plot_of_equals_still_has_an_axis() -> None:
    axis = axis_for([span(1.0, None)])
    assert axis.low < 0.9 < 1.1 < axis.high
    assert axis_for([]).ticks()


@pytest.mark.parametrize("ratio", [5e-324, 1e-9, 0.02, 0.5, 1.0, 1.7, 400.0, 2.0**62])
def test_marks_of_an_axis_are_apart_and_inside(ratio: float) -> None:
    axis = axis_for([span(ratio, (ratio, ratio))])
    places = [axis.place(tick) for tick in axis.ticks()]
    assert 1.0 in axis.ticks()
    assert all(0 <= place <= 1 for place in places)
    assert all(b - a > 0.05 for a, b in pairwise(places))
    assert all(math.isfinite(value) for value in span(ratio, (ratio, ratio)))


# --- words ----------------------------------------------------------------------------------------


def test_gains_are_told_as_people_say_them() -> None:
    assert words.gain(1 / 1.42) == "1.42x faster"
    assert words.gain(3.1) == "3.10x slower"
    assert words.gain(1.001) == words.gain(0.999) == words.gain(1.0) == "no faster"
    assert words.gain(400.0) == "400x slower"
    assert words.gain(0.02) == "50.0x faster"


def test_durations_never_round_to_a_thousand_of_a_unit() -> None:
    assert words.duration(999_600) == "1.00 ms"
    assert words.duration(999_400) == "999 us"
    assert words.duration(1_234_000_000_000) == "1234 s"
    assert words.duration(999) == "999 ns"
    assert words.long_time(59_400_000_000) == "59.4 s"
    assert words.long_time(134_000_000_000) == "2 min 14 s"
    assert words.long_time(3_900_000_000_000) == "1 h 05 min"


def test_a_date_that_no_calendar_holds_is_told_so() -> None:
    assert words.utc(0.0) == "1970-01-01T00:00:00Z"
    assert words.utc(2.0**62) == "a date out of range"


def test_a_fault_is_named_beside_the_kind_of_failure() -> None:
    assert words.failure_kind(HANGING) == "rejected, time-out"
    assert words.failure_kind(WRONG) == "rejected"
    assert words.failure_kind(WINNER) == ""


# --- on a terminal --------------------------------------------------------------------------------


def test_a_terminal_shows_the_overview_and_every_candidate_with_its_reason() -> None:
    text = printed([record(), kept()])
    assert text.startswith("2 signatures of 2 models: 1 left the reference, geometric mean gain 1.41x,")
    assert "openvino wins: 2.00x as fast as the reference, its outputs agree (found in 8.0 s)." in text
    assert "First costs: session 100 ms, first run 2.00 ms, memory 17.0 MiB, nodes OpenVINO 9 of 9." in text
    assert "rejected, time-out: its session was not made within 30 s" in text
    assert "not tried: later (the budget was spent)" in text
    assert "reference stays: no candidate won" in text


def test_faster_is_said_only_of_what_proved_it() -> None:
    line = next(line for line in printed([record()]).splitlines() if line.startswith("threads-2"))
    assert "1.05x unproven" in line
    assert "faster" not in line


def test_a_strip_marks_the_winner_to_the_right_of_no_gain_and_the_slow_beyond_the_edge() -> None:
    lines = printed([record()]).splitlines()
    winner = next(line for line in lines if line.startswith("openvino") and "◆" in line)
    assert winner.index("│") < winner.index("◆")
    assert winner.index("─") < winner.index("◆")
    slow = next(line for line in lines if line.startswith("parallel"))
    assert "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}" in slow


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = replace(LUCKY, name="a-name-" * 30)
    assert max(map(len, printed([record(candidates=[*ALL, long]), kept()], width).splitlines())) <= width


def test_a_candidate_stays_on_one_line_of_a_narrow_terminal() -> None:
    long = replace(LUCKY, name="openvino-fixed+threads-1+no-spinning")
    lines = printed([record(candidates=[*ALL, long])], 80).splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("candidate "))
    assert lines[head].endswith("one run")
    assert lines[head + 1].startswith("openvino")


def test_a_terminal_without_unicode_gets_ascii() -> None:
    text = printed([record()], encoding="ascii")
    assert "@" in text
    assert text.isascii()


def test_a_name_cannot_steer_the_terminal() -> None:
    hostile = replace(LUCKY, name="\x1b[31mred\n\u202e")
    text = printed([record(candidates=[REFERENCE, WINNER, hostile])])
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b[31mred\\n\\u202e" in text


def test_the_sentence_of_the_overview_needs_no_loser() -> None:
    overview = build([record(candidates=[REFERENCE, WINNER])]).overview
    assert overview is not None
    assert "slowest" not in overview_text(overview)


def test_a_record_without_its_winners_evidence_is_shown_all_the_same() -> None:
    lost = replace(record(), winner="gone", report=replace(record().report, winner="gone"))
    assert "gone wins: 2.00x" in printed([lost])


def test_candidates_that_were_never_timed_leave_the_axis_alone() -> None:
    only = [REFERENCE, CandidateReport("x", note="no such provider"), WRONG]
    assert "fp16" in printed([record(candidates=only, winner="reference")])
