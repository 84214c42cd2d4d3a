"""The time limit of a range counts from its last progress, with or without records."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
from trikafka_export import task as tasks
from trikafka_export.pieces import Shape
from trikafka_export.reading import _Reading
from trikafka_export.task import Stopper, WriteTask, write_range
from trio.testing import MockClock

from trikafka import KafkaTimeoutError, OffsetRange, TopicPartition, TrikafkaError
from trikafka.interfaces import PlannedRange

LIMIT = 30.0
END = 1_000
TOPIC_ID = uuid.uuid4()


class Client:
    """A consumer whose fetches have no record, and its batches.

    ``position_at`` says where its position is after so many seconds; all is read after ``ends``.
    """

    def __init__(self, position_at: Callable[[float], int], ends: float = math.inf) -> None:
        self._position_at = position_at
        self._ends = ends
        self._begun = trio.current_time()

    async def topic_ids(self, topics: list[str]) -> dict[str, uuid.UUID]:
        return dict.fromkeys(topics, TOPIC_ID)

    async def beginning_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 0)

    async def end_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, END)

    def assign(self, tps: list[TopicPartition]) -> None:
        pass

    def seek(self, tp: TopicPartition, offset: int) -> None:
        pass

    def batches(self, until: dict[TopicPartition, int]) -> Client:
        return self

    async def position(self, tp: TopicPartition, *, timeout: float) -> int:
        return self._position_at(trio.current_time() - self._begun)

    async def gather(self, rows: int, size: int) -> list[Any]:
        await trio.sleep_until(self._begun + self._ends)
        raise StopAsyncIteration


async def read(client: Client, *, strict: bool = True) -> None:
    async def deliver(group: list[Any]) -> None:
        raise AssertionError("there is no record")

    reading = _Reading(
        OffsetRange("t", 0, 0, END), strict, "", LIMIT, str(TOPIC_ID), lambda *gap: None, {}
    )
    await reading.run(client, lambda: None, deliver)


async def test_aborted_records_are_progress(autojump_clock: MockClock) -> None:
    """A long aborted transaction is skipped, however long its records take to arrive."""
    await read(Client(lambda seconds: int(seconds), ends=END))
    assert trio.current_time() > 30 * LIMIT


async def test_standing_position_is_a_timeout(autojump_clock: MockClock) -> None:
    """The limit counts from the last progress."""
    begun = trio.current_time()
    with pytest.raises(KafkaTimeoutError, match="reading t-0 from offset 100"):
        await read(Client(lambda seconds: min(int(seconds), 100)))
    assert trio.current_time() - begun == pytest.approx(100 + LIMIT, abs=5)


@pytest.mark.parametrize("strict", [True, False])
async def test_topic_unknown_to_a_broker_yet_is_read(
    strict: bool, autojump_clock: MockClock
) -> None:
    """A broker that is late to hear of a topic does not make a range lost."""

    class Late(Client):
        late = True

        async def topic_ids(self, topics: list[str]) -> dict[str, uuid.UUID]:
            late, self.late = self.late, False
            return {} if late else await super().topic_ids(topics)

    begun = trio.current_time()
    await read(Late(lambda seconds: int(seconds), ends=END), strict=strict)
    assert trio.current_time() - begun >= END, "the range was read to its end"


@pytest.mark.parametrize(
    ("settings", "limit"),
    [({}, 60.0), ({"default_api_timeout_ms": 5_000}, 5.0)],
    ids=["default", "given"],
)
def test_range_waits_as_long_as_a_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, settings: dict[str, Any], limit: float
) -> None:
    """A range without progress occupies its thread for ``default_api_timeout_ms``."""
    found: list[float] = []

    def read_range(*_: Any, stall_limit: float, **more: Any) -> Iterator[Any]:
        found.append(stall_limit)
        raise TrikafkaError("enough")
        yield

    monkeypatch.setattr(tasks, "read_range", read_range)
    planned = PlannedRange("t", 0, 0, END, "t-0.parquet")
    task = WriteTask(str(tmp_path), 1, planned, None, settings, True, {}, Shape())
    assert isinstance(write_range(task, Stopper()), TrikafkaError)
    assert found == [limit]
