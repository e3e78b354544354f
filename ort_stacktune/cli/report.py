"""Owns the command ``report``: what the stored choices show, on a terminal, as one page or as one document.

Must never change a stored choice, and never run a model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_stacktune.cli.arguments import cache_directory
from ort_stacktune.cli.console import Output, complain, working
from ort_stacktune.cli.store import is_leftover, record_files
from ort_stacktune.failures import TuneFailure, invalid
from ort_stacktune.report import words
from ort_stacktune.report.page import page
from ort_stacktune.report.terminal import TerminalReport, overview_text
from ort_stacktune.report.view import ReportView, build
from ort_stacktune.store import Record

_MOST_NAMED = 5


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command to the parser's."""
    parser = commands.add_parser(
        "report",
        parents=[common],
        allow_abbrev=False,
        help="show what the searches found, here or as a page for others",
        description="Shows for each stored signature how its candidates did against the reference: paired"
        " ratios with intervals, verdicts, first costs and reasons. On the strips, | is the reference's speed"
        " and : the least gain worth a change.",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write the report as one page of HTML that needs no network, instead of printing all of it",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        nargs="+",
        action="extend",
        default=[],
        help="only models whose name holds NAME or whose digest begins with it; the path of a model's file"
        " names that model, and titles it by its file",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, output: Output) -> int:
    """Runs the command."""
    directory = cache_directory(args.cache)
    with working("reading records"):
        good, bad = record_files(directory)
        view = _view([file.record for file in good], args.model)
    unreadable = [entry for entry in bad if not is_leftover(entry)]
    written = None if args.html is None else _written(Path(args.html), view)
    if unreadable:
        complain(
            f"{words.number_of(len(unreadable), 'file')} can't be relied on; see cache verify", "warning"
        )
    if output.as_json:
        output.document(
            {"directory": directory, "html": None if written is None else written.path, **_document(view)}
        )
        return 0
    if view.overview is None:
        output.show(f"No choices are stored in {directory}.")
    elif written is None:
        output.show(TerminalReport(view))
    else:
        output.show(overview_text(view.overview))
    if written is not None:
        output.show_whole(f"Written to {written.path} ({written.size / 1024:.0f} KiB)")
    return 0


@dataclass(frozen=True, slots=True)
class _Written:
    path: Path
    size: int


def _view(records: Sequence[Record], names: Sequence[str]) -> ReportView:
    """Returns the view of the models asked for; of all where none is named."""
    if not names:
        return build(records)
    titles = _titles([name for name in names if Path(name).is_file()])
    wanted = [name.lower() for name in names if not Path(name).is_file()]
    models = {
        operation: words.model_name(operation) for operation in {each.report.operation for each in records}
    }
    for name in wanted:
        if not any(_fits(name, *model) for model in models.values()):
            raise _unknown(repr(name), models)
    chosen = {
        operation
        for operation, (model, digest) in models.items()
        if digest in titles or any(_fits(name, model, digest) for name in wanted)
    }
    if not chosen:
        raise _unknown(" or ".join(map(repr, titles.values())), models)
    return build([each for each in records if each.report.operation in chosen], titles)


def _titles(files: Sequence[str]) -> dict[str, str]:
    # It needs onnx, which takes longer to load than a report to make.
    from ort_stacktune.ort.model import ModelSource

    return {ModelSource.of(file).digest(): Path(file).name for file in files}


def _fits(wanted: str, name: str, digest: str) -> bool:
    return bool(wanted) and (wanted in name.lower() or digest.startswith(wanted))


def _unknown(wanted: str, operations: Iterable[str]) -> TuneFailure:
    known = sorted(map(words.model_text, operations))
    listed = ", ".join(known[:_MOST_NAMED]) + (", ..." if len(known) > _MOST_NAMED else "")
    return invalid(
        f"no stored choice is for the model {wanted}; there are {listed or 'none'}; a model may also be named by"
        " the path of its file"
    )


def _written(path: Path, view: ReportView) -> _Written:
    data = page(view).encode()
    try:
        path.write_bytes(data)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise invalid(f"the report can't be written to {path}: {why}") from error
    return _Written(path.absolute(), len(data))


def _document(view: ReportView) -> dict[str, Any]:
    return {
        "overview": view.overview,
        "signatures": view.signatures,
        "environments": [
            {"signatures": each.signatures, "facts": dict(each.facts), "differing": sorted(each.differing)}
            for each in view.environments
        ],
    }
