"""Owns what could be faster than the reference: recipes generated for a model, a machine and a signature."""

from ort_stacktune.candidates.generate import MAX_GENERATED, generate
from ort_stacktune.candidates.situation import REDUCED_PRECISIONS, Situation

__all__ = ["MAX_GENERATED", "REDUCED_PRECISIONS", "Situation", "generate"]
