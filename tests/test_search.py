from __future__ import annotations

import random

import pytest
from scripted import Clock, ScriptedRunner, candidates, noisy, raising

from ort_stacktune import Candidate, FailureKind, StackPolicy, TuneFailure, Validation
from ort_stacktune.search import Outcome, Search
from ort_stacktune.vocabulary import FirstCosts


def search(
    runner: ScriptedRunner,
    policy: StackPolicy | None = None,
    *,
    names: list[Candidate] | None = None,
    seed: int = 1,
    clock: Clock | None = None,
    banned: dict[int, str] | None = None,
) -> Outcome:
    given = names or candidates(*(f"c{i}" for i in range(len(runner.times_ns))))
    return Search(
        given,
        0,
        policy or StackPolicy(),
        runner,
        clock_ns=clock or Clock(),
        coin=random.Random(seed),
        banned=banned,
    ).run()


def test_the_fastest_candidate_wins() -> None:
    outcome = search(ScriptedRunner([1000, 800, 500, 900]))
    assert outcome.winner == 2
    assert outcome.ratio == 0.5
    assert outcome.verified
    assert (outcome.reference_ns, outcome.selected_ns) == (1000, 500)


def test_the_reference_stays_when_nothing_is_faster() -> None:
    outcome = search(ScriptedRunner([1000, 1000, 1001, 5000]))
    assert outcome.winner == 0
    assert outcome.ratio == 1.0
    assert outcome.verified


def test_a_gain_below_min_speedup_is_not_worth_leaving_the_reference_for() -> None:
    assert search(ScriptedRunner([1000, 970])).winner == 0
    assert search(ScriptedRunner([1000, 970]), StackPolicy(min_speedup=1.02)).winner == 1


def test_ten_candidates_that_equal_the_reference_are_not_promoted_under_heavy_noise() -> None:
    promoted = 0
    for seed in range(60):
        times = [noisy(1_000_000, 0.4, 1000 * seed + i) for i in range(11)]
        promoted += search(ScriptedRunner(list(times)), seed=seed).winner != 0
    assert promoted <= 3


def test_a_true_gain_of_a_fifth_is_found_in_ordinary_noise() -> None:
    found = 0
    for seed in range(40):
        times = [noisy(1_200_000, 0.05, 2 * seed), noisy(1_000_000, 0.05, 2 * seed + 1)]
        found += search(ScriptedRunner(list(times)), seed=seed).winner == 1
    assert found >= 39


def test_a_candidate_whose_ratios_scatter_too_much_is_refused_with_the_reason() -> None:
    swings = iter([100, 100] + ([100] * 3 + [500] * 3 + [900] * 3) * 200)
    outcome = search(ScriptedRunner([1000, lambda: next(swings)]))
    assert outcome.winner == 0
    assert "noisy" in outcome.reports[1].note


def test_a_wrong_candidate_is_reported_and_skipped() -> None:
    wrong = TuneFailure(FailureKind.REJECTED, "output 'y' differs")
    outcome = search(ScriptedRunner([1000, 10, 500], failures={1: wrong}))
    assert outcome.winner == 2
    assert not outcome.reports[1].verified
    assert outcome.reports[1].rejection is FailureKind.REJECTED
    assert "output 'y' differs" in outcome.reports[1].note


def test_a_candidate_that_breaks_while_it_is_timed_is_reported_and_skipped() -> None:
    outcome = search(ScriptedRunner([1000, 10, 500], run_failures={1: RuntimeError("boom")}))
    assert outcome.winner == 2
    assert "boom" in outcome.reports[1].note


def test_all_candidates_failing_leaves_the_reference_and_not_the_first_of_them() -> None:
    failures: dict[int, BaseException] = {i: RuntimeError("no") for i in (1, 2, 3)}
    assert search(ScriptedRunner([1000, 1, 1, 1], failures=failures)).winner == 0


def test_a_candidate_is_never_timed_before_its_outputs_agreed() -> None:
    runner = ScriptedRunner([1000, 10], failures={1: TuneFailure(FailureKind.REJECTED, "wrong")})
    search(runner)
    warm_ups = StackPolicy().warmups
    assert runner.measured.count(1) == warm_ups


def test_the_reference_is_compared_with_itself_first() -> None:
    runner = ScriptedRunner([1000, 500])
    search(runner)
    assert runner.validated[0] == 0


