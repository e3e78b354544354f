"""Owns the store: records by key in one directory, what is believed of them and how many are kept.

Must never raise for anything found on disk: a caller gets a record that is right in every respect, or
nothing and a sentence that says why.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ort_stacktune.failures import invalid
from ort_stacktune.identity import text_digest
from ort_stacktune.store.checks import Unreadable
from ort_stacktune.store.files import (
    MAX_BYTES,
    Refused,
    check_directory,
    make_directory,
    read_record,
    write_record,
)
from ort_stacktune.store.record import FORMAT, Record, decode, encode

_RECORD_NAME = re.compile(r"[0-9a-f]{32}\.json")
_TEMPORARY_NAME = re.compile(r"[0-9a-f]{32}\.[0-9]+\.[0-9a-f]{16}\.tmp")
_STALE_S = 3600.0
# After these the next write would fail as well, so trying again would only cost time and warnings.
_HOPELESS = frozenset((errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EFBIG))


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One file of a store as it lies there.

    Attributes:
        path: The file.
        size: Its size in bytes.
        record: What it holds; ``None`` where it can't be relied on.
        reason: Why not, as words that follow "because"; ``None`` where there is a record.
    """

    path: Path
    size: int
    record: Record | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    size: int
    modified_ns: int

    @property
    def order(self) -> tuple[int, str]:
        return self.modified_ns, self.path.name


