"""Owns ``python -m ort_stacktune``."""

from __future__ import annotations

from ort_stacktune.cli.main import entry

entry()
