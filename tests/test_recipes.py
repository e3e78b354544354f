from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from scripted import raising
from tuning import CPU, floats, one_thread, save

import graphs
from ort_stacktune import FailureKind, SessionRecipe
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.options import ATTRIBUTES, CONFIG
from ort_stacktune.ort.provider_options import AcceptedOptions
from ort_stacktune.ort.recipes import recipe_of_options, variant
from ort_stacktune.ort.sessions import make_session

LACKING = next(
    name
    for name in ("CUDAExecutionProvider", "DmlExecutionProvider")
    if name not in ort.get_available_providers()
)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": ""}, ["name"]),
        ({"name": 5}, ["name"]),
        ({"name": "caf\udce9"}, ["name", "UTF-8"]),
        ({"providers": [LACKING]}, [LACKING, "CPUExecutionProvider"]),
        ({"providers": ["CPU"]}, ["'CPU'", "CPUExecutionProvider"]),
        ({"providers": "CPUExecutionProvider"}, ["list"]),
        ({"providers": []}, ["providers"]),
        ({"providers": 5}, ["providers"]),
        ({"providers": [("CPUExecutionProvider",)]}, ["pair"]),
        ({"providers": [("CPUExecutionProvider", None)]}, ["pair"]),
        ({"providers": [*CPU, ("CPUExecutionProvider", {})]}, ["twice", "CPUExecutionProvider"]),
        ({"session_options": {"intra_op_threads": 2}}, ["did you mean 'intra_op_num_threads'"]),
        ({"session_options": {"zzz": 2}}, ["zzz", "intra_op_num_threads"]),
        ({"session_options": {"optimized_model_filepath": "x"}}, ["optimized_model_filepath"]),
        ({"session_options": {"intra_op_num_threads": -1}}, ["intra_op_num_threads", "-1"]),
        ({"session_options": {"intra_op_num_threads": "2"}}, ["intra_op_num_threads", "int"]),
        ({"session_options": {"intra_op_num_threads": True}}, ["intra_op_num_threads", "int"]),
        ({"session_options": {"enable_mem_pattern": 1}}, ["enable_mem_pattern", "bool"]),
        ({"session_options": {"graph_optimization_level": "ALL"}}, ["ORT_ENABLE_ALL"]),
        ({"session_options": {"execution_mode": 1}}, ["ORT_PARALLEL"]),
        ({"session_options": ["threads"]}, ["session_options"]),
        ({"session_options": {1: 2}}, ["session_options"]),
        ({"config": {"session.intra_op.allow_spining": "0"}}, ["did you mean", "allow_spinning"]),
        ({"config": {"session.intra_op.allow_spinning": "yes"}}, ["allow_spinning", "0, 1"]),
        ({"config": {"session.disable_prepacking": None}}, ["disable_prepacking", "0, 1"]),
        ({"config": {"session.qdq_matmulnbits_accuracy_level": "5"}}, ["accuracy_level"]),
        ({"config": {"session.dynamic_block_base": "-1"}}, ["dynamic_block_base"]),
        ({"config": {"session.dynamic_block_base": "4.5"}}, ["dynamic_block_base"]),
        ({"config": {"": "1"}}, ["key"]),
        ({"config": 5}, ["config"]),
        ({"run_config": 5}, ["run_config"]),
        ({"model": "no-such.onnx"}, ["no-such.onnx"]),
        ({"model": "."}, ["not a file"]),
        ({"model": b"bytes"}, ["model"]),
        ({"custom_op_libraries": ["no-such.so"]}, ["no-such.so", "custom operator library"]),
        ({"custom_op_libraries": "no-such.so"}, ["list"]),
        ({"custom_op_libraries": [5]}, ["custom operator library"]),
        ({"shapes": {"x": (-1, 4)}}, ["'x'", "-1"]),
        ({"shapes": {"x": (2.5,)}}, ["'x'", "2.5"]),
        ({"shapes": {"x": ("N",)}}, ["'x'", "N"]),
        ({"shapes": {"x": "12"}}, ["'x'"]),
        ({"shapes": {"x": 4}}, ["'x'"]),
        ({"shapes": [4]}, ["shapes"]),
        ({"workspace_bytes": -1}, ["workspace_bytes"]),
        ({"workspace_bytes": True}, ["workspace_bytes"]),
        ({"eligible": "no"}, ["eligible"]),
        ({"allow_partial": 1}, ["allow_partial", "True or False"]),
        ({"ep_libraries": ["ep.so"]}, ["ep_libraries"]),
        ({"ep_libraries": {"mine": "no-such.so"}}, ["execution provider library 'mine'", "no-such.so"]),
        ({"providers": [("CPUExecutionProvider", {"threads": 2})]}, ["no option 'threads'", "it takes none"]),
        ({"instances": 0}, ["instances", "256"]),
        ({"instances": 257}, ["instances"]),
        ({"instances": True}, ["instances"]),
        ({"instances": "2"}, ["instances"]),
    ],
    ids=str,
)
def test_a_recipe_that_can_not_work_is_refused_when_it_is_made_and_names_what_is_wrong(
    fields: dict[str, Any], words: list[str]
) -> None:
    with raising(FailureKind.INVALID_INPUT, *words):
        SessionRecipe(**{"name": "r", **fields})


