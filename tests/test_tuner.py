from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from scripted import Clock, ScriptedRunner, candidates, problem, raising

from ort_stacktune import (
    Candidate,
    Decision,
    DecisionSource,
    FailureKind,
    MemoryEviction,
    Mode,
    Problem,
    Scope,
    StackPolicy,
    StackTuner,
    TuneFailure,
    Validation,
    enable_stack_autotune,
    is_tuning,
    stack_autotuner,
)
from ort_stacktune.failures import ReferenceFailure

TWO = candidates("reference", "fast")


def ask(
    tuner: StackTuner, question: Problem, runner: ScriptedRunner | None = None, given: list[Candidate] = TWO
) -> Decision:
    return tuner.select(question, given, 0, runner or ScriptedRunner([1000, 500]))


def test_a_search_is_run_once_and_then_answered_from_memory() -> None:
    tuner, question, runner = StackTuner(), problem(), ScriptedRunner([1000, 500])
    first = ask(tuner, question, runner)
    assert (first.name, first.index, first.source) == ("fast", 1, DecisionSource.TUNED)
    assert first.verified
    assert first.ratio == 0.5
    measured = len(runner.measured)
    second = ask(tuner, question, runner)
    assert second == replace(first, source=DecisionSource.MEMORY_CACHE)
    assert len(runner.measured) == measured
    stats = tuner.stats()
    assert (stats.misses, stats.tunes, stats.memory_hits) == (1, 1, 1)


def test_the_choice_is_looked_up_by_name_and_revision_and_never_by_position() -> None:
    tuner, question = StackTuner(), problem()
    ask(tuner, question, given=[Candidate("reference"), Candidate("fast", revision="1")])
    other = ask(tuner, question, given=[Candidate("reference"), Candidate("fast", revision="2")])
    assert other.source is DecisionSource.TUNED


@pytest.mark.parametrize("change", ["scope", "operation", "environment", "workload", "execution_context"])
def test_a_choice_made_for_one_question_is_not_used_for_another(change: str) -> None:
    tuner, question = StackTuner(), problem()
    ask(tuner, question)
    other = replace(question, **{change: Scope.PIPELINE if change == "scope" else "other"})  # type: ignore[arg-type]
    assert ask(tuner, other).source is DecisionSource.TUNED


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: (problem(), [], 0), ["0 candidates"]),
        (lambda: (problem(), candidates("a", "a"), 0), ["two candidates", "'a'"]),
        (lambda: (problem(), candidates(""), 0), ["name"]),
        (lambda: (problem(), candidates("x" * 4097), 0), ["name"]),
        (lambda: (problem(operation=""), TWO, 0), ["operation"]),
        (lambda: (problem(environment=""), TWO, 0), ["environment"]),
        (lambda: (problem(workload=""), TWO, 0), ["workload"]),
        (lambda: (problem(), TWO, 2), ["out of range"]),
        (lambda: (problem(), TWO, -1), ["out of range"]),
        (lambda: (problem(), [Candidate(f"c{i}") for i in range(4097)], 0), ["4097"]),
        (lambda: (problem(workload="x" * 400_000), TWO, 0), ["393216"]),
    ],
)
def test_bad_input_is_refused_and_nothing_runs(
    make: Callable[[], tuple[Problem, list[Candidate], int]], words: list[str]
) -> None:
    runner = ScriptedRunner([1000, 500])
    with raising(FailureKind.INVALID_INPUT, *words):
        StackTuner().select(*make(), runner)
    assert not runner.measured
    assert not runner.validated


def test_a_reference_that_does_not_fit_the_workspace_limit_is_refused() -> None:
    tuner = StackTuner(StackPolicy(workspace_limit=10))
    with raising(FailureKind.INVALID_INPUT, "workspace"):
        ask(tuner, problem())


def test_disabled_serves_the_reference_and_touches_neither_runner_nor_disk(tmp_path: Path) -> None:
    tuner = StackTuner(StackPolicy(mode=Mode.DISABLED), tmp_path / "cache")
    runner = ScriptedRunner([1000, 500])
    decision = ask(tuner, problem(), runner)
    assert (decision.source, decision.name) == (DecisionSource.DISABLED, "reference")
    assert not runner.measured
    assert not (tmp_path / "cache").exists()


def test_cache_only_never_times_and_a_miss_is_the_reference(tmp_path: Path) -> None:
    tuner, runner = StackTuner(StackPolicy(mode=Mode.CACHE_ONLY), tmp_path), ScriptedRunner([1000, 500])
    decision = ask(tuner, problem(), runner)
    assert (decision.source, decision.name, decision.verified) == (
        DecisionSource.CACHE_MISS,
        "reference",
        False,
    )
    assert not runner.measured


