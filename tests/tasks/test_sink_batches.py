"""``sink_batches`` in virtual time: the tables that a sink gets and when, commits, and the
membership meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tasking import cluster_of, committed, consumer_of, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import ConfigurationError, Consumer, KafkaTimeoutError, PluginError
from trikafka.error_codes import ErrorCode
from trikafka.hooks import hookimpl
from trikafka.interfaces import BatchWriter, SinkBatch
from trikafka.testing import ScriptedCluster
from trikafka.testing.cancellation import assert_all_awaits_cancellable

trikafka.RecordBatch.empty().to_arrow()  # imports pyarrow, before any clock is a test's


class Lake:
    """A sink and its plugin. It records offsets and takes ``seconds`` for a batch."""

    def __init__(self, seconds: float = 0.0, *errors: Exception) -> None:
        self.seconds = seconds
        self.errors = list(errors)
        self.begun: list[SinkBatch] = []
        self.written: list[tuple[float, SinkBatch]] = []
        self.open = 0
        self.options: dict[str, Any] = {}

    @hookimpl
    def trikafka_sink(self, scheme: str, options: dict[str, Any]) -> Lake | None:
        self.options = dict(options)
        return self if scheme == "lake" else None

    @asynccontextmanager
    async def open_batches(self) -> AsyncIterator[BatchWriter]:
        self.open += 1
        try:
            yield self
        finally:
            self.open -= 1

    async def write(self, batch: SinkBatch) -> None:
        self.begun.append(batch)
        await trio.sleep(self.seconds)
        if self.errors:
            raise self.errors.pop(0)
        self.written.append((trio.current_time(), batch))

    def offsets(self, partition: int = 0) -> list[int]:
        return [
            at
            for _, batch in self.written
            if batch.partition == partition
            for at in batch.table["offset"].to_pylist()
        ]

    @property
    def parts(self) -> list[tuple[int, int, int]]:
        return [(batch.partition, batch.start, batch.end) for _, batch in self.written]


def reader(cluster: ScriptedCluster, lake: Lake, **settings: Any) -> Any:
    return consumer_of(cluster, plugins=[lake], **settings)


@asynccontextmanager
async def sinking(consumer: Consumer, **options: Any) -> AsyncIterator[None]:
    """Run ``sink_batches`` beside the body, and cancel it at the end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: trikafka.sink_batches(consumer, "lake://x", **options))
        yield
        nursery.cancel_scope.cancel()


async def test_table_is_written_when_it_is_old(
    autojump_clock: Clock,
) -> None:
    lake = Lake()
    async with (
        cluster_of(2) as cluster,
        reader(cluster, lake) as consumer,
        sinking(consumer, flush_ms=20_000),
    ):
        await trio.sleep(30)
        begun = trio.current_time()
        for partition in range(2):
            cluster.append("t", partition, [b"early"] * 5)
        await trio.sleep(10)
        assert lake.written == []
        cluster.append("t", 0, [b"late"])
        await until(lambda: len(lake.written) == 2)
        assert sorted(lake.parts) == [(0, 0, 6), (1, 0, 5)]
        assert [round(at - begun, 3) for at, _ in lake.written] == [20, 20]
        await until(lambda: (committed(cluster, 0), committed(cluster, 1)) == (6, 5))
        assert (
            lake.written[0][1].table.column_names
            == trikafka.RecordBatch.empty().to_arrow().schema.names
        )
    assert lake.options["destination"] == "lake://x"
    assert lake.open == 0


@pytest.mark.parametrize("limit", ["max_rows", "max_bytes"])
async def test_full_table_is_written_at_once(autojump_clock: Clock, limit: str) -> None:
    lake, options = Lake(), {"max_rows": 100} if limit == "max_rows" else {"max_bytes": 5_000}
    async with cluster_of(1) as cluster:
        for _ in range(40):
            cluster.append("t", 0, [b"x" * 100] * 10)
        async with (
            reader(cluster, lake, max_poll_records=10) as consumer,
            sinking(consumer, flush_ms=1e9, **options),
        ):
            await until(lambda: len(lake.offsets()) >= 300, limit=60)
            assert len(lake.written) >= 3
            assert lake.offsets() == list(range(len(lake.offsets())))


