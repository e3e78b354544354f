"""Owns the candidates of the execution providers for NVIDIA GPUs: CUDA, TensorRT, TensorRT for RTX.

Where the reference computes in full float32, so do they: TF32 is on by default in CUDA and turned off here.
TensorRT has no switch for it, so :mod:`ort_stacktune.candidates.generate` keeps it back there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ort_stacktune.candidates.situation import Draft, Situation, beside_cpu
from ort_stacktune.ort.provider_options import option_in_force
from ort_stacktune.ort.provider_table import CUDA, TENSORRT, TENSORRT_RTX
from ort_stacktune.ort.recipes import Provider

_FULL_FLOAT32 = {"use_tf32": "0"}


def cuda_alternatives(situation: Situation) -> Iterator[Draft]:
    """Yields CUDA in place of a reference on the CPU."""

    def on_cuda(name: str, **options: str) -> Draft:
        return Draft(name, beside_cpu(situation, (CUDA, {**_FULL_FLOAT32, **options})))

    yield on_cuda("cuda")
    if "tf32" in situation.reduced_precision:
        yield on_cuda("cuda+tf32", use_tf32="1")
    if situation.convolves:
        yield on_cuda("cuda+nhwc", prefer_nhwc="1")
        yield on_cuda("cuda+heuristic-search", cudnn_conv_algo_search="HEURISTIC")


def cuda_variants(situation: Situation) -> Iterator[Draft]:
    """Yields other options for a reference that runs on CUDA, one or two at a time."""
    now = dict(situation.reference.provider_list)[CUDA]

    def changed(name: str, **options: str) -> Iterator[Draft]:
        if any(option_in_force(CUDA, now, option) != value for option, value in options.items()):
            yield Draft(name, options=options)

    if situation.capturable and not situation.control_flow:
        yield from changed("cuda-graph", enable_cuda_graph="1")
    if situation.convolves:
        yield from changed("nhwc", prefer_nhwc="1")
        yield from changed("fused-bias", fuse_conv_bias="1")
        yield from changed("nhwc+fused-bias", prefer_nhwc="1", fuse_conv_bias="1")
        yield from changed("heuristic-search", cudnn_conv_algo_search="HEURISTIC")
        yield from changed("max-workspace", cudnn_conv_use_max_workspace="1")
        if any(len(shape) == 3 for shape in situation.shapes.values()):
            yield from changed("pad-to-nc1d", cudnn_conv1d_pad_to_nc1d="1")
    if "tf32" in situation.reduced_precision:
        yield from changed("tf32", use_tf32="1")
    yield from changed("arena-as-requested", arena_extend_strategy="kSameAsRequested")


def tensorrt_alternatives(situation: Situation) -> Iterator[Draft]:
    """Yields TensorRT before CUDA, in place of a reference on either CUDA or the CPU."""
    pinned = _profiles(situation, "trt_profile")

    def on_tensorrt(name: str, **options: str) -> Draft:
        return Draft(name, _before_cuda(situation, TENSORRT, {**pinned, **options}))

    yield on_tensorrt("tensorrt")
    for precision in situation.reduced_precision:
        if precision in ("fp16", "bf16") or (precision == "int8" and situation.quantised):
            yield on_tensorrt(f"tensorrt+{precision}", **{f"trt_{precision}_enable": "1"})
    if situation.capturable and not situation.control_flow:
        yield on_tensorrt("tensorrt+cuda-graph", trt_cuda_graph_enable="1")
    yield on_tensorrt("tensorrt+level-5", trt_builder_optimization_level="5")
    if situation.fixable:
        changes = _before_cuda(situation, TENSORRT, {})
        yield Draft("tensorrt-fixed", {**changes, **situation.fixed})


def tensorrt_variants(situation: Situation) -> Iterator[Draft]:
    """Yields other options for a reference that runs on TensorRT."""
    if pinned := _profiles(situation, "trt_profile"):
        yield Draft("pinned-profile", options=pinned)
    for precision in situation.reduced_precision:
        if precision in ("fp16", "bf16") or (precision == "int8" and situation.quantised):
            yield Draft(precision, options={f"trt_{precision}_enable": "1"})
    if situation.capturable and not situation.control_flow:
        yield Draft("cuda-graph", options={"trt_cuda_graph_enable": "1"})
    yield Draft("level-5", options={"trt_builder_optimization_level": "5"})


def tensorrt_rtx_alternatives(situation: Situation) -> Iterator[Draft]:
    """Yields TensorRT for RTX before CUDA, in place of a reference on either CUDA or the CPU."""
    pinned = _profiles(situation, "nv_profile")
    yield Draft("tensorrt-rtx", _before_cuda(situation, TENSORRT_RTX, pinned))
    if situation.capturable and not situation.control_flow:
        captured = {**pinned, "nv_cuda_graph_enable": "1"}
        yield Draft("tensorrt-rtx+cuda-graph", _before_cuda(situation, TENSORRT_RTX, captured))


def _before_cuda(situation: Situation, provider: str, options: Mapping[str, str]) -> dict[str, object]:
    """Returns the changes that put a provider before CUDA, on the GPU that the reference uses."""
    cuda = dict(situation.reference.provider_list).get(CUDA, _FULL_FLOAT32)
    gpu = {"device_id": cuda["device_id"]} if "device_id" in cuda else {}
    behind: tuple[Provider, ...] = ((CUDA, cuda),) if CUDA in situation.providers else ()
    return beside_cpu(situation, (provider, {**gpu, **options}), *behind)


def _profiles(situation: Situation, prefix: str) -> dict[str, str]:
    """Returns profile options that hold exactly this signature; none where it can't be said in them."""
    shapes = situation.shapes
    if not situation.dynamic or any("," in name or ":" in name for name in shapes):
        return {}
    if not all(shape and all(shape) for shape in shapes.values()):
        return {}
    text = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
    return {f"{prefix}_{bound}_shapes": text for bound in ("min", "opt", "max")}
