"""Owns everything that talks to ONNX Runtime.

Importing this package must never load ONNX Runtime: that happens in :mod:`ort_stacktune.ort.loader`,
when its function is called.
"""
