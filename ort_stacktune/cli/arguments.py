"""Owns how arguments are read: the options that every command has, and ``NAME=VALUE`` texts.

What can be judged without a model is judged here; a name that a model does not have is found later.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ort_stacktune.failures import invalid

CACHE_VARIABLE = "ORT_STACKTUNE_CACHE"

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
# Within 64 bits, and within what Python reads at once.
_WHOLE = re.compile("[0-9]{1,18}")

_Value = TypeVar("_Value")


def common_options() -> argparse.ArgumentParser:
    """Returns the parent parser with the options of every command."""
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    common.add_argument(
        "--cache",
        metavar="DIR",
        help=f"directory of stored choices (default: ${CACHE_VARIABLE}, else ort_stacktune in the user's"
        " cache directory, $XDG_CACHE_HOME or ~/.cache)",
    )
    common.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    return common


def cache_directory(given: str | None) -> Path:
    """Returns the directory of stored choices: the given one, else by environment variables, else at home.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for an empty path, or where there is no home directory.
    """
    if given is None:
        given = os.environ.get(CACHE_VARIABLE) or None
    if given is not None:
        if not given or "\0" in given:
            raise invalid(f"the cache directory is {given!r}; expected the path of a directory")
        return Path(given).absolute()
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or "")
    try:
        # By its specification, a relative path in that variable does not count.
        return (cache_home if cache_home.is_absolute() else Path.home() / ".cache") / "ort_stacktune"
    except RuntimeError:
        raise invalid(f"there is no home directory; name one with --cache DIR or ${CACHE_VARIABLE}") from None


def named(option: str, texts: Sequence[str], read: Callable[[str], _Value]) -> dict[str, _Value]:
    """Reads ``NAME=VALUE`` texts; a name may hold ``=`` itself.

    Args:
        option: Name of the option, for messages.
        texts: What was given.
        read: Reads a value; ``ValueError`` with what was expected refuses it.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for a text of another form, or a name twice.
    """
    values: dict[str, _Value] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals or not name:
            raise invalid(f"{option} {text!r} is not usable; expected NAME=VALUE")
        if name in values:
            raise invalid(f"{option} names {name!r} twice; name it once")
        try:
            values[name] = read(value)
        except ValueError as expected:
            raise invalid(f"{option} {text!r} is not usable; expected {expected}") from None
    return values


def size(text: str) -> int:
    """Reads the size of a dimension."""
    if _WHOLE.fullmatch(text) is None or int(text) < 1:
        raise ValueError("a whole number of 1 or more")
    return int(text)


def shape(text: str) -> tuple[int, ...]:
    """Reads a shape such as ``1x3x48x320``, or ``scalar`` for none."""
    if text == "scalar":
        return ()
    try:
        return tuple(size(part) for part in text.split("x"))
    except ValueError:
        raise ValueError("sizes of 1 or more joined by x, such as 1x3x48x320, or scalar") from None


def fill(text: str) -> str:
    """Reads the content of an input; whether it suits the input is found when there is a model."""
    if not text:
        raise ValueError("a number or a word after =")
    return text


def tolerance(text: str) -> tuple[float, float]:
    """Reads an absolute and a relative tolerance joined by a comma."""
    parts = text.split(",")
    try:
        absolute, relative = (float(part) for part in parts)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not ABS,REL, such as 1e-4,1e-3") from None
    return absolute, relative


def words(text: str) -> tuple[str, ...]:
    """Reads words joined by commas."""
    return tuple(word.strip() for word in text.split(","))


def count(text: str) -> int:
    """Reads a whole number of 0 or more."""
    if _WHOLE.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def positive(text: str) -> int:
    """Reads a whole number of 1 or more."""
    if count(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def number(text: str) -> float:
    """Reads a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


def age(text: str) -> float:
    """Reads an age such as ``30d`` or ``12h`` and returns it in seconds."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhdw])", text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an age; expected a number and one of s, m, h, d, w, such as 30d or 12h"
        )
    return float(found[1]) * _UNITS_S[found[2]]
