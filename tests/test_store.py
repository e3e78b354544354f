"""What users of the record store rely on, tried with real files, processes and file systems."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ort_stacktune.failures import FailureKind, Fault, TuneFailure
from ort_stacktune.identity import fields, text_digest
from ort_stacktune.store import Record, RecordStore
from ort_stacktune.vocabulary import CandidateReport, Scope, TuneReport

KEY = fields(("ort_stacktune/key/1", "GRAPH", "model:0f3a", "cpu=x86_64;ort=1.32.0", "x:f32[1,3,224,224]"))
GOLDEN = Path(__file__).with_name("golden") / "record_v1.json"
STRANGER = 54321

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")


def a_record(key: str = KEY, **changes: Any) -> Record:
    report = TuneReport(
        operation="model:0f3a",
        environment="cpu=x86_64;ort=1.32.0",
        workload="x:f32[1,3,224,224]",
        execution_context="isolated-single-device",
        winner="two threads",
        elapsed_ns=1_234_567_890,
        budget_exhausted=False,
        candidates=(
            CandidateReport("reference", samples=9, ratio=1.0, verified=True, note="what the user wrote"),
            CandidateReport(
                "two threads",
                samples=9,
                ratio=0.1 + 0.2,
                relative_mad=0.0,
                verified=True,
                note="faster: 9 of 9 pairs",
                interval=(0.29, 0.31),
                median_ns=301_000,
                facts={"CPUExecutionProvider": "100 % of the nodes"},
                verdict="selected",
                create_ns=81_000_000,
                first_run_ns=2_400_000,
                switch_ns=310_000,
                peak_bytes=17 * 2**20,
            ),
            CandidateReport(
                "fp16",
                verdict="rejected",
                note="größte Abweichung 0.5\nim Ausgang „y“",
                rejection=FailureKind.REJECTED,
            ),
            CandidateReport(
                "a plugin",
                verdict="rejected",
                note="its process died by SIGABRT",
                rejection=FailureKind.REJECTED,
                fault=Fault.SIGNAL,
            ),
        ),
        seed=2**63 - 1,
        phases_ns={"reference": 34_567_890, "rounds": 1_200_000_000},
    )
    values: dict[str, Any] = {
        "key": key,
        "scope": Scope.GRAPH,
        "winner": "two threads",
        "winner_revision": "5b1c",
        "reference": "reference",
        "reference_revision": "1",
        "created_s": 1_764_000_000.123456,
        "reference_ns": 1_003_000,
        "selected_ns": 301_000,
        "ratio": 0.1 + 0.2,
        "verified": True,
        "report": report,
        "effort": {"samples": 7.0, "budget_s": 30.0},
    }
    return Record(**(values | changes))


class Kept:
    """A store in a directory and the warnings it gave."""

    def __init__(self, directory: Path, capacity: int = 1024) -> None:
        self.warnings: list[str] = []
        self.store = RecordStore(directory, capacity=capacity, warn=self.warnings.append)

    def told(self) -> list[str]:
        """Returns the warnings since it was last asked."""
        told, self.warnings[:] = list(self.warnings), []
        return told


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path / "cache")


def sealed(body: bytes, version: int = 1) -> bytes:
    """Puts the header with the right checksum before any body."""
    return (
        b"ort_stacktune record %d sha256=%s\n" % (version, hashlib.sha256(body).hexdigest().encode()) + body
    )


def body_of(path: Path) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(path.read_bytes().split(b"\n", 1)[1])
    return tree


def forged(path: Path, place: tuple[str | int, ...], raw: str) -> bytes:
    """Returns a record's file with one value replaced by raw JSON text, under a right checksum."""
    tree: Any = body_of(path)
    node = tree
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = "@@"
    return sealed(json.dumps(tree, indent=1).replace('"@@"', raw).encode())


