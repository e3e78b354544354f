"""What users rely on when the calls of their sessions are counted: all of them, exactly, at no cost to serve."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from tuning import CPU, QUICK, fast_twin, floats, one_thread, save, tuned_pair

import graphs
from ort_stacktune import Mode, StackPolicy, StackTuner, TunedSession, TuneFailure
from ort_stacktune.feeds import read_npz
from ort_stacktune.store.checks import Unreadable
from ort_stacktune.traffic import ModelUse, TrafficEntry, TrafficRecorder, read_traffic, recorder_for
from ort_stacktune.traffic import recorder as recorder_module
from ort_stacktune.traffic.form import Counted, decode, encode
from ort_stacktune.vocabulary import Scope

GOLDEN = Path(__file__).with_name("golden") / "traffic_v1.json"

USE = ModelUse(
    "models/detector.onnx",
    "/srv/models/detector.onnx",
    "0f3a" * 8,
    Scope.GRAPH,
    (("CPUExecutionProvider", {}),),
    {"intra_op_num_threads": 2, "enable_mem_pattern": False},
    {"session.dynamic_block_base": "4"},
)
COUNTED = [
    Counted(USE, "3:run,größe", "", 12),
    Counted(USE, "3:run,other", "it draws random numbers: RandomNormal", 3),
    Counted(ModelUse("", "", ""), "", "input 'x' is no tensor of numbers", 1),
]


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[TrafficRecorder]:
    """A recorder that writes when it is told to."""
    made = TrafficRecorder(tmp_path / "traffic", interval_s=3600.0)
    yield made
    made.close()


def recorded(recorder: TrafficRecorder) -> list[TrafficEntry]:
    recorder.flush()
    return read_traffic(recorder.path, pytest.fail)


def weights(recorder: TrafficRecorder) -> list[tuple[int, str]]:
    return [(entry.weight, entry.refused) for entry in recorded(recorder)]


# --- what is counted ------------------------------------------------------------------------------


def test_every_call_is_counted_whether_it_was_searched_for_or_served_by_a_choice(
    tmp_path: Path, recorder: TrafficRecorder
) -> None:
    tuned, _, tuner = tuned_pair(tmp_path, graphs.mlp(), record=recorder)
    for _ in range(7):
        tuned.run(None, {"x": floats(2, 16)})
    for _ in range(3):
        tuned.run(["y"], {"x": floats(5, 16)})
    often, seldom = recorded(recorder)
    assert (often.weight, often.refused, seldom.weight) == (7, "", 3)
    assert often.use.path == str(tmp_path / "slow.onnx")
    assert often.use.digest == tuned._lane().model.digest
    assert often.use.providers == (("CPUExecutionProvider", {}),)
    assert often.use.session_options == {"intra_op_num_threads": 1, "log_severity_level": 4}
    [tensor] = often.signature().inputs
    assert (tensor.name, tensor.dtype, tensor.shape, tensor.device) == ("x", "f4", (2, 16), "cpu")
    assert [output.name for output in often.signature().outputs] == ["y"]
    assert tuner.stats().memory_hits == 8, "counting takes no hit from the controller's own figures"


def test_a_session_without_a_controller_counts_what_the_reference_serves(
    tmp_path: Path, recorder: TrafficRecorder
) -> None:
    path = save(graphs.branching(), tmp_path / "model.onnx")
    session = TunedSession(path, one_thread(), providers=CPU, record=recorder)
    raw = ort.InferenceSession(path, one_thread(), providers=CPU)
    for mode, calls in ((0, 5), (1, 2)):
        feed = {"x": floats(3, 16), "mode": np.array(mode)}
        for _ in range(calls):
            np.testing.assert_array_equal(session.run(None, feed)[0], raw.run(None, feed)[0])
    first, second = recorded(recorder)
    assert (first.weight, second.weight) == (5, 2)
    assert [tensor.value for tensor in first.signature().inputs] == ["0", ""]
    assert session.report({"x": floats(3, 16), "mode": np.array(0)}) is None


def test_a_controller_that_is_installed_later_takes_over(tmp_path: Path, recorder: TrafficRecorder) -> None:
    slow, fast = fast_twin(tmp_path, graphs.mlp())
    session = TunedSession(slow, one_thread(), providers=CPU, candidates=[fast], record=recorder)
    feed = {"x": floats(2, 16)}
    session.run(None, feed)
    session._tuner = StackTuner(QUICK)
    while session.decision(feed) is None:
        session.run(None, feed)
    assert len(recorded(recorder)) == 1


def test_a_disabled_controller_and_one_that_only_reads_count_too(
    tmp_path: Path, recorder: TrafficRecorder
) -> None:
    path = save(graphs.mlp(), tmp_path / "model.onnx")
    for mode in (Mode.DISABLED, Mode.CACHE_ONLY):
        tuner = StackTuner(StackPolicy(mode=mode), tmp_path / "cache")
        session = TunedSession(path, one_thread(), providers=CPU, tuner=tuner, record=recorder)
        for _ in range(4):
            session.run(None, {"x": floats(2, 16)})
    assert weights(recorder) == [(8, "")]
    assert not (tmp_path / "cache").exists()


def test_calls_that_can_not_be_tuned_are_counted_with_the_reason(
    tmp_path: Path, recorder: TrafficRecorder
) -> None:
    for build, feed in (
        (graphs.random_op, {"x": floats(2, 4)}),
        (graphs.string_identity, {"x": np.array(["a", "b"], object)}),
    ):
        path = save(build(), tmp_path / f"{build.__name__}.onnx")
        session = TunedSession(path, one_thread(), providers=CPU, record=recorder, tuner=StackTuner(QUICK))
        for _ in range(3):
            session.run(None, {session.get_inputs()[0].name: feed["x"]})
    (first, reason), (second, other) = weights(recorder)
    assert (first, second) == (3, 3)
    assert "it draws random numbers" in reason + other
    assert "is no tensor of numbers" in reason + other


def test_a_steering_value_that_is_new_in_every_call_does_not_fill_the_record(
    tmp_path: Path, recorder: TrafficRecorder
) -> None:
    path = save(graphs.counted(), tmp_path / "model.onnx")
    session = TunedSession(path, one_thread(), providers=CPU, record=recorder)
    steering = [meta.name for meta in session.get_inputs() if meta.type == "tensor(int64)"]
    for number in range(40):
        session.run(None, {**_feed_of(session), steering[0]: np.array(number % 30)})
    entries = recorded(recorder)
    assert sum(entry.weight for entry in entries) == 40
    assert len(entries) == 17
    assert "steers the computation and has changed more than 16 times" in entries[0].refused


def _feed_of(session: Any) -> dict[str, Any]:
    return {
        meta.name: floats(*(dim if isinstance(dim, int) else 2 for dim in meta.shape))
        for meta in session.get_inputs()
        if meta.type == "tensor(float)"
    }


def test_calls_through_bindings_ort_values_and_callbacks_are_counted(
    tmp_path: Path, recorder: TrafficRecorder
) -> None:
    for tuner in (StackTuner(QUICK), None):
        path = save(graphs.mlp(), tmp_path / "model.onnx")
        session = TunedSession(path, providers=CPU, candidates=[], tuner=tuner, record=recorder)
        binding = session.io_binding()
        binding.bind_cpu_input("x", floats(2, 16))
        binding.bind_output("y")
        for _ in range(5):
            session.run_with_iobinding(binding)
        values = {"x": ort.OrtValue.ortvalue_from_numpy(floats(3, 16))}
        for _ in range(3):
            session.run_with_ort_values(None, values)
        done = threading.Event()
        session.run_async(["y"], {"x": floats(4, 16)}, lambda *_, done=done: done.set(), None)
        assert done.wait(60)
    shown = [
        (entry.weight, entry.signature().form, entry.signature().inputs[0].shape)
        for entry in recorded(recorder)
    ]
    assert shown == [(10, "binding", (2, 16)), (6, "run", (3, 16)), (2, "run", (4, 16))]


def test_a_controller_has_the_calls_of_all_its_sessions_counted(tmp_path: Path) -> None:
    tuner = StackTuner(QUICK)
    recorder = tuner.record(tmp_path / "traffic")
    assert tuner.record(tmp_path / "traffic") is recorder
    with pytest.raises(TuneFailure, match="records already"):
        tuner.record(tmp_path / "elsewhere")
    for name, base in (("a", graphs.mlp()), ("b", graphs.argmax())):
        (tmp_path / name).mkdir()
        path = save(base, tmp_path / name / "model.onnx")
        session = TunedSession(path, one_thread(), providers=CPU, candidates=[], tuner=tuner)
        for _ in range(3):
            session.run(None, _feed_of(session))
    assert [(entry.weight, Path(entry.use.path).parent.name) for entry in recorded(recorder)] == [
        (3, "a"),
        (3, "b"),
    ]
    recorder.close()


def test_two_sessions_of_one_model_count_together_and_other_options_apart(
    tmp_path: Path, recorder: TrafficRecorder
) -> None:
    path = save(graphs.mlp(), tmp_path / "model.onnx")
    for options in (one_thread(), one_thread(), None):
        session = TunedSession(path, options, providers=CPU, record=recorder)
        session.run(None, {"x": floats(2, 16)})
    assert [(entry.weight, dict(entry.use.session_options)) for entry in recorded(recorder)] == [
        (2, {"intra_op_num_threads": 1, "log_severity_level": 4}),
        (1, {}),
    ]


def test_a_model_from_bytes_is_counted_by_its_content(recorder: TrafficRecorder) -> None:
    session = TunedSession(graphs.mlp().SerializeToString(), one_thread(), providers=CPU, record=recorder)
    session.run(None, {"x": floats(2, 16)})
    [entry] = recorded(recorder)
    assert (entry.use.model, entry.use.path, len(entry.use.digest)) == ("", "", 32)


def test_a_call_that_fails_is_counted_and_fails_as_ever(tmp_path: Path, recorder: TrafficRecorder) -> None:
    path = save(graphs.mlp(), tmp_path / "model.onnx")
    session = TunedSession(path, one_thread(), providers=CPU, record=recorder)
    raw = ort.InferenceSession(path, one_thread(), providers=CPU)
    for feed in ({"x": floats(2, 17)}, {}, {"x": floats(2, 16), "z": floats(1)}):
        with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever ONNX Runtime raises
            raw.run(None, feed)
        with pytest.raises(type(expected.value)) as found:
            session.run(None, feed)
        assert str(found.value) == str(expected.value)
    assert weights(recorder) == [(3, "ONNX Runtime refuses it, or it comes in a form that is not read")]


def test_eight_threads_lose_no_call(tmp_path: Path, recorder: TrafficRecorder) -> None:
    path = save(graphs.mlp(), tmp_path / "model.onnx")
    session = TunedSession(path, one_thread(), providers=CPU, record=recorder)
    shapes = [floats(rows, 16) for rows in (1, 2, 3)]

    def serve(seed: int) -> None:
        for turn in range(300):
            session.run(None, {"x": shapes[(turn + seed) % 3]})

    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [weight for weight, _ in weights(recorder)] == [800, 800, 800]


# --- samples --------------------------------------------------------------------------------------


def test_samples_are_the_inputs_of_the_first_second_and_fourth_call(tmp_path: Path) -> None:
    recorder = TrafficRecorder(tmp_path / "traffic", sample_count=3, interval_s=3600.0)
    tuned, _, _ = tuned_pair(tmp_path, graphs.mlp(), record=recorder)
    feeds = [{"x": floats(2, 16, seed=number)} for number in range(9)]
    for feed in feeds:
        kept = feed["x"].copy()
        tuned.run(None, feed)
        np.testing.assert_array_equal(feed["x"], kept)
        feed["x"] += 1.0  # what a caller does with its buffers later is of no matter
    [entry] = recorded(recorder)
    assert entry.weight == 9
    found = [read_npz(str(path)) for path in entry.samples]
    assert len(found) == 3
    for sample, number in zip(found, (0, 1, 3), strict=True):
        np.testing.assert_array_equal(sample["x"], floats(2, 16, seed=number))
    [route] = tuned._routes.values()
    assert route.run == route.native.run, "with its samples kept, serving goes the short way again"
    assert all(path.stat().st_mode & 0o077 == 0 for path in entry.samples)
    recorder.close()


def test_samples_stay_within_their_bytes_however_many_processes_record(tmp_path: Path) -> None:
    path = save(graphs.mlp(), tmp_path / "model.onnx")
    for _ in range(3):
        recorder = TrafficRecorder(tmp_path / "t", sample_count=4, max_bytes=2000, interval_s=3600.0)
        session = TunedSession(path, one_thread(), providers=CPU, record=recorder)
        for rows in (2, 3, 1000):
            for _ in range(9):
                session.run(None, {"x": floats(rows, 16)})
        recorder.close()
    entries = read_traffic(tmp_path / "t", pytest.fail)
    assert [entry.weight for entry in entries] == [27, 27, 27]
    files = list((tmp_path / "t" / "v1" / "samples").iterdir())
    assert 0 < sum(file.stat().st_size for file in files) <= 2000
    assert sorted(file for entry in entries for file in entry.samples) == sorted(files)


def test_an_inputs_odd_name_is_kept_in_its_sample(tmp_path: Path) -> None:
    recorder = TrafficRecorder(tmp_path / "traffic", sample_count=1, interval_s=3600.0)
    count = recorder.count_of(USE, "w")
    count.asked.value += 1
    feeds = {name: floats(2) for name in ("file", "a/b:0", "../x", "größe")}
    feeds["scalar"] = np.array(3.0, np.float32)
    recorder.offer_sample(count, feeds)
    [entry] = recorded(recorder)
    sample = read_npz(str(entry.samples[0]))
    assert sample.keys() == feeds.keys()
    assert sample["scalar"].shape == ()
    assert [path.name for path in (tmp_path / "traffic").iterdir()] == ["v1"]
    recorder.close()


# --- the record on disk ---------------------------------------------------------------------------


def test_a_record_gives_back_every_count_exactly() -> None:
    assert decode(encode(COUNTED, 5)) == (COUNTED, 5)


def test_the_text_of_format_1_stays_what_it_was() -> None:
    assert encode(COUNTED, 5) == GOLDEN.read_bytes()


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_record_that_was_changed_or_cut_anywhere_is_not_believed(data: st.DataObject) -> None:
    whole = encode(COUNTED, 0)
    place = data.draw(st.integers(0, len(whole) - 1))
    for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]):
        with pytest.raises(Unreadable):
            decode(damaged)


def test_a_damaged_file_is_one_warning_and_the_others_count(
    tmp_path: Path, recorder: TrafficRecorder
) -> None:
    recorder.count_of(USE, "w").asked.value += 4
    recorder.flush()
    (tmp_path / "traffic" / "v1" / "7-0123456789abcdef.json").write_text("damaged")
    (tmp_path / "traffic" / "v1" / "notes.txt").write_text("not ours")
    warnings: list[str] = []
    [entry] = read_traffic(tmp_path / "traffic", warnings.append)
    assert entry.weight == 4
    assert len(warnings) == 1
    assert "is ignored because its first line is not the header of counted calls" in warnings[0].replace(
        "are", "is"
    )


def test_the_heaviest_signature_comes_first(recorder: TrafficRecorder) -> None:
    for number in range(9):
        recorder.count_of(USE, f"w{number}").asked.value += (number * 5) % 9 + 1
    assert [entry.weight for entry in recorded(recorder)] == list(range(9, 0, -1))


def test_more_signatures_than_are_kept_are_only_added_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: TrafficRecorder
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_SIGNATURES", 3)
    for number in range(5):
        recorder.count_of(USE, f"w{number}").asked.value += 1
    recorder.flush()
    warnings: list[str] = []
    assert len(read_traffic(recorder.path, warnings.append)) == 3
    assert warnings == ["2 calls were of more signatures than a process keeps; they are not counted"]


def test_a_record_too_large_to_be_read_keeps_its_heaviest_signatures(
    monkeypatch: pytest.MonkeyPatch, recorder: TrafficRecorder
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_BYTES", 5000)
    for number in range(64):
        recorder.count_of(USE, f"w{number}").asked.value += 1 + number
    recorder.flush()
    entries = read_traffic(recorder.path)
    assert 8 <= len(entries) < 64
    assert entries[0].weight == 64
    assert entries[-1].weight == 64 - len(entries) + 1


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda _: None, "there is no recorded traffic in .*: No such file or directory"),
        (lambda path: path.write_text("x"), "is not a directory"),
        (lambda path: path.mkdir(0o700), "there is no recorded traffic in"),
        (lambda path: (path.mkdir(), path.chmod(0o777)), "may be written to by its group or by others"),
    ],
)
def test_a_place_without_traffic_is_a_clear_failure(
    make: Callable[[Path], object], sentence: str, tmp_path: Path
) -> None:
    make(tmp_path / "traffic")
    with pytest.raises(TuneFailure, match=sentence):
        read_traffic(tmp_path / "traffic")


@pytest.mark.parametrize("spoil", ["file", "open to others", "no file system for files"])
def test_a_place_that_can_not_be_written_costs_one_warning_and_no_call(
    spoil: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "traffic"
    if spoil == "file":
        place.write_text("x")
    elif spoil == "open to others":
        place.mkdir()
        place.chmod(0o777)
    else:
        place = Path("/proc/traffic")
    recorder = TrafficRecorder(place, sample_count=2, interval_s=3600.0)
    path = save(graphs.mlp(), tmp_path / "model.onnx")
    session = TunedSession(path, one_thread(), providers=CPU, record=recorder)
    for _ in range(3):
        session.run(None, {"x": floats(2, 16)})
        recorder.flush()
    recorder.close()
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert f"the traffic in {place} is not recorded because" in told[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"record": ""}, "the directory to record to is ''; expected a path"),
        ({"record": 3}, "the directory to record to is 3; expected a path"),
        ({"record": "x", "record_samples": 17}, "sample_count is 17; expected a whole number from 0 to 16"),
        ({"record": "x", "record_samples": -1}, "sample_count is -1"),
    ],
)
def test_a_bad_argument_is_refused_by_name(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TuneFailure, match=sentence):
        TunedSession(graphs.mlp().SerializeToString(), providers=CPU, **arguments)


def test_samples_beside_a_recorder_and_bad_limits_are_refused(
    tmp_path: Path, recorder: TrafficRecorder
) -> None:
    with pytest.raises(TuneFailure, match="a TrafficRecorder has its own sample_count"):
        recorder_for(recorder, 3)
    with pytest.raises(TuneFailure, match="max_bytes is 0"):
        TrafficRecorder(tmp_path, max_bytes=0)
    with pytest.raises(TuneFailure, match="interval_s is 0"):
        TrafficRecorder(tmp_path, interval_s=0)


def test_one_directory_has_one_recorder_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = recorder_for("traffic", 2)
    assert recorder_for(tmp_path / "traffic", 5) is first
    assert first.sample_count == 5
    first.close()


# --- many processes -------------------------------------------------------------------------------

SERVE = """
import sys
import numpy as np
from ort_stacktune import TunedSession

