"""Holds that each candidate's files on disk are its own, appear whole and go when nothing needs them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import onnxruntime as ort
import pytest
from tuning import CPU, QUICK, floats, one_thread, save

import graphs
from ort_stacktune import SessionRecipe, StackTuner, TunedSession
from ort_stacktune.ort.ep_caches import EpCache, EpCaches, prune_ep_caches
from ort_stacktune.policy import Isolation

OPENVINO = "OpenVINOExecutionProvider"

if OPENVINO not in ort.get_available_providers():
    pytest.skip("needs a provider that keeps files", allow_module_level=True)


def recipe(**options: str) -> SessionRecipe:
    # Left to itself, AUTO computes in bfloat16 on processors that have it, and validation rightly rejects that.
    exact = {"device_type": "AUTO:CPU", "precision": "FP32"}
    return SessionRecipe("ov", providers=[(OPENVINO, exact | options)])


def filled(caches: EpCaches, model: str = "m1", name: str = "blob") -> EpCache:
    cache = caches.for_trial(recipe(), model)
    assert cache is not None
    (cache.directory / name).write_text("compiled")
    return cache


def test_what_a_trial_wrote_is_found_whole_after_it_was_published(tmp_path: Path) -> None:
    caches = EpCaches(tmp_path, "here")
    cache = filled(caches)
    assert caches.published(recipe(), "m1") is None
    cache.publish()
    found = caches.published(recipe(), "m1")
    assert found is not None
    assert (found.directory / "blob").read_text() == "compiled"
    assert dict(found.providers)[OPENVINO]["cache_dir"] == str(found.directory)


@pytest.mark.parametrize("other", ["model", "revision", "environment"])
def test_another_model_candidate_or_environment_has_another_directory(tmp_path: Path, other: str) -> None:
    filled(EpCaches(tmp_path, "here")).publish()
    caches = EpCaches(tmp_path, "there" if other == "environment" else "here")
    asked = recipe(num_of_threads="1") if other == "revision" else recipe()
    assert caches.published(asked, "m2" if other == "model" else "m1") is None


def test_of_two_trials_at_once_the_first_to_finish_stays(tmp_path: Path) -> None:
    caches = EpCaches(tmp_path, "here")
    first, second = filled(caches, name="first"), filled(caches, name="second")
    first.publish()
    second.publish()
    found = caches.published(recipe(), "m1")
    assert found is not None
    assert (found.directory / "first").exists()
    assert not (found.directory / "second").exists()
    assert len(list(found.directory.parent.iterdir())) == 1


def test_a_trial_that_wrote_nothing_publishes_nothing(tmp_path: Path) -> None:
    caches = EpCaches(tmp_path, "here")
    cache = caches.for_trial(recipe(), "m1")
    assert cache is not None
    cache.publish()
    assert caches.published(recipe(), "m1") is None
    assert not cache.directory.exists()


def test_a_place_that_the_user_chose_is_left_alone(tmp_path: Path) -> None:
    caches = EpCaches(tmp_path, "here")
    assert caches.for_trial(recipe(cache_dir=str(tmp_path / "mine")), "m1") is None


def test_a_provider_that_keeps_no_files_gets_no_directory(tmp_path: Path) -> None:
    plain = SessionRecipe("cpu", providers=["CPUExecutionProvider"])
    assert EpCaches(tmp_path, "here").for_trial(plain, "m1") is None
    assert not list(tmp_path.iterdir())


def test_on_the_cpu_openvino_keeps_no_blobs_since_they_save_nothing_there(tmp_path: Path) -> None:
    plain = SessionRecipe("ov", providers=[(OPENVINO, {"device_type": "CPU"})])
    assert EpCaches(tmp_path, "here").for_trial(plain, "m1") is None


def test_where_nothing_may_be_written_only_what_was_published_is_used(tmp_path: Path) -> None:
    assert EpCaches(tmp_path, "here", read_only=True).for_trial(recipe(), "m1") is None
    assert not list(tmp_path.iterdir())
    filled(EpCaches(tmp_path, "here")).publish()
    assert EpCaches(tmp_path, "here", read_only=True).for_trial(recipe(), "m1") is not None


def test_a_loser_leaves_nothing_behind(tmp_path: Path) -> None:
    caches = EpCaches(tmp_path, "here")
    filled(caches).publish()
    caches.forget(recipe(), "m1")
    assert caches.published(recipe(), "m1") is None
    assert not [path for folder in tmp_path.iterdir() for path in folder.iterdir()]


def test_pruning_keeps_what_a_stored_choice_needs_and_removes_the_rest(tmp_path: Path) -> None:
    filled(EpCaches(tmp_path, "here")).publish()
    filled(EpCaches(tmp_path, "there")).publish()
    assert prune_ep_caches(tmp_path, {("m1", "here")}, time.time()) == 1
    assert EpCaches(tmp_path, "here").published(recipe(), "m1") is not None
    assert EpCaches(tmp_path, "there").published(recipe(), "m1") is None


def test_pruning_removes_what_a_dead_process_left_but_not_what_one_is_filling(tmp_path: Path) -> None:
    cache = filled(EpCaches(tmp_path, "here"))
    assert prune_ep_caches(tmp_path, set(), time.time()) == 0
    assert cache.directory.exists()
    assert prune_ep_caches(tmp_path, set(), time.time() + 2 * 86400) == 1
    assert not cache.directory.exists()


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_a_winner_is_served_from_what_its_trial_compiled_and_losers_leave_nothing(
    tmp_path: Path, isolation: Isolation
) -> None:
    slow = save(graphs.slowed(graphs.mlp(), links=600), tmp_path / "slow.onnx")
    fast = save(graphs.mlp(), tmp_path / "fast.onnx")
    candidates = [
        SessionRecipe("fast", model=fast, providers=recipe().providers),
        SessionRecipe("as slow", model=slow, providers=[*recipe().provider_list, *CPU], allow_partial=True),
    ]
    tuner = StackTuner(replace(QUICK, isolation=isolation), tmp_path / "cache")
    session = TunedSession(slow, one_thread(), providers=CPU, candidates=candidates, tuner=tuner)
    feed = {"x": floats(4, session.get_inputs()[0].shape[1])}
    assert session.tune(feed).name == "fast"
    kept = sorted((tmp_path / "cache" / "ep-v1").iterdir())
    assert len(kept) == 1
    assert list(kept[0].glob("*.blob"))
    session.run(None, feed)
    assert sorted((tmp_path / "cache" / "ep-v1").iterdir()) == kept
