"""Owns what could be faster than the reference: recipes generated for a model, a machine and a signature."""

from ort_stacktune.candidates.generate import MAX_GENERATED, Situation, generate

__all__ = ["MAX_GENERATED", "Situation", "generate"]
