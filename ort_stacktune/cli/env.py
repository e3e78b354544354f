"""Owns the command ``env``: what identifies this environment, and whether choices can be stored."""

from __future__ import annotations

import argparse
from typing import Any

from ort_stacktune.cli.arguments import cache_directory
from ort_stacktune.cli.console import Output
from ort_stacktune.cli.running import load_onnxruntime
from ort_stacktune.cli.tables import facts_table


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command to the parser's."""
    parser = commands.add_parser(
        "env",
        parents=[common],
        allow_abbrev=False,
        help="show what decides the identity of this environment",
        description="Shows what decides the identity of this environment. A stored choice counts only where"
        " all of it is the same. ORT_STACKTUNE_DRIVER_TAG and ORT_STACKTUNE_BUILD_TAG name a driver or a"
        " build that can't be read; ORT_STACKTUNE_CONTEXT_TAG says how the machine is shared.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, output: Output) -> int:
    """Runs the command."""
    load_onnxruntime()
    from ort_stacktune.environment import describe, runtime_environment

    directory = cache_directory(args.cache)
    facts = describe()
    environment = runtime_environment()
    if output.as_json:
        output.document(
            {
                "fingerprint": environment.fingerprint,
                "persistent": environment.persistent,
                "execution_context": environment.execution_context,
                "facts": facts,
                "cache_directory": directory,
            }
        )
    else:
        output.show(facts_table([*facts.items(), ("cache directory", str(directory))]))
    return 0
