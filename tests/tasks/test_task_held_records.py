"""Records that handlers hold beside the iteration: named by the log, passed by no commit."""

from __future__ import annotations

import pytest
import trio
from tasking import cluster_of, committed, consumer_of, running, until
from trio.testing import MockClock as Clock

from trikafka import Record, TopicPartition

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_log_and_health_name_a_stuck_record(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, concurrency: int
) -> None:
    """Also while other handlers work, and while the task waits for more records."""

    async def handler(record: Record) -> None:
        if record.partition == 0 and record.offset == 1:
            await trio.sleep_forever()

    def warned() -> int:
        return caplog.text.count("the handler of t-0 has not returned for max_poll_interval_ms")

    async with (
        cluster_of(2, records=10) as cluster,
        consumer_of(cluster, max_poll_interval_ms=30_000, session_timeout_ms=6_000) as consumer,
        running(consumer, handler, concurrency=concurrency),
    ):
        await trio.sleep(29)
        assert not warned()
        assert consumer.health().ok
        await trio.sleep(2)
        assert warned() == 1
        (reason,) = consumer.health().reasons
        assert reason.startswith("t-0: no progress: its handler has held the record")
        assert "offset 1 for 31 s" in reason
        assert set(consumer.health().stalled) == {T0}
        cluster.append("t", 0, [b"more"])
        await trio.sleep(290)
        assert warned() == 1
        await trio.sleep(20)
        assert warned() == 2
        assert committed(cluster) == 1


async def test_pause_restarts_time_of_a_record(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(record: Record) -> None:
        if record.offset == 1:
            await trio.sleep_forever()

    async with (
        cluster_of(1, records=10) as cluster,
        consumer_of(cluster, max_poll_interval_ms=30_000, session_timeout_ms=6_000) as consumer,
        running(consumer, handler, concurrency=4),
    ):
        await trio.sleep(1)
        consumer.pause([T0])
        await trio.sleep(100)
        assert consumer.health().ok
        consumer.resume([T0])
        await trio.sleep(29)
        assert consumer.health().ok
        assert "has not returned" not in caplog.text
        await trio.sleep(2)
        assert not consumer.health().ok


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_commit_passes_no_held_record(autojump_clock: Clock, concurrency: int) -> None:
    """A handler may call it, or another task: the offset is that of the first unfinished record."""
    seen: list[int] = []

    async def handler(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 7:
            await trio.sleep_forever()

    async with (
        cluster_of(1, records=30) as cluster,
        consumer_of(cluster, max_poll_records=5, auto_commit_interval_ms=10**9) as consumer,
        running(consumer, handler, concurrency=concurrency),
    ):
        await until(lambda: len(seen) == (30 if concurrency > 1 else 8))
        await consumer.commit()
        assert committed(cluster) == 7


async def test_commit_follows_a_seek_back(autojump_clock: Clock) -> None:
    seen: list[int] = []

    async def handler(record: Record) -> None:
        seen.append(record.offset)
        if len(seen) > 35:
            await trio.sleep_forever()

    async with (
        cluster_of(1, records=30) as cluster,
        consumer_of(cluster, auto_commit_interval_ms=10**9) as consumer,
        running(consumer, handler, concurrency=4),
    ):
        await until(lambda: len(seen) == 30)
        await consumer.commit()
        assert committed(cluster) == 30
        consumer.seek(T0, 10)
        await consumer.commit()
        assert committed(cluster) == 10
        await until(lambda: len(seen) > 38)
        await consumer.commit()
        assert 14 <= (committed(cluster) or 0) <= 15
