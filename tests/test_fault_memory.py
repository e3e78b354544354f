"""What crashed or hung is remembered, for as long as it means something, and never believed when damaged."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted import Clock, ScriptedRunner, candidates, problem, raising

from ort_stacktune import (
    Candidate,
    DecisionSource,
    FailureKind,
    Fault,
    Mode,
    Problem,
    StackPolicy,
    StackTuner,
    TuneFailure,
    TuneReport,
)
from ort_stacktune.store import FaultMemory, FaultRecord, fault_key

NOW = 1_796_083_200.0  # 2026-12-01
DAY = 86400.0
CRASH = TuneFailure(
    FailureKind.REJECTED,
    "its process died by SIGABRT while its session was made; last words: no",
    Fault.SIGNAL,
)
POLICY = StackPolicy(samples=3, max_samples=5, warmups=1, repeats=1, confidence=0.6, max_relative_mad=10.0)


def record(fault: Fault = Fault.SIGNAL, key: str = "a key", happened_s: float = NOW) -> FaultRecord:
    return FaultRecord(key, "bad", fault, CRASH.message, happened_s)


def memory(
    folder: Path | None, warnings: list[str] | None = None, since_s: float | None = None
) -> FaultMemory:
    return FaultMemory(folder, warn=(warnings if warnings is not None else []).append, since_s=since_s)


def file_of(folder: Path) -> Path:
    (path,) = (folder / "faults-v1").iterdir()
    return path


def test_the_golden_file_of_format_1_is_what_is_written_and_still_reads(tmp_path: Path) -> None:
    golden = Path(__file__).with_name("golden") / "fault_v1.json"
    memory(tmp_path).remember(record(), on_disk=True)
    path = file_of(tmp_path)
    assert path.read_bytes() == golden.read_bytes()
    path.write_bytes(golden.read_bytes())
    assert memory(tmp_path).known(["a key"], NOW) == {"a key": record()}


def test_a_fault_is_known_to_the_next_process_as_it_was(tmp_path: Path) -> None:
    memory(tmp_path).remember(record(), on_disk=True)
    assert memory(tmp_path).known(["a key", "another"], NOW + 1) == {"a key": record()}


def test_a_fault_of_an_environment_that_is_not_known_for_sure_stays_in_its_process(tmp_path: Path) -> None:
    own = memory(tmp_path)
    own.remember(record(), on_disk=False)
    assert own.known(["a key"], NOW) == {"a key": record()}
    assert memory(tmp_path).known(["a key"], NOW) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", [Fault.MEMORY, Fault.TIMEOUT])
def test_what_a_busy_machine_may_bring_about_is_forgotten_within_a_day(tmp_path: Path, fault: Fault) -> None:
    memory(tmp_path).remember(record(fault), on_disk=True)
    assert memory(tmp_path).known(["a key"], NOW + 0.9 * DAY)
    assert not memory(tmp_path).known(["a key"], NOW + 1.1 * DAY)


@pytest.mark.parametrize("fault", [Fault.SIGNAL, Fault.EXIT, Fault.PROTOCOL])
def test_what_happens_every_time_is_remembered_for_a_month(tmp_path: Path, fault: Fault) -> None:
    memory(tmp_path).remember(record(fault), on_disk=True)
    assert memory(tmp_path).known(["a key"], NOW + 29 * DAY)
    assert not memory(tmp_path).known(["a key"], NOW + 31 * DAY)
    assert not memory(tmp_path).known(["a key"], NOW - 1)


def test_outputs_over_their_limit_are_not_remembered_because_the_limit_may_change(tmp_path: Path) -> None:
    memory(tmp_path).remember(record(Fault.OUTPUT), on_disk=True)
    assert list(tmp_path.iterdir()) == []


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _edited(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"SIGABRT", b"SIGSEGV"))


def _other_format(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"fault 1 ", b"fault 2 "))


def _no_header(path: Path) -> None:
    path.write_bytes(b"{}")


def _huge(path: Path) -> None:
    os.truncate(path, 1 << 30)


def _linked(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


@pytest.mark.parametrize("damage", [_cut, _edited, _other_format, _no_header, _huge, _linked])
def test_a_damaged_file_is_ignored_with_one_warning(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    memory(tmp_path).remember(record(), on_disk=True)
    damage(file_of(tmp_path))
    warnings: list[str] = []
    assert memory(tmp_path, warnings).known(["a key"], NOW) == {}
    assert len(warnings) == 1
    assert "is ignored because" in warnings[0]


def test_the_file_of_another_key_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    memory(tmp_path).remember(record(), on_disk=True)
    path = file_of(tmp_path)
    memory(tmp_path).remember(record(key="another"), on_disk=True)
    (other,) = set((tmp_path / "faults-v1").iterdir()) - {path}
    other.replace(path)
    warnings: list[str] = []
    assert memory(tmp_path, warnings).known(["a key"], NOW) == {}
    assert "another key" in warnings[0]


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_a_directory_that_others_may_write_to_is_neither_read_nor_written(tmp_path: Path) -> None:
    memory(tmp_path).remember(record(), on_disk=True)
    (tmp_path / "faults-v1").chmod(0o770)
    warnings: list[str] = []
    shared = memory(tmp_path, warnings)
    assert shared.known(["a key"], NOW) == {}
    shared.remember(record(key="another"), on_disk=True)
    assert len(list((tmp_path / "faults-v1").iterdir())) == 1
    assert len(warnings) == 1


def test_a_disk_that_takes_nothing_costs_one_warning_and_is_made_up_for_in_memory(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    warnings: list[str] = []
    own = memory(blocked, warnings)
    own.remember(record(), on_disk=True)
    own.remember(record(key="another"), on_disk=True)
    assert own.known(["a key", "another"], NOW).keys() == {"a key", "another"}
    assert len(warnings) == 1


def test_files_and_directory_are_this_users_alone(tmp_path: Path) -> None:
    memory(tmp_path).remember(record(), on_disk=True)
    assert file_of(tmp_path).stat().st_mode & 0o077 == 0
    assert (tmp_path / "faults-v1").stat().st_mode & 0o077 == 0


def test_the_sentence_for_a_report_says_what_when_and_until_when() -> None:
    assert record().why_not_tried() == (
        "not tried: its process died by SIGABRT while its session was made on 2026-12-01; last words: no;"
        " it is tried again after 2026-12-31, with another environment or recipe,"
        " or with retry_failed (--retry-failed)"
    )


def tuner(folder: Path | None, policy: StackPolicy = POLICY, **keywords: object) -> StackTuner:
    clock = Clock()
    return StackTuner(policy, folder, clock_ns=clock, wall_clock_s=lambda: NOW + 10.0, **keywords)  # type: ignore[arg-type]


def runner(**keywords: object) -> ScriptedRunner:
    return ScriptedRunner([1000, 500, 900], clock=Clock(), **keywords)  # type: ignore[arg-type]


def crashing() -> ScriptedRunner:
    return runner(failures={1: CRASH})


def report_of(tuner: StackTuner) -> TuneReport:
    return tuner.reports()[-1]


NAMES = ("reference", "bad", "good")


def test_a_second_process_does_not_try_what_crashed_in_the_first(tmp_path: Path) -> None:
    asked = problem()
    tuner(tmp_path).select(asked, candidates(*NAMES), 0, crashing())
    second, trials = tuner(tmp_path), runner()
    # Another signature of the same model: what crashes for one is not tried for another.
    second.select(problem(), candidates(*NAMES), 0, trials)
    assert 1 not in trials.validated
    assert 1 not in trials.measured
    reported = report_of(second).candidates[1]
    assert (reported.fault, reported.verdict) == (Fault.SIGNAL, "not tried")
    assert reported.note.startswith(
        "not tried: its process died by SIGABRT while its session was made on 2026-"
    )


def test_a_crash_is_remembered_at_once_and_not_only_when_the_search_ends(tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    interrupted = runner(failures={1: CRASH, 2: Stop()})
    with pytest.raises(Stop):
        tuner(tmp_path).select(problem(), candidates(*NAMES), 0, interrupted)
    trials = runner()
    tuner(tmp_path).select(problem(), candidates(*NAMES), 0, trials)
    assert 1 not in trials.validated


@pytest.mark.parametrize("changed", ["environment", "operation", "revision"])
def test_another_environment_model_or_recipe_is_tried_anew(tmp_path: Path, changed: str) -> None:
    tuner(tmp_path).select(problem(), candidates(*NAMES), 0, crashing())
    trials = runner()
    manifest = candidates(*NAMES)
    asked = problem()
    if changed == "revision":
        manifest[1] = Candidate("bad", revision="2")
    else:
        asked = problem(**{changed: "another"})
    tuner(tmp_path).select(asked, manifest, 0, trials)
    assert 1 in trials.validated


def test_retry_failed_tries_again_and_forgets_what_did_well(tmp_path: Path) -> None:
    tuner(tmp_path).select(problem(), candidates(*NAMES), 0, crashing())
    trials = runner()
    again = StackTuner(POLICY, tmp_path, clock_ns=Clock(), wall_clock_s=lambda: NOW + 20.0, retry_failed=True)
    assert again.select(problem(), candidates(*NAMES), 0, trials).name == "bad"
    assert 1 in trials.validated
    trials = runner()
    tuner(tmp_path).select(problem(), candidates(*NAMES), 0, trials)
    assert 1 in trials.validated


def test_retry_failed_tries_once_and_not_again_for_each_signature(tmp_path: Path) -> None:
    again = tuner(tmp_path, retry_failed=True)
    first, second = crashing(), crashing()
    again.select(problem(), candidates(*NAMES), 0, first)
    again.select(problem(), candidates(*NAMES), 0, second)
    assert 1 in first.validated
    assert 1 not in second.validated


def test_without_a_cache_directory_one_process_remembers_for_itself() -> None:
    own = tuner(None)
    own.select(problem(), candidates(*NAMES), 0, crashing())
    trials = runner()
    own.select(problem(), candidates(*NAMES), 0, trials)
    assert 1 not in trials.validated


def test_an_environment_that_is_not_known_for_sure_leaves_nothing_on_disk(tmp_path: Path) -> None:
    tuner(tmp_path).select(problem(persistent=False), candidates(*NAMES), 0, crashing())
    assert list(tmp_path.rglob("*.json")) == []


def test_a_plain_rejection_is_no_fault_and_is_tried_again(tmp_path: Path) -> None:
    plain = runner(failures={1: TuneFailure(FailureKind.REJECTED, "its output 'y' differs")})
    tuner(tmp_path).select(problem(), candidates(*NAMES), 0, plain)
    trials = runner()
    tuner(tmp_path).select(problem(), candidates(*NAMES), 0, trials)
    assert 1 in trials.validated


@pytest.mark.parametrize("mode", [Mode.EXPLORE, Mode.CACHE_ONLY])
def test_a_stored_winner_that_has_crashed_since_is_not_even_validated(tmp_path: Path, mode: Mode) -> None:
    asked: Problem = problem()
    assert tuner(tmp_path).select(asked, candidates(*NAMES), 0, runner()).name == "bad"
    found = FaultRecord(
        fault_key(asked.environment, asked.operation, "bad", "1"), "bad", Fault.SIGNAL, CRASH.message, NOW
    )
    FaultMemory(tmp_path, warn=lambda _: None).remember(found, on_disk=True)
    trials = runner()
    decision = tuner(tmp_path, StackPolicy(**{**_fields(POLICY), "mode": mode})).select(
        asked, candidates(*NAMES), 0, trials
    )
    assert 1 not in trials.validated
    assert decision.source is (DecisionSource.CACHE_MISS if mode is Mode.CACHE_ONLY else DecisionSource.TUNED)


def _fields(policy: StackPolicy) -> dict[str, object]:
    return {name: getattr(policy, name) for name in policy.__slots__}


def test_a_stored_winner_that_crashes_in_its_validation_is_remembered(tmp_path: Path) -> None:
    asked = problem()
    tuner(tmp_path).select(asked, candidates(*NAMES), 0, runner())
    tuner(tmp_path).select(asked, candidates(*NAMES), 0, crashing())
    trials = runner()
    tuner(tmp_path).select(problem(), candidates(*NAMES), 0, trials)
    assert 1 not in trials.validated


def test_a_policy_error_is_found_before_any_fault_is_looked_up(tmp_path: Path) -> None:
    with raising(FailureKind.INVALID_INPUT, "reference"):
        tuner(tmp_path).select(problem(), candidates(*NAMES), 9, runner())
    assert list(tmp_path.iterdir()) == []
