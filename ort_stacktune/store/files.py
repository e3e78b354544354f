"""Owns how records touch the disk: which directories and files are trusted, and reads and writes that can't
hang, mislead or leave half a file.

Must never know what a record means: here a record is bytes under a name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import stat
from pathlib import Path

from ort_stacktune.store.checks import Unreadable

MAX_BYTES = 4 * 1024 * 1024
"""Largest record that is written, and most that is ever read of one."""

# Not every system has each of these; O_BINARY keeps Windows from translating line ends.
_NO_SURPRISES = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


class Refused(Exception):
    """A directory that must be neither read nor written; ``str()`` is the whole reason."""


def check_directory(path: Path) -> None:
    """Accepts a directory that can be trusted, or the absence of one; symbolic links are followed.

    Raises:
        Refused: Where what is there can't be examined, is no directory, or could have been filled by
            anyone but this user or root.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise Refused(f"{path} can't be a directory: a part of its path is a file") from None
    except OSError as error:
        raise Refused(f"{path} can't be examined: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise Refused(f"{path} is not a directory")
    fault = _fault(path, status)
    if fault is not None:
        raise Refused(f"{path} {fault}")


def read_record(path: Path) -> bytes | None:
    """Returns the bytes of a record's file; ``None`` where there is none.

    Raises:
        Unreadable: Where it is no regular file of this user or root that only they may write to, or is
            too large, or can't be read.
    """
    try:
        # Without O_NONBLOCK a FIFO planted here would block the open for good.
        descriptor = os.open(path, os.O_RDONLY | _NO_SURPRISES)
    except FileNotFoundError:
        return None
    except OSError as error:
        if os.path.islink(path):  # noqa: PTH114 - Path.is_symlink raises where it can't look
            raise Unreadable("it is a symbolic link, not a regular file") from None
        raise Unreadable(f"it can't be opened: {error.strerror}") from None
    try:
        return _read_trusted(path, descriptor)
    except OSError as error:
        raise Unreadable(f"it can't be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def write_record(path: Path, data: bytes) -> None:
    """Replaces a record's file as a whole; on any failure the old one is left as it was.

    Raises:
        OSError: Where the file can't be written.
    """
    temporary = stage(path, data)
    try:
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def stage(path: Path, data: bytes, mode: int = 0o600) -> Path:
    """Writes what is to replace a file beside it, safely on the disk, and returns where it lies.

    Args:
        path: The file that is to be replaced.
        data: Its new content.
        mode: Permissions of the new file, less what the process's umask takes away.

    Raises:
        OSError: Where it can't be written; nothing is left behind.
    """
    temporary = path.with_name(f"{path.stem}.{os.getpid()}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_SURPRISES, mode)
    try:
        try:
            _write_all(descriptor, data)
            # Without this a power cut after the rename may leave an empty file under the record's name.
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return temporary


def make_directory(path: Path) -> None:
    """Makes a directory and those above it that are missing, each for this user only.

    Raises:
        OSError: Where one can't be made.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            each.mkdir(0o700)


def sync_directory(path: Path) -> None:
    """Makes what was renamed in a directory last, where its file system can promise that."""
    if os.name != "posix":
        return
    # Some file systems refuse this; the record is whole and in place either way.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_SURPRISES)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _read_trusted(path: Path, descriptor: int) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable("it is not a regular file")
    fault = _fault(path, status)
    if fault is not None:
        raise Unreadable(f"it {fault}")
    if status.st_size > MAX_BYTES:
        raise Unreadable(f"it has {status.st_size} bytes, more than the {MAX_BYTES} of any record")
    with open(descriptor, "rb", closefd=False) as file:
        return file.read(MAX_BYTES)


def _fault(path: Path, status: os.stat_result) -> str | None:
    """Returns how others could have written to a file or directory and what mends it, or ``None``."""
    if os.name != "posix":
        return None
    user = os.geteuid()
    name = shlex.quote(str(path))
    if status.st_uid not in (user, 0):
        return (
            f"belongs to user {status.st_uid}, who is neither this user ({user}) nor root;"
            f" if its contents can be trusted, 'chown {user} {name}' mends that"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return (
            f"may be written to by its group or by others (mode {mode:04o}, owner {status.st_uid});"
            f" if its contents can be trusted, 'chmod go-w {name}' mends that"
        )
    return None


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