def in_another_process(function: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


# What is kept


def test_a_record_comes_back_exactly_as_it_was_put(kept: Kept) -> None:
    assert kept.store.put(a_record())
    assert kept.store.get(KEY) == a_record()
    assert kept.told() == []


def test_a_record_is_found_by_another_process(kept: Kept, tmp_path: Path) -> None:
    kept.store.put(a_record())
    assert in_another_process(_read, tmp_path / "cache") == a_record()


def _read(directory: Path) -> Record | None:
    return Kept(directory).store.get(KEY)


def test_a_key_without_a_record_is_a_miss_without_a_warning(kept: Kept) -> None:
    assert kept.store.get(KEY) is None
    kept.store.put(a_record("another"))
    assert kept.store.get(KEY) is None
    assert kept.told() == []


def test_a_new_record_replaces_the_old_one(kept: Kept) -> None:
    kept.store.put(a_record())
    kept.store.put(a_record(winner="reference"))
    found = kept.store.get(KEY)
    assert found is not None
    assert found.winner == "reference"
    assert len(list(kept.store.path_of(KEY).parent.iterdir())) == 1


def test_a_deleted_record_is_gone_and_deleting_says_whether_there_was_one(kept: Kept) -> None:
    assert not kept.store.delete(KEY)
    kept.store.put(a_record())
    assert kept.store.delete(KEY)
    assert not kept.store.delete(KEY)
    assert kept.store.get(KEY) is None
    assert kept.told() == []


def test_a_record_is_readable_text_for_its_owner_only(kept: Kept, tmp_path: Path) -> None:
    kept.store.put(a_record())
    path = kept.store.path_of(KEY)
    assert path == tmp_path / "cache" / "v1" / f"{text_digest(KEY)}.json"
    header, body = path.read_text(encoding="utf-8").split("\n", 1)
    assert re.fullmatch(r"ort_stacktune record 1 sha256=[0-9a-f]{64}", header)
    assert '\n "winner": "two threads",\n' in body
    assert "größte Abweichung" in body
    assert body.endswith("}\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_directories_that_are_missing_are_made_for_their_owner_only(tmp_path: Path) -> None:
    deep = Kept(tmp_path / "a" / "b" / "c")
    assert deep.store.put(a_record())
    for made in ("a", "a/b", "a/b/c", "a/b/c/v1"):
        assert stat.S_IMODE((tmp_path / made).stat().st_mode) == 0o700


def test_the_golden_file_of_format_1_still_reads(kept: Kept) -> None:
    golden = _lay_golden(kept)
    assert golden == a_record()
    assert kept.told() == []


def test_the_text_of_format_1_is_still_written_as_in_the_golden_file(kept: Kept) -> None:
    kept.store.put(a_record())
    assert kept.store.path_of(KEY).read_bytes() == GOLDEN.read_bytes()


def _lay_golden(kept: Kept) -> Record | None:
    kept.store.path_of(KEY).parent.mkdir(mode=0o700, parents=True)
    _lay(kept.store.path_of(KEY), GOLDEN.read_bytes())
    return kept.store.get(KEY)


def _lay(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o600)


numbers = st.floats(min_value=1e-300, max_value=9e18, allow_subnormal=False)


@settings(deadline=None, max_examples=40)
@given(
    key=st.text(),
    name=st.text(),
    note=st.text(),
    number=numbers,
    nanoseconds=st.integers(1, 2**63 - 1),
    facts=st.dictionaries(st.text(), st.text(), max_size=3),
    effort=st.dictionaries(st.text(), numbers, max_size=3),
    rejection=st.none() | st.sampled_from(FailureKind),
    fault=st.none() | st.sampled_from(Fault),
)
def test_odd_texts_and_numbers_come_back_exactly(
    key: str,
    name: str,
    note: str,
    number: float,
    nanoseconds: int,
    facts: dict[str, str],
    effort: dict[str, float],
    rejection: FailureKind | None,
    fault: Fault | None,
) -> None:
    candidate = CandidateReport(
        name,
        note=note,
        ratio=number,
        interval=(number, number),
        facts=facts,
        rejection=rejection,
        fault=fault,
    )
    report = replace(a_record().report, winner=name, workload=note, candidates=(candidate,))
    record = a_record(
        key,
        winner=name,
        ratio=number,
        created_s=number,
        selected_ns=nanoseconds,
        report=report,
        effort=effort,
    )
    with tempfile.TemporaryDirectory() as directory:
        kept = Kept(Path(directory))
        assert kept.store.put(record), kept.told()
        assert kept.store.get(key) == record
        assert kept.told() == []


def test_a_key_that_utf8_cannot_carry_is_a_clear_failure(kept: Kept) -> None:
    bad = "x\ud800y"
    calls: list[Callable[[], object]] = [
        lambda: kept.store.get(bad),
        lambda: kept.store.put(a_record(bad)),
        lambda: kept.store.delete(bad),
        lambda: kept.store.path_of(bad),
    ]
    for call in calls:
        with pytest.raises(TuneFailure, match="lone surrogate at position 1") as caught:
            call()
        assert caught.value.kind is FailureKind.INVALID_INPUT


def test_nothing_is_touched_before_the_first_call() -> None:
    assert in_another_process(_events_of_construction) == []


def _events_of_construction() -> list[str]:
    events: list[str] = []
    watching = False

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching:
            events.append(event)

    sys.addaudithook(watch)
    watching = True
    RecordStore("relative", warn=events.append)
    RecordStore(Path("/nowhere/at/all"), warn=events.append)
    watching = False
    return events


@pytest.mark.parametrize("directory", ["", "a\0b", b"bytes"])
def test_a_path_that_cannot_be_one_is_refused_at_once(directory: Any) -> None:
    with pytest.raises(TuneFailure, match="expected the path of a directory"):
        RecordStore(directory, warn=print)


def test_a_capacity_below_one_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TuneFailure, match="capacity is 0"):
        RecordStore(tmp_path, capacity=0, warn=print)


def test_records_stay_where_they_are_when_the_process_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = Kept(Path("cache"))
    kept.store.put(a_record())
    monkeypatch.chdir("/")
    assert kept.store.get(KEY) == a_record()


# What is never written


def test_an_unverified_record_never_reaches_the_disk(kept: Kept, tmp_path: Path) -> None:
    with pytest.raises(TuneFailure, match="not verified") as caught:
        kept.store.put(a_record(verified=False))
    assert caught.value.kind is FailureKind.INVALID_INPUT
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"ratio": float("nan")},
        {"ratio": 0.0},
        {"ratio": float("inf")},
        {"created_s": -1.0},
        {"reference_ns": 0},
        {"selected_ns": 2**63},
        {"selected_ns": 10**5000},
        {"selected_ns": 1.5},
        {"effort": {"samples": float("inf")}},
        {"effort": {"samples": 10**400}},
        {"effort": {7: 1.0}},
        {"winner": "\udc80"},
        {"winner": 3},
        {"report": replace(a_record().report, elapsed_ns=-1)},
        {"report": replace(a_record().report, candidates=(CandidateReport("x", interval=(2.0, 1.0)),))},
        {"report": replace(a_record().report, candidates=(CandidateReport("x", note="y" * 5_000_000),))},
    ],
    ids=lambda changes: "+".join(changes),
)
def test_a_record_that_could_not_be_read_again_is_not_written(kept: Kept, changes: dict[str, Any]) -> None:
    kept.store.put(a_record())
    assert kept.store.put(a_record(**changes)) is False
    assert len(kept.told()) == 1
    assert kept.store.get(KEY) == a_record()


