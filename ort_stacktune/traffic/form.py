"""Owns the text that counted calls are kept in, format 1, and where its files lie in a directory.

Must never touch the disk, and must never turn doubtful bytes into counts.

One process writes one file, so that none waits for another and no count is added twice: a header line with a
checksum of all that follows, then indented JSON in UTF-8. A reader adds up the files of a directory.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ort_stacktune.identity import fields, text_digest
from ort_stacktune.store.checks import (
    Unreadable,
    exact_object,
    items,
    mapping,
    member,
    text,
    unique,
    whole,
)
from ort_stacktune.vocabulary import Scope

FORMAT = 1

COUNT_NAME = re.compile(r"[0-9]+-[0-9a-f]{16}\.json")
"""Names of the files with counts: the process and a random token."""

_HEADER = re.compile(rb"ort_stacktune traffic ([0-9]{1,9}) sha256=([0-9a-f]{64})\n")
_HEADER_BYTES = 128

OptionValue = str | int | float | bool


@dataclass(frozen=True, slots=True)
class ModelUse:
    """A model as sessions use it: what it takes to make the reference of its questions again.

    Attributes:
        model: Path as it was given to the session; empty where the model came as bytes.
        path: That path made absolute when the session was made.
        digest: Digest of the model's content; empty where it could not be read.
        scope: Level of the decisions.
        providers: Execution providers of the reference with their options.
        session_options: Attributes of its session options that are not at their default.
        config: Its session config entries.
    """

    model: str
    path: str
    digest: str
    scope: Scope = Scope.GRAPH
    providers: tuple[tuple[str, Mapping[str, str]], ...] = ()
    session_options: Mapping[str, OptionValue] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Returns all of it as text that is the same for equal ones."""
        return json.dumps(_use_json(self), sort_keys=True)

    def question(self) -> str:
        """Returns what of it belongs to a question: everything but where the model lies."""
        return replace(self, model="", path="").text()


@dataclass(frozen=True, slots=True)
class Counted:
    """How often one exact signature came to one model.

    Attributes:
        use: The model and its reference.
        workload: The exact signature's text, with the values of inputs that steer; where the call can't be
            tuned without them; empty where the call could not be read.
        refused: Why such a call can't be tuned; empty where it can.
        count: Calls, 1 or more.
    """

    use: ModelUse
    workload: str
    refused: str
    count: int


def counts_folder(directory: Path) -> Path:
    """Returns where the files with counts lie in a user's directory."""
    return directory / f"v{FORMAT}"


def samples_folder(directory: Path) -> Path:
    """Returns where the sample inputs lie in a user's directory."""
    return counts_folder(directory) / "samples"


def sample_name(digest: str, workload: str) -> str:
    """Returns how the names of the samples of one signature begin."""
    return text_digest(fields((digest, workload)))


def encode(counted: Sequence[Counted], surplus: int) -> bytes:
    """Returns the text of one process's counts.

    Args:
        counted: The counts.
        surplus: Calls of signatures that are beyond the most that are kept.

    Raises:
        UnicodeEncodeError: For text that UTF-8 can't carry.
    """
    uses = list({id(each.use): each.use for each in counted}.values())
    place = {id(use): number for number, use in enumerate(uses)}
    document = {
        "format": FORMAT,
        "uses": [_use_json(use) for use in uses],
        "calls": [
            {
                "use": place[id(each.use)],
                "workload": each.workload,
                "refused": each.refused,
                "count": each.count,
            }
            for each in counted
        ],
        "surplus": surplus,
    }
    body = (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()
    return f"ort_stacktune traffic {FORMAT} sha256={hashlib.sha256(body).hexdigest()}\n".encode() + body


def decode(data: bytes) -> tuple[list[Counted], int]:
    """Returns the counts of one process, and the calls of signatures that it did not keep.

    Raises:
        Unreadable: Where anything about the text is not as :func:`encode` writes it.
    """
    header = _HEADER.match(data[:_HEADER_BYTES])
    if header is None:
        raise Unreadable("its first line is not the header of counted calls")
    if int(header[1]) != FORMAT:
        raise Unreadable(f"it is of format {int(header[1])}; this version reads format {FORMAT}")
    body = data[header.end() :]
    if hashlib.sha256(body).hexdigest().encode() != header[2]:
        raise Unreadable("its checksum is wrong: the file was damaged, cut short or edited")
    try:
        parsed = json.loads(body.decode(), object_pairs_hook=unique)
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"it is not the JSON of counted calls ({error})") from None
    document = exact_object("the document", parsed, frozenset(("format", "uses", "calls", "surplus")))
    if whole("format", document["format"]) != FORMAT:
        raise Unreadable("its format is not the one that its first line says")
    uses = [_use(value) for value in items("uses", document["uses"])]
    calls = [_counted(value, uses) for value in items("calls", document["calls"])]
    return calls, whole("surplus", document["surplus"])


def _use_json(use: ModelUse) -> dict[str, object]:
    return {
        "model": use.model,
        "path": use.path,
        "digest": use.digest,
        "scope": use.scope.name,
        "providers": [[name, dict(options)] for name, options in use.providers],
        "session_options": dict(use.session_options),
        "config": dict(use.config),
    }


_USE_FIELDS = frozenset(_use_json(ModelUse("", "", "")))
_CALL_FIELDS = frozenset(("use", "workload", "refused", "count"))


def _use(value: object) -> ModelUse:
    item = exact_object("a model's use", value, _USE_FIELDS)
    return ModelUse(
        model=text("model", item["model"]),
        path=text("path", item["path"]),
        digest=text("digest", item["digest"]),
        scope=member("scope", item["scope"], Scope),
        providers=tuple(_provider(entry) for entry in items("providers", item["providers"])),
        session_options={
            text("an option", name): _option(option)
            for name, option in mapping("session_options", item["session_options"]).items()
        },
        config=_texts("config", item["config"]),
    )


def _provider(value: object) -> tuple[str, Mapping[str, str]]:
    entry = items("a provider", value)
    if len(entry) != 2:
        raise Unreadable("a provider is not a name with its options")
    return text("a provider's name", entry[0]), _texts("a provider's options", entry[1])


def _texts(what: str, value: object) -> dict[str, str]:
    return {text(what, name): text(what, each) for name, each in mapping(what, value).items()}


def _option(value: object) -> OptionValue:
    if not isinstance(value, str | int | float | bool):
        raise Unreadable("a session option is no text, number or truth value")
    return value


def _counted(value: object, uses: Sequence[ModelUse]) -> Counted:
    item = exact_object("a call", value, _CALL_FIELDS)
    place = whole("use", item["use"])
    if place >= len(uses):
        raise Unreadable(f"a call is of use {place}; there are {len(uses)}")
    return Counted(
        uses[place],
        text("workload", item["workload"]),
        text("refused", item["refused"]),
        whole("count", item["count"], least=1),
    )
