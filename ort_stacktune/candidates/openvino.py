"""Owns the candidates of the OpenVINO execution provider on the CPU.

Its precision is pinned to fp32: on some CPUs its default computes in bfloat16, which is not what the
reference computes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from ort_stacktune.candidates.situation import Draft, Situation, beside_cpu
from ort_stacktune.ort.provider_table import OPENVINO

_HINTS = {"bf16": "bf16", "fp16": "f16"}


def alternatives(situation: Situation) -> Iterator[Draft]:
    """Yields OpenVINO in place of a reference on the CPU; it gains most from fixed shapes."""
    cores, fixed = str(situation.cores), situation.fixed
    title = "openvino-fixed" if fixed else "openvino"
    yield Draft(title, {**_on_cpu(situation, num_of_threads=cores), **fixed})
    for precision in situation.reduced_precision:
        if precision in _HINTS:
            hint = json.dumps({"CPU": {"INFERENCE_PRECISION_HINT": _HINTS[precision]}})
            options = _on_cpu(situation, num_of_threads=cores, load_config=hint)
            yield Draft(f"{title}+{precision}", {**options, **fixed})
    if situation.callers > 1:
        streams = str(situation.callers)
        options = _on_cpu(situation, num_of_threads=cores, num_streams=streams)
        yield Draft(f"{title}+streams-{streams}", {**options, **fixed})
    if situation.cores > 1:
        yield Draft(f"{title}+threads-1", {**_on_cpu(situation, num_of_threads="1"), **fixed})
    if fixed:
        yield Draft("openvino", _on_cpu(situation))


def variants(situation: Situation) -> Iterator[Draft]:
    """Yields other options for a reference that runs on OpenVINO."""
    if situation.callers > 1:
        yield Draft(f"streams-{situation.callers}", options={"num_streams": str(situation.callers)})
    for threads in dict.fromkeys((situation.cores, 1)):
        yield Draft(f"openvino-threads-{threads}", options={"num_of_threads": str(threads)})


def _on_cpu(situation: Situation, **options: str) -> dict[str, object]:
    return beside_cpu(situation, (OPENVINO, {"device_type": "CPU", "precision": "FP32", **options}))
