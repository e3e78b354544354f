"""Holds that pre-warming runs unattended: decided in order, within its budget, whole at any interruption."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import Libraries, children, libraries
from tuning import CPU, fast_twin, floats, one_thread, save

import graphs
from ort_stacktune import DecisionSource, Mode, StackPolicy, StackTuner, TunedSession
from ort_stacktune.failures import FailureKind, Fault
from ort_stacktune.prewarm.turns import turn_to_measure
from ort_stacktune.store import RecordStore

__all__ = ["libraries"]

POLICY = "{effort: quick, max_relative_mad: 10}"
SIZES = (8, 16)


def manifest(tmp_path: Path, sizes: tuple[int, ...] = SIZES, extra: str = "", budget: str = "10m") -> Path:
    """Writes a manifest for a slowed model with one fast candidate, the last size the heaviest."""
    fast_twin(tmp_path, graphs.mlp())
    lines = [
        "version: 1",
        f"budget: {budget}",
        f"policy: {POLICY}",
        "models:",
        "  - path: slow.onnx",
        "    session_options: {intra_op_num_threads: 1}",
        "    candidates:",
        "      - {name: fast, model: fast.onnx, providers: [CPUExecutionProvider],",
        "         session_options: {intra_op_num_threads: 1}}",
        "    signatures:",
        *(f"      - {{dims: {{N: {size}}}, weight: {size}}}" for size in sizes),
        extra,
    ]
    path = tmp_path / "manifest.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def command(path: Path, *options: str) -> list[str]:
    cache = path.parent / "cache"
    return [
        sys.executable,
        "-m",
        "ort_stacktune",
        "prewarm",
        str(path),
        "--cache",
        str(cache),
        "--json",
        *options,
    ]


def prewarm(path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(command(path, *options), capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def statuses(document: dict[str, Any]) -> list[str]:
    return [outcome["status"] for outcome in document["outcomes"]]


def test_what_was_prewarmed_serves_an_application_and_is_not_searched_again(tmp_path: Path) -> None:
    path = manifest(tmp_path)
    status, document = prewarm(path)
    assert (status, statuses(document)) == (0, ["DECIDED"] * 2)
    assert [outcome["weight"] for outcome in document["outcomes"]] == [16.0, 8.0]
    assert all(outcome["decision"]["name"] == "fast" for outcome in document["outcomes"])
    status, document = prewarm(path)
    assert (status, statuses(document)) == (0, ["KNOWN"] * 2)
    _, fast = fast_twin(tmp_path, graphs.mlp())
    policy = StackPolicy(mode=Mode.CACHE_ONLY, max_relative_mad=10.0)
    tuner = StackTuner(policy, tmp_path / "cache")
    session = TunedSession(
        str(tmp_path / "slow.onnx"), one_thread(), providers=CPU, candidates=[fast], tuner=tuner
    )
    feed = {session.get_inputs()[0].name: floats(16, session.get_inputs()[0].shape[1])}
    assert session.tune(feed).source is DecisionSource.DISK_CACHE


def test_a_mistake_in_any_signature_is_found_before_the_first_search(tmp_path: Path) -> None:
    path = manifest(tmp_path, extra="      - {dims: {M: 3}}")
    status, document = prewarm(path)
    assert status == 2
    assert f"{path}:13: the model has no named dimension 'M'" in document["error"]["message"]
    assert not (tmp_path / "cache").exists()


def test_checking_runs_nothing(tmp_path: Path) -> None:
    path = manifest(tmp_path)
    assert prewarm(path, "--check") == (0, {"manifest": str(path), "signatures": 2})
    assert not (tmp_path / "cache").exists()


def test_a_reference_that_fails_costs_its_own_signature_only(tmp_path: Path) -> None:
    save(graphs.gather_fails(), tmp_path / "failing.onnx")
    path = manifest(tmp_path, sizes=(8,))
    path.write_text(
        path.read_text() + "  - path: failing.onnx\n    candidates: [{name: same}]\n    signatures:\n"
        "      - {inputs: failing.npz, weight: 99}\n"
    )
    save_failing_feed(tmp_path)
    status, document = prewarm(path)
    assert (status, statuses(document)) == (3, ["FAILED", "DECIDED"])
    assert document["outcomes"][0]["note"].startswith("the reference: ")


def save_failing_feed(tmp_path: Path) -> None:
    """Writes inputs on which the model raises."""
    model = graphs.gather_fails()
    feeds: dict[str, Any] = {}
    for value in model.graph.input:
        kind = value.type.tensor_type.elem_type
        dims = [dim.dim_value or 4 for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = np.ones(dims, np.float32) if kind == 1 else np.full(dims, 1000, np.int64)
    np.savez(tmp_path / "failing.npz", **feeds)


def test_when_the_budget_is_spent_the_rest_is_said_to_be_missing(tmp_path: Path) -> None:
    status, document = prewarm(manifest(tmp_path, budget="0.6s"))
    assert status == 1
    assert statuses(document)[-1] == "NOT_REACHED"


@pytest.mark.skipif(sys.platform != "linux", reason="the faults are Linux's")
def test_plugins_that_crash_hang_or_hoard_cost_a_line_each_and_are_left_alone_the_next_time(
    tmp_path: Path, libraries: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without it nobody knows what is behind a plugin, and nothing that depends on it reaches the disk.
    monkeypatch.setenv("ORT_STACKTUNE_DRIVER_TAG", "none behind these")
    path = manifest(tmp_path, sizes=(8,))
    ways = ("aborts", "sleeps", "hoards")
    plugins = [
        f"      - {{name: {way}, providers: [{libraries.plugin(way).provider_list[0][0]}],"
        f" ep_libraries: {{{way}: {libraries.path(way)}}}}}"
        for way in ways
    ]
    limits = "limits: {create_s: 6, run_s: 6, memory_bytes: 900000000}"
    text = path.read_text().replace("max_relative_mad: 10}", f"max_relative_mad: 10, {limits}}}")
    # A candidate that hangs takes its time from the budget.
    text = text.replace("effort: quick", "budget: 60")
    path.write_text(text.replace("    signatures:", "\n".join([*plugins, "    signatures:"])))
    status, document = prewarm(path)
    outcome = document["outcomes"][0]
    assert (status, outcome["status"], outcome["decision"]["name"]) == (0, "DECIDED", "fast")
    faults = {each["name"]: each["fault"] for each in outcome["report"]["candidates"]}
    assert [faults[way] for way in ways] == ["SIGNAL", "TIMEOUT", "MEMORY"]
    assert not children()
    loaded = {way: libraries.times_loaded(way) for way in ways}
    for record in (tmp_path / "cache" / "v1").glob("*.json"):
        record.unlink()
    status, document = prewarm(path)
    assert (status, document["outcomes"][0]["status"]) == (0, "DECIDED")
    assert {way: libraries.times_loaded(way) for way in ways} == loaded


def workers_of(pid: int) -> list[int]:
    """Returns the living processes that descend from one."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            child = int(stat.parent.name)
            children += [child, *workers_of(child)]
    return children


