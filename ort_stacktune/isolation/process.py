"""Owns one process of trials as its parent sees it: how it is started, asked, watched and ended.

Must never leave it running, unreaped or unread, and must never wait longer than allowed: the parent looks at it
all the while, and ends it with everything it started when it has taken too long or too much.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from multiprocessing import spawn
from pathlib import Path

from ort_stacktune.environment import decides_speed
from ort_stacktune.failures import Fault
from ort_stacktune.isolation.board import Board, Phase, Sight
from ort_stacktune.isolation.cargo import Cargo
from ort_stacktune.isolation.messages import (
    LENGTH,
    MAX_BYTES,
    Answer,
    Call,
    Command,
    Orders,
    decode_answer,
    encode_command,
)
from ort_stacktune.machine import held_bytes, out_of_memory_kills
from ort_stacktune.store.checks import Unreadable

_START_S = 120.0
# What our own code may take between two runs, such as comparing outputs: nobody's fault, but not for ever.
_OWN_S = 300.0
_GRACE_S = 1.0

# How often the process is looked at: while it is in the making, memory may go fast; later, looking disturbs.
_LOOK_SOON_S = 0.01
_LOOK_S = 0.05

_FIRST_FREE = 3

_LAST_WORDS = 2048
_QUOTED = 200

_BOOT = (
    "import sys, json; given = json.loads(sys.argv[1]); sys.path[:] = given.pop('path');"
    " from ort_stacktune.isolation.worker import main; main(given)"
)

# Without these, or with others, a session would be another one than here: what finds and steers libraries.
_VARIABLES = frozenset(
    {
        "ADSP_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
        "GLIBC_TUNABLES",
        "HOME",
        "LANG",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "LOGNAME",
        "PATH",
        "TEMP",
        "TMP",
        "TMPDIR",
        "TZ",
        "USER",
        "XDG_CACHE_HOME",
        "XDG_RUNTIME_DIR",
    }
)
_VARIABLE_PREFIXES = (
    "CUBLAS",
    "CUDA_",
    "CUDNN_",
    "GOMP_",
    "HIP_",
    "HSA_",
    "INTEL_",
    "KMP_",
    "LC_",
    "MALLOC_",
    "MKL_",
    "NVIDIA_",
    "OCL_",
    "OMP_",
    "OPENBLAS_",
    "OPENVINO_",
    "ORT_",
    "OV_",
    "ROCM_",
    "ROCR_",
    "SYCL_",
    "TBB_",
    "VK_",
    "ZE_",
)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a process may take while it does one thing.

    Attributes:
        create_s: Seconds to make a session and run it once.
        run_s: Seconds for a run.
        memory_bytes: Memory it may hold; ``None`` where that can't be watched.
        whose: Who set that limit, in words.
    """

    create_s: float
    run_s: float
    memory_bytes: int | None = None
    whose: str = ""


class WorkerLost(Exception):
    """A process of trials has ended, or had to be ended.

    Args:
        fault: How.
        note: How, in words, beginning with "its process".
        phase: What it was at.
        candidate: Position of the candidate it was at it with.

    Attributes:
        may_be_from_outside: Whether it ended as another process would end it.
    """

    def __init__(self, fault: Fault, note: str, phase: Phase, candidate: int) -> None:
        super().__init__(note)
        self.fault = fault
        self.note = note
        self.phase = phase
        self.candidate = candidate
        self.may_be_from_outside = False


