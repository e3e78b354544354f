"""Plugin execution providers: a tiny real library, compiled here, in a process of its own for each test."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
from scripted import raising
from tuning import CPU, save

import graphs
from ort_stacktune import FailureKind, SessionRecipe

HERE = Path(__file__).parent
PLUGIN = "TestPluginExecutionProvider"

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc to compile a plugin with"),
    pytest.mark.skipif(
        not hasattr(ort, "register_execution_provider_library"), reason="this build takes no plugins"
    ),
]

# What a library that ONNX Runtime has loaded does to a process can't be undone, so each test has its own.
SCRIPT = """
import json, sys
import onnxruntime as ort
from ort_stacktune import SessionRecipe, TuneFailure
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.recipes import available_providers, recipe_of_options
from ort_stacktune.ort.sessions import make_session

reference = SessionRecipe("reference", providers=["CPUExecutionProvider"])
asked = json.loads(sys.argv[1])
told = []
for fields in asked["recipes"]:
    try:
        made = make_session(SessionRecipe("plugin", **fields), ModelSource.of(asked["model"]), reference, trial=True)
        told.append(dict(made.nodes))
    except TuneFailure as failure:
        told.append(f"{failure.kind.name}: {failure.message}")
print(json.dumps({"told": told, "available": available_providers()}))
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save(graphs.mlp(), tmp_path / "m.onnx")


def compiled(mode: str, folder: Path, source: Path = HERE / "plugin_ep.c") -> str:
    library = folder / f"{mode.lower()}.so"
    subprocess.run(
        [
            "gcc",
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-DMODE={mode}",
            "-o",
            library,
            source,
        ],
        check=True,
    )
    return str(library)


def told(model: str, *recipes: dict[str, Any], script: str = SCRIPT) -> dict[str, Any]:
    """Makes a session of each recipe in one new process; returns its nodes or its rejection."""
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps({"model": model, "recipes": recipes})],
        capture_output=True,
        text=True,
        cwd=HERE.parent,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def with_library(library: str, **fields: Any) -> dict[str, Any]:
    return {"providers": [PLUGIN], "ep_libraries": {"test_plugin": library}, **fields}


def test_a_provider_that_no_build_has_is_accepted_with_a_library_and_refused_without(tmp_path: Path) -> None:
    library = tmp_path / "ep.so"
    library.write_bytes(b"not loaded yet")
    recipe = SessionRecipe("r", **with_library(str(library)))
    assert recipe.provider_list == ((PLUGIN, {}),)
    with raising(FailureKind.INVALID_INPUT, PLUGIN, "not in this build"):
        SessionRecipe("r", providers=[PLUGIN])
    with raising(FailureKind.INVALID_INPUT, "library 'test_plugin'", "missing.so"):
        SessionRecipe("r", **with_library(str(tmp_path / "missing.so")))


def test_the_revision_follows_the_content_of_the_library(tmp_path: Path) -> None:
    library = tmp_path / "ep.so"
    revisions = set()
    for content in (b"one", b"two"):
        library.write_bytes(content)
        revisions.add(SessionRecipe("r", **with_library(str(library))).revision)
    assert len(revisions) == 2


def test_what_is_no_library_or_lacks_the_entry_point_is_rejected_with_its_path(
    model: str, tmp_path: Path
) -> None:
    junk = tmp_path / "junk.so"
    junk.write_bytes(b"no library")
    empty = tmp_path / "empty.c"
    empty.write_text("int nothing = MODE;\n")
    bare = compiled("1", tmp_path, empty)
    answers = told(model, with_library(str(junk)), with_library(bare))["told"]
    for answer, path in zip(answers, (str(junk), bare), strict=True):
        assert answer.startswith("REJECTED: the execution provider library " + path)
        assert "\n" not in answer
    assert "CreateEpFactories" in answers[1]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("STATUS", ["can't be registered", "the plugin wants another driver"]),
        ("NO_DEVICE", ["no device here", PLUGIN]),
        ("CREATE_FAILS", ["could not be made", "the plugin has no licence"]),
        ("NO_NODE", [PLUGIN, "runs none of the nodes"]),
        ("ONE_NODE", [f"{PLUGIN} runs 1 of", "CPUExecutionProvider runs", "allow_partial=True"]),
    ],
)
def test_a_plugin_that_is_not_what_was_asked_for_is_rejected_in_its_own_words(
    mode: str, words: list[str], model: str, tmp_path: Path
) -> None:
    # Twice: what failed once is no better the second time, and nothing of it may be remembered as done.
    recipe = with_library(compiled(mode, tmp_path))
    for answer in told(model, recipe, recipe)["told"]:
        assert answer.startswith("REJECTED: ")
        for word in words:
            assert word in answer


def test_a_plugin_that_takes_every_node_is_accepted_alone_and_one_that_takes_some_where_that_is_allowed(
    model: str, tmp_path: Path
) -> None:
    found = told(model, with_library(compiled("ALL_NODES", tmp_path)))
    assert set(found["told"][0]) == {PLUGIN}
    assert found["available"][-1] == PLUGIN
    partial = with_library(compiled("ONE_NODE", tmp_path), providers=[PLUGIN, *CPU], allow_partial=True)
    nodes = told(model, partial)["told"][0]
    assert nodes[PLUGIN] == 1
    assert nodes[CPU[0]] >= 1


def test_a_library_is_registered_once_and_its_name_belongs_to_it(model: str, tmp_path: Path) -> None:
    library = compiled("ALL_NODES", tmp_path)
    other = shutil.copy(library, tmp_path / "other.so")
    answers = told(model, with_library(library), with_library(library), with_library(str(other)))["told"]
    assert set(answers[0]) == set(answers[1]) == {PLUGIN}
    assert "REJECTED" in answers[2]
    assert "can't be registered as 'test_plugin'" in answers[2]


def test_a_plugin_that_the_application_registered_is_proposed_and_needs_no_library_named(
    model: str, tmp_path: Path
) -> None:
    library = compiled("ALL_NODES", tmp_path)
    script = f"""
import json, sys
import onnxruntime as ort
from ort_stacktune import SessionRecipe, StackPolicy, StackTuner, TunedSession
import numpy as np

ort.register_execution_provider_library("mine", {library!r})
asked = json.loads(sys.argv[1])
recipe = SessionRecipe("by name", providers=[{PLUGIN!r}])
assert recipe.ep_libraries == {{}}
options = ort.SessionOptions()
options.log_severity_level = 4
tuned = TunedSession(
    asked["model"], options, providers=["CPUExecutionProvider"], tuner=StackTuner(StackPolicy.quick())
)
feed = {{"x": np.zeros((2, 16), np.float32)}}
tuned.tune(feed)
notes = {{report.name: report.note for report in tuned.report(feed).candidates}}
print(json.dumps(notes))
"""
    notes = told(model, script=script)
    assert "the plugin computes nothing" in notes["plugin-testplugin"]
