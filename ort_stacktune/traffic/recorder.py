"""Owns the counting of calls in one process, and when its counts and samples reach the disk.

Must never make a call wait for the disk: a call adds one to a counter and, where a sample is wanted, has its
inputs copied; a thread of low duty writes now and then. Must never write to a file of another process, and
never raise for what the disk does.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import secrets
import threading
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ort_stacktune.failures import invalid
from ort_stacktune.signature import Array
from ort_stacktune.store.files import MAX_BYTES, Refused, check_directory, make_directory, stage, write_record
from ort_stacktune.traffic.form import (
    Counted,
    ModelUse,
    counts_folder,
    encode,
    sample_name,
    samples_folder,
)

_log = logging.getLogger("ort_stacktune")

MAX_SIGNATURES = 4096
"""Most signatures that a process keeps apart; calls of further ones are only added up."""

MAX_SAMPLES = 16

_INTERVAL_S = 10.0


@dataclass(slots=True)
class HitCount:
    """Calls served without asking anybody. Whoever serves adds to it, without a lock."""

    value: int = 0


class SignatureCount:
    """The calls of one signature to one model in this process.

    Attributes:
        use: The model and its reference.
        workload: The signature's text.
        refused: Why such calls can't be tuned; empty where they can.
        asked: Calls that were read one by one.
        samples_wanted: Samples of their inputs that are still to be kept.
        next_sample: Number of the call whose inputs are the next sample.
    """

    def __init__(self, use: ModelUse, workload: str, refused: str, samples_wanted: int) -> None:
        self.use = use
        self.workload = workload
        self.refused = refused
        self.asked = HitCount()
        self.samples_wanted = samples_wanted
        self.next_sample = 1
        self._hits: dict[object, HitCount] = {}
        self._not_ours = 0

    def hits_for(self, owner: object) -> HitCount:
        """Returns the counter of the calls that are served from a table on an owner's behalf."""
        return self._hits.setdefault(owner, HitCount())

    def calls(self) -> int:
        """Returns the calls of this process."""
        return self.asked.value + sum(hits.value for hits in [*self._hits.values()]) - self._not_ours

    def forget(self) -> None:
        """Leaves out the calls so far: another process counts them."""
        self._not_ours += self.calls()


class TrafficRecorder:
    """Counts the exact signatures of calls and writes the counts of this process to a directory.

    Many processes may record to one directory, each to a file of its own, which it replaces as a whole every
    few seconds and when the interpreter ends. A process that is killed loses the last seconds.

    Args:
        path: The directory; it is made when there is something to write.
        sample_count: Sample inputs to keep for each signature, 0 to 16: of its first call, its second, its
            fourth and so on. They are the callers' data as it is, in files that only this user can read.
        max_bytes: Most bytes of all samples in the directory together, 1 or more.
        interval_s: Seconds between writes, more than 0.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for a bad argument.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sample_count: int = 0,
        max_bytes: int = 64 * 1024 * 1024,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
        if not isinstance(text, str) or not text or "\0" in text:
            raise invalid(f"the directory to record to is {path!r}; expected a path")
        if not _is_whole(sample_count) or not 0 <= sample_count <= MAX_SAMPLES:
            raise invalid(
                f"sample_count is {sample_count!r}; expected a whole number from 0 to {MAX_SAMPLES}"
            )
        if not _is_whole(max_bytes) or max_bytes < 1:
            raise invalid(f"max_bytes is {max_bytes!r}; expected a whole number of 1 or more")
        if isinstance(interval_s, bool) or not isinstance(interval_s, int | float) or not interval_s > 0:
            raise invalid(f"interval_s is {interval_s!r}; expected seconds, more than 0")
        self.path = Path(text).absolute()
        self.sample_count = sample_count
        self._max_bytes = max_bytes
        self._interval_s = interval_s
        self._uses: dict[str, ModelUse] = {}
        self._counts: dict[tuple[int, str, str], SignatureCount] = {}
        self._surplus = SignatureCount(ModelUse("", "", ""), "", "", 0)
        self._pending: list[tuple[SignatureCount, dict[str, Array]]] = []
        self._pending_bytes = 0
        self._written = -1
        self._stopped = False
        self._begin_process()
        atexit.register(self.close)
        _watch_forks(self)

    def count_of(self, use: ModelUse, workload: str, refused: str = "") -> SignatureCount:
        """Returns where the calls of one signature are counted.

        Args:
            use: The model and its reference; equal ones count together.
            workload: The exact signature's text.
            refused: Why such calls can't be tuned; empty where they can.
        """
        text = use.text()
        with self._lock:
            use = self._uses.setdefault(text, use)
            key = (id(use), workload, refused)
            found = self._counts.get(key)
            if found is None:
                if len(self._counts) >= MAX_SIGNATURES:
                    return self._surplus
                wanted = 0 if refused else self.sample_count
                found = self._counts[key] = SignatureCount(use, workload, refused, wanted)
            if self._thread is None and not self._stopped:
                self._start_writing()
        return found

    def offer_sample(self, count: SignatureCount, feeds: Mapping[str, Array]) -> None:
        """Copies a call's inputs, to be written later, where its turn has come and there is room."""
        if count.samples_wanted < 1 or count.calls() < count.next_sample:
            return
        size = sum(array.nbytes for array in feeds.values())
        with self._lock:
            if count.samples_wanted < 1:
                return
            count.samples_wanted -= 1
            count.next_sample *= 2
            if self._stopped or self._pending_bytes + size > self._max_bytes:
                count.samples_wanted = 0
                return
            self._pending_bytes += size
        copies = {name: array.copy() for name, array in feeds.items()}
        with self._lock:
            self._pending.append((count, copies))

    def flush(self) -> None:
        """Writes what is new; where that fails, warns once and writes nothing more."""
        with self._writing:
            if self._stopped:
                return
            try:
                self._write()
            except Refused as reason:
                self._stop(f"because {reason}")
            except OSError as error:
                self._stop(f"because it can't be written: {error.strerror or error}")

    def close(self) -> None:
        """Writes what is new and ends the thread. Calls are counted on, and written by :meth:`flush`."""
        atexit.unregister(self.close)
        self._ended.set()
        self.flush()

    def _begin_process(self) -> None:
        # Locks that another thread held when this process was forked would never be free again.
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._name = f"{os.getpid()}-{secrets.token_hex(8)}.json"

    def _start_writing(self) -> None:
        self._thread = threading.Thread(
            target=_write_now_and_then,
            args=(weakref.ref(self), self._ended, self._interval_s),
            name="ort_stacktune traffic",
            daemon=True,
        )
        self._thread.start()

    def begin_child(self) -> None:
        """Goes on as the recorder of a process that was forked: its parent counts the calls so far."""
        was_writing = self._thread is not None and not self._ended.is_set()
        self._begin_process()
        self._written = -1
        self._pending, self._pending_bytes = [], 0
        for count in (*self._counts.values(), self._surplus):
            count.forget()
        if was_writing:
            self._start_writing()

    def _write(self) -> None:
        counted, surplus = self._snapshot()
        total = sum(each.count for each in counted) + surplus
        if total not in (0, self._written):
            folder = self._made(counts_folder(self.path))
            write_record(folder / self._name, _bounded(counted, surplus))
            self._written = total
        with self._lock:
            pending, self._pending = self._pending, []
        for count, feeds in pending:
            self._write_sample(count, feeds)
            with self._lock:
                self._pending_bytes -= sum(array.nbytes for array in feeds.values())

    def _snapshot(self) -> tuple[list[Counted], int]:
        with self._lock:
            counts = list(self._counts.values())
        counted = [Counted(each.use, each.workload, each.refused, each.calls()) for each in counts]
        return [each for each in counted if each.count > 0], self._surplus.calls()

    def _made(self, folder: Path) -> Path:
        check_directory(self.path)
        make_directory(folder)
        check_directory(folder)
        return folder

    def _write_sample(self, count: SignatureCount, feeds: Mapping[str, Array]) -> None:
        """Writes a sample under the first free number of its signature, if the directory has room."""
        folder = self._made(samples_folder(self.path))
        data = _npz(feeds)
        if len(data) + sum(_sizes(folder)) > self._max_bytes:
            count.samples_wanted = 0
            return
        name = sample_name(count.use.digest, count.workload)
        written = stage(folder / f"{name}.npz", data)
        try:
            for number in range(self.sample_count):
                # A link, unlike a rename, never takes the place of what another process has written.
                with contextlib.suppress(FileExistsError):
                    os.link(written, folder / f"{name}-{number}.npz")
                    return
            count.samples_wanted = 0
        finally:
            written.unlink()

    def _stop(self, why: str) -> None:
        self._stopped = True
        self._pending.clear()
        _log.warning("the traffic in %s is not recorded %s", self.path, why)


