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
from ort_stacktune.ort import recipes
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.provider_options import AcceptedOptions, reduced_precisions
from ort_stacktune.ort.recipes import variant
from ort_stacktune.ort.request import OutputTarget, Request
from ort_stacktune.ort.trials import SessionTrials

OPENVINO = "OpenVINOExecutionProvider"
# Those that need a device may be listed without one.
PROVIDERS = tuple(name for name in ort.get_available_providers() if name in (OPENVINO, *CPU))
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
        assert recipe.allow_partial
        options = recipe.provider_list[0][1]
        assert (options["precision"], options["device_type"]) == ("FP32", "CPU")


def test_openvino_and_fixed_shapes_are_marked_as_risky_where_a_graph_branches() -> None:
    made = generate(situation(control_flow=True))
    assert any(recipe.shapes for recipe in made)
    for recipe in made:
        assert recipe.risky == bool(recipe.shapes or OPENVINO in dict(recipe.provider_list))
    assert not any(recipe.risky for recipe in generate(situation()))


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
        providers=[("CPUExecutionProvider", AcceptedOptions({"use_arena": "0"}))],
        session_options={"use_deterministic_compute": True, "enable_mem_pattern": False},
        config={"session.set_denormal_as_zero": "1", "my.own.key": "7"},
    )
    for recipe in generate(situation(reference=mine)):
        assert recipe.session_options.items() >= mine.session_options.items()
        assert recipe.config.items() >= mine.config.items()
        if recipe.provider_list[0][0] in CPU:
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
    for index, recipe in enumerate((quiet, *made)):
        if not recipe.risky:
            assert trials.validate(0, index, Tolerance()) is Validation.PASSED
    trials.close()


CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
GPU_BUILD = (TENSORRT, CUDA, *CPU)
CONVOLUTIONS = {"Conv": 3, "Relu": 2}


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes recipes believe in another build, for what is generated without making a session."""

    def pretend(*providers: str, version: str = "1.31.1") -> None:
        monkeypatch.setattr(recipes, "available_providers", lambda: providers)
        monkeypatch.setattr(ort, "__version__", version)

    return pretend


def proposed(**changes: Any) -> dict[str, SessionRecipe]:
    return {recipe.name: recipe for recipe in generate(situation(**changes))}


def option(recipe: SessionRecipe, provider: str, name: str) -> str | None:
    return dict(recipe.provider_list)[provider].get(name)


def cuda_reference(**options: str) -> SessionRecipe:
    return recipes.recipe_of_options("reference", ort.SessionOptions(), [(CUDA, options), *CPU])


def test_cuda_in_place_of_the_cpu_computes_in_full_float32_and_says_its_share(
    build: Callable[..., Any],
) -> None:
    build(*GPU_BUILD)
    made = proposed(providers=GPU_BUILD, op_types=CONVOLUTIONS)
    on_cuda = [recipe for recipe in made.values() if CUDA in dict(recipe.provider_list)]
    assert {recipe.name for recipe in on_cuda} == {"cuda", "cuda+nhwc", "cuda+heuristic-search"}
    for recipe in on_cuda:
        assert option(recipe, CUDA, "use_tf32") == "0"
        assert recipe.allow_partial
    # TensorRT has no switch for it.
    assert not any(TENSORRT in dict(recipe.provider_list) for recipe in made.values())


def test_reduced_precision_is_proposed_only_where_the_user_allowed_it(build: Callable[..., Any]) -> None:
    build(*GPU_BUILD)
    for allowed in ((), ("tf32",), ("fp16",), ("tf32", "fp16"), ("tf32", "bf16", "fp16", "int8")):
        for reference in (REFERENCE, cuda_reference(), cuda_reference(use_tf32="0")):
            own = reduced_precisions(reference.provider_list)
            for recipe in proposed(
                providers=GPU_BUILD,
                reference=reference,
                op_types={**CONVOLUTIONS, "QuantizeLinear": 1},
                reduced_precision=allowed,
            ).values():
                assert reduced_precisions(recipe.provider_list) <= {*own, *allowed}
    every = proposed(providers=GPU_BUILD, reduced_precision=("tf32", "fp16"))
    assert {"cuda+tf32", "tensorrt", "tensorrt+fp16"} <= every.keys()
    off = proposed(providers=GPU_BUILD, reference=cuda_reference(use_tf32="0"), reduced_precision=("tf32",))
    assert option(off["tf32"], CUDA, "use_tf32") == "1"


def test_options_of_cuda_are_varied_one_or_two_at_a_time_where_the_graph_has_use_for_them(
    build: Callable[..., Any],
) -> None:
    build(*GPU_BUILD)
    reference = cuda_reference(device_id="1", cudnn_conv_use_max_workspace="0", brought_by="1.99")
    own = dict(reference.provider_list)[CUDA]
    for op_types in ({}, {"MatMul": 2}, CONVOLUTIONS):
        made = proposed(reference=reference, providers=(CUDA, *CPU), op_types=op_types)
        for recipe in made.values():
            options = dict(recipe.provider_list).get(CUDA)
            if options is not None:
                assert options.keys() >= own.keys()
                assert (options["device_id"], options["brought_by"]) == ("1", "1.99")
                assert len(set(options.items()) - set(own.items())) <= 2
        convolving = {"nhwc", "fused-bias", "heuristic-search", "max-workspace"} & made.keys()
        assert len(convolving) == (4 if op_types is CONVOLUTIONS else 0)
        assert "cpu" in made
    # What is so already, or by default, is no candidate.
    assert "max-workspace" not in proposed(
        reference=cuda_reference(), providers=(CUDA, *CPU), op_types=CONVOLUTIONS
    )


def test_an_option_of_another_version_makes_no_candidate(build: Callable[..., Any]) -> None:
    build(*GPU_BUILD, version="1.19.2")
    made = proposed(reference=cuda_reference(), providers=(CUDA, *CPU), op_types=CONVOLUTIONS)
    assert "nhwc" in made
    assert "fused-bias" not in made


def test_launches_are_captured_only_where_buffers_of_ours_may_stand_between(
    build: Callable[..., Any],
) -> None:
    build(*GPU_BUILD)
    for capturable in (False, True):
        for control_flow in (False, True):
            made = proposed(
                reference=cuda_reference(),
                providers=GPU_BUILD,
                capturable=capturable,
                control_flow=control_flow,
            )
            captured = {"cuda-graph", "tensorrt+cuda-graph"} & made.keys()
            assert bool(captured) == (capturable and not control_flow)


def test_a_request_that_lies_on_a_device_gets_no_candidate_that_computes_elsewhere(
    build: Callable[..., Any],
) -> None:
    build(*GPU_BUILD)
    for on_device in (False, True):
        made = proposed(reference=cuda_reference(), providers=GPU_BUILD, on_device=on_device)
        assert ("cpu" in made) != on_device


def test_tensorrt_gets_a_profile_of_exactly_the_signature_and_cuda_behind_it(
    build: Callable[..., Any],
) -> None:
    build(*GPU_BUILD)
    reference = cuda_reference(device_id="1")
    shapes = {"x": (2, 16), "y": (1, 3, 8)}
    made = proposed(reference=reference, providers=GPU_BUILD, shapes=shapes)["tensorrt"]
    assert [name for name, _ in made.provider_list] == [TENSORRT, CUDA, *CPU]
    for bound in ("min", "opt", "max"):
        assert option(made, TENSORRT, f"trt_profile_{bound}_shapes") == "x:2x16,y:1x3x8"
    assert option(made, TENSORRT, "device_id") == option(made, CUDA, "device_id") == "1"
    # Nothing to pin, or nothing that a profile can say.
    for changes in ({"dynamic": False}, {"shapes": {"x": ()}}, {"shapes": {"a:b": (2,)}}):
        plain = proposed(reference=reference, providers=GPU_BUILD, **changes)["tensorrt"]
        assert option(plain, TENSORRT, "trt_profile_min_shapes") is None


OTHERS = {
    "WebGpuExecutionProvider": "webgpu",
    "DmlExecutionProvider": "directml",
    "CoreMLExecutionProvider": "coreml",
    "MIGraphXExecutionProvider": "migraphx",
}


@pytest.mark.parametrize("provider", OTHERS)
def test_every_other_family_is_proposed_by_name_where_the_build_has_it(
    provider: str, build: Callable[..., Any]
) -> None:
    build(provider, *CPU)
    made = proposed(providers=(provider, *CPU), op_types=CONVOLUTIONS)
    of_it = [recipe for recipe in made.values() if provider in dict(recipe.provider_list)]
    assert of_it
    assert of_it[0].name.startswith(OTHERS[provider])
    assert all(recipe.provider_list[0][0] == provider for recipe in of_it)
    assert all(reduced_precisions(recipe.provider_list) == set() for recipe in of_it)
    if provider.startswith("Dml"):
        assert of_it[0].session_options["enable_mem_pattern"] is False
    assert not any(provider in dict(recipe.provider_list) for recipe in generate(situation()))


def test_plugins_are_proposed_as_they_are_with_their_libraries(
    build: Callable[..., Any], tmp_path: Path
) -> None:
    library = tmp_path / "ep.so"
    library.write_bytes(b"plugin")
    build("MyExecutionProvider", *CPU)
    made = proposed(providers=(*CPU, "MyExecutionProvider"), libraries={"MyExecutionProvider": str(library)})[
        "plugin-my"
    ]
    assert made.provider_list == (("MyExecutionProvider", {}), (CPU[0], {}))
    assert made.ep_libraries == {"MyExecutionProvider": str(library)}
    assert made.allow_partial


def test_openvino_takes_several_calls_at_a_time_in_streams_and_less_precision_only_by_name() -> None:
    build = (OPENVINO, *CPU)
    if OPENVINO not in PROVIDERS:
        pytest.skip("this build has no OpenVINO")
    made = proposed(providers=build, callers=3, reduced_precision=("bf16",))
    assert option(made["openvino-fixed+streams-3"], OPENVINO, "num_streams") == "3"
    assert "bf16" in (option(made["openvino-fixed+bf16"], OPENVINO, "load_config") or "")
    assert not any("bf16" in name for name in proposed(providers=build))


def test_a_dozen_is_enough_whatever_the_build_has(build: Callable[..., Any]) -> None:
    everything = (TENSORRT, CUDA, OPENVINO, *OTHERS, *CPU)
    build(*everything)
    for changes in EVERY:
        names = [
            recipe.name
            for recipe in generate(
                situation(
                    **changes,
                    providers=everything,
                    op_types=CONVOLUTIONS,
                    reduced_precision=("tf32", "bf16", "fp16", "int8"),
                    capturable=True,
                )
            )
        ]
        assert len(names) == len(set(names)) <= MAX_GENERATED
