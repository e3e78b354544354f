from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from scripted import raising
from tuning import CPU, floats, save

import graphs
from ort_stacktune import FailureKind, SessionRecipe, TuneFailure
from ort_stacktune.ort import sessions
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.sessions import MadeSession, make_session

OPENVINO = ("OpenVINOExecutionProvider", {"device_type": "CPU"})
AVAILABLE = ort.get_available_providers()
needs_openvino = pytest.mark.skipif(OPENVINO[0] not in AVAILABLE, reason="this build has no OpenVINO")
REFERENCE = SessionRecipe("reference", providers=CPU)


def make(path: str, trial: bool = False, **fields: Any) -> MadeSession:
    fields.setdefault("session_options", {"intra_op_num_threads": 1})
    recipe = SessionRecipe("candidate", **{"providers": CPU, **fields})
    return make_session(recipe, ModelSource.of(path), REFERENCE, trial=trial)


def entry(session: Any, key: str) -> str | None:
    try:
        return str(session.get_session_options().get_session_config_entry(key))
    except RuntimeError:
        return None


@needs_openvino
@pytest.mark.parametrize("providers", [[OPENVINO], [OPENVINO, *CPU]], ids=["alone", "before the CPU"])
def test_a_provider_that_takes_only_some_nodes_is_refused_with_the_operators_it_left(
    providers: list[Any], tmp_path: Path
) -> None:
    path = save(graphs.optional_input(), tmp_path / "m.onnx")
    with raising(
        FailureKind.REJECTED,
        "OpenVINO",
        "CPUExecutionProvider runs",
        "OptionalGetElement x1",
        "set allow_partial=True",
    ):
        make(path, providers=providers, session_options={"log_severity_level": 4})


@needs_openvino
@pytest.mark.parametrize("providers", [[OPENVINO], [OPENVINO, *CPU]], ids=["alone", "before the CPU"])
def test_partial_use_is_accepted_where_the_recipe_says_so_and_the_nodes_are_counted(
    providers: list[Any], tmp_path: Path
) -> None:
    path = save(graphs.optional_input(), tmp_path / "m.onnx")
    made = make(path, providers=providers, allow_partial=True, session_options={"log_severity_level": 4})
    assert made.nodes["CPUExecutionProvider"] >= 3
    assert made.nodes["OpenVINOExecutionProvider"] >= 1


@needs_openvino
def test_a_provider_that_takes_every_node_is_accepted_alone(tmp_path: Path) -> None:
    path = save(graphs.mlp(), tmp_path / "m.onnx")
    assert set(make(path, providers=[OPENVINO]).nodes) == {"OpenVINOExecutionProvider"}


@needs_openvino
def test_where_nothing_tells_where_nodes_run_full_use_is_shown_by_a_session_that_allows_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As some builds do for a provider that takes the whole graph.
    monkeypatch.setattr(sessions, "placement", lambda _: {})
    model = graphs.mlp()
    made = make(save(model, tmp_path / "m.onnx"), providers=[OPENVINO, *CPU])
    assert made.nodes == {"OpenVINOExecutionProvider": len(model.graph.node)}
    path = save(graphs.optional_input(), tmp_path / "o.onnx")
    for partial in (False, True):
        with raising(FailureKind.REJECTED, "does not tell which nodes", OPENVINO[0]):
            make(path, providers=[OPENVINO], allow_partial=partial, session_options={"log_severity_level": 4})


@pytest.mark.parametrize("allow_partial", [False, True])
@pytest.mark.parametrize("behind", [[], CPU], ids=["alone", "before the CPU"])
@pytest.mark.parametrize(
    "provider", ["OpenVINOExecutionProvider", "AzureExecutionProvider", "CUDAExecutionProvider"]
)
def test_a_provider_that_is_active_and_runs_no_node_is_refused(
    provider: str, behind: list[str], allow_partial: bool, tmp_path: Path
) -> None:
    if provider not in AVAILABLE:
        pytest.skip(f"this build has no {provider}")
    path = save(graphs.sequence_output(), tmp_path / "m.onnx")
    with raising(FailureKind.REJECTED, provider):
        make(
            path,
            providers=[provider, *behind],
            allow_partial=allow_partial,
            session_options={"log_severity_level": 4},
        )


def test_wherever_the_reference_runs_is_right_by_definition(tmp_path: Path) -> None:
    path = save(graphs.sequence_output(), tmp_path / "m.onnx")
    listed = [name for name in ("AzureExecutionProvider", OPENVINO[0], *CPU) if name in AVAILABLE]
    anywhere = SessionRecipe("reference", providers=listed)
    made = make_session(anywhere, ModelSource.of(path), anywhere, trial=False, check_placement=False)
    assert set(made.nodes) == set(CPU)


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        (b"junk", {}),
        (b"", {}),
        (None, {"session_options": {"intra_op_num_threads": 2**40}}),
        (None, {"config": {"session.load_model_format": "ORT"}}),
        (None, {"config": {"session.disable_cpu_ep_fallback": "1"}}),
        (None, {"shapes": {"x": (2, 15)}}),
        (None, {"providers": [("CPUExecutionProvider", {"no_such_option": "1"})]}),
        (None, {"shapes": {"nope": (2, 16)}}),
    ],
    ids=str,
)
def test_what_can_not_be_made_is_rejected_in_one_sentence(
    content: bytes | None, fields: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    save(graphs.mlp(), path)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TuneFailure) as caught:
        make(str(path), **fields)
    assert caught.value.kind in (FailureKind.REJECTED, FailureKind.INVALID_INPUT)
    assert caught.value.message
    assert "\n" not in caught.value.message