def test_a_choice_of_an_earlier_process_is_validated_once_and_never_timed(tmp_path: Path) -> None:
    question = problem()
    ask(StackTuner(cache_directory=tmp_path), question)
    later = StackTuner(StackPolicy(mode=Mode.CACHE_ONLY), tmp_path)
    runner = ScriptedRunner([1000, 500])
    decision = ask(later, question, runner)
    assert (decision.source, decision.name, decision.verified) == (DecisionSource.DISK_CACHE, "fast", True)
    assert runner.validated == [1]
    assert not runner.measured
    assert ask(later, question, runner).source is DecisionSource.MEMORY_CACHE
    assert runner.validated == [1]
    assert later.stats().disk_hits == 1


@pytest.mark.parametrize(
    "doubt",
    [
        {"failures": {1: TuneFailure(FailureKind.REJECTED, "wrong")}},
        {"failures": {1: RuntimeError("boom")}},
        {"verdicts": {1: Validation.UNSUPPORTED}},
    ],
)
def test_a_stored_choice_that_does_not_validate_is_deleted_and_searched_anew(
    tmp_path: Path, doubt: dict[str, object]
) -> None:
    question = problem()
    ask(StackTuner(cache_directory=tmp_path), question)
    later = StackTuner(cache_directory=tmp_path)
    decision = ask(later, question, ScriptedRunner([1000, 500], **doubt))  # type: ignore[arg-type]
    assert (decision.source, decision.name) == (DecisionSource.TUNED, "reference")
    assert later.stats().cache_warnings == 1


def test_a_stored_reference_needs_no_validation(tmp_path: Path) -> None:
    question = problem()
    ask(StackTuner(cache_directory=tmp_path), question, ScriptedRunner([1000, 1000]))
    runner = ScriptedRunner([1000, 500])
    decision = ask(StackTuner(cache_directory=tmp_path), question, runner)
    assert (decision.source, decision.name) == (DecisionSource.DISK_CACHE, "reference")
    assert not runner.validated


def test_a_record_older_than_its_time_to_live_or_from_the_future_is_expired(tmp_path: Path) -> None:
    question, now = problem(), [1000.0]
    policy = StackPolicy(ttl_s=100.0)

    def tuner() -> StackTuner:
        return StackTuner(policy, tmp_path, wall_clock_s=lambda: now[0])

    first = tuner()
    ask(first, question)
    now[0] = 1100.0
    assert ask(first, question).source is DecisionSource.MEMORY_CACHE
    now[0] = 1100.1
    assert ask(first, question).source is DecisionSource.TUNED
    now[0] = 1000.0
    assert ask(first, question).source is DecisionSource.TUNED
    now[0] = 900.0
    assert ask(tuner(), question).source is DecisionSource.TUNED


def test_a_session_only_environment_never_reaches_the_disk(tmp_path: Path) -> None:
    question = problem(persistent=False)
    ask(StackTuner(cache_directory=tmp_path / "cache"), question)
    assert not (tmp_path / "cache").exists()


def test_an_unvalidated_winner_serves_but_never_reaches_the_disk(tmp_path: Path) -> None:
    tuner = StackTuner(StackPolicy(require_validation=False), tmp_path / "cache")
    unsupported = {0: Validation.UNSUPPORTED, 1: Validation.UNSUPPORTED}
    decision = ask(tuner, problem(), ScriptedRunner([1000, 500], verdicts=unsupported))
    assert decision.name == "fast"
    assert not decision.verified
    assert not (tmp_path / "cache").exists()


def test_a_reference_that_cannot_be_validated_is_served_and_not_tried_again() -> None:
    tuner, question = StackTuner(), problem()
    runner = ScriptedRunner([1000, 500], verdicts={0: Validation.UNSUPPORTED})
    for _ in range(2):
        decision = ask(tuner, question, runner)
        assert (decision.source, decision.name) == (DecisionSource.VALIDATION_UNAVAILABLE, "reference")
    assert runner.validated == [0]
    assert "no validator" in tuner.reports()[0].candidates[0].note


def test_a_failing_reference_fails_the_search_and_frees_the_claim() -> None:
    tuner, question = StackTuner(), problem()
    with raising(FailureKind.REJECTED, "reference"):
        ask(tuner, question, ScriptedRunner([1000, 500], failures={0: RuntimeError("boom")}))
    assert ask(tuner, question).source is DecisionSource.TUNED


