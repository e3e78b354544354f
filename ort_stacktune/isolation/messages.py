"""Owns what the two processes of a trial say to each other: typed messages, each one JSON text behind its length.

Must never believe a message because of where it came from: a candidate shares a process with whoever writes the
answers, so every field is checked and nothing in a message is code.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import Enum

from ort_stacktune.failures import FailureKind, Fault, NotReproduced, ReferenceFailure, TuneFailure
from ort_stacktune.store.checks import Unreadable, exact_object, flag, mapping, member, text, unique, whole
from ort_stacktune.vocabulary import FirstCosts, Tolerance, Validation

MAX_BYTES = 1024 * 1024
"""Longest message; arrays never travel in one."""

LENGTH = struct.Struct(">I")

_COSTS = ("create_ns", "first_run_ns", "switch_ns", "peak_bytes")


@dataclass(frozen=True, slots=True)
class Orders:
    """What a process of trials is started with.

    Attributes:
        parent: Process id of the one that starts it.
        commands: Descriptor to read commands from.
        answers: Descriptor to write answers to.
        lifeline: Descriptor of a pipe on which nothing ever comes but its end.
        board: Descriptor of the board.
        cargo: Descriptor of the file with the trials.
        start: Where in it their description begins.
        size: Bytes of the description.
        output_bytes: Most bytes of all outputs of one run.
        niceness: Added to the process's niceness; above 0 for a lower priority.
    """

    parent: int
    commands: int
    answers: int
    lifeline: int
    board: int
    cargo: int
    start: int
    size: int
    output_bytes: int
    niceness: int


class Call(Enum):
    """What the process of a trial is asked to do with a candidate."""

    START = "start"
    """Nothing; its answer says that the process is up."""

    VALIDATE = "validate"
    MEASURE = "measure"
    FACTS = "facts"
    FIRST_COSTS = "first costs"
    ALL_COSTS = "all costs"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Command:
    """One thing to do.

    Attributes:
        number: Repeated in the answer.
        call: What to do.
        candidate: Position of the candidate.
        round: Number of the round that a measurement belongs to.
        as_served: Whether it is set up as a winner is served.
        tolerance: How far outputs may differ, for a validation.
    """

    number: int
    call: Call
    candidate: int = 0
    round: int = 0
    as_served: bool = False
    tolerance: Tolerance | None = None


Value = Validation | int | FirstCosts | dict[str, str] | None
"""What a call gives: in the order of :class:`Call`'s members."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one command: a value, or a failure that the process of the trial survived."""

    number: int
    value: Value = None
    failure: TuneFailure | None = None


def encode_command(command: Command) -> bytes:
    """Returns the frame of a command."""
    tolerance = command.tolerance
    return _frame(
        {
            "number": command.number,
            "call": command.call.name,
            "candidate": command.candidate,
            "round": command.round,
            "as_served": command.as_served,
            "tolerance": None if tolerance is None else _tolerance_json(tolerance),
        }
    )


def decode_command(data: bytes) -> Command:
    """Returns the command in a message.

    Raises:
        Unreadable: Where it is none.
    """
    item = exact_object("the command", _parsed(data), frozenset(Command.__slots__))
    tolerance = item["tolerance"]
    return Command(
        whole("number", item["number"]),
        member("call", item["call"], Call),
        whole("candidate", item["candidate"]),
        whole("round", item["round"]),
        flag("as_served", item["as_served"]),
        None if tolerance is None else _tolerance(tolerance),
    )


def encode_answer(answer: Answer) -> bytes:
    """Returns the frame of an answer."""
    failure, value = answer.failure, answer.value
    plain: object = value
    if isinstance(value, Validation):
        plain = value.name
    elif isinstance(value, FirstCosts):
        plain = {cost: getattr(value, cost) for cost in _COSTS}
    return _frame(
        {
            "number": answer.number,
            "value": plain,
            "failure": None if failure is None else _failure_json(failure),
        }
    )


def decode_answer(data: bytes, command: Command) -> Answer:
    """Returns the answer to a command.

    Raises:
        Unreadable: Where it is none, or one to another command, or its value is not of the kind asked for.
    """
    item = exact_object("the answer", _parsed(data), frozenset(Answer.__slots__))
    number = whole("number", item["number"])
    if number != command.number:
        raise Unreadable(f"it answers command {number}, not {command.number}")
    if item["failure"] is not None:
        return Answer(number, failure=_failure(item["failure"]))
    return Answer(number, _value(command.call, item["value"]))


def _value(call: Call, value: object) -> Value:
    if call is Call.VALIDATE:
        return member("value", value, Validation)
    if call is Call.MEASURE:
        return whole("value", value, least=1)
    if call is Call.FACTS:
        return {
            text("a label", label): text("a fact", fact) for label, fact in mapping("value", value).items()
        }
    if call in (Call.FIRST_COSTS, Call.ALL_COSTS):
        costs = exact_object("value", value, frozenset(_COSTS))
        return FirstCosts(
            **{cost: None if costs[cost] is None else whole(cost, costs[cost]) for cost in _COSTS}
        )
    if value is not None:
        raise Unreadable("it gives a value where none was asked for")
    return None


_BLAME: dict[str, type[TuneFailure]] = {
    "candidate": TuneFailure,
    "reference": ReferenceFailure,
    "reference, not reproduced": NotReproduced,
}


def _failure_json(failure: TuneFailure) -> dict[str, object]:
    return {
        "kind": failure.kind.name,
        # A message may quote what a library said, which need be neither short nor text.
        "message": failure.message.encode("utf-8", "backslashreplace").decode()[:4096],
        "fault": None if failure.fault is None else failure.fault.name,
        "blame": next(blame for blame, kind in reversed(_BLAME.items()) if isinstance(failure, kind)),
    }


def _failure(value: object) -> TuneFailure:
    item = exact_object("the failure", value, frozenset({"kind", "message", "fault", "blame"}))
    blame = text("blame", item["blame"])
    if blame not in _BLAME:
        raise Unreadable(f"it blames {blame!r}")
    return _BLAME[blame](
        member("kind", item["kind"], FailureKind),
        text("message", item["message"]),
        None if item["fault"] is None else member("fault", item["fault"], Fault),
    )


def _tolerance_json(tolerance: Tolerance) -> dict[str, object]:
    # hex() gives any float back exactly.
    return {
        "absolute": float(tolerance.absolute).hex(),
        "relative": float(tolerance.relative).hex(),
        "max_bytes": tolerance.max_bytes,
    }


def _tolerance(value: object) -> Tolerance:
    item = exact_object("tolerance", value, frozenset(Tolerance.__slots__))
    return Tolerance(
        float.fromhex(text("absolute", item["absolute"])),
        float.fromhex(text("relative", item["relative"])),
        whole("max_bytes", item["max_bytes"]),
    )


def _frame(message: dict[str, object]) -> bytes:
    data = json.dumps(message, allow_nan=False).encode()
    return LENGTH.pack(len(data)) + data


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is no JSON ({error})") from None
