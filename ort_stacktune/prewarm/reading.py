"""Owns the reading of a YAML document by hand: every value keeps its line, so that a mistake can be named.

Must never construct an object that a document names, or expand it beyond its own size.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ort_stacktune.failures import TuneFailure, invalid

_MOST_BYTES = 16 << 20
_LONGEST_SHOWN = 60
_FLOAT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")


class Place:
    """A value of a document and where it stands.

    Args:
        file: Name of the document, for messages.
        where: The way to the value, such as ``models[0].path``; empty for the whole.
        node: The value as the parser composed it.
        loader: The parser, which reads scalars.
    """

    def __init__(self, file: str, where: str, node: yaml.Node, loader: yaml.SafeLoader) -> None:
        self._file = file
        self._where = where
        self._node = node
        self._loader = loader

    @property
    def line(self) -> int:
        """Line of the document, from 1."""
        return int(self._node.start_mark.line) + 1

    @property
    def is_mapping(self) -> bool:
        """Whether the value has names with values."""
        return isinstance(self._node, yaml.MappingNode)

    @property
    def is_empty_list(self) -> bool:
        """Whether the value is a list of nothing."""
        return isinstance(self._node, yaml.SequenceNode) and not self._node.value

    def wrong(self, what: str) -> TuneFailure:
        """Returns the failure that names the place and what is wrong with it."""
        subject = f"{self._where} " if self._where else ""
        return invalid(f"{self._file}:{self.line}: {subject}{what}")

    def expected(self, what: str) -> TuneFailure:
        """Returns the failure that shows the value and says what was expected in its place."""
        return self.wrong(f"is {self._shown()}; expected {what}")

    def fields(self, legal: Sequence[str], required: Sequence[str] = ()) -> dict[str, Place]:
        """Returns the values of a mapping with known names only."""
        found = self.entries()
        for name, place in found.items():
            if name not in legal:
                near = difflib.get_close_matches(name, legal, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; it may have {', '.join(legal)}"
                raise invalid(f"{self._file}:{place.line}: {self._title()} has no field {name!r}{hint}")
        for name in required:
            if name not in found:
                raise self.wrong(
                    f"lacks the field {name!r}" if self._where else f"the document lacks {name!r}"
                )
        return found

    def entries(self) -> dict[str, Place]:
        """Returns the values of a mapping with any names."""
        if not isinstance(self._node, yaml.MappingNode):
            raise self.expected("names with values (NAME: VALUE)")
        found: dict[str, Place] = {}
        for key, value in self._node.value:
            name = self._at("a name", key).text()
            if name in found:
                raise invalid(f"{self._file}:{key.start_mark.line + 1}: {self._title()} names {name!r} twice")
            found[name] = self._at(f"{self._where}.{name}" if self._where else name, value)
        return found

    def items(self) -> list[Place]:
        """Returns the values of a list of at least one."""
        if not isinstance(self._node, yaml.SequenceNode) or not self._node.value:
            raise self.expected("a list of at least one item")
        return [self._at(f"{self._where}[{index}]", node) for index, node in enumerate(self._node.value)]

    def text(self) -> str:
        """Returns a nonempty text; a bare number or word counts as its text."""
        if not isinstance(self._node, yaml.ScalarNode) or not self._node.value:
            raise self.expected("nonempty text")
        return str(self._node.value)

    def plain(self) -> Any:
        """Returns a number, a truth value or a text."""
        value = self._scalar()
        if not isinstance(value, bool | int | float | str):
            raise self.expected("a number, true, false or a text")
        return value

    def flag(self) -> bool:
        """Returns a truth value."""
        value = self._scalar()
        if not isinstance(value, bool):
            raise self.expected("true or false")
        return value

    def whole(self, least: int) -> int:
        """Returns a whole number."""
        value = self._scalar()
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.expected(f"a whole number of {least} or more")
        return value

    def positive(self) -> float:
        """Returns a number above 0."""
        value = self._scalar()
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.expected("a number above 0")
        return float(value)

    def seconds(self) -> float:
        """Returns a duration: a number of seconds, or a number with s, m or h."""
        value = self._scalar()
        if isinstance(value, str) and value[-1:] in _UNITS_S:
            try:
                number = float(value[:-1])
            except ValueError:
                number = math.nan
            value = number * _UNITS_S[value[-1]]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.expected("a duration above 0, such as 90, 90s, 30m or 8h")
        return float(value)

    def reraise(self, failure: TuneFailure) -> NoReturn:
        """Raises a failure about this value with its place in front."""
        raise invalid(f"{self._file}:{self.line}: {self._title()}: {failure.message}") from failure

    def _at(self, where: str, node: yaml.Node) -> Place:
        return Place(self._file, where, node, self._loader)

    def _title(self) -> str:
        return self._where or "the document"

    def _scalar(self) -> Any:
        if not isinstance(self._node, yaml.ScalarNode):
            return None
        if self._node.style is None and _FLOAT.fullmatch(self._node.value):
            # For YAML 1.1 the 1e-4 that everybody writes is text.
            return float(self._node.value)
        try:
            return self._loader.construct_object(self._node)
        except (yaml.YAMLError, ValueError):
            # Such as a time stamp of the 31st of February.
            return str(self._node.value)

    def _shown(self) -> str:
        if isinstance(self._node, yaml.MappingNode):
            return "a mapping"
        if isinstance(self._node, yaml.SequenceNode):
            return "a list" if self._node.value else "an empty list"
        text = str(self._node.value)
        short = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
        return repr(short) if text else "empty"


_UNITS_S: Mapping[str, int] = {"s": 1, "m": 60, "h": 3600}


def read_document(path: Path) -> Place:
    """Reads a YAML document.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where the file is missing, too large, no text or no YAML.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise invalid(f"the manifest {path} can't be read: {error.strerror or error}") from error
    if len(data) > _MOST_BYTES:
        raise invalid(f"the manifest {path} is larger than {_MOST_BYTES >> 20} MiB; split it")
    try:
        loader = yaml.SafeLoader(data.decode())
        node = loader.get_single_node()
    except UnicodeDecodeError as error:
        raise invalid(f"the manifest {path} is no UTF-8 text (byte {error.start})") from error
    except RecursionError:
        raise invalid(f"the manifest {path} is nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise invalid(f"{path}{line}: this is no YAML: {reason}") from error
    if node is None:
        raise invalid(f"the manifest {path} is empty; it has to name models and signatures")
    return Place(str(path), "", node, loader)
