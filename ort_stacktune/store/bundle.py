"""Owns the bundle: the records of many questions in one file, format 1, to be carried to another machine.

Must never give out part of a bundle: every record in it can be relied on, or none is read. Nothing in it is
executed and no name in it becomes a path.

The text is one header line with the number of records and a checksum of all that follows, then the records'
own texts as they lie in a store, each with its own header line and checksum. A line of a record's JSON begins
with a space or a bracket, so no content can be taken for the header of another record.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from ort_stacktune.failures import invalid
from ort_stacktune.identity import text_digest
from ort_stacktune.store.checks import Unreadable
from ort_stacktune.store.files import MAX_BYTES as MAX_RECORD_BYTES
from ort_stacktune.store.files import stage, sync_directory
from ort_stacktune.store.record import Record, decode, encode

FORMAT = 1

MAX_RECORDS = 65536
"""Most records in a bundle: as many as a store may be told to keep."""

MAX_BYTES = 512 * 1024 * 1024
"""Largest bundle that is written, and most that is ever read of one."""

_HEADER = re.compile(rb"ort_stacktune bundle ([0-9]{1,9}) records=([0-9]{1,9}) sha256=([0-9a-f]{64})\n")
_HEADER_BYTES = 160
_START_OF_RECORD = re.compile(rb"^ort_stacktune record ", re.MULTILINE)


def pack(records: Iterable[Record]) -> bytes:
    """Returns the text of a bundle; equal records give equal bytes, whatever their order.

    Raises:
        Unreadable: Where the text would not give back exactly these records, or is larger than allowed.
    """
    by_name = {text_digest(record.key): record for record in records}
    texts = [encode(by_name[name]) for name in sorted(by_name)]
    if any(len(text) > MAX_RECORD_BYTES for text in texts):
        raise Unreadable(f"a record takes more than the {MAX_RECORD_BYTES} bytes of any record")
    body = b"".join(texts)
    header = f"ort_stacktune bundle {FORMAT} records={len(texts)} sha256={hashlib.sha256(body).hexdigest()}\n"
    if len(texts) > MAX_RECORDS or len(header) + len(body) > MAX_BYTES:
        raise Unreadable(
            f"{len(texts)} records take {len(body)} bytes; a bundle holds {MAX_RECORDS} in {MAX_BYTES} bytes"
        )
    return header.encode() + body


def unpack(data: bytes) -> list[Record]:
    """Returns the records of a bundle, each checked as on being read from a store.

    Raises:
        Unreadable: Where anything about the text is not as :func:`pack` writes it.
    """
    header = _HEADER.match(data[:_HEADER_BYTES])
    if header is None:
        raise Unreadable("its first line is not the header of a bundle")
    if int(header[1]) != FORMAT:
        raise Unreadable(f"it is of format {int(header[1])}; this version reads format {FORMAT}")
    body = memoryview(data)[header.end() :]
    if hashlib.sha256(body).hexdigest().encode() != header[3]:
        raise Unreadable("its checksum is wrong: the file was damaged, cut short or edited")
    starts = [found.start() for found in _START_OF_RECORD.finditer(body)]
    said = int(header[2])
    if said > MAX_RECORDS or len(starts) != said:
        raise Unreadable(f"it holds {len(starts)} records where its first line says {said}")
    if len(body) and starts[:1] != [0]:
        raise Unreadable("it holds something that is no record")
    records = []
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(body)], strict=False), 1):
        try:
            records.append(_checked(bytes(body[start:end])))
        except Unreadable as reason:
            raise Unreadable(f"record {number} of {said} can't be relied on: {reason}") from None
    if len({record.key for record in records}) != said:
        raise Unreadable("it holds two records for one question")
    return records


def write_bundle(path: Path, records: Iterable[Record]) -> int:
    """Writes a bundle as a whole, in place of a file that was there, and returns its size in bytes.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where the place can't be written to or the records can't be packed;
            what was there is left as it was.
    """
    if path.exists() and not path.is_file():
        raise invalid(f"{path} is no file; name one for the bundle")
    try:
        data = pack(records)
        temporary = stage(path, data, 0o666)
    except Unreadable as reason:
        raise invalid(f"the bundle {path} was not written: {reason}") from None
    except (OSError, ValueError) as error:
        raise invalid(f"the bundle {path} can't be written: {_because(error)}") from error
    try:
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise invalid(f"the bundle {path} can't be written: {error.strerror}") from error
    sync_directory(path.parent)
    return len(data)


def read_bundle(path: Path) -> list[Record]:
    """Returns the records of a bundle's file.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where the file is missing or can't be read, or where anything in it
            can't be relied on.
    """
    try:
        return unpack(_read(path))
    except Unreadable as reason:
        raise invalid(f"the bundle {path} can't be used because {reason}") from None
    except (OSError, ValueError) as error:
        raise invalid(f"the bundle {path} can't be read: {_because(error)}") from error


def _read(path: Path) -> bytes:
    # Without O_NONBLOCK a FIFO would block the open for good.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("it is not a regular file")
        if status.st_size > MAX_BYTES:
            raise Unreadable(f"it has {status.st_size} bytes, more than the {MAX_BYTES} of any bundle")
        return file.read(MAX_BYTES + 1)


def _because(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _checked(text: bytes) -> Record:
    if len(text) > MAX_RECORD_BYTES:
        raise Unreadable(f"it has {len(text)} bytes, more than the {MAX_RECORD_BYTES} of any record")
    return decode(text)