def is_gone(pid: int, within_s: float = 20.0) -> bool:
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def wait_for_a_worker(pid: int) -> list[int]:
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        if found := workers_of(pid):
            return found
        time.sleep(0.02)
    raise AssertionError("no worker was started")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_ended_in_the_middle_it_leaves_no_process_and_goes_on_when_run_again(tmp_path: Path) -> None:
    path = manifest(tmp_path)
    with subprocess.Popen(
        command(path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        workers = wait_for_a_worker(process.pid)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "run the same command again to go on" in errors
    assert all(map(is_gone, workers))
    status, document = prewarm(path)
    assert status == 0
    assert set(statuses(document)) <= {"DECIDED", "KNOWN"}


def whole_records(cache: Path) -> int:
    """Returns how many records there are; each has to be readable."""
    warnings: list[str] = []
    files = list((cache / "v1").glob("*.json")) if (cache / "v1").exists() else []
    store = RecordStore(cache, warn=warnings.append)
    for path in files:
        key = json.loads(path.read_text().partition("\n")[2])["key"]
        assert store.get(key) is not None, warnings
    assert not warnings
    return len(files)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_killed_at_any_moment_the_store_is_whole_and_the_rest_is_decided_later(tmp_path: Path) -> None:
    path = manifest(tmp_path)
    draw = random.Random(5)
    kills = 50
    for number in range(kills):
        with subprocess.Popen(command(path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(draw.uniform(0.2, 6.0))
            workers = workers_of(process.pid)
            victims = workers if workers and number % 2 else [process.pid]
            for victim in victims:
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if number % 2:
                process.kill()
            process.wait(timeout=60)
        assert all(map(is_gone, workers))
        found = whole_records(tmp_path / "cache")
        if found == len(SIZES):
            # Everything is decided: begin again, so that the later kills meet a search too.
            for record in (tmp_path / "cache" / "v1").glob("*.json"):
                record.unlink()
    status, document = prewarm(path, "--retry-failed")
    assert status == 0
    assert set(statuses(document)) <= {"DECIDED", "KNOWN"}
    assert whole_records(tmp_path / "cache") == len(SIZES)


@pytest.mark.slow
def test_eight_at_once_share_the_work_and_search_for_nothing_twice(tmp_path: Path) -> None:
    path = manifest(tmp_path)
    running = [
        subprocess.Popen(command(path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    documents = [json.loads(process.communicate(timeout=300)[0]) for process in running]
    found = [status for document in documents for status in statuses(document)]
    assert len(found) == 8 * len(SIZES)
    assert found.count("DECIDED") == len(SIZES)
    assert found.count("KNOWN") == 7 * len(SIZES)
    assert whole_records(tmp_path / "cache") == len(SIZES)


def test_what_a_far_smaller_budget_left_undecided_is_searched_for_again(tmp_path: Path) -> None:
    path = manifest(tmp_path, sizes=(8,))
    _, document = prewarm(path)
    store = RecordStore(tmp_path / "cache", warn=pytest.fail)
    record = store.get(document["outcomes"][0]["decision"]["cache_key"])
    assert record is not None
    ended = replace(record.report, budget_exhausted=True)
    for part, expected in ((1.0, "KNOWN"), (0.75, "KNOWN"), (0.1, "DECIDED")):
        effort = {**record.effort, "budget_s": record.effort["budget_s"] * part}
        store.put(replace(record, report=ended, effort=effort))
        assert statuses(prewarm(path)[1]) == [expected]


def test_a_retry_searches_again_where_a_candidate_had_crashed_though_there_is_a_choice(
    tmp_path: Path,
) -> None:
    path = manifest(tmp_path, sizes=(8,))
    _, document = prewarm(path)
    store = RecordStore(tmp_path / "cache", warn=pytest.fail)
    record = store.get(document["outcomes"][0]["decision"]["cache_key"])
    assert record is not None
    first, *others = record.report.candidates
    crashed = replace(
        first, name="crashes", verified=False, fault=Fault.SIGNAL, rejection=FailureKind.REJECTED
    )
    store.put(replace(record, report=replace(record.report, candidates=(first, *others, crashed))))
    assert statuses(prewarm(path)[1]) == ["KNOWN"]
    assert statuses(prewarm(path, "--retry-failed")[1]) == ["DECIDED"]
    assert statuses(prewarm(path, "--retry-failed")[1]) == ["KNOWN"]


def test_traffic_without_a_call_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "traffic" / "v1").mkdir(parents=True)
    path = tmp_path / "manifest.yaml"
    path.write_text("version: 1\ntraffic: [traffic]\n")
    status, document = prewarm(path)
    assert status == 2
    assert document["error"]["message"].endswith(
        "the recorded traffic holds no call that can be tuned; there is nothing to decide"
    )


def test_what_cannot_be_kept_is_said_before_the_first_search(tmp_path: Path) -> None:
    path = manifest(tmp_path, sizes=(8,))
    (tmp_path / "mine.so").touch()
    path.write_text(
        path.read_text().replace(
            "    signatures:",
            "      - {name: mine, providers: [Mine, CPUExecutionProvider], ep_libraries: {Mine: mine.so}}\n"
            "    signatures:",
        )
    )
    done = subprocess.run(command(path, "--check"), capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert f"warning: {path}:5: slow.onnx: nothing is kept on disk: the driver behind Mine" in done.stderr
    assert "set ORT_STACKTUNE_DRIVER_TAG" in done.stderr


def test_the_summary_fits_a_narrow_terminal(tmp_path: Path) -> None:
    path = manifest(tmp_path, sizes=(8,))
    arguments = [each for each in command(path) if each != "--json"]
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "80"}
    )
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["model", "status", "speed-up", "rejected", "seconds"]
    assert lines[1].split()[:2] == ["slow.onnx", "decided"]
    assert lines[2].strip().startswith("fast for ")
    assert lines[-1].startswith("1 decided in ")


def test_one_process_measures_at_a_time() -> None:
    told: list[str] = []
    with turn_to_measure() as ours:
        assert ours
        code = (
            "from ort_stacktune.prewarm.turns import turn_to_measure\n"
            "with turn_to_measure(waiting=lambda: print('waits'), give_up_s=0.3) as ours: print(ours)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        told = done.stdout.split()
    assert told == ["waits", "False"]
