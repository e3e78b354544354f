"""Owns how two environments are told apart for a person: by the first field in which they differ."""

from __future__ import annotations

from dataclasses import dataclass

from ort_stacktune.report import labelled
from ort_stacktune.store import Record
from ort_stacktune.vocabulary import RuntimeEnvironment, Scope

_CONTEXT = "execution context"
_ABSENT = "(none)"
_LONGEST = 60
_MOST_ITEMS = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """The first field in which two environments differ.

    Attributes:
        field: Its label; empty where an identity is of another make.
        one: What the first has there.
        other: What the second has there.
    """

    field: str
    one: str
    other: str

    def words(self, one: str, other: str) -> str:
        """Returns it in words, such as ``ONNX Runtime version: 1.24.1 here, 1.32.0 there``."""
        mine, theirs = _shortened(self.one, self.other)
        label = f"{self.field}: " if self.field else ""
        return f"{label}{mine} {one}, {theirs} {other}"


def difference(one: RuntimeEnvironment, other: RuntimeEnvironment) -> Difference | None:
    """Returns the first field in which two environments differ, ``None`` for equal ones."""
    first, second = dict(labelled(one.fingerprint)), dict(labelled(other.fingerprint))
    first[_CONTEXT], second[_CONTEXT] = one.execution_context, other.execution_context
    for label in {**first, **second}:
        mine, theirs = first.get(label, _ABSENT), second.get(label, _ABSENT)
        if mine != theirs:
            return Difference(label, mine, theirs)
    return None


def environment_of(record: Record) -> RuntimeEnvironment:
    """Returns the environment that a record was made in."""
    # The context of a plan holds the choices below it, which say nothing of the machine.
    context = "" if record.scope is Scope.PIPELINE else record.report.execution_context
    return RuntimeEnvironment(record.report.environment, True, context)


def difference_from_here(record: Record) -> Difference | None:
    """Returns the first field in which this environment (the first) and a record's (the second) differ.

    Raises:
        ImportError: ONNX Runtime can't be imported to ask it for this environment.
    """
    from ort_stacktune.environment import environment_like

    there = environment_of(record)
    here = environment_like(there.fingerprint)
    context = "" if record.scope is Scope.PIPELINE else here.execution_context
    return difference(RuntimeEnvironment(here.fingerprint, here.persistent, context), there)


def _shortened(one: str, other: str) -> tuple[str, str]:
    """Returns two texts short enough for a sentence; of two long lists, what only one of them has."""
    if max(len(one), len(other)) <= _LONGEST:
        return one, other
    for separator in (", ", " "):
        mine, theirs = one.split(separator), other.split(separator)
        if len(mine) > 1 and len(theirs) > 1 and set(mine) != set(theirs):
            return _only(mine, theirs), _only(theirs, mine)
    return _cut(one), _cut(other)


def _only(mine: list[str], theirs: list[str]) -> str:
    extra = [item for item in mine if item not in theirs]
    named = ", ".join(map(_cut, extra[:_MOST_ITEMS]))
    more = f" and {len(extra) - _MOST_ITEMS} more" if len(extra) > _MOST_ITEMS else ""
    return f"{named}{more} only" if extra else "nothing more"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
