"""Owns trials in a process of their own: a candidate that crashes, hangs or eats all memory ends that process.

Must never let what a candidate does reach the process that serves: nothing of a candidate is made here, and
what its process answers is checked before it is believed.
"""

from __future__ import annotations

from ort_stacktune.isolation.cargo import why_not_elsewhere
from ort_stacktune.isolation.trials import IsolatedTrials, TrialsCancelled

__all__ = ["IsolatedTrials", "TrialsCancelled", "why_not_elsewhere"]
