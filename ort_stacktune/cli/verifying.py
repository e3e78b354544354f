"""Owns the revalidation of stored winners: from a record back to a request, and through the one validation
that serving from disk would make.

Must never time anything, and never call a record wrong that could not be asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from ort_stacktune.cli.console import warnings_gathered
from ort_stacktune.cli.differences import difference_from_here
from ort_stacktune.cli.running import DEFAULT_PROVIDERS, declared, open_model, provider_names
from ort_stacktune.failures import TuneFailure, invalid
from ort_stacktune.identity import parse_fields
from ort_stacktune.policy import Isolation, StackPolicy
from ort_stacktune.question import KeyParts, parts_of_key
from ort_stacktune.signature import Array, CallSignature, parse_workload
from ort_stacktune.store import Record, RecordStore
from ort_stacktune.tuner import StackTuner
from ort_stacktune.vocabulary import Decision, DecisionSource, Mode

# What needs onnx is imported where it is used: it takes longer to load than most commands take to run.
if TYPE_CHECKING:
    from pathlib import Path

    from ort_stacktune.ort.graph import InputFact
    from ort_stacktune.serving import Lane
    from ort_stacktune.session import TunedSession

# However old a choice is, whether it is right can be asked.
_ANY_AGE_S = 1e12

# A winner that ends its process must not end this one.
ISOLATION: Isolation = "process"


class Finding(Enum):
    """What a verification found about a record."""

    HOLDS = "holds"
    """The winner's outputs agreed with the reference's."""

    REFERENCE = "reference"
    """The reference is the choice, which is right by definition."""

    DROPPED = "dropped"
    """The winner failed here and its record was removed."""

    FAILED = "failed"
    """The winner failed here and its record could not be removed."""

    NOT_ASKED = "not asked"
    """Its model was not given, or it is of another environment."""

    NOT_VERIFIED = "not verified"
    """Its question could not be asked again."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A record and what was found about it.

    Attributes:
        record: The record.
        finding: What was found.
        reason: Why, in words; empty where it holds.
    """

    record: Record
    finding: Finding
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a verification runs on, beside what signatures say.

    Attributes:
        samples: Feeds to take where their signature is the one asked for.
        fills: Input -> how to fill it.
        seed: Seed of random fills.
    """

    samples: Sequence[Mapping[str, Array]] = ()
    fills: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0


