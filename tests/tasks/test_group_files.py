"""The example ``examples/group_files.py``: each record is in one file."""

from __future__ import annotations

import os
import random
import sys
import threading
import uuid
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from tasking import cluster_of, committed, consumer_of, until

import trikafka
from trikafka import RecordBatch
from trikafka.testing import ScriptedCluster

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import group_files
from group_files import copy, write

ID = uuid.UUID(int=7)
ROWS = 60


@pytest.fixture(scope="module")
def batch() -> RecordBatch:
    """Return the records of a partition, offsets 0 to 59."""

    async def read() -> RecordBatch:
        async with cluster_of(1, records=ROWS) as cluster, consumer_of(cluster) as consumer:
            async for found in consumer.batches():
                return found
            raise AssertionError("no batch")

    found = trio.run(read)
    assert len(found) == ROWS
    return found


def rows(folder: Path) -> list[tuple[int, bytes]]:
    """Return the offset and value of each row, in the order of the files' names."""
    tables = [pq.read_table(path) for path in sorted(folder.glob("[!.]*"))]
    return [
        pair
        for table in tables
        for pair in zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
    ]


def left_aside(folder: Path) -> list[Path]:
    return [path for path in folder.glob(".*") if not path.name.endswith("-lock")]


def expected(batch: RecordBatch) -> list[tuple[int, bytes]]:
    return [(record.offset, record.value or b"") for record in batch]


@pytest.mark.parametrize("seed", range(10))
def test_late_member_writes_no_row_twice(batch: RecordBatch, tmp_path: Path, seed: int) -> None:
    """Three members read the same records, cut in different ways, and write in any order."""
    chance = random.Random(seed)
    members = []
    for _ in range(3):
        cuts = [0, *sorted(chance.sample(range(1, ROWS), 6)), ROWS]
        members.append([batch[low:high] for low, high in pairwise(cuts)])
    while any(members):
        write(tmp_path, ID, chance.choice([each for each in members if each]).pop(0))
    assert rows(tmp_path) == expected(batch)


async def test_members_at_the_same_time_share_a_folder(batch: RecordBatch, tmp_path: Path) -> None:
    """Threads write the same records at the same time; each row is in one file."""

    async def member(width: int) -> None:
        for low in range(0, ROWS, width):
            await trio.to_thread.run_sync(write, tmp_path, ID, batch[low : low + width])

    with trio.fail_after(240):
        async with trio.open_nursery() as nursery:
            for width in (1, 4, 7, 9, 60):
                nursery.start_soon(member, width)
    assert rows(tmp_path) == expected(batch)
    assert left_aside(tmp_path) == []


def test_member_with_older_offsets_fills_the_gap(batch: RecordBatch, tmp_path: Path) -> None:
    write(tmp_path, ID, batch[30:40])
    write(tmp_path, ID, batch[20:60])
    write(tmp_path, ID, batch[:25])
    assert rows(tmp_path) == expected(batch)


async def test_members_at_different_offsets_do_not_overlap(
    batch: RecordBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that began later writes between the look and the link of another."""
    real, looked, wrote = group_files.publish, threading.Event(), threading.Event()

    def publish(rows: pa.Table, path: Path) -> None:
        if not looked.is_set():
            looked.set()
            wrote.wait(0.2)  # without the lock the other member is quicker
        real(rows, path)

    def late() -> None:
        assert looked.wait(240)
        write(tmp_path, ID, batch[30:40])
        wrote.set()

    monkeypatch.setattr(group_files, "publish", publish)
    with trio.fail_after(240):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, write, tmp_path, ID, batch[20:])
            nursery.start_soon(trio.to_thread.run_sync, late)
    assert rows(tmp_path) == expected(batch[20:])


def test_names_of_new_folders_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(group_files, "sync", synced.append)
    group_files.make(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [tmp_path, tmp_path / "a"]
    group_files.make(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_kill_before_the_link_leaves_no_row(
    batch: RecordBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was written aside is not seen, and the rows are written again."""

    def killed(*_: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", killed)
        with pytest.raises(OSError, match="killed"):
            write(tmp_path, ID, batch)
    assert rows(tmp_path) == []
    write(tmp_path, ID, batch)
    assert rows(tmp_path) == expected(batch)


async def run(cluster: ScriptedCluster, folder: Path) -> None:
    """Run the example's loop."""
    settings = {
        **group_files.SETTINGS,
        "bootstrap_servers": cluster.bootstrap_servers,
        "dial": cluster.dial,
        "group_protocol": "classic",
        "group_id": "g",
        "fetch_max_wait_ms": 10,
        "metadata_max_age_ms": 100,
        "auto_commit_interval_ms": 20,
    }
    async with trikafka.open_consumer(**settings) as consumer:
        await copy(consumer, "t", folder)


async def test_offset_is_committed_after_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the disk ends the run, and nothing of that batch is committed."""
    with trio.fail_after(240):
        async with cluster_of(1, records=10) as cluster:
            with monkeypatch.context() as patch:
                patch.setattr(group_files, "publish", lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    await run(cluster, tmp_path)
            assert committed(cluster) is None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, cluster, tmp_path)
                await until(lambda: committed(cluster) == 10)
                nursery.cancel_scope.cancel()
    assert rows(tmp_path) == [(offset, b"%d" % offset) for offset in range(10)]


async def test_recreated_topic_loses_no_row(tmp_path: Path) -> None:
    """The run ends when the topic is another one; the next run writes to files of their own."""
    with trio.fail_after(240):
        async with cluster_of(1, records=10) as cluster:

            async def recreate() -> None:
                await until(lambda: committed(cluster) == 10)
                cluster.delete_topic("t")
                cluster.create_topic("t", 1)
                cluster.append("t", 0, [b"new %d" % number for number in range(15)])

            async with trio.open_nursery() as nursery:
                nursery.start_soon(recreate)
                with pytest.raises(RuntimeError, match="topic t was deleted: start again"):
                    await run(cluster, tmp_path)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, cluster, tmp_path)
                await until(lambda: len(rows(tmp_path)) == 25)
                nursery.cancel_scope.cancel()
    assert sorted(rows(tmp_path)) == sorted(
        [(offset, b"%d" % offset) for offset in range(10)]
        + [(offset, b"new %d" % offset) for offset in range(15)]
    )


async def test_missing_topic_is_an_error(tmp_path: Path) -> None:
    async with cluster_of(1) as cluster, consumer_of(cluster) as consumer:
        with pytest.raises(RuntimeError, match="topic nowhere does not exist"):
            await copy(consumer, "nowhere", tmp_path)
