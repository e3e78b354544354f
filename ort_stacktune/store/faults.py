"""Owns what is remembered of candidates that crashed or hung, so that the next process does not try them again.

Must never raise for anything found on disk, and never outlast its reason: what may have been a passing state of the
machine is forgotten within a day, everything else within a month.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ort_stacktune.failures import Fault
from ort_stacktune.identity import fields as joined
from ort_stacktune.identity import text_digest
from ort_stacktune.store.checks import Unreadable, exact_object, member, real, text, unique, whole
from ort_stacktune.store.files import Refused, check_directory, make_directory, read_record, write_record

FAULTS_FORMAT = 1

_SCHEMA = "ort_stacktune/fault/1"
_CAPACITY = 4096
_STALE_S = 3600.0
_NOTE_CHARACTERS = 1000

_DAY_S = 86400.0
_LASTS_S = {
    Fault.SIGNAL: 30 * _DAY_S,
    Fault.EXIT: 30 * _DAY_S,
    Fault.PROTOCOL: 30 * _DAY_S,
    # A busy machine brings these about as well.
    Fault.TIMEOUT: _DAY_S,
    Fault.MEMORY: _DAY_S,
}

_HEADER = re.compile(rb"ort_stacktune fault ([0-9]{1,9}) sha256=([0-9a-f]{64})\n")


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """How a candidate ended the process of its trial.

    Attributes:
        key: Whole identity text of where it did; see :func:`fault_key`.
        name: The candidate's name then.
        fault: How.
        note: How, in words.
        happened_s: When, as Unix time in seconds.
    """

    key: str
    name: str
    fault: Fault
    note: str
    happened_s: float

    def is_over(self, now_s: float) -> bool:
        """Whether it is to be forgotten; one from the future is as well."""
        return not 0.0 <= now_s - self.happened_s <= _LASTS_S.get(self.fault, 0.0)

    def why_not_tried(self) -> str:
        """Returns the sentence for a report."""
        what, _, rest = self.note.partition("; ")
        until = _date(self.happened_s + _LASTS_S.get(self.fault, 0.0))
        return (
            f"not tried: {what} on {_date(self.happened_s)};{' ' + rest + ';' if rest else ''}"
            f" it is tried again after {until}, with another environment or recipe,"
            " or with retry_failed (--retry-failed)"
        )


def fault_key(environment: str, operation: str, name: str, revision: str) -> str:
    """Returns the identity text of a candidate's fault: on what, of what, by which recipe."""
    return joined((_SCHEMA, environment, operation, name, revision))