class RecordStore:
    """Keeps verified choices in a directory that many processes may use at once.

    Nothing is touched before the first call of a method. The directory and everything in it must belong
    to this user or root and be closed to writes by group and others; otherwise nothing is read or written.

    Args:
        directory: The user's directory. Records lie in a subdirectory of this format.
        capacity: Most records kept; the oldest leave first.
        warn: Takes one sentence whenever something on disk is not as it should be.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for a path or capacity that can't be one.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, capacity: int = 1024, warn: Callable[[str], None]
    ) -> None:
        path = os.fspath(directory)
        if not isinstance(path, str) or not path or "\0" in path:
            raise invalid(f"the cache directory is {path!r}; expected the path of a directory as text")
        if capacity < 1:
            raise invalid(f"capacity is {capacity}; expected 1 or more records")
        self._directory = Path(path)
        with contextlib.suppress(OSError):
            # The records of a process stay together when it changes its working directory.
            self._directory = self._directory.absolute()
        self._records = self._directory / f"v{FORMAT}"
        self._capacity = capacity
        self._warn = warn
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def path_of(self, key: str) -> Path:
        """Returns the path of a key's file, whether or not there is one.

        Raises:
            TuneFailure: ``INVALID_INPUT`` for a key with a lone surrogate, which has no UTF-8 form.
        """
        try:
            return self._records / f"{text_digest(key)}.json"
        except UnicodeEncodeError as error:
            raise invalid(
                f"the key holds a lone surrogate at position {error.start}, which UTF-8 can't carry;"
                " expected text that was decoded without errors"
            ) from None

    def get(self, key: str) -> Record | None:
        """Returns a key's record; ``None`` where there is none or it can't be relied on, after one warning.

        Raises:
            TuneFailure: As :meth:`path_of`.
        """
        path = self.path_of(key)
        if self._refused():
            return None
        try:
            data = read_record(path)
            record = None if data is None else decode(data)
            if record is not None and record.key != key:
                raise Unreadable("it holds the record of another key")
        except Unreadable as reason:
            self._warn(f"the record {path} is ignored because {reason}")
            return None
        return record

    def put(self, record: Record) -> bool:
        """Writes a record in place of the one its key had, then prunes the store to its capacity.

        Returns:
            Whether it was written. Where it was not, the old record is still whole and a warning was given;
            after a failure that would repeat itself (no space, no permission, a read-only file system)
            nothing more is written and no further warning given.

        Raises:
            TuneFailure: ``INVALID_INPUT`` for a record that is not verified, or as :meth:`path_of`.
        """
        if not record.verified:
            raise invalid(
                f"the record of {record.winner!r} is not verified; expected one whose outputs were compared"
                " with the reference's, because an unchecked choice must not reach other processes"
            )
        path = self.path_of(record.key)
        if self._writing_stopped() or self._refused():
            return False
        try:
            data = encode(record)
            if len(data) > MAX_BYTES:
                raise Unreadable(f"it takes {len(data)} bytes, more than the {MAX_BYTES} allowed")
        except Unreadable as reason:
            self._warn(f"the choice {record.winner!r} was not stored because {reason}")
            return False
        try:
            make_directory(self._records)
            # Somebody else may have made them since they were found missing.
            if self._refused():
                return False
            write_record(path, data)
        except OSError as error:
            self._failed("written", path, error)
            return False
        self._prune(keep=self._capacity, older_than_s=None, newest=path)
        return True

    def delete(self, key: str) -> bool:
        """Removes a key's record and returns whether there was one to remove.

        Raises:
            TuneFailure: As :meth:`path_of`.
        """
        path = self.path_of(key)
        return not self._refused() and self._remove(path)

    def entries(self) -> Iterator[StoredEntry]:
        """Yields every file there is, oldest first, with its record or the reason why it holds none."""
        for file in sorted(_look(self._paths()), key=lambda file: file.order):
            try:
                record = self._examine(file.path)
            except Unreadable as reason:
                yield StoredEntry(file.path, file.size, None, str(reason))
            else:
                if record is not None:
                    yield StoredEntry(file.path, file.size, record, None)

    def prune(self, *, keep: int, older_than_s: float | None = None) -> list[Path]:
        """Removes all but the newest records, and what writers that died left behind over an hour ago.

        Args:
            keep: Most records to keep, by the time they were written.
            older_than_s: Age in seconds beyond which a record goes in any case.

        Returns:
            The files that were removed, oldest first.

        Raises:
            TuneFailure: ``INVALID_INPUT`` for a negative number or one that is not finite.
        """
        if keep < 0:
            raise invalid(f"keep is {keep}; expected 0 or more records")
        if older_than_s is not None and not (math.isfinite(older_than_s) and older_than_s >= 0):
            raise invalid(f"older_than_s is {older_than_s}; expected a finite number of seconds, 0 or more")
        return self._prune(keep=keep, older_than_s=older_than_s)

    def _prune(self, *, keep: int, older_than_s: float | None, newest: Path | None = None) -> list[Path]:
        """Prunes; ``newest`` was just written and stays, whatever the clocks of its file system say."""
        paths = self._paths()
        records = [path for path in paths if _RECORD_NAME.fullmatch(path.name)]
        temporary = [path for path in paths if _TEMPORARY_NAME.fullmatch(path.name)]
        doomed = [file for file in _look(temporary) if _age_s(file) > _STALE_S]
        # Looking at every record costs far more than listing their names, and is seldom needed.
        if len(records) > keep or older_than_s is not None:
            old_to_new = sorted(_look(records), key=lambda file: (file.path == newest, file.order))
            surplus = len(old_to_new) - keep
            doomed += [
                file
                for position, file in enumerate(old_to_new)
                if position < surplus or (older_than_s is not None and _age_s(file) > older_than_s)
            ]
        doomed.sort(key=lambda file: file.order)
        return [file.path for file in doomed if self._remove(file.path)]

    def _examine(self, path: Path) -> Record | None:
        """Returns the record of any file in the store; ``None`` where the file is gone.

        Raises:
            Unreadable: Where it holds no record to rely on.
        """
        if _TEMPORARY_NAME.fullmatch(path.name):
            raise Unreadable("it is the unfinished file of a writer that is at work or died")
        if not _RECORD_NAME.fullmatch(path.name):
            raise Unreadable("its name is not one that this store gives")
        data = read_record(path)
        if data is None:
            return None
        record = decode(data)
        if self.path_of(record.key) != path:
            raise Unreadable("it holds the record of another key")
        return record

    def _paths(self) -> list[Path]:
        if self._refused():
            return []
        try:
            return list(self._records.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            self._tell_once("listing", f"the cache {self._records} can't be listed: {error.strerror}")
            return []

    def _remove(self, path: Path) -> bool:
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            self._failed("removed", path, error)
            return False
        return True

    def _refused(self) -> bool:
        """Returns whether the directories can't be trusted; warns once in all."""
        try:
            check_directory(self._directory)
            check_directory(self._records)
        except Refused as reason:
            self._tell_once("directory", f"the cache is neither read nor written because {reason}")
            return True
        return False

    def _writing_stopped(self) -> bool:
        with self._lock:
            return "writing" in self._told

    def _failed(self, what: str, path: Path, error: OSError) -> None:
        sentence = f"{path} could not be {what}: {error.strerror}"
        if error.errno in _HOPELESS:
            self._tell_once("writing", f"{sentence}; nothing more is stored by this process")
        else:
            self._warn(sentence)

    def _tell_once(self, topic: str, sentence: str) -> None:
        with self._lock:
            if topic in self._told:
                return
            self._told.add(topic)
        self._warn(sentence)


def _age_s(file: _File) -> float:
    return time.time() - file.modified_ns / 1e9


def _look(paths: Iterable[Path]) -> list[_File]:
    found = []
    for path in paths:
        # Another process may have removed it since it was listed.
        with contextlib.suppress(OSError):
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                found.append(_File(path, status.st_size, status.st_mtime_ns))
    return found
