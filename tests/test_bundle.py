"""What users rely on when stored choices travel as one file and join those of another store."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import time
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_store import GOLDEN, KEY, a_record

from ort_stacktune.failures import TuneFailure
from ort_stacktune.store import Record, RecordStore
from ort_stacktune.store import bundle as bundle_module
from ort_stacktune.store.bundle import pack, read_bundle, unpack, write_bundle
from ort_stacktune.store.checks import Unreadable
from ort_stacktune.store.files import write_record
from ort_stacktune.store.merge import Fate, Merged, evidence, merge, pairs_behind
from ort_stacktune.vocabulary import CandidateReport

NOW = 1_764_000_100.0
WEEK_S = 7 * 86400


def answer(key: str = KEY, winner: str = "two threads", pairs: int = 20, age_s: float = 60.0) -> Record:
    """Returns a record with a winner found by so many pairs, so long ago."""
    base = a_record(key)
    report = replace(
        base.report,
        winner=winner,
        candidates=(
            CandidateReport("reference", samples=500, ratio=1.0, verified=True),
            CandidateReport("two threads", samples=pairs - 5, ratio=0.5, verified=True),
            CandidateReport("one thread", samples=5, ratio=0.6, verified=True),
        ),
    )
    return replace(base, winner=winner, created_s=NOW - age_s, report=report)


def some(number: int = 5) -> list[Record]:
    return [answer(f"key {index}", pairs=10 + index) for index in range(number)]


def a_store(directory: Path) -> RecordStore:
    return RecordStore(directory, warn=pytest.fail)


def held(store: RecordStore) -> dict[str, Record]:
    return {entry.record.key: entry.record for entry in store.entries() if entry.record is not None}


def with_right_checksum(data: bytes, records: int) -> bytes:
    """Returns a bundle whose body was edited, under a header that fits it again."""
    body = data.partition(b"\n")[2]
    digest = hashlib.sha256(body).hexdigest()
    return f"ort_stacktune bundle 1 records={records} sha256={digest}\n".encode() + body


# --- the file -------------------------------------------------------------------------------------


def test_a_bundle_gives_back_every_record_exactly(tmp_path: Path) -> None:
    path = tmp_path / "choices.bundle"
    records = [a_record(), *some()]
    assert write_bundle(path, records) == path.stat().st_size
    assert sorted(read_bundle(path), key=lambda r: r.key) == sorted(records, key=lambda r: r.key)
    assert [each.name for each in tmp_path.iterdir()] == ["choices.bundle"]


def test_a_bundle_is_text_in_which_each_record_stands_as_in_a_store() -> None:
    header, _, body = pack([a_record()]).partition(b"\n")
    assert header.startswith(b"ort_stacktune bundle 1 records=1 sha256=")
    assert body == GOLDEN.read_bytes()


def test_equal_choices_give_equal_bytes_whatever_their_order() -> None:
    records = some(20)
    shuffled = random.Random(1).sample(records, len(records))
    assert pack(records) == pack(shuffled)


def test_a_bundle_of_nothing_can_be_read() -> None:
    assert unpack(pack([])) == []


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_bundle_that_was_changed_or_cut_anywhere_gives_nothing(data: st.DataObject) -> None:
    whole = pack(some(3))
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from(
            [whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], whole + b" "]
        )
    )
    with pytest.raises(Unreadable):
        unpack(damaged)


def test_one_bad_record_under_a_right_checksum_makes_the_whole_bundle_useless() -> None:
    data = pack(some(3))
    edited = with_right_checksum(data.replace(b'"ratio": 0.3', b'"ratio": 0.2', 1), 3)
    with pytest.raises(Unreadable, match="record 1 of 3 can't be relied on: its checksum is wrong"):
        unpack(edited)


def test_a_number_out_of_its_range_is_found_though_every_checksum_is_right() -> None:
    text = pack([answer()]).partition(b"\n")[2].partition(b"\n")[2]
    body = text.replace(b'"selected_ns": 301000', b'"selected_ns": -1')
    record = f"ort_stacktune record 1 sha256={hashlib.sha256(body).hexdigest()}\n".encode() + body
    with pytest.raises(Unreadable, match="record 1 of 1 can't be relied on: selected_ns is -1"):
        unpack(with_right_checksum(b"\n" + record, 1))


def test_two_answers_to_one_question_are_refused() -> None:
    one, other = pack([answer(pairs=10)]), pack([answer(pairs=20)])
    both = one + other.partition(b"\n")[2]
    with pytest.raises(Unreadable, match="two records for one question"):
        unpack(with_right_checksum(both, 2))


def test_text_that_looks_like_the_header_of_a_record_stays_text() -> None:
    name = "x\nort_stacktune record 1 sha256=" + "0" * 64 + "\n"
    record = answer(winner=name)
    assert unpack(pack([record])) == [record]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not the header of a bundle"),
        (b"PK\x03\x04 an archive", "not the header of a bundle"),
        (pack([]).replace(b"bundle 1", b"bundle 2"), "it is of format 2; this version reads format 1"),
        (with_right_checksum(pack([]) + b"words\n", 0), "holds something that is no record"),
        (with_right_checksum(pack(some(2)), 3), "holds 2 records where its first line says 3"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_the_reason(data: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    path.write_bytes(data)
    with pytest.raises(TuneFailure, match=f"can't be used because .*{reason}"):
        read_bundle(path)


def test_a_fifo_a_directory_and_a_missing_file_are_refused_and_hang_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(TuneFailure, match="it is not a regular file"):
        read_bundle(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "missing", tmp_path / ("x" * 300)):
        with pytest.raises(TuneFailure, match="can't be read"):
            read_bundle(path)


def test_a_bundle_beyond_the_limit_is_neither_read_nor_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bundle"
    write_bundle(path, some(3))
    before = path.read_bytes()
    monkeypatch.setattr(bundle_module, "MAX_BYTES", 2000)
    with pytest.raises(TuneFailure, match="more than the 2000 of any bundle"):
        read_bundle(path)
    with pytest.raises(TuneFailure, match=r"a bundle holds 65536 in 2000 bytes"):
        write_bundle(path, some(4))
    assert path.read_bytes() == before


def test_what_is_no_file_is_never_written_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(TuneFailure, match="is no file; name one for the bundle"):
            write_bundle(path, some())
    with pytest.raises(TuneFailure, match="can't be written: No such file or directory"):
        write_bundle(tmp_path / "missing" / "bundle", some())


# --- joining a store ------------------------------------------------------------------------------


def test_records_that_are_new_are_added_and_a_second_time_they_are_the_same(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    first = merge(store, some(), NOW)
    assert [each.fate for each in first] == [Fate.ADDED] * 5
    assert held(store) == {record.key: record for record in some()}
    paths = {path: path.stat().st_mtime_ns for path in (tmp_path / "v1").iterdir()}
    assert [each.fate for each in merge(store, some(), NOW)] == [Fate.SAME] * 5
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "v1").iterdir()} == paths


@pytest.mark.parametrize(
    ("here", "there", "fate"),
    [
        (answer(pairs=20), answer(pairs=30), Fate.BETTER),
        (answer(pairs=20, age_s=5), answer(pairs=20, age_s=1), Fate.BETTER),
        (answer(pairs=20), answer(pairs=10, age_s=1), Fate.WORSE),
        (answer(pairs=20), answer(winner="one thread", pairs=30, age_s=90), Fate.WON),
        (answer(pairs=20), answer(winner="one thread", pairs=20, age_s=1), Fate.WON),
        (answer(pairs=20), answer(winner="one thread", pairs=10, age_s=1), Fate.LOST),
        (answer(pairs=20, age_s=1), answer(winner="one thread", pairs=20), Fate.LOST),
    ],
)
def test_of_two_answers_the_one_with_more_pairs_stays_and_then_the_newer(
    here: Record, there: Record, fate: Fate, tmp_path: Path
) -> None:
    store = a_store(tmp_path)
    store.put(here)
    assert merge(store, [there], NOW) == [Merged(there, here, fate)]
    stays = there if fate in (Fate.BETTER, Fate.WON) else here
    assert store.get(KEY) == stays


def test_an_answer_that_no_default_policy_uses_gives_way_to_one_that_it_uses(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    for stale in (answer(pairs=90, age_s=WEEK_S + 1), answer(pairs=90, age_s=-60)):
        store.put(stale)
        fresh = answer(winner="one thread", pairs=10)
        assert [each.fate for each in merge(store, [fresh], NOW)] == [Fate.WON]
        assert [each.fate for each in merge(store, [stale], NOW)] == [Fate.LOST]


def test_the_references_own_timings_are_no_pairs() -> None:
    assert pairs_behind(answer(pairs=20)) == 20
    assert evidence(answer(pairs=20), NOW) == (True, 20, NOW - 60.0)


def test_a_damaged_record_gives_way_and_a_record_of_another_key_does_too(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    store.put(answer("key 0"))
    store.path_of("key 0").write_text("damaged")
    assert merge(store, some(1), NOW)[0].fate is Fate.ADDED
    assert held(store) == {"key 0": some(1)[0]}


def test_a_file_that_can_not_take_its_place_takes_all_others_back(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    mine = [answer(f"key {index}", winner="one thread", pairs=5, age_s=3) for index in range(3)]
    for record in mine:
        store.put(record)
    before = {path.name: path.read_bytes() for path in (tmp_path / "v1").iterdir()}
    # A directory where the last record is to lie fails the rename, when all others are in place.
    (store.path_of("key 9")).mkdir()
    with pytest.raises(TuneFailure, match="nothing was imported, because the cache can't be written: Is a"):
        merge(store, [*some(5), answer("key 9")], NOW)
    store.path_of("key 9").rmdir()
    assert {path.name: path.read_bytes() for path in (tmp_path / "v1").iterdir()} == before


def test_a_full_disk_imports_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir(0o700)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48k,mode=0700", "tmpfs", disk], capture_output=True
    )
    if made.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        store = a_store(disk)
        store.put(answer("key 0", winner="one thread", pairs=5))
        before = held(store)
        with pytest.raises(TuneFailure, match=f"can't be written: {os.strerror(28)}"):
            merge(store, some(100), NOW)
        assert held(store) == before
        assert len(list((disk / "v1").iterdir())) == 1
    finally:
        subprocess.run(["umount", disk], check=True)


def _import_for_ever(directory: Path, seed: int) -> None:
    store = RecordStore(directory, warn=lambda _: None)
    coin = random.Random(seed)
    while True:
        merge(store, [answer(f"key {i}", pairs=coin.randrange(5, 99)) for i in range(8)], NOW)


def test_an_import_killed_at_any_moment_leaves_whole_records(tmp_path: Path) -> None:
    context, coin = get_context("fork"), random.Random(3)
    store = a_store(tmp_path)
    for turn in range(12):
        importer = context.Process(target=_import_for_ever, args=(tmp_path, turn))
        importer.start()
        time.sleep(coin.uniform(0.02, 0.12))
        importer.kill()
        importer.join()
        assert importer.exitcode == -signal.SIGKILL
        for entry in store.entries():
            assert entry.record is not None or entry.path.suffix == ".tmp", entry
    merge(store, [answer(f"key {i}", pairs=500) for i in range(8)], NOW)
    assert {pairs_behind(record) for record in held(store).values()} == {500}


def _import_once(directory: Path, pairs: list[int]) -> None:
    store = RecordStore(directory, warn=lambda _: None)
    for number in pairs:
        merge(store, [answer(f"key {i}", pairs=number) for i in range(8)], NOW)


def _write_others(directory: Path, turns: int) -> None:
    store = RecordStore(directory, warn=lambda _: None)
    for turn in range(turns):
        assert store.put(answer(f"other {turn % 4}", pairs=turn + 5))


def test_imports_and_writers_at_one_time_tear_and_lose_nothing(tmp_path: Path) -> None:
    context = get_context("fork")
    works: list[Any] = [
        context.Process(target=_import_once, args=(tmp_path, list(range(first, 90, 6))))
        for first in (5, 7, 9)
    ]
    works.append(context.Process(target=_write_others, args=(tmp_path, 60)))
    for work in works:
        work.start()
    while any(work.is_alive() for work in works):
        for entry in a_store(tmp_path).entries():
            assert entry.record is not None or entry.path.suffix == ".tmp", entry
    for work in works:
        work.join()
        assert work.exitcode == 0
    last = held(a_store(tmp_path))
    assert len(last) == 12
    assert not list(tmp_path.rglob("*.tmp"))
    # Of two imports within the same moment the later one stays; offered again, the best evidence does.
    merge(a_store(tmp_path), [answer(f"key {i}", pairs=89) for i in range(8)], NOW)
    keyed = held(a_store(tmp_path)).items()
    assert {pairs_behind(record) for key, record in keyed if key.startswith("key")} == {89}


def test_an_answer_that_came_meanwhile_is_weighed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = a_store(tmp_path)
    store.put(answer(pairs=10))
    better = answer(winner="one thread", pairs=80)
    real = bundle_module.stage

    def stage_while_another_process_writes(path: Path, data: bytes, mode: int = 0o600) -> Path:
        staged = real(path, data, mode)
        write_record(path, pack([better]).partition(b"\n")[2])
        return staged

    monkeypatch.setattr("ort_stacktune.store.merge.stage", stage_while_another_process_writes)
    [merged] = merge(store, [answer(pairs=30)], NOW)
    assert merged == Merged(answer(pairs=30), better, Fate.LOST)
    assert store.get(KEY) == better
    assert not list(tmp_path.rglob("*.tmp"))