def test_an_output_without_a_validator_promotes_nobody_unless_the_policy_says_so() -> None:
    unsupported = {0: Validation.UNSUPPORTED, 1: Validation.UNSUPPORTED}
    with raising(FailureKind.UNAVAILABLE):
        search(ScriptedRunner([1000, 500], verdicts=unsupported))
    outcome = search(ScriptedRunner([1000, 500], verdicts=unsupported), StackPolicy(require_validation=False))
    assert outcome.winner == 1
    assert not outcome.verified


def test_a_wrong_candidate_is_refused_even_where_validation_is_not_required() -> None:
    runner = ScriptedRunner([1000, 10], failures={1: TuneFailure(FailureKind.REJECTED, "wrong")})
    assert search(runner, StackPolicy(require_validation=False)).winner == 0


@pytest.mark.parametrize("where", ["failures", "run_failures"])
def test_a_failing_reference_fails_the_search_and_is_named(where: str) -> None:
    with raising(FailureKind.REJECTED, "the reference"):
        search(ScriptedRunner([1000, 500], **{where: {0: RuntimeError("boom")}}))


def test_a_reference_that_fails_only_later_fails_the_search_too() -> None:
    left = iter([1000] * 6)
    with raising(FailureKind.REJECTED, "the reference"):
        search(ScriptedRunner([lambda: next(left), 900]))


def test_a_device_fault_of_a_candidate_aborts_the_search() -> None:
    with raising(FailureKind.DEVICE):
        search(ScriptedRunner([1000, 1], failures={1: TuneFailure(FailureKind.DEVICE, "lost")}))


@pytest.mark.parametrize("bad", [0, -5, 1.5])
def test_a_time_that_is_no_positive_whole_number_rejects_the_candidate(bad: float) -> None:
    outcome = search(ScriptedRunner([1000, lambda: bad]))  # type: ignore[list-item,return-value]
    assert outcome.winner == 0
    assert "more than 0" in outcome.reports[1].note


def test_the_budget_is_checked_between_trials_and_what_was_not_tried_says_so() -> None:
    clock = Clock()
    runner = ScriptedRunner([10**9] * 5, clock=clock)
    outcome = search(runner, StackPolicy(budget_s=40.0), clock=clock)
    assert outcome.budget_exhausted
    assert outcome.winner == 0
    assert "budget" in outcome.reports[4].note
    assert "budget" in outcome.reports[1].note


def test_a_plain_loser_leaves_after_its_first_pair_and_its_session_is_released() -> None:
    runner = ScriptedRunner([1000, 5000, 1000])
    outcome = search(runner)
    assert outcome.reports[1].samples == 1
    assert 1 in runner.released
    assert "slower" in outcome.reports[1].note


def test_each_pair_holds_the_best_of_the_repeats() -> None:
    times = iter([50_000, 50_000] + [9000, 500, 7000] * 500)
    outcome = search(ScriptedRunner([1000, lambda: next(times)]))
    assert outcome.winner == 1
    assert outcome.selected_ns == 500


def test_both_orders_occur_within_pairs() -> None:
    runner = ScriptedRunner([1000, 900])
    search(runner, StackPolicy(repeats=1, warmups=1))
    pairs = runner.measured[3:]
    firsts = {pairs[i] for i in range(0, len(pairs) - 1, 2)}
    assert firsts == {0, 1}


def test_ineligible_unfitting_banned_and_surplus_candidates_are_not_run_and_say_why() -> None:
    given = [
        Candidate("reference", workspace_bytes=0),
        Candidate("off", workspace_bytes=0, eligible=False),
        Candidate("big", workspace_bytes=1000),
        Candidate("unknown"),
        Candidate("banned", workspace_bytes=0),
        Candidate("good", workspace_bytes=10),
        Candidate("surplus", workspace_bytes=10),
    ]
    runner = ScriptedRunner([1000, 1, 1, 1, 1, 500, 1])
    outcome = search(
        runner, StackPolicy(workspace_limit=100, max_candidates=1), names=given, banned={4: "banned earlier"}
    )
    assert outcome.winner == 5
    assert set(runner.measured) == {0, 5}
    notes = [report.note for report in outcome.reports]
    assert "eligible" in notes[1]
    assert "workspace" in notes[2]
    assert "workspace" in notes[3]
    assert notes[4] == "banned earlier"
    assert "max_candidates" in notes[6]


def test_of_two_that_are_equally_fast_the_simpler_wins() -> None:
    given = [Candidate("reference"), Candidate("ornate", complexity=5), Candidate("plain", complexity=1)]
    assert search(ScriptedRunner([1000, 500, 502]), names=given).winner == 2