class Verifier:
    """Revalidates the winners of one cache directory.

    Args:
        directory: The directory.
        models: Paths of the models.
        inputs: What to run on.
        providers: Execution providers of the references, as for :func:`provider_names`.
        threads: Threads within an operator of the references; ``None`` for ONNX Runtime's.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where a model can't be read or loaded, two are the same, or a fill
            names an input that no model has.
    """

    def __init__(
        self,
        directory: Path,
        models: Sequence[str],
        inputs: Inputs,
        *,
        providers: Sequence[str] = (),
        threads: int | None = None,
    ) -> None:
        self._directory = directory
        self._store = RecordStore(directory, warn=lambda _: None)
        self._inputs = inputs
        self._providers = provider_names(providers or DEFAULT_PROVIDERS)
        self._models: dict[str, _Model] = {}
        for path in models:
            model = _Model.opened(path, self._providers, threads)
            self._models.setdefault(model.digest, model)
        known = {fact.name for model in self._models.values() for fact in model.inputs}
        for name in inputs.fills:
            if name not in known:
                raise invalid(f"no model given has an input {name!r}")
        self._tuners: dict[str, StackTuner] = {}

    def verify(self, record: Record) -> Verified:
        """Asks a record's question again and says what became of its winner."""
        model = self._models.get(_digest_of(record))
        if model is None:
            return Verified(record, Finding.NOT_ASKED, "its model was not given")
        if (differs := difference_from_here(record)) is not None:
            return Verified(
                record, Finding.NOT_ASKED, f"another environment: {differs.words('here', 'there')}"
            )
        try:
            with warnings_gathered(say=False) as warnings:
                decision, why = self._decided(record, model)
        except TuneFailure as failure:
            return Verified(record, Finding.NOT_VERIFIED, failure.message)
        return self._found(record, decision, why or "; ".join(warnings))

    def _tuner(self, accuracy_key: str) -> StackTuner:
        """Returns a controller that may only use what is stored, however old, under a strictness."""
        tuner = self._tuners.get(accuracy_key)
        if tuner is None:
            policy = StackPolicy.of_accuracy_key(
                accuracy_key, mode=Mode.CACHE_ONLY, ttl_s=_ANY_AGE_S, isolation=ISOLATION
            )
            tuner = self._tuners[accuracy_key] = StackTuner(policy, self._directory)
        return tuner

    def _decided(self, record: Record, model: _Model) -> tuple[Decision | None, str]:
        """Returns the decision of a session that may only use what is stored, or why there is none."""
        from ort_stacktune.replay import feeds_for, request_for

        parts = parts_of_key(record.key)
        if parts is None:
            raise invalid("its key is of another make")
        tuner = self._tuner(parts.accuracy_key)
        signature = parse_workload(record.report.workload)
        feeds = feeds_for(
            signature,
            model.inputs,
            samples=self._inputs.samples,
            fills=self._inputs.fills,
            seed=self._inputs.seed,
        )
        request = request_for(signature, feeds)
        lane = model.lane(record, signature, self._providers)
        if request.signature(lane.steering).text() != record.report.workload:
            raise invalid("a request of its signature can't be made here")
        try:
            choice = lane.resolve(tuner, request)
        finally:
            # Or the winners of all records would stay in memory.
            lane.choice_gone(record.key)
        return choice.decision, choice.reason

    def _found(self, record: Record, decision: Decision | None, why: str) -> Verified:
        if decision is not None and decision.cache_key != record.key:
            return Verified(record, Finding.NOT_VERIFIED, _unlike(record.key, decision.cache_key))
        if decision is not None and decision.source is DecisionSource.DISK_CACHE:
            by_definition = record.winner == record.reference
            return Verified(record, Finding.REFERENCE if by_definition else Finding.HOLDS)
        if self._store.get(record.key) is None:
            return Verified(record, Finding.DROPPED, why)
        failed = "did not validate" in why
        return Verified(
            record, Finding.FAILED if failed else Finding.NOT_VERIFIED, why or "it is dated in the future"
        )


@dataclass(slots=True)
class _Model:
    """A model that was given."""

    path: str
    digest: str
    session: TunedSession
    inputs: list[InputFact]
    lanes: dict[tuple[object, ...], Lane] = field(default_factory=dict)

    @classmethod
    def opened(cls, path: str, providers: Sequence[str], threads: int | None) -> _Model:
        # Only the session's options are of interest; nothing is run on it but by a lane.
        session = open_model(
            path, StackTuner(StackPolicy(mode=Mode.DISABLED)), providers=providers, threads=threads
        )
        from ort_stacktune.ort.model import ModelSource

        inputs, overridable = declared(session, path)
        return cls(path, ModelSource.of(path).digest(), session, [*inputs, *overridable])

    def lane(self, record: Record, signature: CallSignature, providers: Sequence[str]) -> Lane:
        """Returns the lane of an application's session that had this record's question."""
        from ort_stacktune.reference import Reference, TuningOptions

        steering = tuple(tensor.name for tensor in signature.inputs if tensor.value)
        key = (record.scope, steering)
        lane = self.lanes.get(key)
        if lane is None:
            options = TuningOptions.checked(None, None, record.scope, (), steering)
            reference = Reference(self.path, options, lambda _: None)
            reference.ask(providers, None)
            lane = self.lanes[key] = reference.lane(self.session)
        return lane


def _digest_of(record: Record) -> str:
    try:
        kind, _, digest = parse_fields(record.report.operation)
    except (TuneFailure, ValueError):
        return ""
    return digest if kind == "onnx" else ""


def _unlike(stored: str, asked: str) -> str:
    """Returns in words why a question asked again is another one than the stored one."""
    then, now = parts_of_key(stored), parts_of_key(asked)
    assert then is not None
    assert now is not None
    if then.problem.operation != now.problem.operation:
        return "it was asked under a name of its own, as try_execute_stack does"
    if _reference(then) != _reference(now):
        return "its session had other providers or options; see --providers and --threads"
    if then.candidates != now.candidates:
        return "its candidates are not those generated here: an application brought its own"
    return "it was asked in another way than can be repeated here"


def _reference(parts: KeyParts) -> object:
    return parts.candidates[parts.reference] if parts.reference < len(parts.candidates) else None
