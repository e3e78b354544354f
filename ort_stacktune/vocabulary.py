"""Owns the names that every other module speaks: enums, value types and the trial protocols.

Must never import anything of ours but failures, and never ONNX Runtime: a value here has to be usable
on a machine that has none. All value types are frozen; durations are integer nanoseconds with the
suffix ``_ns``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Protocol, runtime_checkable

from ort_stacktune.failures import FailureKind, Fault


class Mode(Enum):
    """Whether a miss may be answered by an experiment."""

    EXPLORE = "explore"
    """Reuse valid choices, otherwise validate and time."""

    CACHE_ONLY = "cache only"
    """Never time. A miss uses the reference; a cold disk hit is still validated once per process."""

    DISABLED = "disabled"
    """The reference only: no cache, no trials."""


class Timing(Enum):
    """Which clock a trial is measured with."""

    DEVICE = "device"
    """Device events around the work, then a wait for completion."""

    END_TO_END = "end to end"
    """Allocation, layout, transfers, submission and completion are all inside."""


class Validation(Enum):
    """What a validator found. A wrong result is not a member: it is a ``REJECTED`` failure."""

    PASSED = "passed"
    UNSUPPORTED = "unsupported"
    """No validator for this output or size."""


class Scope(IntEnum):
    """The level a decision is made at; part of every key."""

    OPERATOR = 0
    GRAPH = 1
    PIPELINE = 2


class DecisionSource(Enum):
    """Where a decision came from."""

    TUNED = "tuned"
    MEMORY_CACHE = "memory cache"
    DISK_CACHE = "disk cache"
    CACHE_MISS = "cache miss"
    DISABLED = "disabled"
    BUSY = "busy"
    NESTED = "nested"
    VALIDATION_UNAVAILABLE = "validation unavailable"
    DEFERRED = "deferred"
    """A background search was queued; the reference serves meanwhile."""


class MemoryEviction(Enum):
    """Which in-memory record leaves first when the memory is full. Never touches disk or trials."""

    FIFO = "fifo"
    LRU = "lru"


@dataclass(frozen=True, slots=True)
class Problem:
    """The exact question a decision answers. Shapes in it are never bucketed, rounded or guessed.

    Attributes:
        scope: The level of the decision.
        operation: What is computed: identity of the model, operator or plan, by content.
        environment: Fingerprint of the machine and of the software that runs it.
        workload: Exact signature of the request.
        execution_context: What else shapes the answer, such as how the device is shared.
        persistent: Whether the environment is known well enough for a record on disk.
    """

    scope: Scope
    operation: str
    environment: str
    workload: str
    execution_context: str = ""
    persistent: bool = True


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a candidate's numbers may be from the reference's.

    An element passes when ``|candidate - reference| <= absolute + relative * |reference|``.

    Attributes:
        absolute: Absolute part, finite and not negative.
        relative: Part relative to the reference's magnitude, finite and not negative.
        max_bytes: Most bytes of reference and candidate outputs together that are read back.
    """

    absolute: float = 1e-4
    relative: float = 1e-3
    max_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice, not an output.

    Attributes:
        index: Position of the chosen candidate among those given.
        reference_index: Position of the reference.
        name: Name of the chosen candidate.
        source: Where the choice came from.
        verified: True only after a validator said ``PASSED`` (the reference counts, being correct by
            definition, once it was compared with itself).
        ratio: Selected time over reference time, below 1 for a gain; 1.0 for the reference; ``None``
            where nothing was measured.
        cache_key: Full identity text of the question; empty where no key was formed.
    """

    index: int
    reference_index: int
    name: str
    source: DecisionSource
    verified: bool
    ratio: float | None
    cache_key: str

    @property
    def is_reference(self) -> bool:
        """Whether the reference was chosen."""
        return self.index == self.reference_index


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """What a search found out about one candidate.

    Attributes:
        name: The candidate's name.
        samples: Pairs behind ``ratio``.
        ratio: Median of candidate time over reference time; ``None`` where it was not timed.
        relative_mad: Median absolute deviation of the pairs' ratios over their median.
        verified: Whether its outputs agreed with the reference's.
        note: Verdict and reason in words, for a person.
        rejection: Kind of the failure that ended it, if one did.
        interval: Confidence interval of ``ratio``, low and high.
        median_ns: Its own median time of one completed run, for orientation only: the ratio decides.
        facts: What the runner knows beside time, such as the share of nodes on each execution provider.
        verdict: The verdict in a word or two: ``selected``, ``reference``, ``passed``, ``not faster``,
            ``undecided``, ``rejected``, ``not tried``.
        create_ns: What making its session cost.
        first_run_ns: What its first run cost.
        switch_ns: What a run costs after one of another shape; ``None`` where no other shape is known.
        peak_bytes: Most memory that making it and its first run added to this process.
        fault: How the process of its trial ended, where that is why it was rejected.
    """

    name: str
    samples: int = 0
    ratio: float | None = None
    relative_mad: float | None = None
    verified: bool = False
    note: str = ""
    rejection: FailureKind | None = None
    interval: tuple[float, float] | None = None
    median_ns: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    verdict: str = ""
    create_ns: int | None = None
    first_run_ns: int | None = None
    switch_ns: int | None = None
    peak_bytes: int | None = None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class TuneReport:
    """What a search, or the refusal to search, found out about one question.

    Attributes:
        operation: As in :class:`Problem`.
        environment: As in :class:`Problem`.
        workload: As in :class:`Problem`.
        execution_context: As in :class:`Problem`.
        winner: Name of the chosen candidate.
        elapsed_ns: Duration of the search.
        budget_exhausted: Whether the budget ended it before every candidate had a verdict.
        candidates: One report for each candidate, the reference's included.
        seed: Seed of the coin that decided the order within pairs.
        phases_ns: Phase of the search -> its duration in ns.
    """

    operation: str
    environment: str
    workload: str
    execution_context: str
    winner: str
    elapsed_ns: int
    budget_exhausted: bool
    candidates: tuple[CandidateReport, ...]
    seed: int = 0
    phases_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of a controller since it was made."""

    memory_hits: int = 0
    disk_hits: int = 0
    misses: int = 0
    busy_fallbacks: int = 0
    tunes: int = 0
    cache_warnings: int = 0
    invalidations: int = 0
    device_failures: int = 0


