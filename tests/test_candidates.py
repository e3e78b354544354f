from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from tuning import CPU, floats, save

import graphs
from ort_stacktune import SessionRecipe, Tolerance, Validation
from ort_stacktune.candidates import MAX_GENERATED, Situation, generate
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.recipes import variant
from ort_stacktune.ort.request import OutputTarget, Request
from ort_stacktune.ort.trials import SessionTrials

PROVIDERS = tuple(ort.get_available_providers())
OPENVINO = "OpenVINOExecutionProvider"
REFERENCE = SessionRecipe("reference", providers=CPU)


def situation(**changes: Any) -> Situation:
    base: dict[str, Any] = {
        "reference": REFERENCE,
        "shapes": {"x": (2, 16)},
        "dynamic": True,
        "control_flow": False,
        "cores": 4,
        "providers": PROVIDERS,
    }
    return Situation(**{**base, **changes})


EVERY = [
    {
        "dynamic": dynamic,
        "control_flow": control_flow,
        "cores": cores,
        "reference": reference,
        "callers": callers,
    }
    for dynamic in (True, False)
    for control_flow in (True, False)
    for cores in (1, 2, 3, 4, 64)
    for callers in (1, 2, 8)
    for reference in (
        REFERENCE,
        variant(REFERENCE, "reference", session_options={"intra_op_num_threads": 1}),
        variant(REFERENCE, "reference", session_options={"graph_optimization_level": "ORT_ENABLE_BASIC"}),
        variant(REFERENCE, "reference", shapes={"x": (2, 16)}),
        variant(REFERENCE, "reference", config={"session.intra_op.allow_spinning": "0"}),
    )
]


def test_there_are_a_dozen_at_most_with_unique_names_and_contents_none_of_them_the_reference() -> None:
    assert MAX_GENERATED == 12
    for changes in EVERY:
        made = generate(situation(**changes))
        assert 0 < len(made) <= MAX_GENERATED
        revisions = {recipe.revision for recipe in made}
        names = {recipe.name for recipe in made}
        assert len(revisions) == len(names) == len(made)
        assert changes["reference"].revision not in revisions
        assert "reference" not in names


def test_the_same_situation_gives_the_same_candidates_in_the_same_order() -> None:
    for changes in EVERY:
        assert generate(situation(**changes)) == generate(situation(**changes))


def test_the_most_promising_come_first_and_what_often_loses_last() -> None:
    names = [recipe.name for recipe in generate(situation())]
    assert names.index("fixed-shapes") < names.index("level-basic")
    # On small models it takes many times as long; where there are a dozen others it has no place.
    assert "parallel-branches" not in names[:-1]
    if OPENVINO in PROVIDERS:
        assert names[0].startswith("openvino")


@pytest.mark.skipif(OPENVINO not in PROVIDERS, reason="this build has no OpenVINO")
def test_openvino_computes_in_the_references_precision_and_may_leave_nodes_to_the_cpu() -> None:
    made = [r for r in generate(situation()) if r.name.startswith("openvino")]
    assert made
    for recipe in made:
        assert [name for name, _ in recipe.provider_list] == [OPENVINO, *CPU]
        options = recipe.provider_list[0][1]
        assert (options["precision"], options["device_type"]) == ("FP32", "CPU")


def test_control_flow_gets_no_openvino() -> None:
    for changes in EVERY:
        if changes["control_flow"]:
            for recipe in generate(situation(**changes)):
                assert OPENVINO not in dict(recipe.provider_list)


def test_openvino_is_proposed_only_where_the_build_has_it() -> None:
    for recipe in generate(situation(providers=tuple(CPU))):
        assert OPENVINO not in dict(recipe.provider_list)


def test_a_single_core_gets_no_thread_pool() -> None:
    for changes in EVERY:
        if changes["cores"] == 1:
            for recipe in generate(situation(**changes)):
                assert recipe.session_options.get("intra_op_num_threads", 0) <= 1
                assert recipe.session_options.get("inter_op_num_threads", 0) <= 1
                assert recipe.session_options.get("execution_mode") != "ORT_PARALLEL"


def test_no_candidate_starts_more_threads_for_one_call_than_there_are_cores() -> None:
    for changes in EVERY:
        for recipe in generate(situation(**changes)):
            assert recipe.session_options.get("intra_op_num_threads", 0) <= changes["cores"]


def test_shapes_are_fixed_only_where_the_model_leaves_them_open() -> None:
    assert not any(recipe.shapes for recipe in generate(situation(dynamic=False)))
    fixed = [recipe for recipe in generate(situation()) if recipe.shapes]
    assert fixed
    assert all(recipe.shapes == {"x": (2, 16)} for recipe in fixed)


def test_what_the_user_set_on_the_reference_stays_set() -> None:
    mine = SessionRecipe(
        "reference",
        providers=[("CPUExecutionProvider", {"use_arena": "0"})],
        session_options={"use_deterministic_compute": True, "enable_mem_pattern": False},
        config={"session.set_denormal_as_zero": "1", "my.own.key": "7"},
    )
    for recipe in generate(situation(reference=mine)):
        assert recipe.session_options.items() >= mine.session_options.items()
        assert recipe.config.items() >= mine.config.items()
        if OPENVINO not in dict(recipe.provider_list):
            assert recipe.provider_list == mine.provider_list


def test_a_session_for_each_caller_is_proposed_only_for_several_callers() -> None:
    assert all(recipe.instances == 1 for recipe in generate(situation()))
    assert any(recipe.instances == 3 for recipe in generate(situation(callers=3)))


SMALL: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, Any]]] = {
    "mlp": (graphs.mlp, {"x": floats(2, 16)}),
    "argmax": (graphs.argmax, {"x": floats(3, 8)}),
    "with_state": (graphs.with_state, {"x": floats(2, 4), "state": floats(2, 4, seed=1)}),
    "sum_of": (lambda: graphs.sum_of(3), {f"x{i}": floats(2, 4, seed=i) for i in range(3)}),
    "scalar": (graphs.scalar, {"x": np.array(1.5, np.float32)}),
    "branching": (graphs.branching, {"x": floats(2, 16), "mode": np.array(1)}),
    "counted": (graphs.counted, {"x": floats(2, 4), "times": np.array(3)}),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_candidate_for_a_small_graph_can_be_made_and_agrees_with_the_reference(
    name: str, tmp_path: Path
) -> None:
    build, feeds = SMALL[name]
    model = build()
    source = ModelSource.of(save(model, tmp_path / "m.onnx"))
    facts = source.graph()
    assert facts is not None
    quiet = variant(REFERENCE, "reference", session_options={"log_severity_level": 4})
    made = generate(
        situation(
            reference=quiet,
            shapes={label: array.shape for label, array in feeds.items()},
            dynamic=any(isinstance(dim, str) for fact in facts.inputs for dim in fact.dims or ()),
            control_flow=bool({"If", "Loop"} & set(facts.op_types)),
            cores=2,
            callers=2,
        )
    )
    request = Request(feeds, tuple(OutputTarget(output.name) for output in model.graph.output))
    steering = frozenset(facts.steering)
    trials = SessionTrials((quiet, *made), 0, source, request, steering=steering)
    for index in range(len(made) + 1):
        assert trials.validate(0, index, Tolerance()) is Validation.PASSED
    trials.close()
