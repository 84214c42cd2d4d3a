"""``partitions()``: one stream a partition, each in a task of its own.

On revoke finished records are committed.
"""

from __future__ import annotations

import importlib
import logging
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from consuming import T0, T1, T2, T3, RecordingListener, cluster_of, consumer_of, member_of, until
from trio.testing import MockClock as Clock
from trio.testing import wait_all_tasks_blocked

from trikafka import OffsetAndMetadata, Record, TopicPartition
from trikafka._api.consumer.consumer import Consumer
from trikafka._api.consumer.partition_stream import PartitionStream
from trikafka.errors import (
    CommitFailedError,
    CorruptRecordError,
    FencedInstanceIdError,
    IllegalStateError,
    NoOffsetForPartitionError,
)
from trikafka.testing import ScriptedCluster

Got = dict[TopicPartition, list[int]]
Handle = Callable[[Record], Awaitable[object]]


class Handlers:
    """Runs a handler for each stream and records what happened when."""

    def __init__(self, handle: Handle | None = None, log: list[Any] | None = None) -> None:
        self.handle = handle
        self.got = defaultdict[TopicPartition, list[int]](list)
        self.log: list[Any] = [] if log is None else log
        self.streams: list[PartitionStream] = []

    @property
    def count(self) -> int:
        return sum(map(len, self.got.values()))

    async def run(self, consumer: Consumer) -> None:
        async with trio.open_nursery() as nursery:
            async for stream in consumer.partitions():
                self.streams.append(stream)
                nursery.start_soon(self.one, stream)
        self.log.append(("all ended", trio.current_time()))

    async def one(self, stream: PartitionStream) -> None:
        async for record in stream:
            if self.handle is not None:
                await self.handle(record)
            self.got[stream.partition].append(record.offset)
        self.log.append(("ended", stream.partition, trio.current_time()))


@asynccontextmanager
async def handled(consumer: Consumer, handlers: Handlers) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handlers.run, consumer)
        yield
        nursery.cancel_scope.cancel()


def committed(cluster: ScriptedCluster, tp: TopicPartition = T0) -> int | None:
    found = cluster.committed("g", tp)
    return None if found is None else found.offset


@asynccontextmanager
async def assigned(cluster: ScriptedCluster, **settings: Any) -> AsyncIterator[Consumer]:
    async with consumer_of(cluster, **settings) as consumer:
        consumer.assign(
            [
                tp
                for tp in (T0, T1, T2, T3)
                if tp.partition < len(await consumer.partitions_for("t"))
            ]
        )
        yield consumer


def takes(seconds: float) -> Handle:
    """Return a handler that needs so long for each record."""

    async def handle(record: Record) -> None:
        await trio.sleep(seconds)

    return handle


async def fails(
    run: Callable[[], Awaitable[object]], kind: type[Exception], match: str | None = None
) -> None:
    with pytest.raises(kind, match=match):
        await run()


# Records of a stream.


@pytest.mark.parametrize("open_it", [member_of, assigned])
async def test_each_partition_has_an_ordered_stream(autojump_clock: Clock, open_it: Any) -> None:
    async with (
        cluster_of(4, records=50) as cluster,
        open_it(cluster, max_partition_fetch_bytes=500) as consumer,
    ):
        handlers = Handlers()
        with trio.fail_after(20):
            async with handled(consumer, handlers):
                await until(lambda: handlers.count == 200)
        assert handlers.got == {tp: list(range(50)) for tp in (T0, T1, T2, T3)}
        assert sorted(stream.partition for stream in handlers.streams) == [T0, T1, T2, T3]


async def test_stream_has_position_and_end(autojump_clock: Clock) -> None:
    async with cluster_of(1, records=3) as cluster, member_of(cluster) as consumer:
        async for stream in consumer.partitions():
            assert (await stream.receive()).offset == 0
            assert (stream.partition, stream.position, stream.ended) == (T0, 1, False)
            assert repr(stream) == "<trikafka.PartitionStream t-0>"
            assert stream.receive_nowait().offset == 1
            assert (await stream.receive()).offset == 2
            with pytest.raises(trio.WouldBlock):
                stream.receive_nowait()
            await stream.aclose()
            assert stream.ended
            with pytest.raises(trio.EndOfChannel):
                await stream.receive()
            with pytest.raises(trio.EndOfChannel):
                stream.receive_nowait()
            assert repr(stream) == "<trikafka.PartitionStream t-0 ended>"
            break


