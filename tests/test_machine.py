from __future__ import annotations

from pathlib import Path

import pytest

from ort_stacktune.machine import available_bytes, sessions_that_fit

MIB = 2**20


def _machine(root: Path, available_mib: int, groups: dict[str, str] | None = None) -> Path:
    files = {
        "proc/meminfo": f"MemTotal: 999999 kB\nMemAvailable: {available_mib * 1024} kB\n",
        "proc/self/cgroup": "0::/pod/me\n",
        "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        **{f"sys/fs/cgroup/{name}": text for name, text in (groups or {}).items()},
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_memory_that_may_be_taken_is_the_tightest_of_system_and_groups(tmp_path: Path) -> None:
    groups = {
        "pod/me/memory.max": "max\n",
        "pod/me/memory.current": "5\n",
        "pod/memory.max": f"{500 * MIB}\n",
        "pod/memory.current": f"{100 * MIB}\n",
    }
    assert available_bytes(root=_machine(tmp_path / "a", 300, groups)) == 300 * MIB
    assert available_bytes(root=_machine(tmp_path / "b", 900, groups)) == 400 * MIB


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    groups = {"pod/me/memory.max": "10\n", "pod/me/memory.current": "20\n"}
    assert available_bytes(root=_machine(tmp_path, 300, groups)) == 0


def test_a_system_that_does_not_tell_its_memory_gets_one_session_at_a_time(tmp_path: Path) -> None:
    assert available_bytes(root=tmp_path) is None
    assert sessions_that_fit(1, root=tmp_path) == 1


@pytest.mark.parametrize(("model_mib", "expected"), [(0, 64), (1, 64), (100, 5), (400, 1), (9000, 1)])
def test_as_many_sessions_are_open_as_half_of_the_memory_holds(
    model_mib: int, expected: int, tmp_path: Path
) -> None:
    assert sessions_that_fit(model_mib * MIB, root=_machine(tmp_path, 2000)) == expected


def test_this_machine_tells_its_memory() -> None:
    found = available_bytes()
    assert found is None or found > MIB
