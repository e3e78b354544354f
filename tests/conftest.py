from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from ort_stacktune import installed

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / ".models"

sys.path.insert(0, str(ROOT / "tests"))

# A machine with a GPU may have only what its tests need. Elsewhere all of these are installed, by pyproject.toml.
_ABSENT = [name for name in ("hypothesis", "yaml") if find_spec(name) is None]
_NEED_YAML = frozenset({"test_manifest.py", "test_prewarm.py"})


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if not _ABSENT or collection_path.suffix != ".py":
        return None
    needs_yaml = "yaml" in _ABSENT and collection_path.name in _NEED_YAML
    needs_hypothesis = "hypothesis" in _ABSENT and "from hypothesis import" in collection_path.read_text()
    return True if needs_yaml or needs_hypothesis else None


@pytest.fixture(autouse=True)
def _no_controller_left_behind() -> Iterator[None]:
    """The installed controller is one per process; no test may leave it to the next."""
    yield
    installed._installed = None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        from cuda_parts import load_cuda

        load_cuda()


@pytest.fixture
def model_file() -> object:
    """Returns the path of a fetched real model by its file name; skips where it was not fetched."""

    def find(name: str) -> Path:
        found = sorted(MODELS.rglob(name))
        if not found:
            pytest.skip(f"{name} was not fetched; run `make models`")
        return found[0]

    return find
