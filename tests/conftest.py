from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ort_stacktune import installed

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / ".models"

sys.path.insert(0, str(ROOT / "tests"))


@pytest.fixture(autouse=True)
def _no_controller_left_behind() -> Iterator[None]:
    """The installed controller is one per process; no test may leave it to the next."""
    yield
    installed._installed = None


@pytest.fixture
def model_file() -> object:
    """Returns the path of a fetched real model by its file name; skips where it was not fetched."""

    def find(name: str) -> Path:
        found = sorted(MODELS.rglob(name))
        if not found:
            pytest.skip(f"{name} was not fetched; run `make models`")
        return found[0]

    return find
