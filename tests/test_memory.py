"""What a search leaves behind in memory, measured in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tuning import save

import graphs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

# Both processes run the same code but for the search, so that what they loaded is the same.
SCRIPT = """
import sys
from pathlib import Path

import numpy as np

from ort_stacktune import SessionRecipe, StackPolicy, StackTuner, TunedSession
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.sessions import make_session

what, slow, fast = sys.argv[1:]
CPU = ["CPUExecutionProvider"]
ONE = {"intra_op_num_threads": 1}
feed = {"x": np.ones((1, 512), np.float32)}
winner = SessionRecipe("fast", model=fast, providers=CPU, session_options=ONE)

def other(name, **fields):
    return SessionRecipe(name, providers=CPU, **{"session_options": ONE, **fields})

losers = [
    other("extended", session_options={**ONE, "graph_optimization_level": "ORT_ENABLE_EXTENDED"}),
    other("basic", session_options={**ONE, "graph_optimization_level": "ORT_ENABLE_BASIC"}),
    other("none", session_options={**ONE, "graph_optimization_level": "ORT_DISABLE_ALL"}),
    other("no-prepacking", config={"session.disable_prepacking": "1"}),
    other("no-arena", session_options={**ONE, "enable_cpu_mem_arena": False}),
    other("no-pattern", session_options={**ONE, "enable_mem_pattern": False}),
    other("denormals", config={"session.set_denormal_as_zero": "1"}),
    other("fixed", shapes={"x": (1, 512)}),
    other("parallel", session_options={**ONE, "execution_mode": "ORT_PARALLEL"}),
]

def resident():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024

import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = 1
if what == "tuned":
    policy = StackPolicy(samples=3, max_samples=21, repeats=2, warmups=1, confidence=0.6, budget_s=600.0,
                         max_relative_mad=10.0)
    tuner = StackTuner(policy)
    session = TunedSession(slow, options, providers=CPU, candidates=[winner, *losers], tuner=tuner)
    session.run(None, feed)
    decision = session.decision(feed)
    assert decision is not None and decision.name == "fast", session.report(feed)
    assert len(session.report(feed).candidates) == 11
else:
    reference = SessionRecipe("reference", providers=CPU, session_options=ONE)
    session = ort.InferenceSession(slow, options, providers=CPU)
    session.run(None, feed)
    made = make_session(winner, ModelSource.of(slow), reference, trial=False)
    made.session.run(None, feed)
print(resident())
"""


def resident(what: str, slow: str, fast: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, what, slow, fast],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    return int(done.stdout)


def test_a_search_over_ten_candidates_of_a_large_model_leaves_the_reference_and_the_winner_in_memory(
    tmp_path: Path,
) -> None:
    heavy = graphs.heavy(100)
    slow = save(graphs.slowed(heavy, links=2000, width=256), tmp_path / "slow.onnx")
    fast = save(heavy, tmp_path / "fast.onnx")
    del heavy
    tuned, plain = resident("tuned", slow, fast), resident("plain", slow, fast)
    assert tuned <= 1.25 * plain, f"{tuned / 2**20:.0f} MB against {plain / 2**20:.0f} MB"
