"""The application of the rollout test: the same in every process but for its controller.

Run as ``python rollout_app.py record|tune|serve FOLDER [CACHE]``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from ort_stacktune import Mode, SessionRecipe, StackPolicy, StackTuner, TunedSession
from ort_stacktune.feeds import read_npz
from ort_stacktune.ort.trials import SessionTrials
from ort_stacktune.traffic import read_traffic

CPU = ["CPUExecutionProvider"]
MODELS = ("mlp", "argmax")
REQUESTS: list[tuple[str, tuple[int, int], list[str] | None]] = [
    *[("mlp", (1, 16), None)] * 5,
    *[("mlp", (7, 16), ["y"])] * 3,
    *[("argmax", (4, 8), None)] * 2,
]
_CHANGES = {
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.link",
    "os.rmdir",
    "os.chmod",
    "os.utime",
    "os.truncate",
}


def session(folder: str, name: str, **keywords: Any) -> TunedSession:
    """Returns the session of a slow model that has a fast twin."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    fast = SessionRecipe(
        "fast", model=f"{folder}/{name}-fast.onnx", session_options={"intra_op_num_threads": 1}
    )
    return TunedSession(f"{folder}/{name}.onnx", options, providers=CPU, candidates=[fast], **keywords)


def controller(mode: Mode, cache: str) -> StackTuner:
    """Returns the controller of a process."""
    return StackTuner(StackPolicy(mode=mode, budget_s=60.0, max_relative_mad=10.0), cache)


def answers(sessions: dict[str, Any]) -> Iterator[list[Any]]:
    """Serves every request."""
    for number, (name, shape, outputs) in enumerate(REQUESTS):
        feed = np.random.default_rng(number).standard_normal(shape, np.float32)
        yield sessions[name].run(outputs, {"x": feed})


def record(folder: str) -> None:
    """Serves by the reference and has the calls counted."""
    keywords = {"record": f"{folder}/traffic", "record_samples": 2}
    list(answers({name: session(folder, name, **keywords) for name in MODELS}))


def tune(folder: str) -> None:
    """Decides every signature that was recorded."""
    tuner = controller(Mode.EXPLORE, f"{folder}/cache")
    for entry in read_traffic(f"{folder}/traffic"):
        made = session(folder, Path(entry.use.path).stem, tuner=tuner)
        outputs = [output.name for output in entry.signature().outputs]
        decision = made.tune(read_npz(str(entry.samples[0])), outputs)
        print(decision.name, decision.source.name, entry.weight)


def serve(folder: str, cache: str) -> None:
    """Serves from what is stored and prints what that took, and whatever would have been written."""
    touched: list[str] = []
    validated: list[int] = []
    timed: list[int] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        writing = event == "open" and bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        paths = [os.fspath(each) for each in arguments if isinstance(each, str | os.PathLike)]
        if (writing or event in _CHANGES) and any(path.startswith(cache) for path in paths):
            touched.append(f"{event} {arguments}")

    validate = SessionTrials.validate

    def watched(trials: Any, reference: int, candidate: int, tolerance: Any) -> Any:
        validated.append(candidate)
        return validate(trials, reference, candidate, tolerance)

    SessionTrials.validate = watched  # type: ignore[method-assign]
    SessionTrials.measure = lambda _, candidate: timed.append(candidate) or 1  # type: ignore[method-assign,func-returns-value]
    sys.addaudithook(watch)
    tuner = controller(Mode.CACHE_ONLY, cache)
    tuned: dict[str, Any] = {name: session(folder, name, tuner=tuner) for name in MODELS}
    plain = {name: onnxruntime.InferenceSession(f"{folder}/{name}.onnx", providers=CPU) for name in MODELS}
    for served, expected in zip(answers(tuned), answers(plain), strict=True):
        for one, other in zip(served, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    chosen = [
        tuned[name].decision({"x": np.zeros(shape, np.float32)}, outputs).name
        for number, (name, shape, outputs) in enumerate(REQUESTS)
        if REQUESTS.index((name, shape, outputs)) == number
    ]
    stats = tuner.stats()
    print(
        json.dumps(
            {
                "chosen": chosen,
                "validated": validated,
                "timed": timed,
                "touched": touched,
                "threads": threading.active_count(),
                "hits": [stats.disk_hits, stats.memory_hits],
                "others": [stats.misses, stats.tunes, stats.busy_fallbacks, stats.cache_warnings],
            }
        )
    )


if __name__ == "__main__":
    {"record": record, "tune": tune, "serve": serve}[sys.argv[1]](*sys.argv[2:])
