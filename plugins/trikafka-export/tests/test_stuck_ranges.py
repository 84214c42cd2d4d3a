"""The ranges of a partition that does not respond wait once, and not one after the other."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from trikafka_export import local
from trikafka_export.local import LocalJob
from trikafka_export.pieces import Shape
from trikafka_export.task import WriteTask

from trikafka import KafkaTimeoutError, OffsetOutOfRangeError
from trikafka.interfaces import PlannedRange

RANGES = 50


def task(partition: int, number: int) -> WriteTask:
    planned = PlannedRange(
        "t", partition, number * 10, number * 10 + 10, f"t-{partition}-{number}.parquet"
    )
    return WriteTask("/nowhere", 1, planned, None, {}, True, {}, Shape())


@pytest.mark.parametrize(
    ("error", "most"),
    [(KafkaTimeoutError("reading t-1", 120), 2), (OffsetOutOfRangeError("some are gone"), RANGES)],
)
async def test_time_out_counts_for_the_whole_partition(
    monkeypatch: pytest.MonkeyPatch, error: Exception, most: int
) -> None:
    """A time-out of a partition counts for its other ranges.

    Other errors concern one range: records that are missing in it may exist in the next.
    """
    tried: Counter[int] = Counter()
    lock = threading.Lock()

    def write(task: WriteTask, *_: object) -> Exception | None:
        with lock:
            tried[task.planned.partition] += 1
        return error if task.planned.partition == 1 else None

    monkeypatch.setattr(local, "write_range", write)
    tasks = [task(partition, number) for number in range(RANGES) for partition in range(3)]
    results = await LocalJob(tasks, 2).run(lambda done, rows: None)
    assert [
        found for each, found in zip(tasks, results, strict=True) if each.planned.partition != 1
    ] == [None] * RANGES * 2
    assert [
        found for each, found in zip(tasks, results, strict=True) if each.planned.partition == 1
    ] == [error] * RANGES
    assert tried[0] == tried[2] == RANGES
    assert 1 <= tried[1] <= most, "one in each thread"