def test_a_device_fault_quarantines_the_environment_for_this_process() -> None:
    tuner = StackTuner()
    lost = TuneFailure(FailureKind.DEVICE, "the device was lost")
    with raising(FailureKind.DEVICE):
        ask(tuner, problem(), ScriptedRunner([1000, 500], failures={1: lost}))
    with raising(FailureKind.QUARANTINED, "the device was lost", "restart"):
        ask(tuner, problem())
    assert ask(tuner, problem(environment="another")).source is DecisionSource.TUNED
    assert tuner.stats().device_failures == 1


def test_a_question_asked_inside_a_trial_gets_the_reference() -> None:
    tuner, seen = StackTuner(), []
    runner = ScriptedRunner([1000, 500])
    runner.during = lambda: seen.append((is_tuning(), ask(tuner, problem(environment="b"))))
    ask(tuner, problem(), runner)
    assert all(inside and nested.source is DecisionSource.NESTED for inside, nested in seen)
    assert seen
    assert not is_tuning()


def test_nobody_waits_for_another_search_of_the_same_key_or_environment_or_over_the_limit() -> None:
    tuner = StackTuner(StackPolicy(max_parallel_tunes=2))
    question, started, finish = problem(), threading.Event(), threading.Event()
    runner = ScriptedRunner([1000, 500])

    def hold() -> None:
        started.set()
        assert finish.wait(30)

    runner.during = hold
    results: list[Decision] = []
    thread = threading.Thread(target=lambda: results.append(ask(tuner, question, runner)))
    thread.start()
    assert started.wait(30)
    try:
        assert ask(tuner, question).source is DecisionSource.BUSY
        assert ask(tuner, problem()).source is DecisionSource.BUSY
        assert ask(tuner, problem(environment="b")).source is DecisionSource.TUNED
        assert tuner.stats().busy_fallbacks == 2
        assert len(tuner.reports()) == 1
    finally:
        finish.set()
        thread.join()
    assert results[0].source is DecisionSource.TUNED


def test_no_lock_is_held_while_a_candidate_runs() -> None:
    tuner, runner = StackTuner(), ScriptedRunner([1000, 500])
    runner.during = lambda: tuner._lock.acquire(timeout=5) and tuner._lock.release()  # type: ignore[assignment,func-returns-value]
    assert ask(tuner, problem(), runner).name == "fast"


def test_invalidate_forgets_in_memory_and_on_disk(tmp_path: Path) -> None:
    tuner, question = StackTuner(cache_directory=tmp_path), problem()
    tuner.invalidate(ask(tuner, question), ban_candidate=False)
    assert not list(tmp_path.rglob("*.json"))
    again = ask(tuner, question)
    assert (again.source, again.name) == (DecisionSource.TUNED, "fast")
    assert tuner.stats().invalidations == 1


def test_a_banned_candidate_is_not_tried_again_for_that_key_only() -> None:
    tuner, question = StackTuner(), problem()
    tuner.invalidate(ask(tuner, question), ban_candidate=True)
    again = ask(tuner, question)
    assert (again.source, again.name) == (DecisionSource.TUNED, "reference")
    assert "banned" in tuner.reports()[-1].candidates[1].note
    assert ask(tuner, problem()).name == "fast"


def test_the_reference_cannot_be_banned() -> None:
    tuner, question = StackTuner(), problem()
    tuner.invalidate(ask(tuner, question, ScriptedRunner([1000, 2000])), ban_candidate=True)
    assert ask(tuner, question).name == "fast"


def test_a_listener_hears_of_every_choice_that_is_taken_back_or_evicted() -> None:
    class Listener:
        def __init__(self) -> None:
            self.gone: list[str] = []

        def choice_gone(self, cache_key: str) -> None:
            self.gone.append(cache_key)

    tuner, listener = StackTuner(StackPolicy(capacity=1)), Listener()
    tuner.subscribe(listener)
    first = ask(tuner, problem())
    second = ask(tuner, problem())
    assert listener.gone == [first.cache_key]
    tuner.invalidate(second)
    assert listener.gone == [first.cache_key, second.cache_key]


@pytest.mark.parametrize(("eviction", "kept"), [(MemoryEviction.FIFO, 1), (MemoryEviction.LRU, 0)])
def test_memory_is_bounded_and_evicts_the_oldest_or_the_least_recently_used(
    eviction: MemoryEviction, kept: int
) -> None:
    tuner = StackTuner(StackPolicy(capacity=2), memory_eviction=eviction)
    questions = [problem(), problem(), problem()]
    ask(tuner, questions[0])
    ask(tuner, questions[1])
    ask(tuner, questions[0])
    ask(tuner, questions[2])
    assert tuner.peek(questions[kept], TWO, 0) is not None
    assert tuner.peek(questions[1 - kept], TWO, 0) is None


