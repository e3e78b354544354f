"""Owns what a command says and where: its answer on standard output, everything else on standard error.

Must never let anything but the one document onto standard output under ``--json``.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import PurePath
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from ort_stacktune.report import printable

_WIDTH_OF_FILES = 120
_PATIENCE_S = 1.0
# Each redraw takes time from whatever is being measured meanwhile.
_REDRAW_S = 0.5


class Output:
    """Where a command's answer goes.

    Args:
        as_json: Whether the answer is one JSON document instead of text.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._console = _console()

    def document(self, value: object) -> None:
        """Prints the answer for machines."""
        sys.stdout.write(json.dumps(as_json(value), indent=2, allow_nan=False) + "\n")
        sys.stdout.flush()

    def show(self, *parts: RenderableType) -> None:
        """Prints parts of the answer for people; plain text is wrapped at words."""
        for part in parts:
            self._console.print(Text(printable(part)) if isinstance(part, str) else part)

    def show_whole(self, text: str) -> None:
        """Prints one line for people as it is, however long, to be copied."""
        self._console.print(Text(printable(text)), soft_wrap=True)


def complain(sentence: str, kind: str = "error") -> None:
    """Says a sentence on standard error."""
    print(f"ort-stacktune: {kind}: {printable(sentence)}", file=sys.stderr)


def as_json(value: Any) -> Any:
    """Returns a value as JSON has it: fields by name, enums by name, paths as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: as_json(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_json(each) for each in value]
    return value


@contextmanager
def working(what: str, limit_s: float | None = None) -> Iterator[None]:
    """Shows on a terminal's standard error that work is under way, once it takes longer than a second.

    Args:
        what: What is being done.
        limit_s: Seconds that it may take, for a bar; ``None`` where nobody knows.
    """
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    drawing = threading.Thread(target=_draw, args=(what, limit_s, done), daemon=True)
    drawing.start()
    try:
        yield
    finally:
        done.set()
        drawing.join()


@contextmanager
def warnings_gathered(*, say: bool = True) -> Iterator[list[str]]:
    """Takes the warnings of this package's log, to be said when nothing is being drawn.

    Args:
        say: Whether they are said at the end; the caller has another place for them otherwise.
    """
    gathered: list[str] = []

    class _Gatherer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            gathered.append(record.getMessage())

    logger = logging.getLogger("ort_stacktune")
    handler, propagate = _Gatherer(logging.WARNING), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield gathered
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
        for sentence in gathered if say else ():
            complain(sentence, "warning")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the process here; how a closed pipe ends a command is decided in one place.
        raise BrokenPipeError


def _console() -> Console:
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return _Console(
        file=sys.stdout,
        width=_WIDTH_OF_FILES if wide else None,
        markup=False,
        emoji=False,
        highlight=False,
    )


def _draw(what: str, limit_s: float | None, done: threading.Event) -> None:
    started_s = time.monotonic()
    if done.wait(_PATIENCE_S):
        return
    columns = [
        SpinnerColumn("line"),
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.completed:.0f} s"),
    ]
    if limit_s is not None:
        columns += [BarColumn(20), TextColumn(f"at most about {limit_s:.0f} s")]
    with Progress(
        *columns,
        console=Console(file=sys.stderr, markup=False, emoji=False, highlight=False),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as progress:
        task = progress.add_task(printable(what), total=limit_s)
        while not done.wait(_REDRAW_S):
            progress.update(task, completed=time.monotonic() - started_s)
            progress.refresh()
