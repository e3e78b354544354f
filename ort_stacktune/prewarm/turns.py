"""Owns that one process of this user measures at a time on this machine: two that do measure each other.

Must never leave a machine locked: the lock dies with the process that holds it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.2


@contextmanager
def turn_to_measure(
    *, waiting: Callable[[], None] = lambda: None, give_up_s: float | None = None
) -> Iterator[bool]:
    """Waits for this process's turn and holds it; gives whether it came in time.

    Where the system has no file locks, it is always this process's turn.

    Args:
        waiting: Called once when another process holds the turn.
        give_up_s: Seconds to wait at most; ``None`` for as long as it takes.
    """
    try:
        import fcntl
    except ImportError:
        yield True
        return
    descriptor = os.open(_lock_file(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _locked(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), waiting, give_up_s)
    finally:
        os.close(descriptor)


def _locked(lock: Callable[[], None], waiting: Callable[[], None], give_up_s: float | None) -> bool:
    started_s = time.monotonic()
    told = False
    while True:
        try:
            lock()
        except BlockingIOError:
            if not told:
                waiting()
                told = True
            if give_up_s is not None and time.monotonic() - started_s >= give_up_s:
                return False
            time.sleep(_POLL_S)
        else:
            return True


def _lock_file() -> Path:
    # By user: a file of another user's could not be opened, and may be held by anybody.
    return Path(tempfile.gettempdir()) / f"ort_stacktune-measuring-{os.getuid()}.lock"
