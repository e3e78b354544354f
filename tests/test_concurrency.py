from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnxruntime as ort
from tuning import CPU, QUICK, fast_twin, floats, one_thread, save

import graphs
from ort_stacktune import SessionRecipe, StackPolicy, StackTuner, TunedSession
from ort_stacktune.candidates import Situation, generate
from ort_stacktune.ort.pool import SessionPool


def test_a_pool_gives_each_caller_a_session_and_never_makes_one_wait(tmp_path: Path) -> None:
    path = save(graphs.mlp(), tmp_path / "m.onnx")
    pool = SessionPool([ort.InferenceSession(path, one_thread(), providers=CPU) for _ in range(2)])
    expected = ort.InferenceSession(path, providers=CPU)
    feeds = [{"x": floats(2, 16, seed=seed)} for seed in range(8)]
    outputs: dict[int, object] = {}

    def call(number: int) -> None:
        for _ in range(20):
            outputs[number] = pool.run(None, feeds[number])[0]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, feed in enumerate(feeds):
        np.testing.assert_allclose(outputs[number], expected.run(None, feed)[0], rtol=1e-5, atol=1e-6)


def test_a_pool_that_wins_serves_run_and_ort_values_and_not_bindings(tmp_path: Path) -> None:
    slow, fast = fast_twin(tmp_path, graphs.mlp())
    pool = SessionRecipe(
        "pool", model=fast.model, providers=CPU, session_options={"intra_op_num_threads": 1}, instances=2
    )
    policy = StackPolicy(concurrency=2, max_relative_mad=10.0)
    tuned = TunedSession(slow, one_thread(), providers=CPU, candidates=[pool], tuner=StackTuner(policy))
    raw = ort.InferenceSession(slow, one_thread(), providers=CPU)
    feed = {"x": floats(2, 16)}
    expected = raw.run(None, feed)[0]
    assert tuned.tune(feed).name == "pool"
    for _ in range(3):
        np.testing.assert_allclose(tuned.run(None, feed)[0], expected, rtol=1e-5, atol=1e-6)
    (value,) = tuned.run_with_ort_values(None, {"x": ort.OrtValue.ortvalue_from_numpy(feed["x"])})
    np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=1e-6)
    binding = tuned.io_binding()
    binding.bind_cpu_input("x", feed["x"])
    binding.bind_output("y")
    tuned.run_with_iobinding(binding)
    assert binding.route.session is None
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], expected, rtol=1e-5, atol=1e-6)


def test_a_choice_for_one_caller_says_nothing_about_two(tmp_path: Path) -> None:
    slow, fast = fast_twin(tmp_path, graphs.mlp())
    cache, feed = tmp_path / "cache", {"x": floats(1, 16)}
    for concurrency, tunes in ((1, 1), (2, 1), (2, 0)):
        tuner = StackTuner(StackPolicy(max_relative_mad=10.0, concurrency=concurrency, budget_s=20.0), cache)
        TunedSession(slow, one_thread(), providers=CPU, candidates=[fast], tuner=tuner).tune(feed)
        assert tuner.stats().tunes == tunes


def test_a_candidate_that_fails_for_one_of_many_callers_is_rejected(tmp_path: Path) -> None:
    slow, _ = fast_twin(tmp_path, graphs.mlp())
    wrong = SessionRecipe("wrong", model=save(graphs.mlp(seed=9), tmp_path / "w.onnx"), providers=CPU)
    policy = StackPolicy(concurrency=3, budget_s=20.0)
    tuned = TunedSession(slow, one_thread(), providers=CPU, candidates=[wrong], tuner=StackTuner(policy))
    assert tuned.tune({"x": floats(1, 16)}).name == "reference"


def test_sessions_for_each_caller_are_proposed_where_there_are_callers_and_memory(tmp_path: Path) -> None:
    reference = SessionRecipe("reference", providers=CPU)
    for callers, expected in ((1, 0), (2, 2), (4, 1)):
        recipes = generate(Situation(reference, {}, False, False, 4, ("CPUExecutionProvider",), callers))
        assert sum(recipe.instances > 1 for recipe in recipes) == expected


def test_first_costs_of_a_real_search_are_in_the_report(tmp_path: Path) -> None:
    slow, fast = fast_twin(tmp_path, graphs.mlp())
    tuned = TunedSession(slow, one_thread(), providers=CPU, candidates=[fast], tuner=StackTuner(QUICK))
    feed = {"x": floats(2, 16)}
    tuned.tune(feed)
    report = tuned.report(feed)
    assert report is not None
    for candidate in report.candidates:
        assert candidate.create_ns is not None
        assert candidate.create_ns > 0
        assert candidate.first_run_ns is not None
        assert candidate.switch_ns is not None