class WorkerProcess:
    """A fresh interpreter that runs trials, in a process group of its own.

    On Linux it ends with the thread that started it at the latest, however that thread or its process ends.

    Args:
        cargo: The trials.
        output_bytes: Most bytes of all outputs of one run.
        niceness: Added to its niceness; above 0 for a lower priority.

    Raises:
        OSError: It can't be started.
    """

    def __init__(self, cargo: Cargo, *, output_bytes: int, niceness: int = 0) -> None:
        self._numbers = iter(range(1, 1 << 62))
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._ended = False
        self.is_awaited = False
        self._words = b""
        self._unread = b""
        self._kills = out_of_memory_kills()
        self._open: list[int] = []
        try:
            self._start(cargo, output_bytes, niceness)
        except BaseException:
            self._close_descriptors()
            raise
        _living.add(self)
        _prepare()

    @property
    def pid(self) -> int:
        """Its process id, and the id of its group."""
        return self._process.pid

    def held_bytes(self) -> int | None:
        """Returns the memory it holds; ``None`` where the system doesn't tell."""
        return held_bytes(self.pid)

    def call(self, call: Call, candidate: int, allowance: Allowance, **details: object) -> Answer:
        """Has it do one thing and waits for the answer.

        Raises:
            WorkerLost: It ended, or took more than allowed and was ended; it is reaped.
        """
        command = Command(next(self._numbers), call, candidate, **details)  # type: ignore[arg-type]
        frame = encode_command(command)
        try:
            # Far less than a pipe takes, and the last answer has been read: it never blocks.
            os.write(self._commands, frame)
        except OSError:
            raise self._lost_by_itself() from None
        self.is_awaited = True
        try:
            data = self._wait(_Watch(self, allowance))
        finally:
            self.is_awaited = False
        try:
            return decode_answer(data, command)
        except Unreadable as reason:
            raise self._ended_for(
                Fault.PROTOCOL, f"gave an answer that can't be used, because {reason}"
            ) from None

    def interrupt(self) -> None:
        """Kills it from another thread; the one that waits for it will find it lost."""
        with self._lock:
            if not self._ended:
                self._kill()

    def close(self) -> None:
        """Ends it, at its own pace for a moment, and reaps it."""
        if self._ended or os.getpid() != self._owner:
            return
        with contextlib.suppress(OSError):
            self._close_one(self._commands)
        deadline = time.monotonic() + _GRACE_S
        while not self._has_ended() and time.monotonic() < deadline:
            self._listen(0.01)
        self._end()

    def _start(self, cargo: Cargo, output_bytes: int, niceness: int) -> None:
        if os.name != "posix":
            raise OSError("trials in a process of their own need a POSIX system; use isolation='inline'")
        board = self._keep(_shared_memory(Board.BYTES))
        packed = self._keep(os.dup(cargo.file.fileno()))
        commands, self._commands = map(self._keep, os.pipe())
        self._answers, answers = map(self._keep, os.pipe())
        lifeline, _ = map(self._keep, os.pipe())
        self._said, said = map(self._keep, os.pipe())
        self._board = Board(board)
        orders = Orders(
            os.getpid(),
            commands,
            answers,
            lifeline,
            board,
            packed,
            cargo.start,
            cargo.size,
            output_bytes,
            niceness,
        )
        self._process = subprocess.Popen(
            [_interpreter(), "-I", "-c", _BOOT, json.dumps({**asdict(orders), "path": _search_path()})],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={name: value for name, value in os.environ.items() if _is_passed_on(name)},
            pass_fds=(commands, answers, lifeline, board, packed),
            start_new_session=True,
        )
        for descriptor in (commands, answers, lifeline, said, board, packed):
            self._close_one(descriptor)
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._answers, self._said):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)

    def _wait(self, watch: _Watch) -> bytes:
        """Returns the next message from it."""
        while True:
            closed = self._listen(watch.interval_s())
            if (message := self._message()) is not None:
                return message
            if closed or self._has_ended():
                # What it wrote before it ended is an answer all the same.
                self._listen(0.0)
                if (message := self._message()) is not None:
                    return message
                raise self._lost_by_itself()
            if (over := watch.over()) is not None:
                raise self._ended_for(*over)

    def _message(self) -> bytes | None:
        if len(self._unread) < LENGTH.size:
            return None
        size = LENGTH.unpack_from(self._unread)[0]
        if size > MAX_BYTES:
            raise self._ended_for(
                Fault.PROTOCOL, f"began an answer of {size} bytes, more than any answer has"
            )
        end = LENGTH.size + size
        if len(self._unread) < end:
            return None
        message, self._unread = self._unread[LENGTH.size : end], self._unread[end:]
        return message

    def _listen(self, timeout_s: float) -> bool:
        """Takes in what it writes and says; returns whether it has closed its side of the answers."""
        closed = False
        for key, _ in self._selector.select(timeout_s):
            try:
                data = os.read(key.fd, 65536)
            except BlockingIOError:
                continue
            if not data:
                self._selector.unregister(key.fd)
                closed = closed or key.fd == self._answers
            elif key.fd == self._answers:
                self._unread += data
            else:
                self._words = (self._words + data)[-_LAST_WORDS:]
        return closed

    def _lost_by_itself(self) -> WorkerLost:
        """Returns how it ended; a process that only closed its side is ended."""
        deadline = time.monotonic() + _GRACE_S
        while not self._has_ended():
            if time.monotonic() > deadline:
                return self._ended_for(Fault.PROTOCOL, "closed the line on which it answers")
            time.sleep(0.005)
        sight = self._board.look()
        status = self._end()
        if status >= 0:
            fault, how = Fault.EXIT, f"ended itself with status {status}"
        elif status == -signal.SIGKILL and out_of_memory_kills() != self._kills:
            fault, how = Fault.MEMORY, "was killed by the system, which had run out of memory,"
        else:
            fault, how = Fault.SIGNAL, f"died by {_signal_name(-status)}"
        lost = self._lost(fault, how, sight)
        # A fault in native code never ends a process that way, so that somebody else may have done it.
        lost.may_be_from_outside = status == -signal.SIGKILL and fault is Fault.SIGNAL
        return lost

    def _ended_for(self, fault: Fault, how: str) -> WorkerLost:
        """Ends it and returns why."""
        sight = self._board.look()
        self._end()
        return self._lost(fault, how, sight)

    def _lost(self, fault: Fault, how: str, sight: Sight) -> WorkerLost:
        note = f"its process {how} {_DOING[sight.phase]}"
        words = " ".join(self._words.decode("utf-8", "replace").split())
        printable = "".join(each if each.isprintable() else "?" for each in words)
        if printable:
            note += f"; last words: {printable[-_QUOTED:]}"
        return WorkerLost(fault, note, sight.phase, sight.candidate)

    def _has_ended(self) -> bool:
        """Whether it has ended; it is not reaped, so that its id still stands for its group."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return True

    def let_go(self) -> None:
        """Closes what a fork of this process was born with, so that the process still ends with its parent."""
        self._close_descriptors()

    def _kill(self) -> None:
        if os.getpid() != self._owner:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _end(self) -> int:
        """Kills its group, reaps it and lets go of all that was for it; returns its exit status."""
        with self._lock:
            if not self._ended:
                self._kill()
                self._process.wait()
                self._ended = True
        if self in _living:
            _living.discard(self)
            # Its last words.
            self._listen(0.0)
            self._selector.close()
            self._board.close()
            self._close_descriptors()
        return self._process.returncode

    def _keep(self, descriptor: int) -> int:
        # Where this process has closed its standard streams, the first descriptors are free and not usable:
        # the new process's own streams take their place.
        low = []
        while descriptor < _FIRST_FREE:
            low.append(descriptor)
            descriptor = os.dup(descriptor)
        for each in low:
            os.close(each)
        self._open.append(descriptor)
        return descriptor

    def _close_one(self, descriptor: int) -> None:
        self._open.remove(descriptor)
        os.close(descriptor)

    def _close_descriptors(self) -> None:
        while self._open:
            os.close(self._open.pop())


_DOING = {
    Phase.START: "while it came up",
    Phase.OWN: "between two runs",
    Phase.CREATE: "while its session was made",
    Phase.RUN: "while it ran",
    Phase.RELEASE: "while its session was closed",
}


class _Watch:
    """Holds what a process is seen to take against what it may."""

    def __init__(self, worker: WorkerProcess, allowance: Allowance) -> None:
        self._worker = worker
        self._allowance = allowance
        self._seen = worker._board.look()
        self._since_s = time.monotonic()

    def interval_s(self) -> float:
        """Returns how soon to look again."""
        return _LOOK_S if self._seen.phase is Phase.RUN else _LOOK_SOON_S

    def over(self) -> tuple[Fault, str] | None:
        """Returns which limit it is over and what it did, or ``None``."""
        sight, now_s = self._worker._board.look(), time.monotonic()
        if sight != self._seen:
            self._seen, self._since_s = sight, now_s
        limit_s, name = {
            Phase.START: (_START_S, "its start may take"),
            Phase.CREATE: (self._allowance.create_s, "limits.create_s"),
            Phase.RUN: (self._allowance.run_s, "limits.run_s"),
        }.get(sight.phase, (_OWN_S, "anything may take"))
        if now_s - self._since_s > limit_s:
            return Fault.TIMEOUT, f"was ended because it took more than {name} {limit_s:g} s"
        limit = self._allowance.memory_bytes
        held = None if limit is None else self._worker.held_bytes()
        if limit is not None and held is not None and held > limit:
            return (
                Fault.MEMORY,
                f"was ended because it held {held >> 20} MiB, more than {self._allowance.whose} {limit >> 20} MiB,",
            )
        return None


_living: set[WorkerProcess] = set()
_prepared = False
_ending = False


def _prepare() -> None:
    """Sees to it that no process of trials outlives this one, or hangs on what a fork of it holds open."""
    global _prepared
    if not _prepared:
        _prepared = True
        atexit.register(_end_all)
        os.register_at_fork(after_in_child=_let_go_of_all)


def is_ending() -> bool:
    """Returns whether this interpreter is about to end, so that no process of trials is to be started any more."""
    return _ending


def _end_all() -> None:
    global _ending
    _ending = True
    for worker in list(_living):
        worker.interrupt()
        # Another thread may be waiting for it; what that thread holds goes with the interpreter.
        if not worker.is_awaited:
            worker.close()


def _let_go_of_all() -> None:
    for worker in list(_living):
        worker.let_go()
    _living.clear()


def _interpreter() -> str:
    program = os.fsdecode(spawn.get_executable() or "")
    if getattr(sys, "frozen", False) or not program:
        raise OSError("there is no Python interpreter to start; multiprocessing.set_executable() names one")
    return program


def _search_path() -> list[str]:
    """Returns where this process finds its modules, without the working directory."""
    home = str(Path(__file__).resolve().parents[2])
    path = [entry for entry in sys.path if os.path.isabs(entry)]  # noqa: PTH117 - entries are texts
    return path if home in path else [*path, home]


def _is_passed_on(name: str) -> bool:
    return name in _VARIABLES or name.startswith(_VARIABLE_PREFIXES) or decides_speed(name)


def _shared_memory(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ort_stacktune", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