def test_a_favourite_that_is_not_confirmed_on_fresh_pairs_gives_way_to_the_next() -> None:
    flattered = iter([400] * (2 + 3 * 13) + [1000] * 1000)
    outcome = search(ScriptedRunner([1000, lambda: next(flattered), 700]))
    assert outcome.winner == 2
    assert "not confirmed" in outcome.reports[1].note


def test_who_trails_the_leader_takes_no_more_pairs() -> None:
    runner = ScriptedRunner([1000, 400, 900])
    outcome = search(runner)
    assert outcome.winner == 1
    assert outcome.reports[2].samples < outcome.reports[1].samples
    assert "behind c1" in outcome.reports[2].note


def test_the_report_of_a_loser_tells_pairs_ratio_interval_spread_and_reason() -> None:
    report = search(ScriptedRunner([1000, 1010])).reports[1]
    assert report.samples >= 5
    assert report.ratio == pytest.approx(1.01)
    assert report.relative_mad == 0.0
    assert report.verified
    assert "not faster" in report.note


def test_a_search_that_can_never_gather_the_evidence_says_what_it_would_take() -> None:
    outcome = search(ScriptedRunner([1000, 100]), StackPolicy(samples=3, max_samples=3))
    assert outcome.winner == 0
    assert "max_samples" in outcome.reports[1].note


def test_the_same_seed_gives_the_same_search() -> None:
    def reports(seed: int) -> object:
        times = [noisy(1000, 0.2, 1), noisy(950, 0.2, 2), noisy(1100, 0.2, 3)]
        return search(ScriptedRunner(list(times)), seed=seed).reports

    assert reports(7) == reports(7)


def test_where_memory_holds_few_sessions_candidates_are_decided_in_turns() -> None:
    runner = ScriptedRunner([1000, 900, 800, 700, 600], space=1)
    assert search(runner).winner == 4
    opened = [
        index for number, index in enumerate(runner.validated) if index not in runner.validated[:number]
    ]
    assert opened == [0, 1, 2, 3, 4]
    assert set(runner.released) == {1, 2, 3, 4}


def _costly(create_ns: int, policy: StackPolicy) -> Outcome:
    costs = {1: FirstCosts(create_ns=create_ns, first_run_ns=500)}
    return search(ScriptedRunner([1000, 500], first_costs=costs), policy)


def test_a_winner_that_does_not_repay_its_first_costs_within_the_expected_calls_is_refused() -> None:
    kept = _costly(500_000, StackPolicy(expected_calls=1000))
    assert kept.winner == 1
    assert "repays its first costs after 1000 calls" in kept.reports[1].note
    refused = _costly(500_000, StackPolicy(expected_calls=999))
    assert refused.winner == 0
    assert "after 1000 calls, more than expected_calls 999" in refused.reports[1].note


def test_first_costs_are_reported_and_leave_the_verdict_alone_unless_asked() -> None:
    outcome = _costly(10**15, StackPolicy())
    assert outcome.winner == 1
    assert (outcome.reports[1].create_ns, outcome.reports[1].first_run_ns) == (10**15, 500)


def test_every_candidate_has_a_verdict_and_the_search_tells_its_phases() -> None:
    clock = Clock()
    wrong: dict[int, BaseException] = {4: TuneFailure(FailureKind.REJECTED, "wrong")}
    runner = ScriptedRunner([1000, 500, 700, 2000, 1, 1], failures=wrong, clock=clock)
    outcome = search(runner, clock=clock, banned={5: "banned"})
    verdicts = [report.verdict for report in outcome.reports]
    assert verdicts[:2] == ["reference", "selected"]
    assert verdicts[3:] == ["not faster", "rejected", "not tried"]
    assert list(outcome.phases_ns) == ["reference", "opening", "rounds", "confirmation"]
    assert sum(outcome.phases_ns.values()) == clock.now_ns


def test_a_budget_that_does_not_decide_them_all_goes_to_the_fastest_first() -> None:
    clock = Clock()
    times = [10**8, 9 * 10**7, 5 * 10**7, 9 * 10**7, 9 * 10**7]
    outcome = search(ScriptedRunner(list(times), clock=clock), StackPolicy(budget_s=12.0), clock=clock)
    assert outcome.winner == 2
    assert outcome.budget_exhausted
    assert any("budget" in report.note for report in outcome.reports[3:])
