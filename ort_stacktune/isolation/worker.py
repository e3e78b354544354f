"""Owns what runs in the process of a trial: it does what it is told, one command at a time, and answers.

It must end when the process that started it is gone, whatever a candidate is doing to it at that moment, and
must never let a library's output or a library's crash reach that process in any other form than a message cut off.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import io
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ort_stacktune.failures import FailureKind, TuneFailure
from ort_stacktune.isolation.board import Board, Phase
from ort_stacktune.isolation.messages import (
    LENGTH,
    Answer,
    Call,
    Command,
    Orders,
    Value,
    decode_command,
    encode_answer,
)

_PR_SET_PDEATHSIG = 1


def main(given: dict[str, int]) -> None:
    """Serves until the commands end."""
    orders = Orders(**given)
    _end_with_parent(orders)
    _be_modest(orders.niceness)
    board = Board(orders.board)
    trials = _load(orders, board)
    for command in _commands(orders.commands):
        board.show(Phase.OWN, command.candidate)
        _send(orders.answers, _answer(trials, command))
    trials().close()
    # The destructors of whatever was loaded here have nothing to say to anybody.
    os._exit(0)


def _load(orders: Orders, board: Board) -> Callable[[], Any]:
    # Here and not above: loading ONNX Runtime takes the longest, and the parent may end meanwhile.
    from ort_stacktune.isolation.cargo import Cargo, unpack
    from ort_stacktune.isolation.watched import WatchedTrials
    from ort_stacktune.ort.loader import onnxruntime

    onnxruntime()
    with io.FileIO(orders.cargo) as file:
        trials = unpack(Cargo(file, orders.start, orders.size))
    # Made at the first call: what comes of a bad recipe is an answer.
    return functools.cache(lambda: WatchedTrials(trials, board, orders.output_bytes))


def _answer(trials: Callable[[], Any], command: Command) -> Answer:
    try:
        return Answer(command.number, None if command.call is Call.START else _obey(trials(), command))
    except TuneFailure as failure:
        return Answer(command.number, failure=failure)
    except Exception as error:  # noqa: BLE001 - whatever a candidate brings about is its own failure
        sentence = f"{type(error).__name__}: {error}"
        return Answer(command.number, failure=TuneFailure(FailureKind.REJECTED, sentence))


def _obey(trials: Any, command: Command) -> Value:
    candidate = command.candidate
    match command.call:
        case Call.VALIDATE:
            return trials.validate(trials.reference, candidate, command.tolerance)  # type: ignore[no-any-return]
        case Call.MEASURE:
            trials.begin_round(command.round, as_served=command.as_served)
            return trials.measure(candidate)  # type: ignore[no-any-return]
        case Call.FACTS:
            return dict(trials.facts(candidate))
        case Call.FIRST_COSTS:
            return trials.first_costs(candidate)  # type: ignore[no-any-return]
        case Call.ALL_COSTS:
            return trials.costs(candidate)  # type: ignore[no-any-return]
        case Call.RELEASE:
            trials.release(candidate)
    return None


def _commands(descriptor: int) -> Iterator[Command]:
    while (head := _read(descriptor, LENGTH.size)) is not None:
        body = _read(descriptor, LENGTH.unpack(head)[0])
        if body is None:
            return
        yield decode_command(body)


def _read(descriptor: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        part = os.read(descriptor, size - len(data))
        if not part:
            return None
        data += part
    return data


def _send(descriptor: int, answer: Answer) -> None:
    rest = memoryview(encode_answer(answer))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _end_with_parent(orders: Orders) -> None:
    """Sees to it that this process and its group end with the parent, also while a library holds the interpreter.

    The kernel kills the group when the pipe's other end is closed, which it is however the parent ends. The
    parent's forks may hold that end open a little longer, hence the signal at the parent's death as well.
    """
    for descriptor in (orders.commands, orders.answers, orders.lifeline, orders.board, orders.cargo):
        os.set_inheritable(descriptor, False)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with contextlib.suppress(OSError):
            fcntl.fcntl(orders.lifeline, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(orders.lifeline, fcntl.F_SETSIG, signal.SIGKILL)
            flags = fcntl.fcntl(orders.lifeline, fcntl.F_GETFL)
            fcntl.fcntl(orders.lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    else:
        threading.Thread(target=_wait_for_the_end, args=(orders.lifeline,), daemon=True).start()
    if os.getppid() != orders.parent or select.select([orders.lifeline], [], [], 0)[0]:
        os._exit(0)


def _wait_for_the_end(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _be_modest(niceness: int) -> None:
    """Makes this process the first to go and to wait where there is not enough for all."""
    if niceness:
        os.nice(niceness)
        # A process group of its own gets as large a share of the processor as its parent's, whatever is nice within
        # it, unless the group is told too.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(niceness))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Should memory run out faster than it can be watched, the system takes this process and not its parent.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
