"""A partition that does not respond has its ranges wait once, and not one after the other in the threads of all."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from trikafka_spark import local
from trikafka_spark.local import LocalJob
from trikafka_spark.pieces import Shape
from trikafka_spark.task import WriteTask

from trikafka import KafkaTimeoutError, OffsetOutOfRangeError
from trikafka.interfaces import PlannedRange

RANGES = 50


def task(partition: int, number: int) -> WriteTask:
    planned = PlannedRange("t", partition, number * 10, number * 10 + 10, f"t-{partition}-{number}.parquet")
    return WriteTask("/nowhere", 1, planned, None, {}, True, {}, Shape())


@pytest.mark.parametrize(
    ("error", "most"), [(KafkaTimeoutError("reading t-1", 120), 2), (OffsetOutOfRangeError("some are gone"), RANGES)]
)
async def test_what_a_partition_has_timed_out_with_counts_for_its_other_ranges(
    monkeypatch: pytest.MonkeyPatch, error: Exception, most: int
) -> None:
    """Other errors are a range's own: what is gone of one may be there of the next."""
    tried: Counter[int] = Counter()
    lock = threading.Lock()

    def write(task: WriteTask, *_: object) -> Exception | None:
        with lock:
            tried[task.planned.partition] += 1
        return error if task.planned.partition == 1 else None

    monkeypatch.setattr(local, "write_range", write)
    tasks = [task(partition, number) for number in range(RANGES) for partition in range(3)]
    results = await LocalJob(tasks, 2).run(lambda done, rows: None)
    assert [found for each, found in zip(tasks, results, strict=True) if each.planned.partition != 1] == [None] * RANGES * 2
    assert [found for each, found in zip(tasks, results, strict=True) if each.planned.partition == 1] == [error] * RANGES
    assert tried[0] == tried[2] == RANGES
    assert 1 <= tried[1] <= most, "one in each thread"
