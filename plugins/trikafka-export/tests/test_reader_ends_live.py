"""The end of a client that ranges share.

A client always ends, and its end is never taken for the end of a range.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trikafka_broker.waiting import wait_until
from trikafka_export import reading
from trikafka_export.directory_pieces import RangeWork
from trikafka_export.local import LocalJob
from trikafka_export.pieces import Shape
from trikafka_export.reader import Reader
from trikafka_export.reading import read_range
from trikafka_export.task import WriteTask

from trikafka import OffsetRange, RecordBatch
from trikafka.interfaces import PlannedRange


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("trikafka topic-")]


async def test_failed_loop_does_not_end_the_range(
    kafka_broker: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing loop is an error of the range, and not the range's end.

    Otherwise the unread records would be published as nonexistent.
    """
    monkeypatch.setattr(reading, "_BYTES_AHEAD", 1)
    monkeypatch.setattr(reading, "_GROUP_BYTES", 1)
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers, "max_poll_records": 10}
    topic = await new_topic(1_000, partitions=1)
    reader = Reader(settings)
    batches = read_range(OffsetRange(topic, 0, 0, 1_000), settings, reader=reader)
    next(batches)

    def break_down() -> None:
        raise ValueError("a mistake")

    reader._soon(break_down)
    with pytest.raises(trio.TrioInternalError):
        list(batches)
    found = [
        at
        for batch in read_range(OffsetRange(topic, 0, 0, 1_000), settings, reader=reader)
        for at in batch.offsets
    ]
    assert found == list(range(1_000)), "the next range has a loop of its own"
    reader.close()


async def test_failed_thread_start_is_one_ranges_error(
    kafka_broker: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed start of a thread is an error of one range.

    The next range does not wait for the thread.
    """
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    topic = await new_topic(10, partitions=1)
    reader = Reader(settings)

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            list(read_range(OffsetRange(topic, 0, 0, 10), settings, reader=reader))
    found = [
        at
        for batch in read_range(OffsetRange(topic, 0, 0, 10), settings, reader=reader)
        for at in batch.offsets
    ]
    assert found == list(range(10))
    reader.close()


class _Disk:
    """A destination that does not respond for one partition until ``let_go`` is set."""

    def __init__(self, root: Path, slow: int) -> None:
        self.root = root
        self.slow = slow
        self.reached = threading.Event()
        self.let_go = threading.Event()

    def pieces(self, planned: PlannedRange) -> RangeWork:
        work = RangeWork(self.root, 1, planned)
        if planned.partition == self.slow:
            self.reached.set()
            assert self.let_go.wait(600)
        return work


async def test_cancelled_job_leaves_no_client(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """A cancelled job leaves no client, even if one of its threads hangs.

    Previously clients that were idle at that moment stayed until the end of the process.
    """
    topic = await new_topic(100, partitions=2)
    (tmp_path / "_trikafka" / "work" / "000001").mkdir(parents=True)
    disk = _Disk(tmp_path, slow=1)
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    tasks = [
        WriteTask(str(tmp_path), 1, planned, None, settings, True, {}, Shape(), disk)
        for planned in (
            PlannedRange(topic, part, 0, 50, f"{topic}-{part}.parquet") for part in range(2)
        )
    ]
    rows = 0

    def report(done: int, now: int) -> None:
        nonlocal rows
        rows = now
        if done == 1 and disk.reached.is_set():
            scope.cancel()

    with trio.fail_after(900):
        with trio.CancelScope() as scope:
            await LocalJob(tasks, 2).run(report)
        assert scope.cancelled_caught
    assert rows == 50
    assert wait_until(lambda: not threads(), 240)
    disk.let_go.set()


async def test_abandoned_ranges_hold_no_records(
    kafka_broker: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges that are left early hold no records.

    A schema is inferred from the first records of each partition, and all ranges may be paused
    until the last one is read. Previously each kept up to 32 MB of records that it had read ahead.
    """
    monkeypatch.setattr(reading, "_GROUP_BYTES", 1)
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers, "max_poll_records": 10}
    topic = await new_topic(4_000, partitions=4)
    reader = Reader(settings)
    stops: list[Callable[[], None]] = []
    for part in range(4):
        batches = read_range(
            OffsetRange(topic, part, 0, 1_000), settings, reader=reader, on_start=stops.append
        )
        next(batches)
        held = stops[-1].args[0]._items  # type: ignore[attr-defined]
        assert wait_until(lambda held=held: held.qsize() > 1, 240)  # type: ignore[misc]
        batches.close()
    del batches, held
    reader.close()
    assert len(stops) == 4
    gc.collect()
    assert not [
        each for each in gc.get_objects() if isinstance(each, RecordBatch) and each.topic == topic
    ]