async def test_commit_waits_for_the_sink(
    autojump_clock: Clock,
) -> None:
    """The sink works for twenty minutes, longer than any interval of the member's, which stays in
    its group.
    """
    lake = Lake(1_200)
    settings: dict[str, Any] = {"max_poll_interval_ms": 60_000, "session_timeout_ms": 10_000}
    async with cluster_of(1, records=5) as cluster, reader(cluster, lake, **settings) as consumer:
        async with sinking(consumer, flush_ms=0, max_rows=5):
            await until(lambda: len(lake.begun) == 1)
            joins = len(cluster.requests("JoinGroup"))
            await trio.sleep(1_100)
            assert committed(cluster) is None
            await until(lambda: committed(cluster) == 5)
            assert len(cluster.requests("JoinGroup")) == joins
            assert len(cluster.requests("LeaveGroup")) == 0
    assert lake.parts == [(0, 0, 5)]


async def test_revoked_partition_is_written_first(
    autojump_clock: Clock,
) -> None:
    first, second = Lake(3), Lake()
    settings: dict[str, Any] = {"partition_assignment_strategy": ["range"]}
    async with (
        cluster_of(2, records=4) as cluster,
        reader(cluster, first, **settings) as one,
        sinking(one, flush_ms=1e9),
    ):
        await trio.sleep(5)
        assert first.written == []
        async with reader(cluster, second, **settings) as two, sinking(two, flush_ms=0):
            await until(lambda: len(first.written) == 2)
            await until(lambda: len(two.assignment()) == 1)
            tp = next(iter(two.assignment()))
            cluster.append("t", tp.partition, [b"new"])
            await until(lambda: len(second.written) == 1)
    assert second.parts == [(tp.partition, 4, 5)]


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_close_writes_and_cancel_drops_tables(autojump_clock: Clock, how: str) -> None:
    lake = Lake()
    async with cluster_of(2, records=4) as cluster, reader(cluster, lake) as consumer:
        with trio.move_on_after(5) as scope:
            async with trio.open_nursery() as nursery:

                async def close() -> None:
                    await trio.sleep(3)
                    if how == "closed":
                        await consumer.aclose()

                nursery.start_soon(close)
                await trikafka.sink_batches(consumer, "lake://x", flush_ms=1e9)
        assert scope.cancelled_caught is (how == "cancelled")
        if how == "closed":
            assert sorted(lake.parts) == [(0, 0, 4), (1, 0, 4)]
            assert (committed(cluster, 0), committed(cluster, 1)) == (4, 4)
            return
        assert trio.current_time() == 5.0
        assert lake.written == []
        async with sinking(consumer, flush_ms=0):  # it stands before what was not written
            await until(lambda: sorted(lake.parts) == [(0, 0, 4), (1, 0, 4)])


async def test_cancelled_write_is_repeated(autojump_clock: Clock) -> None:
    lake = Lake(1_000)
    async with cluster_of(1, records=4) as cluster, reader(cluster, lake) as consumer:
        with trio.move_on_after(50):
            await trikafka.sink_batches(consumer, "lake://x", flush_ms=0)
        assert trio.current_time() <= 51
        assert committed(cluster) is None
        lake.seconds = 0
        async with sinking(consumer, flush_ms=0):
            await until(lambda: committed(cluster) == 4)
    assert lake.offsets() == [0, 1, 2, 3]


async def test_sink_may_be_cancelled_anywhere(autojump_clock: Clock) -> None:
    lake = Lake()

    @asynccontextmanager
    async def setup() -> AsyncIterator[tuple[ScriptedCluster, Consumer]]:
        lake.__init__(0.3)  # type: ignore[misc]
        async with (
            cluster_of(1, records=8) as cluster,
            reader(cluster, lake, auto_commit_interval_ms=500) as consumer,
        ):
            yield cluster, consumer

    async def scenario(given: tuple[ScriptedCluster, Consumer]) -> None:
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                await until(lambda: len(lake.offsets()) == 8)
                await given[1].aclose()

            nursery.start_soon(stop)
            await trikafka.sink_batches(given[1], "lake://x", flush_ms=100, max_rows=3)

    async def check(given: tuple[ScriptedCluster, Consumer]) -> None:
        cluster, consumer = given
        assert (committed(cluster) or 0) == len(lake.offsets())
        assert lake.open == 0
        if len(lake.offsets()) < 8:
            async with sinking(consumer, flush_ms=0):
                await until(lambda: committed(cluster) == 8)
        assert lake.offsets() == list(range(8))

    with trio.fail_after(100_000):
        assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 3


