"""Owns what is known of the calls that applications make: how often each exact signature came, and samples.

Must never import ONNX Runtime, raise into a call that is being counted, or let two processes write one file.
"""

from __future__ import annotations

from ort_stacktune.traffic.form import ModelUse
from ort_stacktune.traffic.reading import TrafficEntry, read_traffic
from ort_stacktune.traffic.recorder import HitCount, SignatureCount, TrafficRecorder, recorder_for

__all__ = [
    "HitCount",
    "ModelUse",
    "SignatureCount",
    "TrafficEntry",
    "TrafficRecorder",
    "read_traffic",
    "recorder_for",
]