async def test_streams_give_batches_and_tables(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2, records=30) as cluster,
        member_of(cluster, max_poll_records=8) as consumer,
    ):
        # Otherwise it is imported in a thread, for which the virtual clock does not wait.
        importlib.import_module("trikafka._wire.arrow")
        offsets: list[int] = []
        rows = 0
        with trio.fail_after(10):
            async for stream in consumer.partitions():
                if stream.partition == T0:
                    async for batch in stream.batches():
                        assert len(batch) <= 8
                        offsets += batch.offsets
                        if len(offsets) == 30:
                            break
                else:
                    async for table in stream.arrow_batches(max_rows=20):
                        rows += table.num_rows
                        if rows == 30:
                            break
                if rows and offsets:
                    break
        assert offsets == list(range(30))


async def test_slow_stream_delays_no_other(autojump_clock: Clock) -> None:
    """The buffer stays within its limit though the slow partition always has more."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        for _ in range(200):
            cluster.append("t", 0, [b"x" * 1000])
            cluster.append("t", 1, [b"x" * 1000])
        async with member_of(cluster, fetch_buffer_bytes=32_000) as consumer:
            most = 0

            async def handle(record: Record) -> None:
                nonlocal most
                most = max(most, consumer.statistics().buffered_bytes)
                if record.partition == 0:
                    await trio.sleep_forever()

            handlers = Handlers(handle)
            with trio.fail_after(20):
                async with handled(consumer, handlers):
                    await until(lambda: len(handlers.got[T1]) == 200)
            assert handlers.got[T1] == list(range(200))
            assert most <= 32_000


async def test_many_slow_streams_starve_no_other(autojump_clock: Clock) -> None:
    """All of them together stay within the limit."""
    async with ScriptedCluster(topics={"t": 16}) as cluster:
        for partition in range(16):
            for _ in range(60):
                cluster.append("t", partition, [b"x" * 1000])
        async with member_of(cluster, fetch_buffer_bytes=64_000) as consumer:

            async def handle(record: Record) -> None:
                assert consumer.statistics().buffered_bytes <= 64_000
                if record.partition != 7:
                    await trio.sleep_forever()

            handlers = Handlers(handle)
            with trio.fail_after(60):
                async with handled(consumer, handlers):
                    await until(lambda: len(handlers.got[TopicPartition("t", 7)]) == 60, 0.01)


async def test_new_record_wakes_only_its_stream(autojump_clock: Clock) -> None:
    async with cluster_of(2) as cluster, member_of(cluster) as consumer:
        steps: list[str] = []

        class Steps(trio.abc.Instrument):
            def before_task_step(self, task: trio.lowlevel.Task) -> None:
                if "Handlers" in task.name or "partitions" in task.name:
                    steps.append(task.name)

        handlers = Handlers()
        async with handled(consumer, handlers):
            await until(lambda: len(handlers.streams) == 2)
            await trio.sleep(5)
            instrument = Steps()
            trio.lowlevel.add_instrument(instrument)
            cluster.append("t", 1, [b"1"])
            await until(lambda: handlers.count == 1)
            await trio.sleep(1)
            trio.lowlevel.remove_instrument(instrument)
        assert handlers.got == {T1: [0]}
        assert 1 <= len(steps) <= 2, steps  # that one task, for the record and once for the next
        assert {name.rpartition(".")[2] for name in steps} == {"one"}


# Rebalances.


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_revoked_stream_commits_before_listener(autojump_clock: Clock, strategy: str) -> None:
    settings = {"partition_assignment_strategy": [strategy], "auto_commit_interval_ms": 1_000_000}
    async with (
        cluster_of(2, records=100) as cluster,
        consumer_of(cluster, group_id="g", **settings) as first,
    ):
        log: list[Any] = []

        async def note_commits(what: str) -> None:
            if what == "revoked":
                log.append(
                    (
                        "committed",
                        {tp: committed(cluster, tp) for tp in (T0, T1)},
                        trio.current_time(),
                    )
                )

        first.subscribe(["t"], RecordingListener(log, then=note_commits))
        mine = Handlers(takes(2), log)
        async with handled(first, mine):
            await until(lambda: mine.count >= 6)
            theirs = Handlers()
            async with member_of(cluster, **settings) as second, handled(second, theirs):
                await until(lambda: theirs.count > 0)
                ended = next(entry for entry in log if entry[0] == "ended")
                committed_entry = next(entry for entry in log if entry[0] == "committed")
                assert log.index(ended) < log.index(committed_entry)
                (tp,) = theirs.got
                # No record is lost, and none comes twice.
                assert committed_entry[1][tp] == len(mine.got[tp]) == theirs.got[tp][0]
                # The last handler of a partition that moves was waited for, and no longer.
                assert committed_entry[2] - ended[2] < 2.01
                before = mine.count
                await until(lambda: mine.count > before + 3)  # and what stays goes on


async def test_revoke_waits_half_the_interval(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "max_poll_interval_ms": 60_000,
        "partition_assignment_strategy": ["range"],
        "auto_commit_interval_ms": 1_000_000,
    }
    async with (
        cluster_of(2, records=10) as cluster,
        consumer_of(cluster, group_id="g", **settings) as first,
    ):
        log: list[Any] = []

        async def at(what: str) -> None:
            log.append(trio.current_time())

        async def handle(record: Record) -> None:
            if record.offset == 3:
                await trio.sleep_forever()

        first.subscribe(["t"], RecordingListener(log, then=at))
        mine = Handlers(handle)
        async with handled(first, mine):
            await until(lambda: mine.count == 6)
            began = trio.current_time()
            theirs = Handlers()
            async with member_of(cluster, **settings) as second, handled(second, theirs):
                await until(lambda: theirs.count > 0)
        assert log[2] == ("revoked", [T0, T1])
        assert 30 <= log[3] - began <= 33  # a heartbeat, then half of max_poll_interval_ms
        assert {offsets[0] for offsets in theirs.got.values()} == {3}  # seen again
        assert any("did not return in time" in record.message for record in caplog.records)


async def test_revoke_does_not_wait_for_ended_handler(autojump_clock: Clock) -> None:
    settings = {"partition_assignment_strategy": ["range"], "auto_commit_interval_ms": 1_000_000}
    async with (
        cluster_of(2, records=10) as cluster,
        member_of(cluster, **settings) as first,
        trio.open_nursery() as nursery,
    ):

        async def three_then_away(stream: PartitionStream) -> None:
            for _ in range(3):
                await stream.receive()
            await trio.sleep(2)

        async def mine() -> None:
            async for stream in first.partitions():
                nursery.start_soon(three_then_away, stream)

        nursery.start_soon(mine)
        await trio.sleep(1)
        theirs = Handlers()
        async with member_of(cluster, **settings) as second, handled(second, theirs):
            with trio.fail_after(10):
                await until(lambda: theirs.count > 0)
        assert {offsets[0] for offsets in theirs.got.values()} == {2}
        nursery.cancel_scope.cancel()


async def test_async_with_marks_the_end_of_a_handler(autojump_clock: Clock) -> None:
    """A handler that gathers records may commit after its stream has ended, and is waited for."""
    settings = {"partition_assignment_strategy": ["range"], "enable_auto_commit": False}
    async with (
        cluster_of(2, records=10) as cluster,
        member_of(cluster, **settings) as first,
        trio.open_nursery() as nursery,
    ):
        flushed: dict[TopicPartition, float] = {}

        async def gather(stream: PartitionStream) -> None:
            async with stream:
                count = 0
                async for _ in stream:
                    count += 1
                await trio.sleep(3)
                await stream.commit()
                flushed[stream.partition] = trio.current_time()
                assert committed(cluster, stream.partition) == count == 10

        async def mine() -> None:
            async for stream in first.partitions():
                nursery.start_soon(gather, stream)

        nursery.start_soon(mine)
        await trio.sleep(5)
        async with member_of(cluster, **settings) as second:
            with trio.fail_after(20):
                await until(lambda: bool(second.assignment()))
            assert set(flushed) == {T0, T1}
            assert trio.current_time() - max(flushed.values()) < 0.5
        nursery.cancel_scope.cancel()


async def test_lost_stream_ends_without_a_commit(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=10) as cluster,
        consumer_of(cluster, group_id="g", auto_commit_interval_ms=1_000_000) as consumer,
    ):
        log: list[Any] = []
        consumer.subscribe(["t"], RecordingListener(log))

        async def handle(record: Record) -> None:
            if len(handlers.streams) == 1 and record.offset == 2:
                await trio.sleep(20)

        handlers = Handlers(handle, log)
        async with handled(consumer, handlers):
            await until(lambda: handlers.count == 2)
            cluster.fail("Heartbeat", 25)
            await until(lambda: ("lost", [T0]) in log)
            assert trio.current_time() < 4
            assert committed(cluster) is None
            await until(lambda: len(handlers.got[T0]) == 13)
            assert len(handlers.streams) == 2  # it was assigned again, and has a new stream
            # of the old stream: what it had when it was lost; the new one begins where nothing is
            # committed
            assert sorted(handlers.got[T0]) == sorted([0, 1, 2, *range(10)])
            first, second = handlers.streams
            assert first.ended
            assert not second.ended
            with pytest.raises(CommitFailedError):
                await first.commit()


async def test_commit_covers_only_its_stream(autojump_clock: Clock) -> None:
    settings = {"enable_auto_commit": False}
    async with (
        cluster_of(2, records=10) as cluster,
        member_of(cluster, **settings) as consumer,
        trio.open_nursery() as nursery,
    ):
        streams: dict[int, PartitionStream] = {}

        async def mine() -> None:
            async for stream in consumer.partitions():
                streams[stream.partition.partition] = stream

        nursery.start_soon(mine)
        await until(lambda: len(streams) == 2)
        for _ in range(4):
            await streams[0].receive()
            await streams[1].receive()
        await streams[0].commit()
        assert (committed(cluster, T0), committed(cluster, T1)) == (4, None)
        await streams[1].commit(2)
        await streams[0].commit(OffsetAndMetadata(3, None, "note"))
        assert (committed(cluster, T0), committed(cluster, T1)) == (3, 2)
        assert cluster.committed("g", T0).metadata == "note"
        nursery.cancel_scope.cancel()


async def test_streams_are_finished_independently(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2, records=10) as cluster,
        member_of(cluster, auto_commit_interval_ms=1_000) as consumer,
    ):

        async def handle(record: Record) -> None:
            if record.partition == 0 and record.offset == 1:
                await trio.sleep(30)

        async with handled(consumer, handlers := Handlers(handle)):
            await until(lambda: len(handlers.got[T1]) == 10)
            await trio.sleep(3)
            assert (committed(cluster, T0), committed(cluster, T1)) == (1, 10)


# Time limits of handlers.


async def test_slow_handler_is_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        cluster_of(2, records=3) as cluster,
        member_of(cluster, max_poll_interval_ms=50_000) as consumer,
    ):
        began = 0.0

        async def handle(record: Record) -> None:
            nonlocal began
            if record.partition == 0 and record.offset == 1:
                began = trio.current_time()
                await trio.sleep(170)

        async with handled(consumer, handlers := Handlers(handle)):
            await until(lambda: handlers.count == 4)

            def warnings() -> list[str]:
                return [
                    r.message
                    for r in caplog.records
                    if r.name == "trikafka.streams" and r.levelno == logging.WARNING
                ]

            await trio.sleep_until(began + 49.9)
            assert not warnings()
            await trio.sleep_until(began + 50.1)
            assert (
                "the handler of t-0 has not returned for max_poll_interval_ms (50000 ms)"
                in warnings()[0]
            )
            assert "offset 1" in warnings()[0]
            await until(lambda: handlers.count == 6, 1)
            assert consumer.statistics().state == "stable"
            assert len(warnings()) == 1
        assert not cluster.requests("LeaveGroup")


async def test_stopped_iteration_leaves_the_group(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2, records=3) as cluster,
        member_of(cluster, max_poll_interval_ms=50_000) as consumer,
    ):
        async for _ in consumer.partitions():
            await trio.sleep(51)
            assert consumer.statistics().state == "stale"
            break


# Errors.


async def test_partition_error_is_raised_by_its_stream(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2, records=3) as cluster,
        consumer_of(cluster, group_id="g", auto_offset_reset="none") as consumer,
    ):
        cluster.append("t", 0, [b"x"])
        async with trio.open_nursery() as nursery:
            await consumer.commit({T1: 0})
            consumer.assign([T0, T1])
            got: list[int] = []
            errors: list[Exception] = []

            async def one(stream: PartitionStream) -> None:
                try:
                    async for record in stream:
                        got.append(record.partition)
                except NoOffsetForPartitionError as error:
                    errors.append(error)
                    consumer.seek(stream.partition, 2)
                    await one(stream)

            async def run() -> None:
                async for stream in consumer.partitions():
                    nursery.start_soon(one, stream)

            nursery.start_soon(run)
            await until(lambda: len(got) == 5)
            assert sorted(got) == [0, 0, 1, 1, 1]
            assert "t-0" in str(errors[0])
            nursery.cancel_scope.cancel()


async def test_corrupt_record_stops_only_its_stream(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(2, records=3) as cluster,
        member_of(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        data = bytearray(cluster.partition("t", 0).read(0, 1 << 20)[0].data)
        data[-1] ^= 1
        base = cluster.append_batch("t", 0, bytes(data), count=3)
        cluster.append("t", 0, [b"after"])
        got: dict[int, list[int]] = {0: [], 1: []}
        errors: list[CorruptRecordError] = []

        async def one(stream: PartitionStream) -> None:
            while True:
                try:
                    got[stream.partition.partition].append((await stream.receive()).offset)
                except CorruptRecordError as error:
                    errors.append(error)
                    if len(errors) == 2:  # it is raised again until a seek
                        consumer.seek(stream.partition, base + 3)

        async def run() -> None:
            async for stream in consumer.partitions():
                nursery.start_soon(one, stream)

        nursery.start_soon(run)
        await until(lambda: got == {0: [0, 1, 2, 6], 1: [0, 1, 2]})
        assert len(errors) == 2
        nursery.cancel_scope.cancel()


async def test_fatal_error_is_raised_by_all_streams(autojump_clock: Clock) -> None:
    settings = {"partition_assignment_strategy": ["cooperative-sticky"]}
    async with cluster_of(2, records=3) as cluster, member_of(cluster, **settings) as consumer:
        errors: list[Exception] = []

        async def one(stream: PartitionStream) -> None:
            try:
                async for _ in stream:
                    pass
            except FencedInstanceIdError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            try:
                async for stream in consumer.partitions():
                    nursery.start_soon(one, stream)
                    cluster.fail("JoinGroup", 82, None)
                    cluster.group("g")._rebalance()
            except FencedInstanceIdError as error:
                errors.append(error)
        assert len({id(error) for error in errors}) == 3


# With whom it can be mixed, and its end.


async def test_receive_beside_streams_is_refused(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=5) as cluster, member_of(cluster) as consumer:
        async with handled(consumer, handlers := Handlers(takes(1))):
            await until(lambda: handlers.count == 2)
            await fails(consumer.receive, trio.BusyResourceError, "partitions")
            with pytest.raises(trio.BusyResourceError):
                consumer.receive_nowait()
            with pytest.raises(trio.BusyResourceError):
                consumer.receive_batch_nowait()
            await fails(consumer.partitions().__anext__, trio.BusyResourceError)
        # Those tasks are gone: now it may receive, also what was in hand when they were cancelled.
        seen = [await consumer.receive() for _ in range(10 - handlers.count)]
        left = {tp: [r.offset for r in seen if r.partition == tp.partition] for tp in (T0, T1)}
        assert left == {tp: list(range(len(handlers.got[tp]), 5)) for tp in (T0, T1)}


async def test_streams_beside_a_receive_are_refused(autojump_clock: Clock) -> None:
    async with (
        cluster_of() as cluster,
        member_of(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consumer.receive)
        await trio.sleep(1)
        await fails(consumer.partitions().__anext__, trio.BusyResourceError, "receiving")
        nursery.cancel_scope.cancel()


async def test_second_reader_of_a_stream_is_refused(autojump_clock: Clock) -> None:
    async with (
        cluster_of() as cluster,
        member_of(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        async for stream in consumer.partitions():
            nursery.start_soon(stream.receive)
            await trio.sleep(1)
            await fails(stream.receive, trio.BusyResourceError, "t-0")
            with pytest.raises(trio.BusyResourceError):
                stream.receive_nowait()
            nursery.cancel_scope.cancel()
            break


async def test_change_to_streams_loses_nothing(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2, records=5) as cluster,
        member_of(cluster, auto_commit_interval_ms=1_000) as consumer,
    ):
        before = [await consumer.receive() for _ in range(3)]
        async with handled(consumer, handlers := Handlers()):
            await until(lambda: handlers.count == 7)
            await trio.sleep(3)
            assert (committed(cluster, T0), committed(cluster, T1)) == (5, 5)
        offsets = {
            tp: [r.offset for r in before if r.partition == tp.partition] + handlers.got[tp]
            for tp in (T0, T1)
        }
        assert offsets == {tp: list(range(5)) for tp in (T0, T1)}


async def test_new_iteration_spares_streams_in_use(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(2, records=5) as cluster,
        member_of(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        handlers = Handlers(takes(1))
        scope = trio.CancelScope()

        async def first() -> None:
            with scope:
                async for stream in consumer.partitions():
                    if stream.partition == T0:
                        nursery.start_soon(handlers.one, stream)

        nursery.start_soon(first)
        await trio.sleep(2)
        scope.cancel()
        await wait_all_tasks_blocked()
        async for stream in consumer.partitions():
            assert stream.partition == T1  # the stream of T0 goes on in its task
            nursery.start_soon(handlers.one, stream)
            break
        await until(lambda: handlers.count == 10)
        nursery.cancel_scope.cancel()
    assert handlers.got == {tp: list(range(5)) for tp in (T0, T1)}


@pytest.mark.parametrize("how", ["unsubscribe", "aclose"])
async def test_leaving_ends_and_commits_streams(autojump_clock: Clock, how: str) -> None:
    settings = {"auto_commit_interval_ms": 1_000_000}
    async with (
        cluster_of(2, records=10) as cluster,
        consumer_of(cluster, group_id="g", **settings) as consumer,
    ):
        log: list[Any] = []
        consumer.subscribe(["t"], RecordingListener(log))
        handlers = Handlers(takes(2), log)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handlers.run, consumer)
            await until(lambda: handlers.count == 4)
            began = trio.current_time()
            await getattr(consumer, how)()
            assert 0 < trio.current_time() - began <= 2.1  # the handlers were waited for
        assert [entry[0] for entry in log] == ["assigned", "ended", "ended", "all ended", "revoked"]
        assert (committed(cluster, T0), committed(cluster, T1)) == (3, 3)
        assert handlers.got == {T0: [0, 1, 2], T1: [0, 1, 2]}
        if how == "unsubscribe":
            await fails(consumer.partitions().__anext__, IllegalStateError)
            consumer.subscribe(["t"])
            assert (await consumer.receive()).offset == 3
        else:
            await fails(consumer.partitions().__anext__, trio.ClosedResourceError)


async def test_crash_does_not_wait_for_ended_handlers(autojump_clock: Clock) -> None:
    class Oops(Exception):
        pass

    async def handle(record: Record) -> None:
        if record.offset == 3:
            await trio.sleep(1 + record.partition)
            raise Oops

    async with cluster_of(2, records=10) as cluster:
        with pytest.RaisesGroup(Oops):
            async with member_of(cluster) as consumer:
                await Handlers(handle).run(consumer)
        assert trio.current_time() < 3
        assert (committed(cluster, T0), committed(cluster, T1)) == (3, 3)


async def test_paused_stream_resumes(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=5) as cluster, member_of(cluster) as consumer:

        async def handle(record: Record) -> None:
            if record.partition == 0 and record.offset == 1:
                consumer.pause([T0])

        async with handled(consumer, handlers := Handlers(handle)):
            await trio.sleep(10)
            assert handlers.got == {T0: [0, 1], T1: list(range(5))}
            consumer.resume([T0])
            await until(lambda: handlers.count == 10)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("seed", range(2))
async def test_rebalanced_streams_keep_order(
    autojump_clock: Clock, strategy: str, seed: int
) -> None:
    """With auto commit, members joining and leaving at any point lose, double and reorder no
    record.
    """
    chance = random.Random(seed)
    settings = {
        "partition_assignment_strategy": [strategy],
        "auto_commit_interval_ms": 3_000,
        "max_poll_records": 3,
    }
    async with cluster_of(4) as cluster, trio.open_nursery() as nursery:
        handled: Got = defaultdict(list)

        async def produce() -> None:
            for number in range(100):
                for partition in range(4):
                    cluster.append("t", partition, [b"%d" % number])
                await trio.sleep(chance.uniform(0, 0.8))

        async def one(stream: PartitionStream) -> None:
            if chance.random() < 0.5:
                async for record in stream:
                    await trio.sleep(chance.uniform(0, 0.6))
                    handled[stream.partition].append(record.offset)
            else:
                async for batch in stream.batches():
                    await trio.sleep(chance.uniform(0, 1))
                    handled[stream.partition] += batch.offsets

        async def member(seconds: float) -> None:
            async with member_of(cluster, **settings) as consumer, trio.open_nursery() as streams:

                async def leave() -> None:
                    await trio.sleep(seconds)
                    await consumer.aclose()

                streams.start_soon(leave)
                async for stream in consumer.partitions():
                    streams.start_soon(one, stream)

        nursery.start_soon(produce)
        nursery.start_soon(member, 1e6)
        for _ in range(5):
            await trio.sleep(chance.uniform(1, 6))
            nursery.start_soon(member, chance.uniform(2, 20))
        with trio.fail_after(300):
            await until(lambda: sum(map(len, handled.values())) >= 400, 0.1)
        nursery.cancel_scope.cancel()
    assert handled == {tp: list(range(100)) for tp in (T0, T1, T2, T3)}