def test_the_config_value_that_would_abort_the_process_is_refused() -> None:
    key = "mlas.nchwc_pointwise_conv_max_input_channel_batch"
    for value in ("x", "", "-1", "1e3", "0x10", "٣", "99999999999"):
        with raising(FailureKind.INVALID_INPUT, key):
            SessionRecipe("r", config={key: value})
    assert SessionRecipe("r", config={key: 64}).config == {key: "64"}


def test_config_keys_of_other_builds_and_plugins_pass() -> None:
    assert SessionRecipe("r", config={"my.plugin.key": 3}).config == {"my.plugin.key": "3"}


def _model(path: Path, seed: int = 0) -> str:
    return save(graphs.mlp(seed=seed), path)


def test_the_revision_changes_with_every_field_but_the_name(tmp_path: Path) -> None:
    model, other = _model(tmp_path / "a.onnx"), _model(tmp_path / "b.onnx", seed=1)
    library = tmp_path / "ops.so"
    library.write_bytes(b"library")
    base = SessionRecipe("base", model=model, providers=CPU)
    changes: list[dict[str, Any]] = [
        {"model": None},
        {"model": other},
        {"providers": None},
        {"providers": [("CPUExecutionProvider", AcceptedOptions({"use_arena": "0"}))]},
        {"session_options": {"intra_op_num_threads": 1}},
        {"session_options": {"intra_op_num_threads": 2}},
        {"session_options": {"inter_op_num_threads": 1}},
        {"config": {"session.disable_prepacking": "1"}},
        {"run_config": {"memory.enable_memory_arena_shrinkage": "cpu:0"}},
        {"custom_op_libraries": [str(library)]},
        {"shapes": {"x": (1, 16)}},
        {"shapes": {"x": (11, 6)}},
        {"instances": 2},
        {"workspace_bytes": 0},
        {"workspace_bytes": 1},
        {"eligible": False},
        {"allow_partial": True},
        {"ep_libraries": {"one": str(library)}},
        {"ep_libraries": {"other": str(library)}},
    ]
    revisions = {variant(base, "other", **change).revision for change in changes} | {base.revision}
    assert len(revisions) == len(changes) + 1
    assert variant(base, "another name").revision == base.revision


def test_the_revision_is_of_the_contents_of_files_and_not_of_their_names(tmp_path: Path) -> None:
    model, library = tmp_path / "m.onnx", tmp_path / "ops.so"
    copy = tmp_path / "elsewhere.onnx"

    def recipe(path: Path = model) -> SessionRecipe:
        return SessionRecipe("r", model=str(path), custom_op_libraries=[str(library)])

    _model(model)
    library.write_bytes(b"one")
    before = recipe()
    copy.write_bytes(model.read_bytes())
    assert recipe(copy).revision == before.revision
    library.write_bytes(b"two")
    with_other_library = recipe()
    _model(model, seed=1)
    assert len({before.revision, with_other_library.revision, recipe().revision}) == 3
    assert recipe() != with_other_library


def test_equal_content_is_one_candidate_however_it_was_written(tmp_path: Path) -> None:
    one = SessionRecipe(
        "r",
        providers=["CPUExecutionProvider"],
        session_options={
            "graph_optimization_level": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
            "intra_op_num_threads": 2,
        },
        config={"session.disable_prepacking": True, "session.intra_op.allow_spinning": 0},
        shapes={"a": [1, 2], "b": [np.int64(3)]},
    )
    other = SessionRecipe(
        "r",
        providers=(("CPUExecutionProvider", {}),),
        session_options={"intra_op_num_threads": 2, "graph_optimization_level": "ORT_ENABLE_BASIC"},
        config={"session.intra_op.allow_spinning": "0", "session.disable_prepacking": "1"},
        shapes={"b": (3,), "a": (1, 2)},
    )
    assert one.revision == other.revision
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other, variant(one, "another")}) == 2


def test_a_recipe_is_frozen_and_does_not_follow_what_it_was_made_from() -> None:
    options: dict[str, Any] = {"intra_op_num_threads": 1}
    recipe = SessionRecipe("r", session_options=options)
    before = recipe.revision
    options["intra_op_num_threads"] = 2
    assert recipe.session_options == {"intra_op_num_threads": 1}
    assert recipe.revision == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.name = "other"  # type: ignore[misc]