def test_a_ban_goes_with_its_key_when_the_memory_is_full() -> None:
    tuner, question = StackTuner(StackPolicy(capacity=1)), problem()
    tuner.invalidate(ask(tuner, question), ban_candidate=True)
    ask(tuner, problem())
    assert ask(tuner, question).name == "fast"


def test_peek_asks_and_never_tunes() -> None:
    tuner, question = StackTuner(), problem()
    assert tuner.peek(question, TWO, 0) is None
    decision = ask(tuner, question)
    assert tuner.peek(question, TWO, 0) == replace(decision, source=DecisionSource.MEMORY_CACHE)


def test_a_choice_that_has_become_slow_is_taken_back_and_banned() -> None:
    tuner, question = StackTuner(StackPolicy(regression_pairs=5)), problem()
    decision = ask(tuner, question)
    outcomes = [tuner.record_comparison(decision, 1000, 1300, True) for _ in range(5)]
    assert outcomes == [False, False, False, False, True]
    assert ask(tuner, question).name == "reference"


def test_a_choice_that_is_still_fast_stays_and_old_comparisons_leave_the_window() -> None:
    tuner, question = StackTuner(StackPolicy(regression_pairs=3)), problem()
    decision = ask(tuner, question)
    for selected in (1300, 900, 900, 1300, 900, 900, 1300):
        assert not tuner.record_comparison(decision, 1000, selected, True)
    assert ask(tuner, question).source is DecisionSource.MEMORY_CACHE


@pytest.mark.parametrize(
    ("reference_ns", "selected_ns", "checked"), [(0, 1, True), (1, 0, True), (1, 1, False), (1, -1, True)]
)
def test_zero_or_unchecked_comparisons_are_invalid(
    reference_ns: int, selected_ns: int, checked: bool
) -> None:
    tuner = StackTuner()
    decision = ask(tuner, problem())
    with raising(FailureKind.INVALID_INPUT):
        tuner.record_comparison(decision, reference_ns, selected_ns, checked)


def test_comparisons_of_a_missing_record_or_another_winner_are_not_taken() -> None:
    tuner, question = StackTuner(StackPolicy(regression_pairs=3)), problem()
    decision = ask(tuner, question)
    for _ in range(5):
        assert not tuner.record_comparison(replace(decision, name="other"), 1, 100, True)
        assert not tuner.record_comparison(replace(decision, cache_key="other"), 1, 100, True)


def test_the_lower_level_fingerprint_changes_with_every_choice_and_bypass_below_a_pipeline() -> None:
    tuner = StackTuner()
    seen = {tuner.lower_level_fingerprint()}
    decision = ask(tuner, problem(scope=Scope.OPERATOR))
    seen.add(tuner.lower_level_fingerprint())
    ask(tuner, problem(), ScriptedRunner([1000, 500], verdicts={0: Validation.UNSUPPORTED}))
    seen.add(tuner.lower_level_fingerprint())
    tuner.invalidate(decision, ban_candidate=True)
    seen.add(tuner.lower_level_fingerprint())
    assert len(seen) == 4
    before = tuner.lower_level_fingerprint()
    ask(tuner, problem(scope=Scope.PIPELINE))
    assert tuner.lower_level_fingerprint() == before


def test_reports_are_bounded_and_oldest_first() -> None:
    tuner = StackTuner(StackPolicy(capacity=2))
    questions = [problem() for _ in range(3)]
    for question in questions:
        ask(tuner, question)
    assert [report.workload for report in tuner.reports()] == [q.workload for q in questions[1:]]


def test_a_search_that_ran_out_of_time_answers_nobody_who_would_give_it_more(tmp_path: Path) -> None:
    question, clock = problem(), Clock()

    def tuner(budget_s: float) -> StackTuner:
        return StackTuner(StackPolicy(budget_s=budget_s), tmp_path, clock_ns=clock)

    slow = ScriptedRunner([10**9, 10**8], clock=clock)
    hurried = tuner(1.0)
    assert ask(hurried, question, slow).name == "reference"
    assert hurried.reports()[0].budget_exhausted
    assert ask(tuner(1.0), question, slow).source is DecisionSource.DISK_CACHE
    patient = ask(tuner(1000.0), question, slow)
    assert (patient.source, patient.name) == (DecisionSource.TUNED, "fast")
    assert ask(tuner(1.0), question, slow).name == "fast"


