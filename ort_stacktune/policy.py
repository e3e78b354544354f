"""Owns what a user may ask of the controller: limits, strictness and effort, and candidates as it sees them.

Must never do I/O: a policy is checked before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ort_stacktune.failures import TuneFailure, invalid
from ort_stacktune.identity import fields, parse_fields
from ort_stacktune.vocabulary import Mode, Timing, Tolerance

Isolation = Literal["inline", "process"]
SearchWhen = Literal["inline", "background"]


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """What a candidate may take before its trial is ended; enforced where trials have a process of their own.

    Attributes:
        create_s: Seconds to make its session and for its first run.
        run_s: Seconds for each later run.
        memory_bytes: Memory that its process may hold; ``None`` for what is available when the trial starts.
        output_bytes: Bytes of all outputs of one run.
    """

    create_s: float = 300.0
    run_s: float = 60.0
    memory_bytes: int | None = None
    output_bytes: int = 1 << 30

    def validate(self) -> None:
        """Checks every field.

        Raises:
            TuneFailure: ``INVALID_INPUT`` that names the first field out of its range.
        """
        _real("limits.create_s", self.create_s, above=0.0)
        _real("limits.run_s", self.run_s, above=0.0)
        if self.memory_bytes is not None:
            _whole("limits.memory_bytes", self.memory_bytes, 1)
        _whole("limits.output_bytes", self.output_bytes, 1)


@dataclass(frozen=True, slots=True)
class StackPolicy:
    """How the controller searches, and what it demands of a winner.

    Attributes:
        mode: Whether a miss may start an experiment.
        timing: Which clock trials use.
        require_validation: Whether an unchecked winner is out of the question.
        tolerance: How far outputs may differ.
        warmups: Untimed runs before a candidate is timed, 1 to 100.
        samples: Fewest paired samples behind a gain, odd, 3 to 101.
        max_samples: Most paired samples spent on one candidate, odd, ``samples`` to 1001.
        repeats: Completed runs behind one timing, of which the best counts, 1 to 101.
        confidence: Chance that a search over candidates identical to the reference promotes none.
        max_candidates: Most candidates tried in one search, 1 to 4096.
        budget_s: Seconds per workload; soft: checked between completed trials, interrupts none.
        min_speedup: Least gain worth leaving the reference for, reference time over selected time.
        max_relative_mad: Most spread of the paired ratios: median absolute deviation over median.
        workspace_limit: Most bytes of workspace a candidate may need; ``None`` for no limit.
        capacity: Keys kept in memory, and records kept on disk, 1 to 65536.
        max_parallel_tunes: Searches at one time in this process, 1 to 256; never two per environment.
        ttl_s: Seconds a record stays fresh; one dated in the future is expired.
        regression_pairs: Window of :meth:`StackTuner.record_comparison`, odd, 3 to 101.
        regression_ratio: Median of that window above which a choice is taken back, above 1.
        expected_calls: Calls of one signature that a session will serve, 1 or more; a winner that does not
            repay its first costs within them is refused. ``None`` leaves first costs out of the verdict.
        concurrency: Callers at one time, 1 to 256; a timing is the completed work of all of them.
        isolation: ``"process"`` has each trial run in a process of its own, so that a candidate that crashes,
            hangs or eats all memory ends that process and not this one; ``"inline"`` runs it here.
        limits: What a candidate may take under ``isolation="process"``.
        search: ``"inline"`` has the first call of a signature wait for its search; ``"background"`` serves it
            by the reference while a process of low priority searches on copies of its inputs.
        search_after_calls: Calls of one signature before it is searched for in the background, 1 or more.
    """

    mode: Mode = Mode.EXPLORE
    timing: Timing = Timing.END_TO_END
    require_validation: bool = True
    tolerance: Tolerance = field(default_factory=Tolerance)
    warmups: int = 2
    samples: int = 7
    max_samples: int = 41
    repeats: int = 3
    confidence: float = 0.99
    max_candidates: int = 32
    budget_s: float = 30.0
    min_speedup: float = 1.05
    max_relative_mad: float = 0.15
    workspace_limit: int | None = None
    capacity: int = 1024
    max_parallel_tunes: int = 1
    ttl_s: float = 604800.0
    regression_pairs: int = 7
    regression_ratio: float = 1.15
    expected_calls: int | None = None
    concurrency: int = 1
    isolation: Isolation = "inline"
    limits: TrialLimits = field(default_factory=TrialLimits)
    search: SearchWhen = "inline"
    search_after_calls: int = 1

    @classmethod
    def quick(cls, **changes: Any) -> StackPolicy:
        """Returns a policy that spends seconds: fewer pairs and candidates, the same guarantee."""
        effort = {"warmups": 1, "samples": 5, "max_samples": 21, "repeats": 2, "max_candidates": 6}
        return cls(**{**effort, "budget_s": 8.0, **changes})

    @classmethod
    def thorough(cls, **changes: Any) -> StackPolicy:
        """Returns a policy that spends minutes: gains just above ``min_speedup`` are found as well."""
        effort = {"warmups": 5, "samples": 21, "max_samples": 301, "repeats": 5, "max_candidates": 64}
        return cls(**{**effort, "budget_s": 600.0, **changes})

    def validate(self) -> None:
        """Checks every field.

        Raises:
            TuneFailure: ``INVALID_INPUT`` that names the first field out of its range.
        """
        _member("mode", self.mode, Mode)
        _member("timing", self.timing, Timing)
        _flag("require_validation", self.require_validation)
        if not isinstance(self.tolerance, Tolerance):
            raise invalid(f"tolerance is {self.tolerance!r}; expected a Tolerance")
        _real("tolerance.absolute", self.tolerance.absolute, at_least=0.0)
        _real("tolerance.relative", self.tolerance.relative, at_least=0.0)
        _whole("tolerance.max_bytes", self.tolerance.max_bytes, 1)
        _whole("warmups", self.warmups, 1, 100)
        _odd("samples", self.samples, 3, 101)
        _odd("max_samples", self.max_samples, self.samples, 1001)
        _whole("repeats", self.repeats, 1, 101)
        _real("confidence", self.confidence, above=0.5, below=1.0)
        _whole("max_candidates", self.max_candidates, 1, 4096)
        _real("budget_s", self.budget_s, above=0.0)
        _real("min_speedup", self.min_speedup, at_least=1.0)
        _real("max_relative_mad", self.max_relative_mad, at_least=0.0)
        if self.workspace_limit is not None:
            _whole("workspace_limit", self.workspace_limit, 0)
        _whole("capacity", self.capacity, 1, 65536)
        _whole("max_parallel_tunes", self.max_parallel_tunes, 1, 256)
        _real("ttl_s", self.ttl_s, above=0.0)
        _odd("regression_pairs", self.regression_pairs, 3, 101)
        _real("regression_ratio", self.regression_ratio, above=1.0)
        if self.expected_calls is not None:
            _whole("expected_calls", self.expected_calls, 1)
        _whole("concurrency", self.concurrency, 1, 256)
        _one_of("isolation", self.isolation, get_args(Isolation))
        if not isinstance(self.limits, TrialLimits):
            raise invalid(f"limits is {self.limits!r}; expected a TrialLimits")
        self.limits.validate()
        _one_of("search", self.search, get_args(SearchWhen))
        _whole("search_after_calls", self.search_after_calls, 1)

    def accuracy_key(self) -> str:
        """Returns what decides whether a stored choice answers the same question.

        It leaves out ``mode``, so that a cache made by an offline ``EXPLORE`` serves ``CACHE_ONLY``, and
        it leaves out effort (samples, repeats, budget).
        """
        return fields(
            (
                self.timing.name,
                "1" if self.require_validation else "0",
                _exact(self.tolerance.absolute),
                _exact(self.tolerance.relative),
                str(self.tolerance.max_bytes),
                "" if self.workspace_limit is None else str(self.workspace_limit),
                _exact(self.min_speedup),
                _exact(self.max_relative_mad),
                _exact(self.confidence),
                "" if self.expected_calls is None else str(self.expected_calls),
                str(self.concurrency),
            )
        )

    @classmethod
    def of_accuracy_key(cls, text: str, **changes: Any) -> StackPolicy:
        """Returns a policy whose :meth:`accuracy_key` is ``text``.

        Args:
            text: What that method returned.
            **changes: Fields that are not part of it.

        Raises:
            TuneFailure: ``INVALID_INPUT`` for text of another make.
        """
        policy: StackPolicy | None
        try:
            timing, validation, absolute, relative, most, workspace, *rest = parse_fields(text)
            min_speedup, spread, confidence, calls, concurrency = rest
            policy = cls(
                timing=Timing[timing],
                require_validation=validation == "1",
                tolerance=Tolerance(float.fromhex(absolute), float.fromhex(relative), int(most)),
                workspace_limit=int(workspace) if workspace else None,
                min_speedup=float.fromhex(min_speedup),
                max_relative_mad=float.fromhex(spread),
                confidence=float.fromhex(confidence),
                expected_calls=int(calls) if calls else None,
                concurrency=int(concurrency),
                **changes,
            )
            policy.validate()
        except (TuneFailure, ValueError, KeyError, OverflowError):
            policy = None
        if policy is None or policy.accuracy_key() != text:
            raise invalid("the strictness in this key is of another make; it can't be asked for again")
        return policy

    def effort(self) -> dict[str, float]:
        """Returns how hard a search under this policy tries; effort is an order, not part of an identity."""
        return {
            "samples": float(self.samples),
            "max_samples": float(self.max_samples),
            "repeats": float(self.repeats),
            "max_candidates": float(self.max_candidates),
            "budget_s": float(self.budget_s),
        }

    def is_met_by(self, effort: Mapping[str, float], budget_exhausted: bool) -> bool:
        """Whether a search of a given effort answers a request under this policy.

        A more patient answer satisfies a quicker request. The budget counts only where it ended the search.
        """
        return all(
            effort.get(label, 0.0) >= wanted
            for label, wanted in self.effort().items()
            if label != "budget_s" or budget_exhausted
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to do the work, as the controller sees it.

    Attributes:
        name: Unique among its fellows, nonempty, at most 4096 bytes of UTF-8.
        revision: Changes with the content behind the name, so that an old record can't mean a new thing.
        workspace_bytes: Workspace it needs; ``None`` where unknown.
        eligible: False keeps it in the manifest but out of the trials.
        complexity: How far it is from the plainest setup, in settings changed; decides ties only, so it
            is not part of the identity.
        risky: Whether it may end the process that tries it; it is searched for in processes of their own only,
            which is not part of the identity either.
    """

    name: str
    revision: str = "1"
    workspace_bytes: int | None = None
    eligible: bool = True
    complexity: int = 0
    risky: bool = False

    def fits(self, policy: StackPolicy) -> bool:
        """Whether it may be used under a policy. An unknown workspace does not fit an enabled limit."""
        if policy.workspace_limit is None:
            return True
        return self.workspace_bytes is not None and self.workspace_bytes <= policy.workspace_limit