def test_a_recipe_survives_pickling(tmp_path: Path) -> None:
    recipe = SessionRecipe(
        "r",
        model=_model(tmp_path / "m.onnx"),
        providers=[("CPUExecutionProvider", AcceptedOptions({"use_arena": "1"}))],
        session_options={"execution_mode": ort.ExecutionMode.ORT_PARALLEL},
        config={"session.disable_prepacking": 1},
        shapes={"x": (1, 16)},
    )
    again = pickle.loads(pickle.dumps(recipe))
    assert again == recipe
    assert (again.revision, hash(again)) == (recipe.revision, hash(recipe))


def test_a_recipe_keeps_the_path_of_its_model_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _model(tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    recipe = SessionRecipe("r", model="m.onnx")
    monkeypatch.chdir("/")
    assert Path(recipe.model or "").is_file()


def test_a_recipe_without_providers_takes_the_references() -> None:
    reference = SessionRecipe(
        "reference", providers=[("CPUExecutionProvider", AcceptedOptions({"use_arena": "0"}))]
    )
    recipe = SessionRecipe("r", session_options={"intra_op_num_threads": 1})
    assert recipe.inheriting(reference).provider_list == reference.provider_list
    # Wherever the reference's nodes go is right, so it is there too.
    assert recipe.inheriting(reference).allow_partial
    own = SessionRecipe("r", providers=CPU)
    assert own.inheriting(reference) is own


def _rich_options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.inter_op_num_threads = 2
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4
    options.use_deterministic_compute = True
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return options


def _read_back(session: ort.InferenceSession) -> dict[str, Any]:
    options = session.get_session_options()
    found = {name: getattr(options, name) for name in ATTRIBUTES}
    for key in CONFIG:
        try:
            found[key] = options.get_session_config_entry(key)
        except RuntimeError:
            continue
    return found


def test_what_a_user_set_on_real_session_options_is_read_back(tmp_path: Path) -> None:
    session = ort.InferenceSession(_model(tmp_path / "m.onnx"), _rich_options(), providers=CPU)
    recipe = recipe_of_options("mine", session.get_session_options(), CPU)
    assert recipe.session_options == {
        "enable_cpu_mem_arena": False,
        "enable_mem_pattern": False,
        "execution_mode": "ORT_PARALLEL",
        "execution_order": "PRIORITY_BASED",
        "graph_optimization_level": "ORT_ENABLE_EXTENDED",
        "inter_op_num_threads": 2,
        "intra_op_num_threads": 2,
        "log_severity_level": 4,
        "use_deterministic_compute": True,
    }
    assert recipe.config == {
        "session.intra_op.allow_spinning": "0",
        "session.set_denormal_as_zero": "1",
    }


def test_options_left_alone_make_a_plain_recipe() -> None:
    recipe = recipe_of_options("mine", ort.SessionOptions(), CPU)
    assert (recipe.session_options, recipe.config, recipe.complexity) == ({}, {}, 0)


@pytest.mark.parametrize("make_options", [_rich_options, ort.SessionOptions, one_thread])
def test_a_session_rebuilt_from_a_users_options_has_the_same_options_and_outputs(
    make_options: Any, tmp_path: Path
) -> None:
    path = _model(tmp_path / "m.onnx")
    session = ort.InferenceSession(path, make_options(), providers=CPU)
    recipe = recipe_of_options("mine", session.get_session_options(), CPU)
    made = make_session(recipe, ModelSource.of(path), recipe, trial=False, check_placement=False)
    ours = _read_back(made.session)
    # Where nodes went is recorded in sessions of ours only.
    assert ours.pop("session.record_ep_graph_assignment_info") == "1"
    assert ours == _read_back(session)
    feed = {"x": floats(3, 16)}
    np.testing.assert_array_equal(made.session.run(None, feed)[0], session.run(None, feed)[0])


def test_simpler_recipes_count_as_simpler() -> None:
    plain = SessionRecipe("plain", providers=CPU)
    quiet = SessionRecipe("quiet", providers=CPU, session_options={"log_severity_level": 4, "logid": "x"})
    threads = SessionRecipe("threads", providers=CPU, session_options={"intra_op_num_threads": 1})
    fixed = variant(threads, "fixed", shapes={"x": (1, 16)})
    assert plain.complexity == quiet.complexity == 0
    assert plain.complexity < threads.complexity < fixed.complexity


def test_how_much_is_logged_makes_no_other_candidate() -> None:
    quiet = SessionRecipe("a", providers=["CPUExecutionProvider"], session_options={"log_severity_level": 4})
    plain = SessionRecipe("a", providers=["CPUExecutionProvider"])
    assert quiet.revision == plain.revision
    assert quiet.complexity == plain.complexity
