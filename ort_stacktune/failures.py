"""Owns the one exception of this package and the kinds it comes in. Must never import ONNX Runtime.

Everything that can go wrong on purpose is a :class:`TuneFailure`; callers branch on its ``kind`` and
people read its ``message``.
"""

from __future__ import annotations

from enum import Enum


class FailureKind(Enum):
    """What a failure says about the work that was under way."""

    INVALID_INPUT = "invalid input"
    """Bad policy, workload or metadata; nothing ran."""

    REJECTED = "rejected"
    """Wrong output, or a failure after the work was known to be complete."""

    UNAVAILABLE = "unavailable"
    """It cannot be validated or timed here."""

    DEVICE = "device"
    """Completion is unknown: a device fault. Nothing measured after it can be trusted."""

    QUARANTINED = "quarantined"
    """This environment's lane was faulted earlier in this process."""


class Fault(Enum):
    """How the process of a trial ended, or why it had to be ended. An answer that is wrong is none of these."""

    SIGNAL = "signal"
    """It died by a signal, as a crash in native code does."""

    EXIT = "exit"
    """It ended itself."""

    TIMEOUT = "time-out"
    """It took longer than allowed."""

    MEMORY = "memory"
    """It took more memory than allowed, or found none."""

    OUTPUT = "output"
    """Its outputs were larger than allowed."""

    PROTOCOL = "protocol"
    """What it answered could not be understood."""


class TuneFailure(Exception):
    """A failure with a kind for programs and one clear sentence for people.

    Args:
        kind: What the failure means for the work under way.
        message: What was wrong, what was expected and what to do.
        fault: How the trial's process ended, where that is what went wrong.
    """

    def __init__(self, kind: FailureKind, message: str, fault: Fault | None = None) -> None:
        super().__init__(kind, message, fault)
        self.kind = kind
        self.message = message
        self.fault = fault

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.message}"


class ReferenceFailure(TuneFailure):
    """A failure for which the reference, or the live input, is to blame and no candidate is."""


class NotReproduced(ReferenceFailure):
    """A session rebuilt from its options that does not answer as the user's own does.

    It concerns that one session: another one with the same question may well be reproduced.
    """


def invalid(message: str) -> TuneFailure:
    """Returns an ``INVALID_INPUT`` failure, the most common one to raise."""
    return TuneFailure(FailureKind.INVALID_INPUT, message)
