"""Edge cases of fetching, streams and marks."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from consuming import T0, T1, RecordingListener, cluster_of, consumer_of, member_of, until, values
from trio.testing import MockClock as Clock

from trikafka import OffsetAndMetadata, TopicPartition
from trikafka._api.consumer.partition_stream import PartitionStream
from trikafka.error_codes import ErrorCode
from trikafka.errors import AuthorizationError, ConfigurationError
from trikafka.testing import ScriptedCluster


def committed(cluster: ScriptedCluster, tp: TopicPartition = T0) -> int | None:
    found = cluster.committed("g", tp)
    return None if found is None else found.offset


async def test_validation_may_end_during_a_revoke(
    autojump_clock: Clock,
) -> None:
    async def slow(what: str) -> None:
        if what == "revoked":
            await trio.sleep(5)

    async with (
        cluster_of(nodes=2, records=10) as cluster,
        consumer_of(cluster, group_id="g") as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener([], then=slow))
        assert len(await values(consumer, 10)) == 10
        cluster.delay("OffsetForLeaderEpoch", 2, 1, after=True)
        cluster.move_leader("t", 0, 1)
        await cluster.seen("OffsetForLeaderEpoch")
        await consumer.unsubscribe()


async def test_receive_nowait_raises_a_stream_error(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=2) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        stream = await anext(consumer.partitions())
        assert (await stream.receive()).offset == 0
        stream.receive_nowait()
        cluster.fail("Fetch", ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1)
        cluster.append("t", 0, [b"2"])
        await trio.sleep(3)
        with pytest.raises(AuthorizationError):
            stream.receive_nowait()


async def test_revoke_waits_for_receive_nowait(
    autojump_clock: Clock,
) -> None:
    log: list[Any] = []

    async def handle(stream: PartitionStream) -> None:
        while True:
            try:
                stream.receive_nowait()
            except trio.WouldBlock:
                await trio.sleep(0.01)
            except trio.EndOfChannel:
                return
            else:
                await trio.sleep(1)
                log.append("done")

    async with cluster_of(records=1) as cluster, member_of(cluster) as consumer:
        async with trio.open_nursery() as nursery:
            async for stream in consumer.partitions():
                nursery.start_soon(handle, stream)
                break
            await until(lambda: consumer.statistics().buffered_bytes == 0 and stream.position == 1)
            await consumer.unsubscribe()
            assert log == ["done"]
        assert committed(cluster) == 1


async def test_cancelled_second_reader_is_cancelled(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(records=3) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        stream = await anext(consumer.partitions())
        await stream.receive()
        await trio.sleep(1)
        out: list[Any] = []

        async def one(scope: trio.CancelScope) -> None:
            try:
                with scope:
                    await stream.receive()
            except Exception as error:
                out.append(error)

        scope = trio.CancelScope()
        scope.cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, scope)
            nursery.start_soon(values, stream, 4)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert out == []


async def test_marks_continue_behind_a_commit(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=9) as cluster,
        member_of(cluster, enable_auto_offset_store=False) as consumer,
    ):
        records = [await consumer.receive() for _ in range(9)]
        await consumer.commit({T0: 5})
        for record in records[5:8]:
            consumer.mark_processed(record)
        await consumer.commit()
        assert committed(cluster) == 8


async def test_seek_during_a_commit_is_respected(autojump_clock: Clock) -> None:
    async with cluster_of(records=9) as cluster:
        async with member_of(
            cluster, auto_commit_interval_ms=1_000, fetch_max_wait_ms=20
        ) as consumer:
            await values(consumer, 9)
            cluster.delay("OffsetCommit", 0.5, 1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.commit)
                await trio.sleep(0.1)
                consumer.seek(T0, 0)
                await values(consumer, 3)
            await trio.sleep(3)
            assert committed(cluster) == 2


async def test_handler_may_pause_seek_and_resume(autojump_clock: Clock) -> None:
    got: list[int] = []
    async with cluster_of(records=5) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])

        async def handle(stream: PartitionStream) -> None:
            async for record in stream:
                got.append(record.offset)
                if got == [0, 1, 2]:
                    consumer.pause([T0])
                    nursery.start_soon(later)

        async def later() -> None:
            await trio.sleep(5)
            assert len(got) == 3
            consumer.seek(T0, 1)
            consumer.resume([T0])

        async with trio.open_nursery() as nursery:
            async for stream in consumer.partitions():
                nursery.start_soon(handle, stream)
                break
            await until(lambda: len(got) == 7)
            assert got == [0, 1, 2, 1, 2, 3, 4]
            nursery.cancel_scope.cancel()


async def test_closing_handlers_do_not_deadlock(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(2, records=5) as cluster, member_of(cluster) as consumer:
        began = trio.current_time()

        async def handle(stream: PartitionStream) -> None:
            async for _ in stream:
                await trio.sleep(1)
                await consumer.aclose()

        async with trio.open_nursery() as nursery:
            async for stream in consumer.partitions():
                nursery.start_soon(handle, stream)
        assert trio.current_time() - began < 10


async def test_handler_may_unsubscribe(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=5) as cluster, member_of(cluster) as consumer:

        async def handle(stream: PartitionStream) -> None:
            async for _ in stream:
                if stream.partition == T0:
                    await consumer.unsubscribe()

        async with trio.open_nursery() as nursery:
            async for stream in consumer.partitions():
                nursery.start_soon(handle, stream)
        consumer.subscribe(["t"])
        with trio.fail_after(20):
            await values(consumer, 5)


async def test_stream_continues_in_a_recreated_topic(autojump_clock: Clock) -> None:
    got: list[Any] = []
    async with (
        cluster_of(records=5) as cluster,
        consumer_of(cluster, metadata_max_age_ms=1_000) as consumer,
    ):
        consumer.assign([T0])

        async def handle(stream: PartitionStream) -> None:
            async for record in stream:
                got.append(record.value)

        async with trio.open_nursery() as nursery:
            async for stream in consumer.partitions():
                nursery.start_soon(handle, stream)
                break
            await until(lambda: len(got) == 5)
            consumer.pause([T0])
            cluster.delete_topic("t")
            await trio.sleep(3)
            cluster.create_topic("t", 1)
            cluster.append("t", 0, [b"new%d" % n for n in range(7)])
            await trio.sleep(3)
            consumer.resume([T0])
            with trio.fail_after(30):
                await until(lambda: len(got) == 12)
            nursery.cancel_scope.cancel()
        assert got[5:] == [b"new%d" % n for n in range(7)]


async def test_seek_in_a_recreated_topic_wins(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(records=5) as cluster,
        consumer_of(cluster, metadata_max_age_ms=1_000) as consumer,
    ):
        consumer.assign([T0])
        await values(consumer, 5)
        consumer.pause([T0])
        cluster.delete_topic("t")
        await trio.sleep(3)
        cluster.create_topic("t", 1)
        cluster.append("t", 0, [b"new%d" % n for n in range(7)])
        await trio.sleep(3)
        consumer.seek(T0, 4)
        consumer.resume([T0])
        with trio.fail_after(30):
            assert await values(consumer, 1) == [b"new4"]


async def test_unrequested_response_is_no_hot_loop(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(records=3) as cluster, consumer_of(cluster) as consumer:
        seen: list[Any] = []

        async def strange(request: Any, default: Any) -> Any:
            request.max_wait_ms = 0
            response = await default()
            seen.extend(response.responses)
            if seen:
                response.responses = seen[:1]
                response.responses[0].partitions[0].partition_index = 99
                response.responses[0].partitions[0].records = b""
            return response

        consumer.assign([T0])
        await values(consumer, 3)
        cluster.on("Fetch", strange)
        cluster.append("t", 0, [b"3"])
        before = len(cluster.requests("Fetch"))
        with trio.move_on_after(5):
            await consumer.receive()
        assert seen
        assert len(cluster.requests("Fetch")) - before < 40


def redirect(cluster: ScriptedCluster, node: int, replica: int, *, always: bool = False) -> None:
    """Have a broker name a replica to a consumer with a rack, and to others if ``always``."""

    async def elsewhere(request: Any, default: Any) -> Any:
        response = await default()
        if request.rack_id or always:
            for topic in response.responses:
                for part in topic.partitions:
                    part.preferred_read_replica = replica
                    part.records = b""
                    part.error_code = 0
        return response

    cluster.on("Fetch", elsewhere, node=node)


async def test_circular_replicas_are_no_hot_loop(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=3, nodes=2) as cluster,
        consumer_of(cluster, client_rack="a") as consumer,
    ):
        redirect(cluster, 0, 1, always=True)
        redirect(cluster, 1, 0, always=True)
        consumer.assign([T0])
        with trio.move_on_after(5):
            await consumer.receive()
        assert len(cluster.requests("Fetch")) < 60


@pytest.mark.parametrize(
    ("replica", "code"),
    [
        (77, None),  # there is none
        (1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (1, ErrorCode.OFFSET_NOT_AVAILABLE),
        (1, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
async def test_failing_replica_does_not_stop_reading(
    autojump_clock: Clock, replica: int, code: ErrorCode | None
) -> None:
    async with (
        cluster_of(records=3, nodes=2) as cluster,
        consumer_of(cluster, client_rack="a") as consumer,
    ):
        redirect(cluster, 0, replica)
        if code is not None:
            cluster.fail("Fetch", code, None, node=1)
        consumer.assign([T0])
        with trio.fail_after(20):
            assert await values(consumer, 1) == [b"0"]


async def test_endless_divergence_is_no_hot_loop(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(records=3) as cluster, consumer_of(cluster) as consumer:

        async def diverging(request: Any, default: Any) -> Any:
            response = await default()
            for topic in response.responses:
                for part in topic.partitions:
                    part.records = b""
                    part.diverging_epoch = type(part).EpochEndOffset(epoch=0, end_offset=1000)
            return response

        consumer.assign([T0])
        await values(consumer, 3)
        cluster.on("Fetch", diverging)
        cluster.append("t", 0, [b"3"])
        before = len(cluster.requests("Fetch"))
        with trio.move_on_after(5):
            await consumer.receive()
        assert len(cluster.requests("Fetch")) - before < 40


@pytest.mark.parametrize("name", ["a b", ".", "x" * 250, "t/1"])
async def test_invalid_topic_name_is_refused(autojump_clock: Clock, name: str) -> None:
    async with cluster_of() as cluster, consumer_of(cluster, group_id="g") as consumer:
        with pytest.raises(ConfigurationError, match="topic"):
            consumer.subscribe([name])
        with pytest.raises(ConfigurationError, match="topic"):
            consumer.assign([TopicPartition(name, 0)])
        assert consumer.subscription() == frozenset()


async def test_reassigned_partition_has_its_lag(
    autojump_clock: Clock,
) -> None:
    """The session's responses contain only changes since the partition was in it before."""
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0, T1])
        await values(consumer, 6)
        await trio.sleep(2)
        consumer.assign([T1])
        consumer.assign([T0, T1])
        consumer.seek(T0, 3)
        await trio.sleep(60)
        assert consumer.current_lag(T0) == 0
        assert consumer.health().ok


async def test_lag_is_known_after_a_truncation(autojump_clock: Clock) -> None:
    """Only the response that reported the truncation has the ends of the log."""
    async with cluster_of(nodes=2) as cluster, consumer_of(cluster) as consumer:
        for _ in range(10):
            cluster.append("t", 0, [b"x"])
        consumer.assign([T0])
        consumer.seek(T0, OffsetAndMetadata(30, 0))
        await trio.sleep(60)
        assert await consumer.position(T0) == 10
        assert consumer.current_lag(T0) == 0
        assert consumer.health().ok