# Damage and forgery


def test_every_truncation_is_a_miss_with_one_warning(kept: Kept) -> None:
    kept.store.put(a_record())
    path = kept.store.path_of(KEY)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert kept.store.get(KEY) is None, length
        assert len(kept.told()) == 1, length


@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80])
def test_every_changed_byte_is_a_miss_with_one_warning(kept: Kept, mask: int) -> None:
    kept.store.put(a_record())
    path = kept.store.path_of(KEY)
    whole = path.read_bytes()
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= mask
        path.write_bytes(changed)
        assert kept.store.get(KEY) is None, position
        assert len(kept.told()) == 1, position
    path.write_bytes(whole)
    assert kept.store.get(KEY) == a_record()


def test_a_record_with_something_after_it_is_a_miss(kept: Kept) -> None:
    kept.store.put(a_record())
    path = kept.store.path_of(KEY)
    path.write_bytes(path.read_bytes() + b"\n")
    assert kept.store.get(KEY) is None
    assert len(kept.told()) == 1


def test_a_record_under_the_name_of_another_key_is_a_miss(kept: Kept) -> None:
    kept.store.put(a_record("other key"))
    kept.store.path_of("other key").rename(kept.store.path_of(KEY))
    assert kept.store.get(KEY) is None
    [warning] = kept.told()
    assert "another key" in warning
    [entry] = kept.store.entries()
    assert entry.reason == "it holds the record of another key"


def test_a_record_of_another_format_says_so(kept: Kept) -> None:
    kept.store.put(a_record())
    path = kept.store.path_of(KEY)
    body = path.read_bytes().split(b"\n", 1)[1]
    for data in (sealed(body, version=2), forged(path, ("format",), "2")):
        path.write_bytes(data)
        assert kept.store.get(KEY) is None
        [warning] = kept.told()
        assert "this version reads format 1" in warning