@dataclass(frozen=True, slots=True)
class RuntimeEnvironment:
    """The machine and its software, as far as they decide which candidate is fastest.

    Attributes:
        fingerprint: Identity text.
        persistent: False where something that matters could not be read; such an identity holds for
            this process only and nothing under it reaches the disk.
        execution_context: How the machine is shared, as its operator declared it.
    """

    fingerprint: str
    persistent: bool
    execution_context: str


@dataclass(frozen=True, slots=True)
class FirstCosts:
    """What a candidate costs before it is steady; each ``None`` where it is not known.

    Attributes:
        create_ns: Making its session.
        first_run_ns: Its first run.
        switch_ns: A run after one of another shape.
        peak_bytes: Most memory that making it and its first run added to this process.
    """

    create_ns: int | None = None
    first_run_ns: int | None = None
    switch_ns: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search is, for a person who waits.

    Attributes:
        trying: Name of the candidate whose turn it is.
        best: Name of the candidate that is ahead; the reference's where none is.
        ratio: Its time over the reference's so far; 1.0 for the reference.
    """

    trying: str
    best: str
    ratio: float


class TrialRunner(Protocol):
    """Runs candidates on isolated state for the controller. Candidates are named by position."""

    def validate(self, reference: int, candidate: int, tolerance: Tolerance) -> Validation:
        """Compares a candidate's outputs with the reference's.

        Raises:
            TuneFailure: ``REJECTED`` for a wrong result, ``UNAVAILABLE`` where it cannot be run here,
                ``DEVICE`` where completion is unknown.
        """
        ...

    def measure(self, candidate: int) -> int:
        """Returns the time of one completed run in ns, more than 0, on isolated state.

        Raises:
            TuneFailure: As :meth:`validate`.
        """
        ...


@runtime_checkable
class TrialLifecycle(Protocol):
    """What a runner may offer beside :class:`TrialRunner`; the controller uses it where it is there."""

    def begin_round(self, index: int, *, as_served: bool) -> None:
        """Says that the next pair belongs to round ``index``: both of its sides see the same input.

        Args:
            index: Number of the round.
            as_served: Whether both sides are to be set up as a winner is served, without what makes a trial
                quieter.
        """
        ...

    def room(self) -> int:
        """Returns how many candidates may be open at one time beside the reference, 1 or more."""
        ...

    def release(self, candidate: int) -> None:
        """Says that a candidate is not needed for now; its memory may go until it is asked for again."""
        ...

    def facts(self, candidate: int) -> Mapping[str, str]:
        """Returns what is known of a candidate beside its time, as short label and text."""
        ...

    def costs(self, candidate: int) -> FirstCosts:
        """Returns what a candidate costs before it is steady."""
        ...