def _exact(value: float) -> str:
    # 1 and 1.0 are one policy; hex() tells any two different floats apart.
    return float(value).hex()


def _is_number(value: object, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _member(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise invalid(f"{name} is {value!r}; expected a member of {kind.__name__}")


def _one_of(name: str, value: object, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise invalid(f"{name} is {value!r}; expected {' or '.join(map(repr, legal))}")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise invalid(f"{name} is {value!r}; expected True or False")


def _whole(name: str, value: int, low: int, high: int | None = None) -> None:
    if not _is_number(value, (int,)) or value < low or (high is not None and value > high):
        bounds = f"from {low} to {high}" if high is not None else f"of {low} or more"
        raise invalid(f"{name} is {value!r}; expected a whole number {bounds}")


def _odd(name: str, value: int, low: int, high: int) -> None:
    if not _is_number(value, (int,)) or value < low or value > high or value % 2 == 0:
        raise invalid(f"{name} is {value!r}; expected an odd whole number from {low} to {high}")


def _real(
    name: str,
    value: float,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> None:
    if not _is_number(value, (int, float)) or not math.isfinite(value):
        raise invalid(f"{name} is {value!r}; expected a finite number")
    if value < at_least:
        raise invalid(f"{name} is {value!r}; expected {at_least:g} or more")
    if value <= above or value >= below:
        bounds = (
            f"above {above:g}" if below == math.inf else f"between {above:g} and {below:g}, both excluded"
        )
        raise invalid(f"{name} is {value!r}; expected a number {bounds}")