WHOLE = ["NaN", "Infinity", "-Infinity", "1e999", "1.5", "-1", "9223372036854775808", "9" * 6000, "true"]
REAL = ["NaN", "Infinity", "-Infinity", "1e999", "-1.5", "-1e-9", "1e300", "9" * 6000, "true", "1"]
LAST = ("report", "candidates", 1)


@pytest.mark.parametrize(
    ("place", "values"),
    [
        (("reference_ns",), [*WHOLE, "0", "null", '"1"', "[]"]),
        (("selected_ns",), [*WHOLE, "0", "null"]),
        (("created_s",), [*REAL, "null"]),
        (("ratio",), [*REAL, "0.0", "null", '"0.5"']),
        (("effort", "samples"), [*REAL, "null", "{}"]),
        (("report", "elapsed_ns"), [*WHOLE, "null"]),
        ((*LAST, "samples"), [*WHOLE, "null"]),
        ((*LAST, "ratio"), [*REAL, "0.0"]),
        ((*LAST, "relative_mad"), REAL),
        ((*LAST, "median_ns"), [*WHOLE, "0"]),
        ((*LAST, "interval", 0), [*REAL, "0.0", "null", "0.9"]),
        ((*LAST, "interval"), ["[]", "[0.1]", "[0.1, 0.2, 0.3]", "{}", "0.5"]),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_number_out_of_range_is_a_miss_in_spite_of_a_right_checksum(
    kept: Kept, place: tuple[str | int, ...], values: list[str]
) -> None:
    kept.store.put(a_record())
    path = kept.store.path_of(KEY)
    whole = path.read_bytes()
    for raw in values:
        path.write_bytes(whole)
        path.write_bytes(forged(path, place, raw))
        assert kept.store.get(KEY) is None, raw[:20]
        assert len(kept.told()) == 1, raw[:20]


@pytest.mark.parametrize(
    ("place", "raw"),
    [
        (("scope",), '"BOGUS"'),
        (("scope",), "1"),
        (("verified",), "false"),
        (("verified",), "1"),
        (("winner",), "null"),
        (("winner",), r'"\ud800"'),
        (("key",), "7"),
        (("surplus",), "1"),
        (("report",), "null"),
        (("report", "surplus"), "1"),
        (("report", "candidates"), "{}"),
        (("report", "candidates"), "[1]"),
        (("report", "budget_exhausted"), "0"),
        ((*LAST, "surplus"), "1"),
        ((*LAST, "verified"), "null"),
        ((*LAST, "rejection"), '"BOGUS"'),
        ((*LAST, "facts"), "[]"),
        ((*LAST, "facts", "label"), "1"),
        (("effort",), "[]"),
        (("effort",), "[" * 900 + "]" * 900),
        (("effort",), "[" * 200_000),
        (("winner",), '"twice", "winner": "twice"'),
        (("effort", "samples"), '1.0, "samples": 2.0'),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else ".".join(map(str, value)),
)
def test_a_forged_field_is_a_miss_in_spite_of_a_right_checksum(
    kept: Kept, place: tuple[str | int, ...], raw: str
) -> None:
    kept.store.put(a_record())
    path = kept.store.path_of(KEY)
    path.write_bytes(forged(path, place, raw))
    assert kept.store.get(KEY) is None
    assert len(kept.told()) == 1
    [entry] = kept.store.entries()
    assert entry.record is None
    assert entry.reason


def test_a_missing_field_is_a_miss_that_names_it(kept: Kept) -> None:
    kept.store.put(a_record())
    path = kept.store.path_of(KEY)
    tree = body_of(path)
    for name in tree:
        path.write_bytes(sealed(json.dumps({k: v for k, v in tree.items() if k != name}).encode()))
        assert kept.store.get(KEY) is None
        [warning] = kept.told()
        assert f"lacks the field '{name}'" in warning


@pytest.mark.parametrize(
    "body",
    [b"", b"\n", b"[]", b"{}", b"null", b"{", b"\xff\xfe", b"[" * 300_000, b"9" * 100_000, b"{} {}", b"NaN"],
    ids=lambda body: repr(body[:8]),
)
def test_a_body_that_is_no_record_is_a_miss_in_spite_of_a_right_checksum(kept: Kept, body: bytes) -> None:
    kept.store.put(a_record())
    kept.store.path_of(KEY).write_bytes(sealed(body))
    assert kept.store.get(KEY) is None
    assert len(kept.told()) == 1


def test_a_file_larger_than_any_record_is_a_miss(kept: Kept) -> None:
    kept.store.put(a_record())
    with kept.store.path_of(KEY).open("r+b") as file:
        file.truncate(2**40)
    assert kept.store.get(KEY) is None
    [warning] = kept.told()
    assert str(2**40) in warning


# Things planted in place of a record


def test_a_symbolic_link_in_place_of_a_record_is_a_miss(kept: Kept, tmp_path: Path) -> None:
    kept.store.put(a_record())
    path = kept.store.path_of(KEY)
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    assert kept.store.get(KEY) is None
    [warning] = kept.told()
    assert "symbolic link" in warning
    assert kept.store.put(a_record())
    assert not path.is_symlink()
    assert kept.store.get(KEY) == a_record()


def test_a_fifo_in_place_of_a_record_is_a_miss_and_hangs_nobody(kept: Kept) -> None:
    kept.store.put(a_record("other"))
    os.mkfifo(kept.store.path_of(KEY), 0o600)
    assert kept.store.get(KEY) is None
    [warning] = kept.told()
    assert "not a regular file" in warning
    assert len(list(kept.store.entries())) == 2


def test_a_directory_or_socket_in_place_of_a_record_is_a_miss_and_leaks_no_descriptor(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.store.put(a_record("other"))
    path = kept.store.path_of(KEY)
    path.mkdir()
    before = len(list(Path("/dev/fd").iterdir()))
    assert kept.store.get(KEY) is None
    assert len(kept.told()) == 1
    assert kept.store.put(a_record()) is False
    assert len(kept.told()) == 1
    assert kept.store.delete(KEY) is False
    assert len(kept.told()) == 1
    assert len(list(Path("/dev/fd").iterdir())) == before
    path.rmdir()
    monkeypatch.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)
        assert kept.store.get(KEY) is None
    assert len(kept.told()) == 1


def test_a_record_that_others_may_write_to_is_a_miss(kept: Kept) -> None:
    kept.store.put(a_record())
    for mode in (0o620, 0o602):
        kept.store.path_of(KEY).chmod(mode)
        assert kept.store.get(KEY) is None
        [warning] = kept.told()
        assert f"mode {mode:04o}" in warning
        assert "chmod go-w" in warning


@as_root
def test_a_record_of_somebody_else_is_a_miss(kept: Kept) -> None:
    kept.store.put(a_record())
    os.chown(kept.store.path_of(KEY), STRANGER, -1)
    assert kept.store.get(KEY) is None
    [warning] = kept.told()
    assert f"user {STRANGER}" in warning


# Directories that are refused


def use_all(kept: Kept) -> list[object]:
    """Calls everything twice and returns what came back."""
    return [
        answer
        for _ in range(2)
        for answer in (
            kept.store.get(KEY),
            kept.store.put(a_record()),
            kept.store.delete(KEY),
            list(kept.store.entries()),
            kept.store.prune(keep=0),
        )
    ]


NOTHING: list[object] = [None, False, False, [], []] * 2


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
@pytest.mark.parametrize("level", [".", "v1"])
def test_a_directory_that_others_may_write_to_is_refused_until_it_is_mended(
    kept: Kept, tmp_path: Path, level: str, mode: int
) -> None:
    kept.store.put(a_record())
    refused = tmp_path / "cache" / level
    refused.chmod(mode)
    assert use_all(kept) == NOTHING
    [warning] = kept.told()
    assert str(refused) in warning
    assert f"mode {mode:04o}" in warning
    [command] = re.findall(r"'(chmod go-w .*?)'", warning)
    subprocess.run(command, shell=True, check=True)
    assert kept.store.get(KEY) == a_record()


@as_root
@pytest.mark.parametrize("level", [".", "v1"])
def test_a_directory_of_somebody_else_is_refused(kept: Kept, tmp_path: Path, level: str) -> None:
    kept.store.put(a_record())
    os.chown(tmp_path / "cache" / level, STRANGER, -1)
    assert use_all(kept) == NOTHING
    [warning] = kept.told()
    assert f"user {STRANGER}" in warning
    assert "chown" in warning


def test_nothing_is_made_in_a_directory_that_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    kept = Kept(tmp_path)
    assert kept.store.put(a_record()) is False
    assert list(tmp_path.iterdir()) == []
    assert len(kept.told()) == 1


def test_a_symbolic_link_to_a_directory_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to("real")
    kept = Kept(tmp_path / "link")
    assert kept.store.put(a_record())
    assert kept.store.get(KEY) == a_record()
    (tmp_path / "real").chmod(0o770)
    assert kept.store.get(KEY) is None
    assert len(kept.told()) == 1


@pytest.mark.parametrize("place", ["file", "file/below/it", "loop", "n" * 300])
def test_a_path_that_is_no_directory_costs_one_warning(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "loop").symlink_to("loop")
    kept = Kept(tmp_path / place)
    assert use_all(kept) == NOTHING
    assert len(kept.told()) == 1
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_file_in_place_of_the_versioned_directory_costs_one_warning(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(0o700)
    (tmp_path / "cache" / "v1").write_text("in the way")
    assert use_all(kept) == NOTHING
    [warning] = kept.told()
    assert "is not a directory" in warning


# Disks that cannot be written


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB of its own."""
    place = tmp_path / "disk"
    place.mkdir(0o700)
    options = "size=64k,mode=0700"
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True)
    if made.returncode:
        pytest.skip("mounting is not permitted here; limits and permissions are tried instead")
    yield place
    subprocess.run(["umount", place], check=True)


LARGE = replace(a_record().report, candidates=(CandidateReport("x", note="n" * 40_000),))


def check_that_writing_stops_after_one_warning(kept: Kept, reason: int) -> None:
    files = sorted(kept.store.path_of(KEY).parent.iterdir())
    for key in (KEY, KEY, "new", "newer"):
        assert kept.store.put(a_record(key, report=LARGE)) is False
    [warning] = kept.told()
    assert os.strerror(reason) in warning
    assert kept.store.get(KEY) == a_record()
    assert kept.store.get("new") is None
    assert kept.told() == []
    assert sorted(kept.store.path_of(KEY).parent.iterdir()) == files


def test_a_full_disk_costs_one_warning_and_leaves_the_old_record(small_disk: Path) -> None:
    kept = Kept(small_disk)
    kept.store.put(a_record())
    (small_disk / "filler").write_bytes(b"f" * 30_000)
    check_that_writing_stops_after_one_warning(kept, errno.ENOSPC)
    (small_disk / "filler").unlink()
    assert kept.store.put(a_record("new")) is False, "writing stops for good in this process"
    assert Kept(small_disk).store.put(a_record("new"))
    assert kept.store.get("new") == a_record("new")
    assert kept.told() == []


def test_a_read_only_disk_costs_one_warning_and_leaves_the_old_record(small_disk: Path) -> None:
    kept = Kept(small_disk)
    kept.store.put(a_record())
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    check_that_writing_stops_after_one_warning(kept, errno.EROFS)
    assert kept.store.delete(KEY) is False
    assert kept.store.prune(keep=0) == []
    assert kept.told() == []


def test_a_read_only_disk_without_a_cache_costs_one_warning(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    kept = Kept(small_disk / "a" / "b")
    assert use_all(kept) == NOTHING
    [warning] = kept.told()
    assert os.strerror(errno.EROFS) in warning


def test_a_limit_on_file_sizes_costs_one_warning_and_leaves_the_old_record(tmp_path: Path) -> None:
    in_another_process(_write_beyond_the_limit, tmp_path / "cache")


def _write_beyond_the_limit(directory: Path) -> None:
    kept = Kept(directory)
    kept.store.put(a_record())
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    check_that_writing_stops_after_one_warning(kept, errno.EFBIG)


def test_a_directory_without_permission_costs_one_warning_and_leaves_the_old_record() -> None:
    # Not below pytest's own directory: the user that root turns into below could not reach it.
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        in_another_process(_write_without_permission, Path(directory))


def _write_without_permission(directory: Path) -> None:
    kept = Kept(directory)
    kept.store.put(a_record())
    kept.store.path_of(KEY).chmod(0o444)
    kept.store.path_of(KEY).parent.chmod(0o555)
    if os.geteuid() == 0:
        # Root ignores permissions; and what belongs to root is trusted by everybody.
        os.setuid(STRANGER)
    check_that_writing_stops_after_one_warning(kept, errno.EACCES)
    if os.geteuid() != STRANGER:
        kept.store.path_of(KEY).parent.chmod(0o700)


def test_a_failure_that_may_pass_is_warned_of_each_time_and_writing_goes_on(kept: Kept) -> None:
    kept.store.put(a_record("other"))
    kept.store.path_of(KEY).mkdir()
    for _ in range(2):
        assert kept.store.put(a_record()) is False
        assert len(kept.told()) == 1
    kept.store.path_of(KEY).rmdir()
    assert kept.store.put(a_record())


# Many processes


def numbered(label: str, number: int) -> Record:
    """A record whose parts all name the same writer and number, so that a mixture would show."""
    note = f"{label} {number} " * 50
    report = replace(
        a_record().report, winner=label, elapsed_ns=number, candidates=(CandidateReport(label, note=note),)
    )
    return a_record(winner=label, created_s=float(number), report=report)


def is_whole(record: Record) -> bool:
    return record == numbered(record.winner, int(record.created_s))


def _write_many(directory: Path, label: str, times: int) -> None:
    kept = Kept(directory)
    for number in range(1, times + 1):
        assert kept.store.put(numbered(label, number))
    assert kept.told() == []


def test_a_reader_sees_only_whole_records_while_two_processes_write_the_same_key(tmp_path: Path) -> None:
    context = get_context("spawn")
    writers = [
        context.Process(target=_write_many, args=(tmp_path, label, 300)) for label in ("left", "right")
    ]
    for writer in writers:
        writer.start()
    kept = Kept(tmp_path)
    seen: set[tuple[str, float]] = set()
    while any(writer.is_alive() for writer in writers):
        record = kept.store.get(KEY)
        assert kept.told() == []
        if record is None:
            assert not seen, "a record was there and then was not"
        else:
            assert is_whole(record)
            seen.add((record.winner, record.created_s))
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(seen) > 10
    assert [path.name for path in kept.store.path_of(KEY).parent.iterdir()] == [f"{text_digest(KEY)}.json"]


def test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new_record(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for attempt in range(4):
        kept.store.put(numbered("old", 1))
        writer = get_context("spawn").Process(target=_write_many, args=(tmp_path, "new", 10**6))
        writer.start()
        while (record := kept.store.get(KEY)) is not None and record.winner == "old":
            assert writer.is_alive()
        time.sleep(0.003 * attempt)
        writer.kill()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
        record = kept.store.get(KEY)
        assert record is not None
        assert is_whole(record)
        assert record.winner == "new"
        assert kept.told() == []


@pytest.mark.parametrize("moment", ["before the data is safe", "before the rename"])
def test_a_writer_killed_within_a_write_leaves_the_old_record(tmp_path: Path, moment: str) -> None:
    kept = Kept(tmp_path)
    kept.store.put(numbered("old", 1))
    writer = get_context("spawn").Process(target=_die_writing, args=(tmp_path, moment))
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    assert kept.store.get(KEY) == numbered("old", 1)
    reasons = [entry.reason for entry in kept.store.entries() if entry.record is None]
    assert reasons == ["it is the unfinished file of a writer that is at work or died"]
    assert kept.store.put(numbered("new", 2))
    assert kept.store.get(KEY) == numbered("new", 2)
    assert kept.told() == []


def _die_writing(directory: Path, moment: str) -> None:
    def die(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    name = "fsync" if moment == "before the data is safe" else "close"
    setattr(os, name, die)
    Kept(directory).store.put(numbered("new", 2))


def test_listing_reading_and_pruning_stand_files_that_vanish(tmp_path: Path) -> None:
    writer = get_context("spawn").Process(target=_write_and_prune, args=(tmp_path, 300))
    writer.start()
    kept = Kept(tmp_path, capacity=3)
    listed = 0
    while writer.is_alive():
        for entry in kept.store.entries():
            assert entry.record is not None or "unfinished" in str(entry.reason)
            listed += 1
        kept.store.prune(keep=2)
        kept.store.get("7")
        kept.store.delete("8")
    writer.join()
    assert writer.exitcode == 0
    assert listed
    assert kept.told() == []


def _write_and_prune(directory: Path, times: int) -> None:
    kept = Kept(directory, capacity=3)
    for number in range(times):
        assert kept.store.put(a_record(str(number % 17)))
    assert kept.told() == []


# Listing and pruning


def put_aged(kept: Kept, *keys: str, age_s: float = 100_000) -> None:
    """Puts records, the first one oldest, each a minute apart."""
    for position, key in enumerate(keys):
        assert kept.store.put(a_record(key))
        written_s = time.time() - age_s + 60 * position
        os.utime(kept.store.path_of(key), (written_s, written_s))


def keys_of(kept: Kept) -> list[str]:
    return [entry.record.key for entry in kept.store.entries() if entry.record is not None]


def test_a_store_holds_at_most_its_capacity_and_the_newest_stay(tmp_path: Path) -> None:
    kept = Kept(tmp_path, capacity=3)
    put_aged(kept, "a", "b", "c", "d", "e")
    assert keys_of(kept) == ["c", "d", "e"]
    assert kept.told() == []


def test_what_was_just_written_stays_even_if_every_other_file_seems_newer(tmp_path: Path) -> None:
    kept = Kept(tmp_path, capacity=2)
    put_aged(kept, "a", "b", age_s=-100_000)
    kept.store.put(a_record("c"))
    assert keys_of(kept) == ["c", "b"]


def test_pruning_removes_the_oldest_first_and_says_what_it_removed(kept: Kept) -> None:
    put_aged(kept, "a", "b", "c", "d")
    assert kept.store.prune(keep=2) == [kept.store.path_of("a"), kept.store.path_of("b")]
    assert kept.store.prune(keep=2) == []
    assert keys_of(kept) == ["c", "d"]
    assert len(kept.store.prune(keep=0)) == 2


def test_pruning_puts_stale_temporary_files_in_the_order_of_age_too(kept: Kept) -> None:
    put_aged(kept, "a", "b", "c")
    stale = kept.store.path_of("a").with_name(f"{'0' * 32}.123.{'a' * 16}.tmp")
    stale.write_bytes(b"half")
    between_s = kept.store.path_of("a").stat().st_mtime + 30
    os.utime(stale, (between_s, between_s))
    assert kept.store.prune(keep=1) == [kept.store.path_of("a"), stale, kept.store.path_of("b")]


def test_pruning_by_age_keeps_what_is_younger(kept: Kept) -> None:
    put_aged(kept, "a", "b", age_s=10_000)
    put_aged(kept, "c", age_s=100)
    assert kept.store.prune(keep=100, older_than_s=5_000) == [
        kept.store.path_of("a"),
        kept.store.path_of("b"),
    ]
    assert keys_of(kept) == ["c"]


def test_pruning_removes_stale_temporary_files_and_nothing_that_is_not_ours(kept: Kept) -> None:
    kept.store.put(a_record())
    directory = kept.store.path_of(KEY).parent
    stale = directory / f"{'0' * 32}.123.{'a' * 16}.tmp"
    fresh = directory / f"{'0' * 32}.124.{'b' * 16}.tmp"
    foreign = directory / "notes.txt"
    for path, age_s in ((stale, 3700), (fresh, 3500), (foreign, 10**6)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age_s,) * 2)
    reasons = {entry.path: entry.reason for entry in kept.store.entries()}
    assert reasons[kept.store.path_of(KEY)] is None
    assert "unfinished" in str(reasons[stale])
    assert "name" in str(reasons[foreign])
    assert kept.store.prune(keep=5) == [stale]
    assert {path.name for path in directory.iterdir()} == {
        kept.store.path_of(KEY).name,
        fresh.name,
        foreign.name,
    }


def test_entries_give_size_and_record_of_each_file(kept: Kept) -> None:
    assert list(kept.store.entries()) == []
    put_aged(kept, "a", "b")
    kept.store.path_of("a").write_bytes(b"damaged")
    damaged, whole = sorted(kept.store.entries(), key=lambda entry: entry.size)
    assert (damaged.path, damaged.size, damaged.record) == (kept.store.path_of("a"), 7, None)
    assert damaged.reason == "its first line is not the header of a record"
    assert (whole.record, whole.reason) == (a_record("b"), None)
    assert kept.told() == []


@pytest.mark.parametrize(
    "arguments", [{"keep": -1}, {"keep": 1, "older_than_s": -1.0}, {"keep": 1, "older_than_s": float("nan")}]
)
def test_a_wrong_limit_for_pruning_is_refused(kept: Kept, arguments: dict[str, Any]) -> None:
    with pytest.raises(TuneFailure) as caught:
        kept.store.prune(**arguments)
    assert caught.value.kind is FailureKind.INVALID_INPUT
