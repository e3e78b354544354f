"""Owns the candidates of the OpenVINO execution provider on the CPU.

Its precision is pinned to fp32: on some CPUs its default computes in bfloat16, which is not what the
reference computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ort_stacktune.ort.recipes import Provider, SessionRecipe, variant
from ort_stacktune.ort.sessions import CPU

OPENVINO = "OpenVINOExecutionProvider"


def proposals(
    reference: SessionRecipe,
    shapes: Mapping[str, tuple[int, ...]],
    dynamic: bool,
    cores: int,
    available: Sequence[str],
) -> Iterator[SessionRecipe]:
    """Yields OpenVINO candidates where this build has it and the reference runs on the CPU.

    Args:
        reference: The reference's recipe.
        shapes: Exact shape of every fed input.
        dynamic: Whether the model leaves any of them open; OpenVINO gains most from fixed ones.
        cores: Cores this process may use.
        available: Execution providers of this build.
    """
    if OPENVINO not in available or {name for name, _ in reference.provider_list} - {CPU}:
        return
    fixed = {"shapes": shapes} if dynamic else {}
    title = "openvino-fixed" if dynamic else "openvino"
    yield variant(reference, title, providers=_on_cpu(num_of_threads=str(cores)), **fixed)
    if cores > 1:
        yield variant(reference, f"{title}+threads-1", providers=_on_cpu(num_of_threads="1"), **fixed)
    if dynamic:
        yield variant(reference, "openvino", providers=_on_cpu())


def _on_cpu(**options: str) -> tuple[Provider, ...]:
    # The CPU provider is listed to accept partial use; the share of nodes stands in the report.
    return ((OPENVINO, {"device_type": "CPU", "precision": "FP32", **options}), (CPU, {}))