_recorders: dict[Path, TrafficRecorder] = {}
_forked: weakref.WeakSet[TrafficRecorder] | None = None
_table_lock = threading.Lock()


def recorder_for(record: str | os.PathLike[str] | TrafficRecorder, samples: int = 0) -> TrafficRecorder:
    """Returns the recorder that was given, or this process's one for a directory.

    Args:
        record: A recorder, which is returned, or a directory.
        samples: As ``sample_count`` of :class:`TrafficRecorder`, for a directory; the most asked for counts.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for a bad argument, or samples beside a recorder.
    """
    if isinstance(record, TrafficRecorder):
        if samples:
            raise invalid("record_samples goes with a path; a TrafficRecorder has its own sample_count")
        return record
    fresh = TrafficRecorder(record, sample_count=samples)
    with _table_lock:
        kept = _recorders.setdefault(fresh.path, fresh)
        if kept is not fresh:
            atexit.unregister(fresh.close)
            kept.sample_count = max(kept.sample_count, samples)
    return kept


def _watch_forks(recorder: TrafficRecorder) -> None:
    global _forked
    with _table_lock:
        if _forked is None:
            _forked = weakref.WeakSet()
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=_begin_child)
        _forked.add(recorder)


def _begin_child() -> None:
    for recorder in list(_forked or ()):
        recorder.begin_child()


def _write_now_and_then(
    recorder: weakref.ref[TrafficRecorder], ended: threading.Event, interval_s: float
) -> None:
    while not ended.wait(interval_s):
        here = recorder()
        if here is None:
            return
        here.flush()


def _bounded(counted: list[Counted], surplus: int) -> bytes:
    """Returns the text of counts; where it would be too large, the rarest signatures are only added up."""
    counted = sorted(counted, key=lambda each: -each.count)
    while len(data := encode(counted, surplus)) > MAX_BYTES:
        half = len(counted) // 2
        surplus += sum(each.count for each in counted[half:])
        counted = counted[:half]
    return data


def _npz(feeds: Mapping[str, Array]) -> bytes:
    """Returns arrays as ``numpy.savez`` writes them, which can't take every name that an input may have."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in feeds.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return file.getvalue()


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.glob("*.npz"):
        with contextlib.suppress(FileNotFoundError):
            yield path.stat().st_size


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