class FaultMemory:
    """Remembers faults in this process, and in a directory that many processes may use at once.

    Args:
        directory: The user's directory, trusted as for records; ``None`` for this process only.
        warn: Takes one sentence whenever something on disk is not as it should be.
        since_s: Ignore what other processes found before this Unix time; ``None`` to heed it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        *,
        warn: Callable[[str], None],
        since_s: float | None = None,
    ) -> None:
        self._directory = None if directory is None else Path(directory)
        if self._directory is not None:
            with contextlib.suppress(OSError):
                # The files of a process stay together when it changes its working directory.
                self._directory = self._directory.absolute()
        self._warn = warn
        self._since_s = since_s
        self._lock = threading.Lock()
        self._own: OrderedDict[str, FaultRecord] = OrderedDict()
        self._told = False

    def known(self, keys: Iterable[str], now_s: float) -> dict[str, FaultRecord]:
        """Returns what is remembered and still counts, by key."""
        asked = list(keys)
        with self._lock:
            found = {key: self._own[key] for key in asked if key in self._own}
        folder = self._folder()
        if folder is not None and folder.is_dir():
            for key in asked:
                record = None if key in found else self._read(folder, key)
                if record is not None and (self._since_s is None or record.happened_s >= self._since_s):
                    found[key] = record
        return {key: record for key, record in found.items() if not record.is_over(now_s)}

    def remember(self, record: FaultRecord, *, on_disk: bool) -> None:
        """Remembers a fault that speaks against the candidate; one that only a limit decided does not.

        Args:
            record: The fault.
            on_disk: Whether other processes may learn of it.
        """
        if record.fault not in _LASTS_S:
            return
        with self._lock:
            self._own[record.key] = record
            while len(self._own) > _CAPACITY:
                self._own.popitem(last=False)
        folder = self._folder() if on_disk else None
        if folder is None:
            return
        try:
            data = _encode(record)
            make_directory(folder)
            if self._folder() is not None:
                write_record(_path(folder, record.key), data)
                _prune(folder)
        except (OSError, Unreadable) as error:
            self._tell_once(f"the fault of {record.name!r} is not remembered on disk: {error}")

    def pardon(self, key: str) -> None:
        """Forgets what an earlier process found, where it was ignored and the candidate did well."""
        folder = None if self._since_s is None else self._folder()
        if folder is not None:
            with contextlib.suppress(OSError):
                _path(folder, key).unlink()

    def _folder(self) -> Path | None:
        """Returns the directory of this format where it, or its absence, can be trusted."""
        if self._directory is None:
            return None
        folder = self._directory / f"faults-v{FAULTS_FORMAT}"
        try:
            check_directory(self._directory)
            check_directory(folder)
        except Refused as reason:
            self._tell_once(f"no faults are remembered on disk because {reason}")
            return None
        return folder

    def _read(self, folder: Path, key: str) -> FaultRecord | None:
        path = _path(folder, key)
        try:
            data = read_record(path)
            record = None if data is None else _decode(data)
            if record is not None and record.key != key:
                raise Unreadable("it holds the fault of another key")
        except Unreadable as reason:
            self._warn(f"the fault {path} is ignored because {reason}")
            return None
        return record

    def _tell_once(self, sentence: str) -> None:
        with self._lock:
            told, self._told = self._told, True
        if not told:
            self._warn(sentence)


def _path(folder: Path, key: str) -> Path:
    return folder / f"{text_digest(key)}.json"


def _encode(record: FaultRecord) -> bytes:
    item = {
        **asdict(record),
        "format": FAULTS_FORMAT,
        "fault": record.fault.name,
        "note": record.note[:_NOTE_CHARACTERS],
        "happened_s": float(record.happened_s),
    }
    try:
        body = (json.dumps(item, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except ValueError as error:
        raise Unreadable(f"it can't be written as text ({error})") from None
    return b"ort_stacktune fault %d sha256=%s\n" % (FAULTS_FORMAT, _checksum(body)) + body


def _decode(data: bytes) -> FaultRecord:
    header = _HEADER.match(data)
    if header is None:
        raise Unreadable("its first line is not the header of a fault")
    if int(header[1]) != FAULTS_FORMAT:
        raise Unreadable(f"it is of format {int(header[1])}; this version reads format {FAULTS_FORMAT}")
    body = data[header.end() :]
    if _checksum(body) != header[2]:
        raise Unreadable("its checksum is wrong: the file was damaged, cut short or edited")
    try:
        value = json.loads(body.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is not the JSON of a fault ({error})") from None
    item = exact_object("the fault", value, _FIELDS)
    whole("format", item["format"], least=FAULTS_FORMAT)
    return FaultRecord(
        text("key", item["key"]),
        text("name", item["name"]),
        member("fault", item["fault"], Fault),
        text("note", item["note"]),
        real("happened_s", item["happened_s"]),
    )


_FIELDS = frozenset(field.name for field in fields(FaultRecord)) | {"format"}


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def _prune(folder: Path) -> None:
    """Removes the oldest beyond the capacity, and what writers that died left behind over an hour ago."""
    try:
        names = sorted(folder.iterdir())
    except OSError:
        return
    records = [path for path in names if path.suffix == ".json"]
    doomed = [path for path in names if path.suffix == ".tmp" and time.time() - _written_s(path) > _STALE_S]
    if len(records) > _CAPACITY:
        doomed += sorted(records, key=_written_s)[: len(records) - _CAPACITY]
    for path in doomed:
        with contextlib.suppress(OSError):
            path.unlink()


def _written_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()


def _date(at_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at_s))
