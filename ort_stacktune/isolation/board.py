"""Owns the board on which the process of a trial shows what it is at, for another process to look at.

Showing it is one store into shared memory: no system call and nobody woken, so that a timed run is not disturbed.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

_BYTES = 4096


class Phase(IntEnum):
    """What a process may be at."""

    START = 0
    """Coming up."""

    OWN = 1
    """Work of our own, such as comparing outputs."""

    CREATE = 2
    """Making a candidate's session and its first run."""

    RUN = 3
    """A run of a candidate, or the short loop of runs behind one timing."""

    RELEASE = 4
    """Closing a candidate's session."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look at the board shows.

    Attributes:
        tick: Changes whenever something new was shown.
        phase: What the process is at.
        candidate: Position of the candidate it is at it with.
    """

    tick: int
    phase: Phase
    candidate: int


class Board:
    """One word of memory that two processes share.

    Args:
        descriptor: An open file of :data:`BYTES`, the same in both processes.
    """

    BYTES = _BYTES

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _BYTES)
        # One word, so that it is never seen half written.
        self._word = memoryview(self._memory).cast("Q")
        self._tick = 0

    def show(self, phase: Phase, candidate: int) -> None:
        """Shows what comes next."""
        self._tick = (self._tick + 1) & 0xFFFFFFFF
        self._word[0] = self._tick << 32 | (candidate & 0xFFFF) << 8 | phase

    @contextlib.contextmanager
    def showing(self, phase: Phase, candidate: int) -> Iterator[None]:
        """Shows a phase while a block runs, and own work afterwards."""
        self.show(phase, candidate)
        try:
            yield
        finally:
            self.show(Phase.OWN, candidate)

    def look(self) -> Sight:
        """Returns what is shown; nonsense, which only a process that lost its mind writes, reads as own work."""
        word = self._word[0]
        try:
            phase = Phase(word & 0xFF)
        except ValueError:
            phase = Phase.OWN
        return Sight(word >> 32, phase, word >> 8 & 0xFFFF)

    def close(self) -> None:
        """Lets go of the memory."""
        self._word.release()
        self._memory.close()
