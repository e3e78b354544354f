"""Owns the one controller of a process. Asking for it never makes one; it is never replaced."""

from __future__ import annotations

import os
import threading

from ort_stacktune.failures import invalid
from ort_stacktune.policy import StackPolicy
from ort_stacktune.tuner import StackTuner
from ort_stacktune.vocabulary import MemoryEviction

_installed: StackTuner | None = None
_install_lock = threading.Lock()


def enable_stack_autotune(
    policy: StackPolicy | None = None,
    cache_directory: str | os.PathLike[str] | None = None,
    *,
    memory_eviction: MemoryEviction = MemoryEviction.FIFO,
) -> StackTuner:
    """Installs the process-wide controller, once. Does no I/O, runs no trial, changes no environment.

    Args:
        policy: As for :class:`StackTuner`; ``None`` for the defaults.
        cache_directory: As for :class:`StackTuner`.
        memory_eviction: As for :class:`StackTuner`.

    Returns:
        The installed controller.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for a second call or a bad argument; the installed controller stays.
    """
    global _installed
    with _install_lock:
        if _installed is not None:
            raise invalid(
                "a controller is installed already; enable_stack_autotune is called once per process,"
                " use StackTuner(...) and TunedSession(..., tuner=...) for further ones"
            )
        _installed = StackTuner(policy, cache_directory, memory_eviction=memory_eviction)
        return _installed


def stack_autotuner() -> StackTuner | None:
    """Returns the installed controller, or ``None``. Asking creates nothing."""
    return _installed