def test_a_library_without_operators_is_rejected_by_name(tmp_path: Path) -> None:
    library = tmp_path / "ops.so"
    library.write_bytes(b"no library")
    with raising(FailureKind.REJECTED, "ops.so"):
        make(save(graphs.mlp(), tmp_path / "m.onnx"), custom_op_libraries=[str(library)])


def test_a_model_of_its_own_is_used_instead_of_the_references(tmp_path: Path) -> None:
    path = save(graphs.mlp(seed=0), tmp_path / "a.onnx")
    other = save(graphs.mlp(seed=1), tmp_path / "b.onnx")
    feed = {"x": floats(2, 16)}
    ours = make(path, model=other).session.run(None, feed)[0]
    np.testing.assert_array_equal(ours, make(other).session.run(None, feed)[0])
    assert not np.array_equal(ours, make(path).session.run(None, feed)[0])


def test_trial_sessions_stop_spinning_and_served_ones_are_left_as_the_recipe_says(tmp_path: Path) -> None:
    path, key = save(graphs.mlp(), tmp_path / "m.onnx"), "session.force_spinning_stop"
    assert entry(make(path, trial=True).session, key) == "1"
    assert entry(make(path, trial=True, config={key: "0"}).session, key) == "1"
    assert entry(make(path).session, key) is None
    assert entry(make(path, config={key: "1"}).session, key) == "1"


def test_the_recipes_options_and_config_reach_the_session(tmp_path: Path) -> None:
    path = save(graphs.mlp(), tmp_path / "m.onnx")
    session = make(
        path,
        trial=True,
        session_options={
            "intra_op_num_threads": 2,
            "graph_optimization_level": "ORT_ENABLE_BASIC",
            "execution_mode": "ORT_PARALLEL",
        },
        config={"session.intra_op.allow_spinning": "0"},
    ).session
    options = session.get_session_options()
    assert options.intra_op_num_threads == 2
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert entry(session, "session.intra_op.allow_spinning") == "0"


def _without_names(model: onnx.ModelProto) -> onnx.ModelProto:
    for value in [*model.graph.input, *model.graph.output]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.ClearField("dim_param")
    return model


@pytest.mark.parametrize("named", [True, False], ids=["by name", "by editing"])
def test_shapes_are_fixed_by_name_or_by_editing_with_equal_outputs(named: bool, tmp_path: Path) -> None:
    model = graphs.mlp() if named else _without_names(graphs.mlp())
    path = save(model, tmp_path / "m.onnx")
    feed = {"x": floats(3, 16)}
    plain, fixed = make(path).session, make(path, shapes={"x": (3, 16)}).session
    assert plain.get_inputs()[0].shape[0] != 3
    assert fixed.get_inputs()[0].shape == [3, 16]
    assert [o.name for o in fixed.get_outputs()] == [o.name for o in plain.get_outputs()]
    np.testing.assert_allclose(fixed.run(None, feed)[0], plain.run(None, feed)[0], rtol=1e-6, atol=1e-6)
    with pytest.raises(Exception, match="Got: 2 Expected: 3"):
        fixed.run(None, {"x": floats(2, 16)})


def test_shapes_are_fixed_where_one_name_stands_for_two_sizes(tmp_path: Path) -> None:
    path = save(graphs.sum_of(2), tmp_path / "m.onnx")
    feed = {"x0": floats(3, 4), "x1": floats(1, 4)}
    fixed = make(path, shapes={"x0": (3, 4), "x1": (1, 4)}).session
    np.testing.assert_array_equal(fixed.run(None, feed)[0], make(path).session.run(None, feed)[0])


def test_external_weights_work_with_shapes_that_have_names_and_are_refused_without(tmp_path: Path) -> None:
    path = tmp_path / "named.onnx"
    graphs.external(path)
    feed = {"x": floats(2, 512)}
    fixed = make(str(path), shapes={"x": (2, 512)}).session
    np.testing.assert_allclose(
        fixed.run(None, feed)[0], make(str(path)).session.run(None, feed)[0], rtol=1e-5, atol=1e-6
    )
    unnamed = save(_without_names(onnx.load(path, load_external_data=False)), tmp_path / "unnamed.onnx")
    with raising(FailureKind.REJECTED, "no usable names", "external"):
        make(unnamed, shapes={"x": (2, 512)})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_memory_of_closed_sessions_goes_back_to_the_system(tmp_path: Path) -> None:
    path = save(graphs.heavy(24), tmp_path / "m.onnx")
    script = """
import sys
from pathlib import Path
from ort_stacktune import SessionRecipe
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.sessions import give_back_memory, make_session

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

recipe = SessionRecipe("r", providers=["CPUExecutionProvider"], session_options={"intra_op_num_threads": 1})
source = ModelSource.of(sys.argv[1])
make_session(recipe, source, recipe, trial=True)
give_back_memory()
before = resident()
sessions = [make_session(recipe, source, recipe, trial=True) for _ in range(3)]
held = resident() - before
sessions.clear()
give_back_memory()
left = resident() - before
assert held > 3 * 20e6, held
assert left < held / 5, (held, left)
"""
    subprocess.run([sys.executable, "-c", script, path], check=True, cwd=Path(__file__).parent.parent)
