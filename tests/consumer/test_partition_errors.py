"""Each partition of a response has its own outcome."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from consuming import T0, T1, cluster_of, consumer_of
from trio.testing import MockClock as Clock

from trikafka import AuthorizationError, TopicPartition
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster

U0 = TopicPartition("u", 0)
#: Not the members' business, but what a coordinator says while a transaction over the offset is
#: open.
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


async def read_both(consumer: Any, results: dict[TopicPartition, object]) -> None:
    """Read the first record of each assigned partition as a stream.

    Store it, or the error, by partition.
    """

    async def read(stream: Any) -> None:
        try:
            results[stream.partition] = (await stream.receive()).value
        except Exception as error:
            results[stream.partition] = error

    async with trio.open_nursery() as nursery:
        async for stream in consumer.partitions():
            nursery.start_soon(read, stream)


@pytest.mark.parametrize("other", [ErrorCode.OFFSET_NOT_AVAILABLE, 0])
@pytest.mark.parametrize("nodes", [1, 2])
async def test_unauthorized_partition_fails_alone(
    autojump_clock: Clock, other: int, nodes: int
) -> None:
    """Partition 0 may not be described; partition 1 has a transient error."""
    async with cluster_of(2, records=1, nodes=nodes) as cluster, consumer_of(cluster) as consumer:
        cluster.fail("ListOffsets", ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, partition=0)
        if other:
            await fail_in_the_same_responses(cluster, 1, other)
        consumer.assign([T0, T1])
        results: dict[TopicPartition, object] = {}
        with trio.move_on_after(30):
            await read_both(consumer, results)
        assert isinstance(results[T0], AuthorizationError)
        assert "t-0" in str(results[T0])
        assert results[T1] == b"0"


async def fail_in_the_same_responses(cluster: ScriptedCluster, partition: int, code: int) -> None:
    """Give a partition an error of its own in the next three responses, beside those of others."""
    left = 3

    async def handler(request: Any, default: Any) -> Any:
        nonlocal left
        response = await default()
        for topic in response.topics:
            for part in topic.partitions:
                if part.partition_index == 0:
                    part.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif part.partition_index == partition and left:
                    left -= 1
                    part.error_code = code
        return response

    cluster._script._rules.clear()
    cluster.on("ListOffsets", handler)


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, UNSTABLE])
async def test_unreadable_commit_stops_its_partition(autojump_clock: Clock, code: int) -> None:
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster, group_id="g") as consumer:
        await consumer.commit({T1: 2})
        cluster.fail("OffsetFetch", code, None, partition=0)
        consumer.assign([T0, T1])
        results: dict[TopicPartition, object] = {}
        with trio.move_on_after(30):
            await read_both(consumer, results)
        assert results.pop(T1) == b"2"
        assert [type(error) for error in results.values()] == (
            [] if code == UNSTABLE else [AuthorizationError]
        )


async def test_reset_does_not_need_the_group(autojump_clock: Clock) -> None:
    """The group may not be read, and a partition that begins at the start does not need it."""
    async with cluster_of(2, records=1) as cluster, consumer_of(cluster, group_id="g") as consumer:
        cluster.fail("OffsetFetch", ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
        consumer.assign([T0, T1])
        consumer.seek_to_beginning([T1])
        results: dict[TopicPartition, object] = {}
        with trio.move_on_after(30):
            await read_both(consumer, results)
        assert isinstance(results[T0], AuthorizationError)
        assert results[T1] == b"0"


async def test_call_raises_the_partitions_error(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=1) as cluster, consumer_of(cluster) as consumer:
        cluster.fail("ListOffsets", ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, partition=1)
        with pytest.raises(AuthorizationError, match="t-1") as raised:
            await consumer.end_offsets([T0, T1])
        assert {str(tp): type(error) for tp, error in raised.value.failures.items()} == {
            "t-1": AuthorizationError
        }


@pytest.mark.parametrize("asked", [False, True])
async def test_frozen_leader_delays_no_other(autojump_clock: Clock, asked: bool) -> None:
    """Its partition has no other replica. The first record of the other one arrives at once."""
    async with cluster_of(2, records=1, nodes=3) as cluster, consumer_of(cluster) as consumer:
        cluster.move_leader("t", 0, 1)
        cluster.move_leader("t", 1, 2)
        await consumer.partitions_for("t")
        cluster.freeze(1)
        consumer.assign([T0, T1])
        if asked:
            consumer.seek_to_beginning([T0, T1])
        began = trio.current_time()
        assert (await consumer.receive()).partition == 1
        assert trio.current_time() - began < 2


async def test_reset_does_not_wait_for_coordinator(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2, records=1, nodes=2) as cluster,
        consumer_of(cluster, group_id="g") as consumer,
    ):
        cluster.silence("OffsetFetch")
        consumer.assign([T0, T1])
        consumer.seek_to_beginning([T1])
        began = trio.current_time()
        assert (await consumer.receive()).partition == 1
        assert trio.current_time() - began < 2
