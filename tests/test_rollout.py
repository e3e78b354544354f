"""The rollout as operations run it, in processes of its own: record, tune, export, import, serve read-only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from conftest import ROOT

import graphs
from ort_stacktune.traffic import read_traffic


def application(*arguments: str | Path) -> str:
    """Runs the application in a process of its own; returns what it printed."""
    return _checked("tests/rollout_app.py", *arguments)


def tool(*arguments: str | Path) -> str:
    """Runs the command line in a process of its own; returns what it printed."""
    return _checked("-m", "ort_stacktune", *arguments)


def _checked(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def tree(directory: Path) -> dict[str, tuple[int, ...]]:
    """Returns everything below a directory, itself included, with what any change would change."""
    stats = {str(path): path.stat() for path in (directory, *directory.rglob("*"))}
    return {name: (s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in stats.items()}


@pytest.fixture
def made_read_only() -> Iterator[Callable[[Path], bool]]:
    """Mounts a directory on itself, read-only, since permissions stop no root; says whether that is permitted."""
    mounted: list[Path] = []

    def make(place: Path) -> bool:
        if subprocess.run(["mount", "--bind", place, place], capture_output=True).returncode:
            return False
        mounted.append(place)
        again = ["mount", "-o", "remount,ro,bind", place]
        return subprocess.run(again, capture_output=True).returncode == 0

    yield make
    for place in mounted:
        subprocess.run(["umount", place], check=True)


def test_what_was_recorded_tuned_and_exported_serves_elsewhere_without_a_write(
    tmp_path: Path, made_read_only: Callable[[Path], bool]
) -> None:
    place = tmp_path / "serving"
    for base in (graphs.mlp(), graphs.argmax()):
        onnx.save_model(graphs.slowed(base, links=60), tmp_path / f"{base.graph.name}.onnx")
        onnx.save_model(base, tmp_path / f"{base.graph.name}-fast.onnx")
    assert application("record", tmp_path) == ""
    entries = read_traffic(tmp_path / "traffic", pytest.fail)
    assert [(entry.weight, len(entry.samples)) for entry in entries] == [(5, 2), (3, 2), (2, 2)]
    assert application("tune", tmp_path).splitlines() == ["fast TUNED 5", "fast TUNED 3", "fast TUNED 2"]
    bundle = tmp_path / "choices.bundle"
    assert "Exported 3 records" in tool("cache", "export", bundle, "--cache", tmp_path / "cache")
    assert tool("cache", "import", bundle, "--cache", place).splitlines()[1:] == ["  3 new"]
    if made_read_only(place):
        with pytest.raises(OSError, match="Read-only"):
            (place / "x").touch()
    before = tree(place)
    for _ in range(2):
        answer: dict[str, Any] = json.loads(application("serve", tmp_path, place))
        assert answer == {
            "chosen": ["fast", "fast", "fast"],
            # Each choice of the bundle is validated once in a process, and nothing is ever timed.
            "validated": [1, 1, 1],
            "timed": [],
            "touched": [],
            "threads": 1,
            "hits": [3, 7],
            "others": [0, 0, 0, 0],
        }
    assert tree(place) == before
