"""Owns how records from elsewhere join a store: which of two answers to one question stays, and all or none.

Must never leave a store with part of what was to be merged because a write failed, and never decide by
anything but evidence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ort_stacktune.failures import invalid
from ort_stacktune.policy import StackPolicy
from ort_stacktune.store.checks import Unreadable
from ort_stacktune.store.files import make_directory, read_record, stage, sync_directory, write_record
from ort_stacktune.store.record import Record, decode, encode
from ort_stacktune.store.records import RecordStore


class Fate(Enum):
    """What became of a record that was to be merged."""

    ADDED = "added"
    """Its question had no answer here."""

    SAME = "same"
    """The very record was here."""

    BETTER = "better"
    """Same winner; its evidence is better and took the place of what was here."""

    WORSE = "worse"
    """Same winner; what is here has the better evidence and stays."""

    WON = "won"
    """Another winner than here; its evidence is better and took the place of what was here."""

    LOST = "lost"
    """Another winner than here; what is here has the better evidence and stays."""


_TAKEN = frozenset((Fate.ADDED, Fate.BETTER, Fate.WON))


@dataclass(frozen=True, slots=True)
class Merged:
    """A record that was to be merged, and what became of it.

    Attributes:
        record: The record.
        here: What the store held for its question; ``None`` for nothing to rely on.
        fate: What became of it.
    """

    record: Record
    here: Record | None
    fate: Fate

    @property
    def taken(self) -> bool:
        """Whether the store holds it now and did not before."""
        return self.fate in _TAKEN

    @property
    def conflict(self) -> bool:
        """Whether the store had another winner for the same question."""
        return self.fate in (Fate.WON, Fate.LOST)


def pairs_behind(record: Record) -> int:
    """Returns the timed pairs of all candidates with the reference in the search behind a record."""
    return sum(each.samples for each in record.report.candidates if each.name != record.reference)


def evidence(record: Record, now_s: float) -> tuple[bool, int, float]:
    """Returns what two answers to one question are ordered by, the better one being the greater.

    First comes whether a policy of default ``ttl_s`` would still use it, since an answer that nobody uses is
    none; then the pairs behind it, then its time.
    """
    age_s = now_s - record.created_s
    return 0.0 <= age_s <= StackPolicy().ttl_s, pairs_behind(record), record.created_s


def merge(store: RecordStore, records: Sequence[Record], now_s: float) -> list[Merged]:
    """Brings records into a store, all of them or none.

    Every new file lies complete on the disk before the first takes its place; where one can't take it, the
    others are taken back. A process that is killed in between leaves whole records, some old and some new.
    Other processes may read and write the store meanwhile. Nothing is pruned.

    Args:
        store: The store; its directory must be one that can be trusted.
        records: Verified records, one for each question.
        now_s: Unix time in seconds, by which records are fresh or not.

    Returns:
        What became of each record, in the same order.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where the store can't be written; it holds what it held before.
    """
    plan = [_judged(store, record, now_s) for record in records]
    if not any(each.taken for each in plan):
        return plan
    writing = _Writing()
    try:
        make_directory(store.path_of("").parent)
        for each in plan:
            if each.taken:
                writing.stage(store.path_of(each.record.key), encode(each.record))
        done = [_placed(store, each, writing, now_s) for each in plan]
    except (OSError, Unreadable) as error:
        writing.take_back()
        reason = getattr(error, "strerror", None) or error
        raise invalid(f"nothing was imported, because the cache can't be written: {reason}") from error
    except BaseException:
        writing.take_back()
        raise
    sync_directory(store.path_of("").parent)
    return done


@dataclass(slots=True)
class _Writing:
    """What of a merge has touched the disk, so that it can be taken back."""

    staged: dict[Path, Path] = field(default_factory=dict)
    replaced: dict[Path, bytes | None] = field(default_factory=dict)

    def stage(self, path: Path, data: bytes) -> None:
        self.staged[path] = stage(path, data)

    def drop(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            self.staged.pop(path).unlink()

    def place(self, path: Path) -> None:
        try:
            before = read_record(path)
        except Unreadable:
            before = None
        self.staged[path].replace(path)
        del self.staged[path]
        self.replaced[path] = before

    def take_back(self) -> None:
        for path in list(self.staged):
            self.drop(path)
        for path, before in self.replaced.items():
            # Whatever failed may fail again; what can be mended is.
            with contextlib.suppress(OSError):
                if before is None:
                    path.unlink(missing_ok=True)
                else:
                    write_record(path, before)


def _judged(store: RecordStore, record: Record, now_s: float) -> Merged:
    here = _held(store, record.key)
    if here is None:
        return Merged(record, None, Fate.ADDED)
    if here == record:
        return Merged(record, here, Fate.SAME)
    same_winner = (here.winner, here.winner_revision) == (record.winner, record.winner_revision)
    if evidence(record, now_s) > evidence(here, now_s):
        return Merged(record, here, Fate.BETTER if same_winner else Fate.WON)
    return Merged(record, here, Fate.WORSE if same_winner else Fate.LOST)


def _placed(store: RecordStore, planned: Merged, writing: _Writing, now_s: float) -> Merged:
    if not planned.taken:
        return planned
    path = store.path_of(planned.record.key)
    # Another process may have answered the question since the plan was made.
    if _held(store, planned.record.key) != planned.here:
        again = _judged(store, planned.record, now_s)
        if not again.taken:
            writing.drop(path)
            return again
        planned = again
    writing.place(path)
    return planned


def _held(store: RecordStore, key: str) -> Record | None:
    """Returns what a store holds for a key, silently ``None`` where that can't be relied on."""
    try:
        data = read_record(store.path_of(key))
        record = None if data is None else decode(data)
    except Unreadable:
        return None
    return record if record is not None and record.key == key else None
