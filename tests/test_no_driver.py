"""A build of ONNX Runtime for NVIDIA GPUs where there is no driver at all: it serves, says so, and claims nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cuda_parts import products, saved

pytestmark = pytest.mark.standin

ROOT = Path(__file__).resolve().parent.parent

SERVE = """
import json, logging, sys, warnings
from pathlib import Path
import numpy as np
import onnxruntime as ort
from ort_stacktune import StackTuner, TunedSession
from ort_stacktune import StackPolicy
from tuning import floats

class Kept(logging.Handler):
    texts = []
    def emit(self, record):
        self.texts.append(record.getMessage())

logging.getLogger("ort_stacktune").addHandler(Kept())
path, cache = sys.argv[1:]
providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
raw = ort.InferenceSession(path, providers=providers)
tuner = StackTuner(StackPolicy(budget_s=1.0, max_relative_mad=10.0), cache)
session = TunedSession(path, providers=providers, tuner=tuner)
right = True
for rows in (4, 5, 4):
    feed = {"x": floats(rows, 16)}
    right = right and bool(np.allclose(session.run(None, feed)[0], raw.run(None, feed)[0], atol=1e-5))
binding = session.io_binding()
binding.bind_cpu_input("x", floats(4, 16))
binding.bind_output("y")
session.run_with_iobinding(binding)
reports = tuner.reports()
print(json.dumps({
    "right": right,
    "providers": session.get_providers() == raw.get_providers() and session.get_providers(),
    "said": [text for text in Kept.texts if "CUDAExecutionProvider" in text],
    "environments": sorted({report.environment for report in reports}),
    "candidates": sorted({c.name for report in reports for c in report.candidates}),
    "records": [text for file in sorted(Path(cache).rglob("*")) if file.is_file() for text in [file.read_text()]],
    "offered": ", ".join(ort.get_available_providers()),
}))
"""


def without_device(code: str, *arguments: str, **variables: str) -> Any:
    """Runs code where the loader finds no library for a GPU; returns the JSON that it prints."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("LD_", "CUDA_", "NVIDIA_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**kept, "PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT}", **variables},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_without_a_driver_everything_works_as_the_raw_session_does_and_nothing_claims_cuda(
    tmp_path: Path,
) -> None:
    told = without_device(SERVE, saved(tmp_path, products()), str(tmp_path / "cache"))
    assert told["right"]
    assert told["providers"] == ["CPUExecutionProvider"]
    assert len(told["said"]) == 1
    assert "can't be used here" in told["said"][0]
    assert not [name for name in told["candidates"] if "cuda" in name or "tensorrt" in name]
    assert told["environments"]
    assert not [text for text in told["environments"] if "NVIDIA" in text]
    assert told["records"]
    for record in told["records"]:
        assert "NVIDIA" not in record
        # What the build offers is a fact about the build; apart from it no record speaks of a GPU.
        assert "CUDA" not in record.replace(told["offered"], "")


def test_without_a_driver_the_environment_says_so_where_it_is_asked_about_cuda() -> None:
    told = without_device(
        "import json; from ort_stacktune.environment import describe\n"
        "print(json.dumps(describe(providers=['CUDAExecutionProvider'])))"
    )
    assert told["NVIDIA driver"] == "no NVIDIA driver"
    assert told["choices can be stored"] == "yes"
    assert "NVIDIA devices" not in told


def test_a_cuda_candidate_that_was_given_is_reported_as_absent(tmp_path: Path) -> None:
    told = without_device(
        "import json, sys\n"
        "from cuda_parts import on_cuda\n"
        "from ort_stacktune import StackTuner, TunedSession\n"
        "from tuning import CPU, QUICK, floats, one_thread\n"
        "session = TunedSession(sys.argv[1], one_thread(), providers=CPU, candidates=[on_cuda()],"
        " tuner=StackTuner(QUICK))\n"
        "feed = {'x': floats(4, 16)}\n"
        "chosen = session.tune(feed).name\n"
        "print(json.dumps([chosen, [c.note for c in session.report(feed).candidates if c.name == 'cuda']]))",
        saved(tmp_path, products()),
    )
    assert told[0] == "reference"
    assert "asked for CUDAExecutionProvider but the session runs on CPUExecutionProvider" in told[1][0]


def test_a_driver_that_refuses_leaves_the_reference_on_the_cpu(tmp_path: Path) -> None:
    told = without_device(
        SERVE,
        saved(tmp_path, products()),
        str(tmp_path / "cache"),
        LD_LIBRARY_PATH=os.environ["LD_LIBRARY_PATH"],
        STANDIN_FAULT="cudaSetDevice:35:1+",
    )
    assert told["right"]
    assert told["providers"] == ["CPUExecutionProvider"]
    assert len(told["said"]) == 1
