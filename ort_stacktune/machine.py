"""Owns what the machine itself says of its processor, its cores and its memory.

Must never make up a fact: what can't be read is unknown. Nothing is read at import.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ort_stacktune.identity import fields

UNKNOWN = "unknown"
"""Stands where a fact can't be read."""

# What tells one processor from another, on x86, Arm, POWER, RISC-V and s390.
_CPU_IDENTITY = (
    "model name",
    "vendor_id",
    "cpu family",
    "model",
    "stepping",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "CPU revision",
    "cpu",
    "uarch",
    "processor 0",
)


_CPU_FEATURES = ("flags", "Features", "features", "isa")


@dataclass(frozen=True, slots=True)
class CoreBudget:
    """How many cores this process may keep busy.

    Attributes:
        affinity: Logical cores the calling thread may be scheduled on.
        quota: Cores' worth of time that the tightest control group on the way up grants; ``None``
            where none sets a limit.
        count: Threads to start at most: the smaller of the two, in whole cores, and at least 1.
    """

    affinity: int
    quota: float | None
    count: int


def usable_cores(*, root: Path = Path("/")) -> CoreBudget:
    """Returns how many cores this process may use, from its affinity and its control groups' quotas.

    Args:
        root: Where ``/proc`` and the control groups' mounts are looked for.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = min(_cpu_limits(root), default=None)
    count = affinity if quota is None else min(affinity, math.floor(quota))
    return CoreBudget(affinity, quota, max(1, count))


def processor(root: Path) -> tuple[str, str]:
    """Returns the processor's model, empty where unknown, and a digest of its feature flags."""
    text = read_text(root / "proc/cpuinfo")
    if text is None:
        return _processor_elsewhere(), "not listed"
    # A machine may have several kinds of core; every kind belongs to its identity.
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        label, _, value = line.partition(":")
        value = " ".join(value.split())
        if value and value != UNKNOWN:
            found.setdefault(label.strip(), set()).add(value)
    vendor_only = found.keys() & set(_CPU_IDENTITY) <= {"vendor_id", "stepping"}
    model = "; ".join(
        f"{label} {' / '.join(sorted(found[label]))}" for label in _CPU_IDENTITY if label in found
    )
    flags = [
        " ".join(sorted(value.split())) for label in _CPU_FEATURES for value in sorted(found.get(label, ()))
    ]
    digest = hashlib.blake2b(fields(flags).encode(), digest_size=8).hexdigest()
    count = len({flag for line in flags for flag in line.split()})
    return "" if vendor_only else model, f"{count} flags, digest {digest}" if flags else "not listed"


def _processor_elsewhere() -> str:
    if platform.system() != "Darwin":
        return platform.processor()
    # platform.processor() names only the architecture there.
    try:
        answer = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()


def _cpu_limits(root: Path) -> Iterator[float]:
    """Yields every limit on CPU time, in cores, from this process's control groups up to their mounts."""
    for group, top in _control_groups(root, "cpu"):
        for folder in (group, *group.parents):
            limit = _cpu_limit(folder)
            if limit is not None:
                yield limit
            if folder == top:
                break


def _control_groups(root: Path, limited: str) -> Iterator[tuple[Path, Path]]:
    """Yields this process's own group and the mount above it, for each hierarchy with a controller.

    In version 2 there is one hierarchy with an empty name; in version 1 the one that names the controller.
    """
    own: dict[str, str] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        own.update(dict.fromkeys(controllers.split(","), path))
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        mount, _, kind = line.partition(" - ")
        about, system = mount.split(), kind.split()
        if len(about) < 5 or len(system) < 3:
            continue
        if system[0] == "cgroup2":
            controller = ""
        elif system[0] == "cgroup" and limited in system[2].split(","):
            controller = limited
        else:
            continue
        if controller in own:
            top = root / _unescaped(about[4]).lstrip("/")
            yield top / _below(own[controller], _unescaped(about[3])), top


