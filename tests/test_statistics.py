from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_stacktune import StackPolicy, median, paired_score
from ort_stacktune.statistics import FasterTest, Verdict, median_interval, ratio_and_spread

positive = st.floats(min_value=1e-300, max_value=1e300)


@given(st.lists(positive, min_size=1))
def test_the_median_lies_between_the_extremes_and_the_list_is_sorted_in_place(values: list[float]) -> None:
    before = sorted(values)
    middle = median(values)
    assert values == before
    assert middle is not None
    assert (
        before[0] <= middle <= before[-1]
        or math.isclose(middle, before[0])
        or math.isclose(middle, before[-1])
    )


@pytest.mark.parametrize("bad", [[], [0.0], [1.0, -1.0], [math.nan, 1.0], [math.inf]])
def test_a_list_without_only_positive_finite_numbers_has_no_median(bad: list[float]) -> None:
    assert median(bad) is None


def test_an_even_list_has_the_mean_of_its_middle_pair_as_median() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5


def test_a_paired_score_is_the_median_of_selected_over_reference() -> None:
    pairs = [(100.0, 50.0)] * 6 + [(100.0, 500.0)]
    assert paired_score(pairs, StackPolicy()) == (0.5, 0.0)


def test_too_few_pairs_have_no_score() -> None:
    assert paired_score([(1.0, 1.0)] * 6, StackPolicy()) is None


def test_a_zero_duration_has_no_score() -> None:
    assert paired_score([(1.0, 1.0)] * 6 + [(0.0, 1.0)], StackPolicy()) is None
    assert paired_score([(1.0, 1.0)] * 6 + [(1.0, 0.0)], StackPolicy()) is None


def test_too_much_spread_has_no_score() -> None:
    pairs = [(100.0, 50.0), (100.0, 100.0), (100.0, 200.0)] * 3
    assert paired_score(pairs, StackPolicy()) is None
    assert paired_score(pairs, StackPolicy(max_relative_mad=0.6)) is not None


def test_a_spread_of_zero_is_fine() -> None:
    assert paired_score([(100.0, 100.0)] * 7, StackPolicy(max_relative_mad=0.0)) == (1.0, 0.0)


@given(st.lists(positive.filter(lambda v: 1e-100 < v < 1e100), min_size=1))
def test_spread_is_never_negative(ratios: list[float]) -> None:
    assert ratio_and_spread(ratios)[1] >= 0.0


def _promoted(seed: int, confidence: float, win_chance: float) -> bool:
    rng = random.Random(seed)
    test = FasterTest(1.0, confidence, candidates=1, max_pairs=151)
    while test.verdict is Verdict.OPEN:
        test.add(*((2, 1) if rng.random() < win_chance else (1, 2)))
    return test.verdict is Verdict.FASTER


def test_candidates_that_win_half_their_pairs_are_promoted_no_more_often_than_the_confidence_allows() -> None:
    # 2000 searches at confidence 0.95 allow 100; the bound holds for the mean, so leave four deviations.
    promoted = sum(_promoted(seed, 0.95, 0.5) for seed in range(2000))
    assert promoted <= 100 + 4 * math.sqrt(2000 * 0.05 * 0.95)


def test_a_candidate_that_wins_nearly_always_is_promoted_nearly_always() -> None:
    assert sum(_promoted(seed, 0.99, 0.95) for seed in range(300)) >= 297


def test_a_tie_counts_against_the_candidate() -> None:
    test = FasterTest(1.0, 0.99, 1, 101)
    for _ in range(50):
        test.add(100, 100)
    assert test.wins == 0
    assert test.verdict is Verdict.NOT_FASTER


def test_a_candidate_whose_gains_stay_below_min_speedup_is_given_up() -> None:
    test = FasterTest(1.05, 0.99, 1, 101)
    for _ in range(20):
        test.add(104, 100)
    assert (test.wins, test.gains) == (20, 0)
    assert test.verdict is Verdict.NOT_FASTER


def test_a_pass_stays_a_pass_while_gains_hold() -> None:
    test = FasterTest(1.0, 0.99, 1, 101)
    while test.add(2, 1) is not Verdict.FASTER:
        pass
    assert test.add(1, 2) is Verdict.FASTER


def test_more_candidates_have_to_bring_more_evidence() -> None:
    def pairs_needed(candidates: int) -> int:
        test = FasterTest(1.0, 0.99, candidates, 1001)
        while test.add(2, 1) is not Verdict.FASTER:
            pass
        return test.pairs

    assert pairs_needed(1) < pairs_needed(10) < pairs_needed(1000)


@given(st.lists(st.booleans(), max_size=60))
def test_the_verdict_depends_on_the_wins_alone_and_not_on_their_order(outcomes: list[bool]) -> None:
    forward, backward = FasterTest(1.0, 0.99, 3, 101), FasterTest(1.0, 0.99, 3, 101)
    for won in outcomes:
        forward.add(*((2, 1) if won else (1, 2)))
    for won in reversed(outcomes):
        backward.add(*((2, 1) if won else (1, 2)))
    assert forward.verdict is backward.verdict


def test_the_interval_holds_the_median_and_needs_enough_values() -> None:
    assert median_interval([1.0, 2.0, 3.0], 0.95) is None
    low, high = median_interval([float(v) for v in range(1, 22)], 0.95) or (0, 0)
    assert low < 11.0 < high
    assert (low, high) == (6.0, 16.0)
