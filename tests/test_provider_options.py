"""The table of execution providers' options: what a recipe refuses by name, held against real sessions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
from scripted import raising
from tuning import CPU, save

import graphs
from ort_stacktune import FailureKind, SessionRecipe
from ort_stacktune.ort.options import WholeNumber
from ort_stacktune.ort.provider_options import (
    AcceptedOptions,
    checked_options,
    config_of,
    option_in_force,
    options_in_config,
    reduced_precisions,
)
from ort_stacktune.ort.provider_table import (
    COREML,
    CUDA,
    FAMILIES,
    OPENVINO,
    TENSORRT,
    WEBGPU,
    ProviderOption,
    Text,
)
from ort_stacktune.ort.recipes import recipe_of_options, with_options

HERE = ort.get_available_providers()
needs_openvino = pytest.mark.skipif(OPENVINO not in HERE, reason="this build has no OpenVINO")
ROWS = [(family, name, option) for family, rows in FAMILIES.items() for name, option in rows.items()]


@pytest.mark.parametrize(
    ("provider", "options", "version", "words"),
    [
        (
            CUDA,
            {"sdpa_kernel": 1},
            "1.18.0",
            ["sdpa_kernel", CUDA, "since ONNX Runtime 1.20", "this is 1.18.0"],
        ),
        (CUDA, {"use_tf32": 0}, "1.17.3", ["use_tf32", "1.18", "1.17.3"]),
        (CUDA, {"cuda_mem_limit": 1}, "1.31.1", ["cuda_mem_limit", "no longer", "1.24", "1.31.1"]),
        (CUDA, {"use_tf23": 0}, "1.31.1", ["use_tf23", CUDA, "did you mean 'use_tf32'"]),
        (CUDA, {"zzz": 0}, "1.31.1", ["'zzz'", "prefer_nhwc"]),
        (CUDA, {"cudnn_conv_algo_search": "FAST"}, "1.31.1", ["FAST", "EXHAUSTIVE, HEURISTIC, DEFAULT"]),
        (CUDA, {"prefer_nhwc": "yes"}, "1.31.1", ["prefer_nhwc", "'yes'", "0, 1"]),
        (CUDA, {"device_id": -1}, "1.31.1", ["device_id", "-1", "whole number from 0"]),
        (CUDA, {"gpu_mem_limit": 2**64}, "1.31.1", ["gpu_mem_limit", "whole number"]),
        (TENSORRT, {"trt_builder_optimization_level": 6}, "1.31.1", ["level", "from 0 to 5"]),
        (TENSORRT, {"trt_bf16_enable": 1}, "1.22.0", ["trt_bf16_enable", "since ONNX Runtime 1.23"]),
        (TENSORRT, {"trt_fp16": 1}, "1.31.1", ["did you mean 'trt_fp16_enable'"]),
        (OPENVINO, {"precision": "BF16"}, "1.24.1", ["precision", "FP32, FP16, ACCURACY"]),
        (OPENVINO, {"num_of_threads": 0}, "1.24.1", ["num_of_threads", "whole number from 1"]),
        (OPENVINO, {"disable_dynamic_shapes": "1"}, "1.24.1", ["disable_dynamic_shapes", "false, true"]),
        (OPENVINO, {"enable_dynamic_shapes": "true"}, "1.24.1", ["enable_dynamic_shapes", "no longer"]),
        (WEBGPU, {"preferredLayout": "nchw"}, "1.27.0", ["preferredLayout", "NCHW, NHWC"]),
        (COREML, {"MLComputeUnits": "GPU"}, "1.32.0", ["MLComputeUnits", "CPUAndGPU"]),
        (CPU[0], {"use_arena": 0}, "1.32.0", [CPU[0], "use_arena", "it takes none"]),
    ],
    ids=str,
)
def test_what_a_provider_does_not_take_is_refused_by_name(
    provider: str, options: dict[str, Any], version: str, words: list[str]
) -> None:
    with raising(FailureKind.INVALID_INPUT, *words):
        checked_options(provider, options, version)


def test_a_recipe_refuses_a_wrong_option_when_it_is_made() -> None:
    with raising(FailureKind.INVALID_INPUT, "use_arena", CPU[0]):
        SessionRecipe("r", providers=[(CPU[0], {"use_arena": "0"})])


def test_options_of_plugins_that_nobody_knows_pass() -> None:
    assert checked_options("MyExecutionProvider", {"b": True, "a": 1}, "1.32.0") == {"a": "1", "b": "True"}


def test_an_option_may_carry_the_prefix_of_session_configs() -> None:
    name = "ep.webgpuexecutionprovider.preferredLayout"
    assert checked_options(WEBGPU, {name: "NCHW"}, "1.27.0") == {name: "NCHW"}
    with raising(FailureKind.INVALID_INPUT, "preferredLayout", "NCHW, NHWC"):
        checked_options(WEBGPU, {name: "both"}, "1.27.0")


def test_versions_that_are_no_release_are_judged_by_their_numbers_or_not_at_all() -> None:
    assert checked_options(CUDA, {"sdpa_kernel": 1}, "1.33.0.dev20261201")
    assert checked_options(CUDA, {"sdpa_kernel": 1}, "nightly")
    with raising(FailureKind.INVALID_INPUT, "1.19.0.dev3"):
        checked_options(CUDA, {"sdpa_kernel": 1}, "1.19.0.dev3")


@pytest.mark.parametrize(("family", "name", "option"), ROWS, ids=str)
def test_every_row_says_what_an_option_does_and_takes(family: str, name: str, option: ProviderOption) -> None:
    assert option.does
    assert option.gone is None or option.gone > option.since
    if isinstance(option.legal, tuple):
        assert len(set(option.legal)) == len(option.legal) > 1
        assert option.reduces.keys() <= {"", *option.legal}
        assert option.default in ("", *option.legal)
    elif isinstance(option.legal, WholeNumber):
        assert option.legal.low < option.legal.high
        assert not option.default or option.legal.admits(option.default)
    else:
        assert option.legal.form


def test_what_a_live_session_accepted_is_not_judged_again() -> None:
    recipe = recipe_of_options("mine", ort.SessionOptions(), [(CPU[0], {"brought_by": "1.99"})])
    assert recipe.provider_list == ((CPU[0], {"brought_by": "1.99"}),)
    assert recipe.allow_partial
    merged = SessionRecipe("r", providers=[(CPU[0], AcceptedOptions({"a": "1"}))])
    assert with_options(merged, CPU[0], {}) == ((CPU[0], {"a": "1"}),)
    with raising(FailureKind.INVALID_INPUT, "'b'"):
        with_options(merged, CPU[0], {"b": "1"})


def test_the_precision_that_options_give_up_is_known() -> None:
    def of(provider: str, **options: str) -> set[str]:
        return set(reduced_precisions([(provider, options), (CPU[0], {})]))

    assert of(CPU[0]) == of(CUDA, use_tf32="0") == of(OPENVINO, precision="FP32") == set()
    assert of(CUDA) == of(CUDA, use_tf32="1") == of(TENSORRT) == {"tf32"}
    assert of(TENSORRT, trt_fp16_enable="True") == {"tf32", "fp16"}
    assert of(TENSORRT, trt_fp16_enable="0", trt_int8_enable="1") == {"tf32", "int8"}
    assert of(OPENVINO) == {"bf16"}
    assert of(COREML) == {"fp16"}
    assert of(COREML, ModelFormat="MLProgram") == set()
    assert of("MyExecutionProvider", fp16="1") == set()


def test_options_that_a_provider_reads_from_config_entries_go_there_and_are_read_back() -> None:
    key = "ep.webgpuexecutionprovider.preferredLayout"
    for name in ("preferredLayout", key):
        assert config_of([(WEBGPU, {name: "NCHW"}), (CUDA, {"use_tf32": "0"})]) == {key: "NCHW"}
    assert options_in_config(WEBGPU, {key: "NCHW"}.get) == {"preferredLayout": "NCHW"}
    assert options_in_config(CUDA, {"ep.cudaexecutionprovider.use_tf32": "0"}.get) == {}


def test_an_option_that_is_not_set_has_its_default() -> None:
    assert option_in_force(CUDA, {}, "use_tf32") == "1"
    assert option_in_force(CUDA, {"use_tf32": "0"}, "use_tf32") == "0"
    assert option_in_force(CUDA, {}, "no_such_option") == ""


@pytest.mark.parametrize("provider", [name for name in HERE if name in FAMILIES])
def test_the_table_takes_what_a_real_session_says_its_options_are(provider: str, tmp_path: Path) -> None:
    model = save(graphs.mlp(), tmp_path / "m.onnx")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model, options, providers=[provider, *CPU][: 1 if provider in CPU else 2])
    if provider not in session.get_providers():
        pytest.skip(f"{provider} does not load here")
    told = session.get_provider_options()[provider]
    for name, value in told.items():
        assert name in FAMILIES[provider]
        if value:
            assert checked_options(provider, {name: value}, ort.__version__)


# What only works on other hardware, or with a value that means something there.
ELSEWHERE = {"device_luid", "context"}
EXAMPLES: Mapping[str, str] = {
    "device_type": "CPU",
    "load_config": '{"CPU": {"NUM_STREAMS": "1"}}',
    "layout": "x[NC],y[NC]",
    "reshape_input": "x[2,16]",
    # Only a language model compiles with it.
    "enable_causallm": "false",
    "precision": "FP32",
    "num_of_threads": "1",
    "num_streams": "1",
}


def _openvino_session(model: str, options: dict[str, str]) -> ort.InferenceSession:
    quiet = ort.SessionOptions()
    quiet.log_severity_level = 4
    return ort.InferenceSession(
        model, quiet, providers=[OPENVINO, *CPU], provider_options=[options, {}], enable_fallback=0
    )


@needs_openvino
@pytest.mark.parametrize("name", sorted(FAMILIES[OPENVINO].keys() - ELSEWHERE))
def test_openvino_takes_every_option_of_the_table_and_refuses_those_that_are_gone(
    name: str, tmp_path: Path
) -> None:
    option, model = FAMILIES[OPENVINO][name], save(graphs.mlp(), tmp_path / "m.onnx")
    if name in EXAMPLES or isinstance(option.legal, Text):
        values: tuple[str, ...] = (EXAMPLES.get(name, str(tmp_path)),)
    else:
        assert isinstance(option.legal, tuple)
        values = ("CPU",) if name == "device_id" else option.legal
    for value in values:
        if option.gone is not None:
            with pytest.raises(Exception, match=name):
                _openvino_session(model, {"device_type": "CPU", name: value})
            continue
        assert checked_options(OPENVINO, {name: value}, ort.__version__) == {name: value}
        session = _openvino_session(model, {"device_type": "CPU", name: value})
        assert OPENVINO in session.get_providers()


@needs_openvino
@pytest.mark.parametrize(
    "options",
    [
        {"no_such_option": "1"},
        {"num_of_threads": "many"},
        {"enable_qdq_optimizer": "1"},
        {"precision": "INT3"},
    ],
    ids=str,
)
def test_openvino_itself_refuses_what_the_table_refuses(options: dict[str, str], tmp_path: Path) -> None:
    with raising(FailureKind.INVALID_INPUT, *options):
        checked_options(OPENVINO, options, ort.__version__)
    # A wrong name is an error; with a wrong value the session silently goes without OpenVINO.
    try:
        session = _openvino_session(
            save(graphs.mlp(), tmp_path / "m.onnx"), {"device_type": "CPU", **options}
        )
    except Exception as error:
        assert "no_such_option" in str(error)
    else:
        assert "no_such_option" not in options
        assert OPENVINO not in session.get_providers()