def _below(path: str, mounted: str) -> PurePosixPath:
    """Returns where a group lies below a mount of ``mounted``; the mount itself where it can't be seen."""
    group = PurePosixPath(path)
    if ".." in group.parts or not group.is_relative_to(mounted):
        return PurePosixPath()
    return group.relative_to(mounted)


def _cpu_limit(group: Path) -> float | None:
    text = read_text(group / "cpu.max")
    if text is None:
        text = f"{read_text(group / 'cpu.cfs_quota_us')} {read_text(group / 'cpu.cfs_period_us')}"
    words = text.split()
    # "max" and -1 stand for no limit.
    if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
        return None
    return int(words[0]) / int(words[1])


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def read_text(path: Path) -> str | None:
    """Returns a file's text, or ``None`` where it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def available_bytes(*, root: Path = Path("/")) -> int | None:
    """Returns how much memory this process may still take, by the system and by its control groups.

    Args:
        root: Where ``/proc`` and the control groups' mounts are looked for.

    Returns:
        Bytes; ``None`` where the system doesn't tell.
    """
    left = []
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        words = line.split()
        if words[:1] == ["MemAvailable:"] and words[1].isdecimal():
            left.append(int(words[1]) * 1024)
    for group, top in _control_groups(root, "memory"):
        for folder in (group, *group.parents):
            room = _memory_left(folder)
            if room is not None:
                left.append(room)
            if folder == top:
                break
    return max(0, min(left)) if left else None


def _memory_left(group: Path) -> int | None:
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        texts = [(read_text(group / name) or "").strip() for name in (limit, used)]
        if all(text.isdecimal() for text in texts):
            return int(texts[0]) - int(texts[1])
    return None


def sessions_that_fit(model_bytes: int, *, root: Path = Path("/")) -> int:
    """Returns how many sessions of a model may be open at one time, 1 to 64.

    A session holds its weights about twice, once as loaded and once packed for its kernels; half of the
    memory that is left is left to everybody else.

    Args:
        model_bytes: Bytes of the model and its external data.
        root: As for :func:`available_bytes`.
    """
    left = available_bytes(root=root)
    if left is None:
        return 1
    return max(1, min(64, left // 2 // max(1, 2 * model_bytes)))


class MemoryWatch:
    """Watches how much memory this process takes on while a block runs, where the system tells.

    Other threads' memory counts too, so it is an upper estimate of what the block itself took.
    """

    _EVERY_S = 0.002

    def __init__(self) -> None:
        self.most_added_bytes: int | None = None
        self._before = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        before = resident_bytes()
        if before is not None:
            self._before = before
            self.most_added_bytes = 0
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._done.wait(self._EVERY_S):
            self._look()

    def _look(self) -> None:
        now = resident_bytes()
        if now is not None and self.most_added_bytes is not None:
            self.most_added_bytes = max(self.most_added_bytes, now - self._before)


def resident_bytes() -> int | None:
    """Returns the memory this process holds, in bytes; ``None`` where the system doesn't tell."""
    words = (read_text(Path("/proc/self/statm")) or "").split()
    if len(words) < 2 or not words[1].isdecimal():
        return None
    return int(words[1]) * os.sysconf("SC_PAGESIZE")


def held_bytes(pid: int, *, root: Path = Path("/")) -> int | None:
    """Returns the memory that a process holds, in memory and swapped out; ``None`` where the system doesn't tell.

    Args:
        pid: Process id.
        root: As for :func:`available_bytes`.
    """
    found = re.findall(
        r"^(?:VmRSS|VmSwap):\s+(\d+) kB$", read_text(root / f"proc/{pid}/status") or "", re.MULTILINE
    )
    return sum(map(int, found)) * 1024 if found else None


def out_of_memory_kills(*, root: Path = Path("/")) -> int | None:
    """Returns how many processes this system has killed for want of memory; ``None`` where it doesn't tell.

    Args:
        root: As for :func:`available_bytes`.
    """
    found = re.search(r"^oom_kill (\d+)$", read_text(root / "proc/vmstat") or "", re.MULTILINE)
    return int(found[1]) if found else None