async def test_timed_out_write_is_retried(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake(1, *(KafkaTimeoutError("send", 1) for _ in range(3)))
    async with (
        cluster_of(2, records=4) as cluster,
        reader(cluster, lake) as consumer,
        sinking(consumer, flush_ms=0, max_rows=4),
    ):
        await until(lambda: (committed(cluster, 0), committed(cluster, 1)) == (4, 4))
    assert sorted(lake.parts) == [(0, 0, 4), (1, 0, 4)]
    told = [
        line.getMessage()
        for line in caplog.records
        if line.levelno == logging.WARNING and line.name == "trikafka.tasks"
    ]
    assert len(told) == 3
    assert all(line.startswith("writing t-") for line in told)


async def test_records_before_corrupt_ones_are_written(
    autojump_clock: Clock,
) -> None:
    lake = Lake()
    async with cluster_of(2, records=3) as cluster, reader(cluster, lake) as consumer:
        data = cluster.partition("t", 0).batches[0].data
        cluster.append_batch("t", 0, data[:70] + b"\xff" + data[71:], count=3)
        with pytest.raises(trikafka.CorruptRecordError), trio.fail_after(30):
            await trikafka.sink_batches(consumer, "lake://x", flush_ms=1e9)
        assert sorted(lake.parts) == [(0, 0, 3), (1, 0, 3)]
        assert (committed(cluster, 0), committed(cluster, 1)) == (3, 3)


async def test_failing_write_ends_the_run(
    autojump_clock: Clock,
) -> None:
    """The other partitions may still write their tables."""
    lake = Lake(0, OSError("the disk is full"))
    async with cluster_of(2, records=3) as cluster, reader(cluster, lake) as consumer:
        with pytest.raises(OSError, match="the disk is full"), trio.fail_after(30):
            await trikafka.sink_batches(consumer, "lake://x", flush_ms=1_000)
        assert len(lake.parts) == 1
        assert sorted(committed(cluster, each) or 0 for each in range(2)) == [0, 3]


async def test_lost_partition_is_not_written(autojump_clock: Clock) -> None:
    """The new owner reads its records again."""
    lake = Lake()
    async with (
        cluster_of(1, records=3) as cluster,
        reader(cluster, lake) as consumer,
        sinking(consumer, flush_ms=30_000),
    ):
        await trio.sleep(5)
        cluster.fail("Heartbeat", ErrorCode.UNKNOWN_MEMBER_ID, times=1)
        await until(lambda: committed(cluster) == 3)
    assert lake.parts == [(0, 0, 3)]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_rows": 0}, "max_rows must be"),
        ({"max_bytes": True}, "max_bytes must be"),
        ({"flush_ms": -1}, "flush_ms must be"),
        ({"task_timeout_ms": -1}, "task_timeout_ms must be"),
        ({"stop_on": "x"}, "stop_on must be"),
    ],
)
async def test_wrong_sink_options_are_refused(
    autojump_clock: Clock, options: dict[str, Any], match: str
) -> None:
    async with cluster_of(1) as cluster, reader(cluster, Lake()) as consumer:
        with pytest.raises(ConfigurationError, match=match):
            await trikafka.sink_batches(consumer, "lake://x", **options)


async def test_unfit_sinks_and_consumers_are_refused(autojump_clock: Clock) -> None:
    class ExportsOnly:
        @hookimpl
        def trikafka_sink(self, scheme: str) -> object | None:
            return object() if scheme == "other" else None

    async with cluster_of(1) as cluster:
        async with consumer_of(cluster, plugins=[ExportsOnly()]) as consumer:
            with pytest.raises(
                PluginError, match=r"'ExportsOnly'.*is no BatchSink: it has no open_batches"
            ):
                await trikafka.sink_batches(consumer, "other://x")
            with pytest.raises(PluginError, match="no plugin writes"):
                await trikafka.sink_batches(consumer, "nobody://x")
        async with reader(cluster, Lake(), enable_auto_commit=True) as consumer:
            with pytest.raises(ConfigurationError, match="sink_batches commits by itself"):
                await trikafka.sink_batches(consumer, "lake://x")
