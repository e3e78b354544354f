"""Owns the checks that every value of a record passes on its way in: type, range and names.

Must never let a doubtful value through, and never do I/O. Each check names what it looked at, refuses with
:class:`Unreadable` and otherwise returns the value with its type known.
"""

from __future__ import annotations

import reprlib
from enum import Enum
from typing import TypeVar

# One ceiling for every number: the largest duration that 64-bit nanoseconds can say.
_MOST = 2**63 - 1

_E = TypeVar("_E", bound=Enum)


class Unreadable(Exception):
    """Bytes or a file that is no record to rely on; ``str()`` is the reason, to follow "because"."""


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Returns a JSON object from its pairs; a name that occurs twice is refused."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Unreadable("it names a field twice")
    return found


def exact_object(what: str, value: object, names: frozenset[str]) -> dict[str, object]:
    """Returns a JSON object that has just the fields of these names."""
    found = mapping(what, value)
    for wrong, verb in ((found.keys() - names, "has no field"), (names - found.keys(), "lacks the field")):
        if wrong:
            raise Unreadable(f"{what} {verb} {reprlib.repr(min(wrong))}")
    return found


def mapping(what: str, value: object) -> dict[str, object]:
    """Returns a JSON object of any fields."""
    if type(value) is not dict:
        raise _unexpected(what, value, "an object")
    return value


def items(what: str, value: object) -> list[object]:
    """Returns a JSON list."""
    if type(value) is not list:
        raise _unexpected(what, value, "a list")
    return value


def text(what: str, value: object) -> str:
    """Returns a text that can be written as UTF-8."""
    if type(value) is not str:
        raise _unexpected(what, value, "a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        # A JSON escape can smuggle in what the file's own bytes can't hold; printing it would fail later.
        raise _unexpected(what, value, "a text without lone surrogates") from None
    return value


def flag(what: str, value: object) -> bool:
    """Returns true or false."""
    if type(value) is not bool:
        raise _unexpected(what, value, "true or false")
    return value


def whole(what: str, value: object, *, least: int = 0) -> int:
    """Returns an integer of at least ``least`` that fits into 64 bits."""
    if type(value) is not int or not least <= value <= _MOST:
        raise _unexpected(what, value, f"an integer from {least} to 2**63 - 1")
    return value


def real(what: str, value: object) -> float:
    """Returns a finite number that is not negative."""
    # NaN and the infinities fail the comparison as well.
    if type(value) is not float or not 0 <= value <= _MOST:
        raise _unexpected(what, value, "a finite number from 0 to 2**63 - 1")
    return value


def positive(what: str, value: object) -> float:
    """Returns a finite number above 0."""
    number = real(what, value)
    if number == 0:
        raise _unexpected(what, value, "more than 0")
    return number


def member(what: str, value: object, kind: type[_E]) -> _E:
    """Returns the enum member of this name."""
    name = text(what, value)
    if name not in kind.__members__:
        raise _unexpected(what, value, "one of " + ", ".join(kind.__members__))
    return kind[name]


def _unexpected(what: str, value: object, expected: str) -> Unreadable:
    return Unreadable(f"{what} is {reprlib.repr(value)}; expected {expected}")
