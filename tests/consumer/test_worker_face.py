"""What a worker of a third party uses of a consumer: membership, assignments, streams, batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from consuming import T0, T1, cluster_of, consumer_of, member_of, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Consumer, GroupMembership, GroupMetadata, PartitionStream

LIMIT = 50.0


async def stable(consumer: Consumer) -> GroupMembership:
    """Receive in the background until the member is in its group; return the membership."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consumer.receive_batch)
        await until(lambda: joined(consumer), 0.1)
        nursery.cancel_scope.cancel()
    found = consumer.membership()
    assert found is not None
    return found


def joined(consumer: Consumer) -> bool:
    found = consumer.membership()
    return found is not None and found.state == "stable"


async def first_stream(consumer: Consumer) -> PartitionStream:
    async for stream in consumer.partitions():
        return stream
    raise AssertionError("no stream came")


async def serve(
    consumer: Consumer, work: Callable[[PartitionStream], Awaitable[None]], nursery: trio.Nursery
) -> None:
    async for stream in consumer.partitions():
        nursery.start_soon(work, stream)


# Membership.


async def test_membership_is_none_without_subscription(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, consumer_of(cluster, group_id="g") as consumer:
        assert consumer.membership() is None
        consumer.assign([T0])
        assert consumer.membership() is None
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        assert consumer.membership() is None


async def test_only_member_leads_a_classic_group(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, member_of(cluster) as consumer:
        before = consumer.membership()
        assert before is not None
        assert (before.joined, before.generation, before.member_id) == (False, -1, "")
        assert before.leader is None
        found = await stable(consumer)
        assert found.joined
        assert found.leader is True
        assert (found.generation, found.group_id) == (1, "g")
        await consumer.unsubscribe()
        assert consumer.membership() is None


async def test_one_of_two_members_leads(autojump_clock: Clock) -> None:
    async with cluster_of(2) as cluster, member_of(cluster) as one, member_of(cluster) as other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.receive_batch)
            nursery.start_soon(other.receive_batch)
            await until(lambda: len(one.assignment()) == len(other.assignment()) == 1, 0.1)
            nursery.cancel_scope.cancel()
        assert sorted(each.membership().leader for each in (one, other)) == [False, True]


async def test_consumer_protocol_has_no_leader(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, member_of(cluster, group_protocol="consumer") as consumer:
        found = await stable(consumer)
        assert found.generation >= 1
        assert found.leader is None


async def test_membership_is_metadata_of_the_group(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, member_of(cluster, group_instance_id="i") as consumer:
        found = await stable(consumer)
        assert isinstance(found, GroupMetadata)
        assert consumer.group_metadata() == GroupMetadata(
            found.group_id, found.generation, found.member_id, "i"
        )


# Assignments.


async def test_returning_partition_has_a_higher_epoch(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster) as consumer:
        assert consumer.assignment_epoch(T0) is None
        consumer.assign([T0, T1])
        first, other = consumer.assignment_epoch(T0), consumer.assignment_epoch(T1)
        assert first is not None
        consumer.seek(T0, 2)
        consumer.assign([T0])
        assert consumer.assignment_epoch(T0) == first
        assert consumer.assignment_epoch(T1) is None
        consumer.assign([T0, T1])
        again = consumer.assignment_epoch(T1)
        assert other is not None
        assert again is not None
        assert again > other


# Handlers.


@pytest.mark.parametrize("call", ["aclose", "unsubscribe"])
async def test_handler_cannot_wait_for_itself(autojump_clock: Clock, call: str) -> None:
    async def leave() -> None:
        with pytest.raises(trikafka.IllegalStateError, match=f"{call}.*would wait for the handler"):
            await getattr(consumer, call)()

    async with cluster_of() as cluster, member_of(cluster) as consumer:
        with consumer.handling():
            await leave()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(leave)
        await getattr(consumer, call)()


async def test_another_consumer_may_be_closed_in_a_handler(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, member_of(cluster) as one, consumer_of(cluster) as other:
        with one.handling():
            await other.aclose()
        assert other.is_closed


@pytest.mark.parametrize("same", [True, False], ids=["same consumer", "another consumer"])
async def test_blocks_of_handlers_nest(autojump_clock: Clock, same: bool) -> None:
    """A worker may open a block in a handler of ``run_tasks``, which has one already."""
    async with cluster_of() as cluster, member_of(cluster) as one, consumer_of(cluster) as other:
        with one.handling():
            with (one if same else other).handling(), pytest.raises(trikafka.IllegalStateError):
                await one.aclose()
            with pytest.raises(trikafka.IllegalStateError):
                await one.aclose()
            if not same:
                await other.aclose()
        await one.aclose()


# Streams.


async def test_stream_ends_before_its_partition_is_gone(autojump_clock: Clock) -> None:
    """A stream that is left has ended, and its partition is still owned."""
    async with cluster_of(records=3) as cluster, member_of(cluster) as consumer:
        stream = await first_stream(consumer)
        assert stream.owned
        ended = []

        async def watch() -> None:
            await stream.wait_ended()
            ended.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.sleep(5)
            assert not ended
            await stream.aclose()
        assert (stream.ended, stream.owned) == (True, True)
        await consumer.unsubscribe()
        assert not stream.owned


async def test_revoked_stream_is_owned_no_more(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster, member_of(cluster) as consumer:
        stream = await first_stream(consumer)
        await stream.receive()
        await consumer.unsubscribe()
        await stream.wait_ended()
        assert (stream.ended, stream.owned) == (True, False)


async def test_wait_ended_of_a_left_stream_returns(autojump_clock: Clock) -> None:
    """The partition's next records go to the receive that waits for them."""
    async with cluster_of(records=1) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        stream = await first_stream(consumer)
        await stream.receive()
        await stream.aclose()
        consumer.seek(T0, 1)
        await stream.wait_ended()
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.receive)
                await trio.sleep(5)
                cluster.append("t", 0, [b"1"])


@pytest.mark.parametrize("reports", [True, False])
async def test_reported_progress_keeps_the_member(autojump_clock: Clock, reports: bool) -> None:
    """A handler that works on one record for long is stuck, unless it reports its progress."""
    settings = {"max_poll_interval_ms": LIMIT * 1000}

    async def work(stream: PartitionStream) -> None:
        await stream.receive()
        while True:
            await trio.sleep(LIMIT / 2)
            if reports:
                stream.report_progress()

    async with cluster_of(records=3) as cluster, member_of(cluster, **settings) as consumer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, consumer, work, nursery)
            await trio.sleep(3 * LIMIT)
            found = consumer.membership()
            assert found is not None
            assert found.state == ("stable" if reports else "stale")
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("marked", [True, False])
async def test_back_off_is_not_a_stuck_handler(autojump_clock: Clock, marked: bool) -> None:
    settings = {"max_poll_interval_ms": LIMIT * 1000}

    async def work(stream: PartitionStream) -> None:
        await stream.receive()
        if marked:
            with stream.backing_off(), stream.backing_off():
                await trio.sleep(3 * LIMIT)
        await trio.sleep_forever()

    async with cluster_of(records=3) as cluster, member_of(cluster, **settings) as consumer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, consumer, work, nursery)
            await trio.sleep(2 * LIMIT)
            assert joined(consumer) == marked
            await trio.sleep(3 * LIMIT)  # the time of the handler begins with the end of the block
            assert not joined(consumer)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("marked", [True, False])
async def test_waiting_successor_is_not_awaited(autojump_clock: Clock, marked: bool) -> None:
    """The member joins again when a stuck handler ends, not when its successor does."""
    settings = {"max_poll_interval_ms": LIMIT * 1000}
    waiting = trio.CancelScope()

    async def work(stream: PartitionStream) -> None:
        async with stream:
            if stream.partition == T0 or waiting.cancel_called:
                await stream.receive()
                await trio.sleep_forever()
            with waiting:
                if marked:
                    with stream.awaiting_predecessor():
                        await trio.sleep_forever()
                await trio.sleep_forever()

    async with cluster_of(2, records=3) as cluster, member_of(cluster, **settings) as consumer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, consumer, work, nursery)
            await until(lambda: joined(consumer), 0.1)
            await trio.sleep(2 * LIMIT)
            assert not joined(consumer)
            waiting.cancel()
            await trio.sleep(5)
            assert joined(consumer) != marked
            nursery.cancel_scope.cancel()


# Batches.


async def test_batch_keeps_the_bytes_of_its_records(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=3) as cluster,
        consumer_of(cluster, value_deserializer=int) as consumer,
    ):
        consumer.assign([T0])
        batch = await consumer.receive_batch()
        assert [record.value for record in batch.raw] == [b"0", b"1", b"2"]
        assert [batch.deserialize(record).value for record in batch.raw] == [0, 1, 2]
        assert batch.raw.next_offset == batch.next_offset


async def test_plain_batch_is_its_own_raw(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        batch = await consumer.receive_batch()
        assert batch.raw is batch
        assert batch.detached() is batch
        assert batch.deserialize(batch[0]) == batch[0]


@pytest.mark.parametrize("detached", [True, False])
async def test_detached_batch_leaves_the_position(autojump_clock: Clock, detached: bool) -> None:
    async with cluster_of() as cluster:
        cluster.append("t", 0, [b"1", b"wrong", b"3"])
        async with consumer_of(cluster, value_deserializer=int) as consumer:
            consumer.assign([T0])
            batch = await consumer.receive_batch()
            with pytest.raises(trikafka.DeserializationError):
                list(batch.detached() if detached else batch)
            assert await consumer.position(T0) == (3 if detached else 1)
