"""The real CUDA execution provider on libraries that stand in for a GPU: order of work, faults, refusals.

Device work is queued there and done only when somebody waits, and every kernel but copies and fp32 GEMMs
does nothing. Times mean nothing on it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from cuda_parts import CUDA, FULL_FLOAT32, Standin, model_of, on_cuda, products, saved
from onnx import helper, numpy_helper
from tuning import CPU, QUICK, floats, one_thread

import graphs
from ort_stacktune import FailureKind, SessionRecipe, StackTuner, TunedSession, TuneFailure
from ort_stacktune.ort import callers
from ort_stacktune.vocabulary import CandidateReport

pytestmark = pytest.mark.standin

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Standin]:
    standin = Standin(tmp_path / "device.log")
    yield standin
    standin.reset()


def tuned(path: str, *candidates: SessionRecipe, **keywords: Any) -> TunedSession:
    """Returns a session on the CPU with candidates on CUDA."""
    tuner = keywords.pop("tuner", None) or StackTuner(QUICK)
    keywords.setdefault("providers", CPU)
    return TunedSession(path, one_thread(), candidates=list(candidates), tuner=tuner, **keywords)


def told_of(session: TunedSession, feed: dict[str, Any], name: str = "cuda") -> CandidateReport:
    """Returns what the report says of a candidate."""
    report = session.report(feed)
    assert report is not None
    return next(candidate for candidate in report.candidates if candidate.name == name)


def elsewhere(code: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Runs code in a process of its own; returns its status, what it printed and what it said."""
    path = os.pathsep.join((str(ROOT / "tests"), os.environ.get("PYTHONPATH", ""), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout, done.stderr


def mark_the_clock(device: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every reading of the clock by which a trial is timed written to the log."""

    def marking() -> int:
        device.mark("clock")
        return time.perf_counter_ns()

    monkeypatch.setattr(callers, "time", SimpleNamespace(perf_counter_ns=marking))


# --- order ------------------------------------------------------------------------------------------


def test_the_device_is_done_when_the_clock_stops(
    tmp_path: Path, device: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, products())
    x = ort.OrtValue.ortvalue_from_numpy(floats(4, 16), "cuda", 0)
    session = tuned(
        path, on_cuda("again", arena_extend_strategy="kSameAsRequested"), providers=[(CUDA, FULL_FLOAT32)]
    )
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_output("y", "cuda", 0)
    mark_the_clock(device, monkeypatch)
    session.run_with_iobinding(binding)
    regions = "\n".join(device.lines).split("mark clock\n")
    timed = [region.splitlines() for region in regions[1::2] if "cublas" in region]
    assert timed, "no timed region with device work was found"
    for region in timed:
        waits = [i for i, line in enumerate(region) if "Synchronize" in line]
        works = [
            i for i, line in enumerate(region) if line.startswith(("cublas", "kernel", "cudaMemcpyAsync"))
        ]
        assert waits[-1] > works[-1], region
        # Nothing of what the trial prepares is paid for while the clock runs.
        assert not [line for line in region if line.startswith("cudaMalloc")], region


def test_nothing_is_in_flight_when_the_clock_starts(
    tmp_path: Path, device: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, products())
    session = tuned(path, on_cuda())
    mark_the_clock(device, monkeypatch)
    session.tune({"x": floats(4, 16)})
    before = "\n".join(device.lines).split("mark clock\n")[0::2]
    for region in before:
        lines = region.splitlines()
        works = [i for i, line in enumerate(lines) if line.startswith(("cublas", "kernel"))]
        waits = [i for i, line in enumerate(lines) if "Synchronize" in line]
        assert not works or waits[-1] > works[-1], region


def test_a_result_that_nobody_waited_for_is_wrong_here(device: Standin) -> None:
    session = ort.InferenceSession(products().SerializeToString(), providers=[(CUDA, FULL_FLOAT32)])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(floats(4, 16), "cuda", 0))
    binding.bind_output("y", "cuda", 0)
    session.run_with_iobinding(binding)
    right = binding.get_outputs()[0].numpy().copy()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(floats(4, 16, seed=1), "cuda", 0))
    hurried = ort.RunOptions()
    hurried.add_run_config_entry("disable_synchronize_execution_providers", "1")
    session.run_with_iobinding(binding, hurried)
    assert np.array_equal(binding.get_outputs()[0].numpy(), right)
    binding.synchronize_outputs()
    assert not np.allclose(binding.get_outputs()[0].numpy(), right)


# --- refusals ---------------------------------------------------------------------------------------


def test_a_model_that_the_device_computes_wrongly_is_rejected_and_never_selected(
    tmp_path: Path, device: Standin
) -> None:
    path = saved(tmp_path, graphs.slowed(graphs.mlp(), links=60))
    model = graphs.mlp()
    feed = {
        meta.name: floats(*[d if isinstance(d, int) else 4 for d in meta.shape])
        for meta in ort.InferenceSession(path, one_thread(), providers=CPU).get_inputs()
    }
    session = tuned(path, on_cuda(model=saved(tmp_path, model, "plain.onnx")))
    decision = session.tune(feed)
    assert decision.is_reference
    report = told_of(session, feed)
    assert (report.rejection, report.verified) == (FailureKind.REJECTED, False)
    assert "differ" in report.note or "NaN" in report.note


def test_a_convolution_without_cudnn_is_rejected_with_the_reason(tmp_path: Path, device: Standin) -> None:
    weight = numpy_helper.from_array(floats(2, 1, 3, 3), "w")
    conv = model_of(
        [helper.make_node("Conv", ["x", "w"], ["y"])], [("x", [1, 1, 8, 8])], [("y", [1, 2, 6, 6])], [weight]
    )
    session = tuned(saved(tmp_path, conv), on_cuda())
    feed = {"x": floats(1, 1, 8, 8)}
    assert session.tune(feed).is_reference
    report = told_of(session, feed)
    assert report.rejection is FailureKind.REJECTED
    assert "cudnn" in report.note.lower()


def test_a_session_that_cannot_be_made_is_reported_as_such(tmp_path: Path, device: Standin) -> None:
    session = tuned(saved(tmp_path, products()), on_cuda())
    device.inject("cublasCreate_v2:1:1")
    feed = {"x": floats(4, 16)}
    assert session.tune(feed).is_reference
    report = told_of(session, feed)
    assert report.rejection is FailureKind.REJECTED
    assert "could not be made" in report.note


def test_a_missing_library_is_reported_and_not_measured_as_cuda(tmp_path: Path) -> None:
    libraries = tmp_path / "lib"
    libraries.mkdir()
    for library in Path(os.environ["LD_LIBRARY_PATH"].split(":")[0]).iterdir():
        if "cublasLt" not in library.name:
            (libraries / library.name).symlink_to(library)
    code = (
        "import sys; from test_cuda_standin import *\n"
        "session = tuned(sys.argv[1], on_cuda())\n"
        "feed = {'x': floats(4, 16)}\n"
        "assert session.tune(feed).is_reference\n"
        "print(told_of(session, feed).note)"
    )
    status, said, errors = elsewhere(code, saved(tmp_path, products()), LD_LIBRARY_PATH=str(libraries))
    assert status == 0, errors
    assert "asked for CUDAExecutionProvider but the session runs on CPUExecutionProvider" in said


@pytest.mark.parametrize(
    ("option", "reason"),
    [("cuda_mem_limit", "no longer there"), ("enable_cuda_grahp", "did you mean 'enable_cuda_graph'?")],
)
def test_options_of_another_version_are_refused_by_name(option: str, reason: str) -> None:
    with pytest.raises(TuneFailure, match=option) as caught:
        on_cuda(**{option: "1"})
    assert caught.value.kind is FailureKind.INVALID_INPUT
    assert reason in caught.value.message


# --- environment ------------------------------------------------------------------------------------

DESCRIBE = """
import json
from ort_stacktune.environment import describe
print(json.dumps(describe(providers=["CUDAExecutionProvider"])))
"""


def described(code: str = DESCRIBE, **variables: str) -> dict[str, str]:
    status, said, errors = elsewhere(code, **variables)
    assert status == 0, errors
    facts: dict[str, str] = json.loads(said)
    return facts


def test_the_driver_is_asked_through_its_management_library() -> None:
    told = described()
    assert told["NVIDIA driver"] == "580.0.0"
    assert told["CUDA of the driver"] == "13.0"
    assert told["NVIDIA devices"] == "Stand-in GPU (compute capability 9.0, 16384 MiB)"
    assert told["choices can be stored"] == "yes"
    partitioned = described(STANDIN_MIG="1g.18gb")
    assert partitioned["NVIDIA devices"].endswith("MIG 1g.18gb of 2048 MiB)")


def test_a_management_library_that_does_not_fit_keeps_choices_in_the_process() -> None:
    told = described(STANDIN_NO_NVML="1")
    assert told["NVIDIA driver"] == "unknown"
    assert told["choices can be stored"].startswith(
        "no: the NVIDIA driver can't be read; set ORT_STACKTUNE_DRIVER_TAG"
    )
    tagged = described(STANDIN_NO_NVML="1", ORT_STACKTUNE_DRIVER_TAG="580 on H200")
    assert tagged["choices can be stored"] == "yes"


def test_asking_about_the_environment_touches_no_device(tmp_path: Path) -> None:
    log = tmp_path / "log"
    before = described(STANDIN_LOG=str(log))
    assert not log.exists()
    # Nor does what a session loads change the answer.
    after = described(
        "import onnxruntime as ort; from cuda_parts import products\n"
        "ort.InferenceSession(products().SerializeToString(), providers=['CUDAExecutionProvider'])\n"
        + DESCRIBE
    )
    assert before == after
    assert before["CUDA runtime"].startswith("libcudart.so.13, ")


# --- memory -----------------------------------------------------------------------------------------


def test_out_of_memory_rejects_the_candidate_and_gives_back_what_it_took(
    tmp_path: Path, device: Standin
) -> None:
    session = tuned(saved(tmp_path, products(size=512, links=4)), on_cuda())
    feed = {"x": floats(4, 512)}
    before = device.used_bytes
    device.set_memory(before + (2 << 20))
    assert session.tune(feed).is_reference
    report = told_of(session, feed)
    assert report.rejection is FailureKind.REJECTED
    assert "free memory on the device" in report.note
    assert device.used_bytes == before
    # The device itself is well: with room, the same candidate is right.
    device.set_memory(0)
    roomy = tuned(saved(tmp_path, products(size=512, links=4), "again.onnx"), on_cuda())
    roomy.tune(feed)
    assert told_of(roomy, feed).verified


def test_losers_give_their_device_memory_back(tmp_path: Path, device: Standin) -> None:
    before = device.used_bytes
    session = tuned(saved(tmp_path, products()), on_cuda())
    decision = session.tune({"x": floats(4, 16)})
    del session
    assert decision.cache_key
    assert device.used_bytes == before


# --- faults -----------------------------------------------------------------------------------------

# In a process of its own: after a real fault of this kind the process has to end too.
BROKEN = """
import json, sys
from test_cuda_standin import *
device = Standin(Path(sys.argv[2]))
tuner = StackTuner(QUICK)
session = tuned(sys.argv[1], on_cuda(), tuner=tuner)
feed = {"x": floats(4, 16)}
right = ort.InferenceSession(sys.argv[1], one_thread(), providers=CPU).run(None, feed)[0]
device.inject(sys.argv[3])
kinds, messages = [], []
for again in (feed, {"x": floats(5, 16)}):
    try:
        session.tune(again)
    except TuneFailure as failure:
        kinds.append(failure.kind.name); messages.append(failure.message)
served = session.run(None, feed)[0]
print(json.dumps({"kinds": kinds, "messages": messages, "served": bool(np.array_equal(served, right)),
    "faults": tuner.stats().device_failures}), flush=True)
"""


@pytest.mark.parametrize(
    ("code", "words", "work"),
    [(700, "illegal memory access", 1), (719, "unspecified launch failure", 9)],
)
def test_a_device_fault_quarantines_the_environment_and_the_reference_goes_on(
    tmp_path: Path, code: int, words: str, work: int
) -> None:
    status, said, errors = elsewhere(
        BROKEN, saved(tmp_path, products()), str(tmp_path / "log"), f"work:{code}:{work}"
    )
    assert said, errors
    told = json.loads(said)
    assert told["kinds"] == ["DEVICE", "QUARANTINED"], told
    assert words in told["messages"][0]
    assert all("restart the process" in message for message in told["messages"])
    assert told["served"]
    assert told["faults"] == 1
    assert status == 0, errors


def test_a_device_fault_in_a_live_request_reaches_the_caller_and_quarantines(tmp_path: Path) -> None:
    code = """
import json, sys
from test_cuda_standin import *
device = Standin(Path(sys.argv[2]))
tuner = StackTuner(QUICK)
slow, fast = sys.argv[1], sys.argv[3]
session = tuned(slow, on_cuda(model=fast), tuner=tuner)
feed = {"x": floats(4, 16)}
decision = session.tune(feed)
device.inject("work:700:1")
try:
    session.run(None, feed)
    error = ""
except Exception as raised:
    error = str(raised)
served = session.run(None, feed)[0]
print(json.dumps({"chosen": decision.name, "error": error, "faults": tuner.stats().device_failures,
    "served": served.shape}), flush=True)
"""
    slow = saved(tmp_path, graphs.slowed(products(), links=400), "slow.onnx")
    _, said, errors = elsewhere(code, slow, str(tmp_path / "log"), saved(tmp_path, products()))
    assert said, errors
    told = json.loads(said)
    assert told["chosen"] == "cuda"
    assert "illegal memory access" in told["error"]
    assert told["faults"] == 1
    assert told["served"] == [4, 16]
