"""Owns the command line's frame: which command runs, how a failure ends it and with which status.

A mistake of the user's ends in one sentence on standard error, never in a traceback. Exit status: 0 done ·
1 done, but something was rejected or differs where that was the question · 2 wrong usage or input · 3 the
reference itself failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ort_stacktune import __version__
from ort_stacktune.cli import cache, env, prewarm, report, tune
from ort_stacktune.cli.arguments import common_options
from ort_stacktune.cli.console import Output, complain
from ort_stacktune.failures import FailureKind, TuneFailure

DONE = 0
WRONG_INPUT = 2
REFERENCE_FAILED = 3
# What a shell reports for a program that SIGINT or SIGPIPE ended.
INTERRUPTED = 130
PIPE_CLOSED = 141


def entry() -> NoReturn:
    """Runs the command line of this process and ends it."""
    # A caller may have closed them; Python then has None in their place.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - open while the process lives
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Runs one command line.

    Args:
        arguments: The arguments after the program's name.

    Returns:
        The exit status.
    """
    if hasattr(sys.stdout, "reconfigure"):
        # A name that the terminal's encoding lacks is no reason to fail.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        args = _parsed(arguments)
        output = Output(as_json=args.json)
        status = _ran(args, output)
        sys.stdout.flush()
    except BrokenPipeError:
        # Or the interpreter would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        complain("interrupted", "note")
        return INTERRUPTED
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else WRONG_INPUT
    return status


def _ran(args: argparse.Namespace, output: Output) -> int:
    try:
        status: int = args.run(args, output)
    except TuneFailure as failure:
        complain(failure.message)
        if output.as_json:
            output.document({"error": {"kind": failure.kind, "message": failure.message}})
        return WRONG_INPUT if failure.kind is FailureKind.INVALID_INPUT else REFERENCE_FAILED
    return status


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ort-stacktune",
        description="Finds the fastest verified way to run an ONNX model on this machine, and remembers it.",
        epilog="Exit status: 0 done, 1 done but something was rejected or differs where that is the question,"
        " 2 wrong usage or input, 3 the reference itself failed.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ort-stacktune {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    common = common_options()
    for command in (tune, prewarm, report, cache, env):
        command.add(commands, common)
    args, extra = parser.parse_known_args(arguments)
    if extra:
        parser.error(
            f"unexpected {extra[0]!r}; an option that may be given several times takes one value each"
        )
    return args
