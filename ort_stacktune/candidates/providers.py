"""Owns which execution providers are proposed where, each only where this build or a plugin has it.

Most families are small enough to be here; those with options worth a trial have a module of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ort_stacktune.candidates import nvidia, openvino
from ort_stacktune.candidates.situation import Draft, Situation, beside_cpu
from ort_stacktune.failures import TuneFailure
from ort_stacktune.ort.provider_table import (
    COREML,
    CPU,
    CUDA,
    DIRECTML,
    FAMILIES,
    MIGRAPHX,
    OPENVINO,
    TENSORRT,
    TENSORRT_RTX,
    WEBGPU,
)
from ort_stacktune.ort.recipes import SessionRecipe

Drafts = Callable[[Situation], Iterator[Draft]]


def proposals(situation: Situation) -> Iterator[SessionRecipe]:
    """Yields candidates that change execution providers or their options, the most promising first."""
    for draft in _drafts(situation):
        try:
            yield draft.made(situation)
        except TuneFailure:
            # An option of another version of ONNX Runtime: here there is no such candidate.
            continue


def _drafts(situation: Situation) -> Iterator[Draft]:
    main = situation.main_provider
    yield from _VARIANTS.get(main, _none)(situation)
    for provider, drafts in _ALTERNATIVES.items():
        if provider in situation.providers and main in _INSTEAD_OF.get(provider, (CPU,)):
            yield from drafts(situation)
    if main == CPU:
        yield from _plugins(situation)
    elif not situation.on_device:
        yield Draft("cpu", {"providers": ((CPU, {}),)})


def _none(_: Situation) -> Iterator[Draft]:
    return iter(())


def _directml(situation: Situation) -> Iterator[Draft]:
    # It refuses memory patterns and parallel execution, which are a user's to have set on the reference.
    session_options = {"enable_mem_pattern": False, "execution_mode": "ORT_SEQUENTIAL"}
    changes = {**beside_cpu(situation, (DIRECTML, {})), "session_options": session_options}
    if situation.fixable:
        yield Draft("directml-fixed", {**changes, **situation.fixed})
    yield Draft("directml", changes)


def _webgpu(situation: Situation) -> Iterator[Draft]:
    yield Draft("webgpu", beside_cpu(situation, (WEBGPU, {})))
    if situation.convolves:
        yield Draft("webgpu+nchw", beside_cpu(situation, (WEBGPU, {"preferredLayout": "NCHW"})))


def _webgpu_variants(situation: Situation) -> Iterator[Draft]:
    if situation.convolves:
        yield Draft("nchw", options={"preferredLayout": "NCHW"})


def _coreml(situation: Situation) -> Iterator[Draft]:
    # The other format leaves the precision to the device, which is float16 on most.
    options = {"ModelFormat": "MLProgram"}
    if situation.fixable:
        yield Draft("coreml-fixed", {**beside_cpu(situation, (COREML, options)), **situation.fixed})
    yield Draft("coreml", beside_cpu(situation, (COREML, options)))
    fast = {**options, "SpecializationStrategy": "FastPrediction"}
    yield Draft("coreml+fast-prediction", beside_cpu(situation, (COREML, fast)))
    if "fp16" in situation.reduced_precision:
        yield Draft("coreml+fp16", beside_cpu(situation, (COREML, {"ModelFormat": "NeuralNetwork"})))


def _migraphx(situation: Situation) -> Iterator[Draft]:
    yield Draft("migraphx", {**beside_cpu(situation, (MIGRAPHX, {})), **situation.fixed})
    for precision in situation.reduced_precision:
        if precision in ("fp16", "bf16"):
            options = {f"migraphx_{precision}_enable": "1"}
            yield Draft(
                f"migraphx+{precision}", {**beside_cpu(situation, (MIGRAPHX, options)), **situation.fixed}
            )


def _plugins(situation: Situation) -> Iterator[Draft]:
    """Yields every plugin that no family above knows, as it is: what it does is for its trial to show."""
    for provider in situation.libraries:
        if provider not in FAMILIES:
            title = provider.removesuffix("ExecutionProvider").lower()
            yield Draft(f"plugin-{title}", beside_cpu(situation, (provider, {})))


# In the order in which they are proposed.
_ALTERNATIVES: Mapping[str, Drafts] = {
    TENSORRT: nvidia.tensorrt_alternatives,
    TENSORRT_RTX: nvidia.tensorrt_rtx_alternatives,
    CUDA: nvidia.cuda_alternatives,
    MIGRAPHX: _migraphx,
    OPENVINO: openvino.alternatives,
    COREML: _coreml,
    DIRECTML: _directml,
    WEBGPU: _webgpu,
}

# What the others stand in for is the CPU alone.
_INSTEAD_OF: Mapping[str, tuple[str, ...]] = {TENSORRT: (CPU, CUDA), TENSORRT_RTX: (CPU, CUDA)}

_VARIANTS: Mapping[str, Drafts] = {
    CUDA: nvidia.cuda_variants,
    TENSORRT: nvidia.tensorrt_variants,
    OPENVINO: openvino.variants,
    WEBGPU: _webgpu_variants,
}