def test_a_more_patient_record_satisfies_a_quicker_request_and_not_the_other_way_round(
    tmp_path: Path,
) -> None:
    question = problem()
    ask(StackTuner(StackPolicy.quick(), tmp_path), question)
    assert ask(StackTuner(StackPolicy(), tmp_path), question).source is DecisionSource.TUNED
    assert ask(StackTuner(StackPolicy.quick(), tmp_path), question).source is DecisionSource.DISK_CACHE


def test_where_nothing_may_be_measured_a_record_of_less_effort_serves(tmp_path: Path) -> None:
    question = problem()
    ask(StackTuner(StackPolicy.quick(), tmp_path), question)
    later = StackTuner(StackPolicy(mode=Mode.CACHE_ONLY), tmp_path)
    assert ask(later, question).source is DecisionSource.DISK_CACHE


def test_a_search_can_be_repeated_from_the_seed_in_its_report() -> None:
    seeds = []
    for _ in range(2):
        tuner = StackTuner(coin=random.Random(5))
        ask(tuner, problem())
        seeds.append(tuner.reports()[0].seed)
    assert seeds[0] == seeds[1]
    assert set(tuner.reports()[0].phases_ns) == {"reference", "opening", "rounds", "confirmation"}


def test_the_evidence_reaches_the_next_process_with_the_choice(tmp_path: Path) -> None:
    question = problem()
    first = StackTuner(cache_directory=tmp_path)
    ask(first, question)
    later = StackTuner(cache_directory=tmp_path)
    decision = ask(later, question)
    assert later.report_for(decision.cache_key) == first.reports()[0]


def test_the_controller_is_installed_once_and_asking_creates_none(tmp_path: Path) -> None:
    assert stack_autotuner() is None
    installed = enable_stack_autotune(cache_directory=tmp_path / "cache")
    assert stack_autotuner() is installed
    with raising(FailureKind.INVALID_INPUT, "already"):
        enable_stack_autotune()
    assert stack_autotuner() is installed
    assert not (tmp_path / "cache").exists()


def test_a_bad_policy_installs_nothing() -> None:
    with raising(FailureKind.INVALID_INPUT, "warmups"):
        enable_stack_autotune(StackPolicy(warmups=0))
    assert stack_autotuner() is None


def test_a_ban_spoken_during_a_search_is_heard() -> None:
    tuner, question = StackTuner(), problem()
    earlier = ask(tuner, question)
    tuner.invalidate(earlier)
    runner = ScriptedRunner([1000, 500])
    runner.during = lambda: tuner.invalidate(earlier, ban_candidate=True)
    assert ask(tuner, question, runner).name == "reference"
    assert tuner.seconds_fresh(earlier.cache_key) == 0.0
    assert ask(tuner, question).name == "reference"


def test_an_input_that_makes_the_reference_fail_leaves_the_record_of_others_on_disk(tmp_path: Path) -> None:
    question = problem()
    ask(StackTuner(cache_directory=tmp_path), question)
    later = StackTuner(cache_directory=tmp_path)
    bad = ReferenceFailure(FailureKind.REJECTED, "the reference: index out of bounds")
    with raising(FailureKind.REJECTED, "index"):
        ask(later, question, ScriptedRunner([1000, 500], failures={1: bad}))
    assert ask(later, question).source is DecisionSource.DISK_CACHE


def test_a_quarantined_environment_has_no_choice_to_peek_at() -> None:
    tuner, question = StackTuner(), problem()
    ask(tuner, question)
    lost = TuneFailure(FailureKind.DEVICE, "lost")
    with raising(FailureKind.DEVICE):
        ask(tuner, problem(), ScriptedRunner([1000, 500], failures={1: lost}))
    assert tuner.peek(question, TWO, 0) is None


def test_a_listener_that_fails_does_not_keep_others_from_hearing() -> None:
    class Listener:
        def __init__(self, fails: bool) -> None:
            self.fails = fails
            self.gone: list[str] = []

        def choice_gone(self, cache_key: str) -> None:
            self.gone.append(cache_key)
            if self.fails:
                raise RuntimeError("no")

    tuner = StackTuner()
    listeners = [Listener(fails) for fails in (True, False, True)]
    for listener in listeners:
        tuner.subscribe(listener)
    decision = ask(tuner, problem())
    tuner.invalidate(decision)
    assert all(listener.gone == [decision.cache_key] for listener in listeners)
