"""Owns the reading of recorded traffic: the counts of all processes added up, and where samples lie.

Must never change what it reads, and never trust a directory that others could have filled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ort_stacktune.failures import invalid
from ort_stacktune.signature import CallSignature, parse_workload
from ort_stacktune.store.checks import Unreadable
from ort_stacktune.store.files import Refused, check_directory, read_record
from ort_stacktune.traffic.form import (
    COUNT_NAME,
    Counted,
    ModelUse,
    counts_folder,
    decode,
    sample_name,
    samples_folder,
)

_SAMPLE_NAME = re.compile(r"([0-9a-f]{32})-[0-9]+\.npz")


@dataclass(frozen=True, slots=True)
class TrafficEntry:
    """One exact signature of one model, and how often it came.

    Attributes:
        use: The model, and what it takes to make its reference again.
        workload: The signature's text; empty where the calls could not be read.
        weight: Calls in all processes, 1 or more.
        refused: Why such calls can't be tuned; empty where they can.
        samples: Files of sample inputs, as ``numpy.savez`` writes them.
    """

    use: ModelUse
    workload: str
    weight: int
    refused: str = ""
    samples: tuple[Path, ...] = ()

    def signature(self) -> CallSignature:
        """Returns the signature: names, element types, shapes, devices, steering values and outputs.

        Raises:
            TuneFailure: ``INVALID_INPUT`` where the calls could not be read, so that there is none.
        """
        return parse_workload(self.workload)


def read_traffic(
    path: str | os.PathLike[str], warn: Callable[[str], None] = lambda _: None
) -> list[TrafficEntry]:
    """Returns what was recorded in a directory by all processes, the most frequent signature first.

    Calls of one model with the same reference and signature are one entry, wherever the model lay.

    Args:
        path: The directory that was given to ``record``.
        warn: Takes a sentence for each file that can't be relied on; its counts are missing.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where there is no such directory, or it can't be trusted or read.
    """
    directory = Path(path)
    counts = counts_folder(directory)
    try:
        check_directory(directory)
        check_directory(counts)
        names = sorted(each for each in counts.iterdir() if COUNT_NAME.fullmatch(each.name))
    except Refused as reason:
        raise invalid(f"the traffic can't be used because {reason}") from None
    except OSError as error:
        raise invalid(f"there is no recorded traffic in {directory}: {error.strerror}") from error
    found: dict[tuple[str, str, str], list[Counted]] = {}
    surplus = 0
    for name in names:
        try:
            data = read_record(name)
            counted, beyond = ([], 0) if data is None else decode(data)
        except Unreadable as reason:
            warn(f"the counts in {name} are ignored because {reason}")
            continue
        surplus += beyond
        for each in counted:
            found.setdefault((each.use.question(), each.workload, each.refused), []).append(each)
    if surplus:
        warn(f"{surplus} calls were of more signatures than a process keeps; they are not counted")
    samples = _samples(directory)
    entries = [
        TrafficEntry(
            max(same, key=lambda each: each.count).use,
            workload,
            sum(each.count for each in same),
            refused,
            tuple(samples.get(sample_name(same[0].use.digest, workload), ())),
        )
        for (_, workload, refused), same in found.items()
    ]
    return sorted(entries, key=lambda entry: (-entry.weight, entry.use.path, entry.workload))


def _samples(directory: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    try:
        check_directory(samples_folder(directory))
        paths = sorted(samples_folder(directory).iterdir())
    except (OSError, Refused):
        return {}
    for path in paths:
        name = _SAMPLE_NAME.fullmatch(path.name)
        if name is not None:
            found.setdefault(name[1], []).append(path)
    return found