session = TunedSession(sys.argv[1], providers=["CPUExecutionProvider"], record=sys.argv[2], record_samples=1)
for turn in range(int(sys.argv[3])):
    session.run(None, {"x": np.ones((1 + turn % 2, 16), np.float32)})
"""


def test_eight_processes_record_to_one_directory_and_nothing_is_lost(tmp_path: Path) -> None:
    path = save(graphs.mlp(), tmp_path / "model.onnx")
    place = tmp_path / "traffic"
    command = [sys.executable, "-W", "error", "-c", SERVE, path, str(place), "500"]
    started = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(8)]
    for process in started:
        assert process.communicate(timeout=120) == (None, b"")
        assert process.returncode == 0
    entries = read_traffic(place, pytest.fail)
    assert [entry.weight for entry in entries] == [2000, 2000]
    assert [len(entry.samples) for entry in entries] == [1, 1]
    assert not list(place.rglob("*.tmp"))


def test_the_record_of_a_killed_process_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "traffic"
    for turn in range(6):
        child = get_context("fork").Process(target=_count_for_ever, args=(place,))
        child.start()
        time.sleep(0.05 + 0.02 * turn)
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        for entry in read_traffic(place, pytest.fail) if (place / "v1").exists() else ():
            assert entry.weight > 0


def _count_for_ever(place: Path) -> None:
    recorder = TrafficRecorder(place, interval_s=0.001)
    while True:
        recorder.count_of(USE, "w").asked.value += 1


def test_a_forked_process_counts_only_its_own_calls(tmp_path: Path) -> None:
    recorder = TrafficRecorder(tmp_path / "traffic", interval_s=0.01)
    recorder.count_of(USE, "w").asked.value += 5
    child = get_context("fork").Process(target=_count_on, args=(recorder,))
    child.start()
    child.join()
    assert child.exitcode == 0
    recorder.close()
    assert [entry.weight for entry in read_traffic(tmp_path / "traffic", pytest.fail)] == [12]
    assert len(list((tmp_path / "traffic" / "v1").glob("*.json"))) == 2


def _count_on(recorder: TrafficRecorder) -> None:
    count = recorder.count_of(USE, "w")
    assert count.calls() == 0
    count.asked.value += 7
    while not any(f"/{os.getpid()}-" in str(path) for path in recorder.path.rglob("*.json")):
        time.sleep(0.01)
    recorder.flush()


def test_counts_reach_the_disk_while_the_process_lives(tmp_path: Path) -> None:
    recorder = TrafficRecorder(tmp_path / "traffic", interval_s=0.01)
    recorder.count_of(USE, "w").asked.value += 1
    deadline = time.monotonic() + 60
    while not list((tmp_path / "traffic").rglob("*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    recorder.close()


def test_what_was_recorded_reads_as_json_for_other_tools(recorder: TrafficRecorder) -> None:
    recorder.count_of(USE, "w").asked.value += 2
    recorder.flush()
    [path] = recorder.path.rglob("*.json")
    document = json.loads(path.read_text().partition("\n")[2])
    assert document["calls"] == [{"use": 0, "workload": "w", "refused": "", "count": 2}]
    assert document["uses"][0]["model"] == "models/detector.onnx"
