"""Owns how commands reach the store: its directory is checked before work starts, its records are found.

Must never go on with a directory that can't be trusted: what is said about such a store would mislead.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_stacktune.cli.differences import difference_from_here
from ort_stacktune.failures import invalid
from ort_stacktune.identity import text_digest
from ort_stacktune.store import Record, RecordStore, StoredEntry
from ort_stacktune.store.files import Refused, check_directory, make_directory

_ID_LENGTH = 12
_MOST_NAMED = 5


def prepared_directory(directory: Path) -> None:
    """Makes a cache directory where it is missing, so that a search is not spent in vain.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where it can't be made, can't be trusted or can't be written to.
    """
    _check(directory)
    try:
        make_directory(directory)
    except OSError as error:
        raise invalid(
            f"the cache directory {directory} can't be made: {error.strerror};"
            " choose another with --cache DIR"
        ) from error
    try:
        # Permissions do not tell of a read-only file system, or of one without room for a file.
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise invalid(
            f"the cache directory {directory} can't be written to: {error.strerror};"
            " choose another with --cache DIR"
        ) from error


def opened_store(directory: Path, warnings: list[str]) -> RecordStore:
    """Returns the store in an existing directory.

    Args:
        directory: The user's cache directory.
        warnings: Takes what the store finds to be wrong.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where there is no such directory or it can't be trusted.
    """
    _check(directory)
    if not directory.exists():
        raise invalid(f"there is no cache directory {directory}; name another with --cache DIR")
    return RecordStore(directory, warn=warnings.append)


def _check(directory: Path) -> None:
    records = RecordStore(directory, warn=lambda _: None).path_of("").parent
    try:
        check_directory(directory)
        check_directory(records)
    except Refused as reason:
        raise invalid(f"the cache can't be used because {reason}") from None


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A record and the file it lies in.

    Attributes:
        path: The file.
        record: What it holds.
    """

    path: Path
    record: Record

    @property
    def id(self) -> str:
        """What people call it: the start of the file's name."""
        return self.path.stem[:_ID_LENGTH]

    @property
    def is_current(self) -> bool | None:
        """Whether it was made in this environment; ``None`` where no ONNX Runtime can be loaded to ask."""
        try:
            return difference_from_here(self.record) is None
        except ImportError:
            return None


def record_files(directory: Path) -> tuple[list[RecordFile], list[StoredEntry]]:
    """Returns the records of a cache directory, oldest first, and the files that hold none.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where the directory is missing, can't be trusted or can't be listed.
    """
    warnings: list[str] = []
    good, bad = [], []
    for entry in opened_store(directory, warnings).entries():
        if entry.record is None:
            bad.append(entry)
        else:
            good.append(RecordFile(entry.path, entry.record))
    if warnings:
        raise invalid(warnings[0])
    return good, bad


def find_record(directory: Path, start: str) -> RecordFile:
    """Returns the one record whose id begins with ``start``.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where there is none, several, or one that can't be relied on, or as
            :func:`record_files`.
    """
    good, bad = record_files(directory)
    found = [file for file in good if start and file.path.stem.startswith(start.lower())]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(file.path.stem for file in found[:_MOST_NAMED])
        raise invalid(f"{len(found)} records begin with {start!r} ({ids}); give more of the id")
    for entry in bad:
        if start and entry.path.name.startswith(start.lower()):
            raise invalid(f"{entry.path} can't be relied on because {entry.reason}")
    raise invalid(f"no record in {directory} begins with {start!r}; see ort-stacktune cache list")


def record_id(record: Record) -> str:
    """Returns what people call a record: the start of the name that a store gives its file."""
    return text_digest(record.key)[:_ID_LENGTH]


def is_leftover(entry: StoredEntry) -> bool:
    """Whether a file is what a writer that died, or is at work, left behind: no record that was lost."""
    return entry.path.suffix == ".tmp"


def identity_here(record: Record) -> str | None:
    """Returns the identity of this environment for the devices that a record's speaks of.

    ``None`` where no ONNX Runtime can be loaded to ask.
    """
    from ort_stacktune.environment import environment_like

    try:
        return environment_like(record.report.environment).fingerprint
    except ImportError:
        return None


def reasons(entries: Iterable[StoredEntry]) -> list[dict[str, Any]]:
    """Returns for machines which files hold no record to rely on, and why."""
    return [{"path": entry.path, "reason": entry.reason} for entry in entries]


def files_text(number: int) -> str:
    """Returns a number of files in words."""
    return "1 file" if number == 1 else f"{number} files"
