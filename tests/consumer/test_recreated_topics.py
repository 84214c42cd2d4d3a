"""A topic deleted and recreated under a group member (KIP-516).

Offsets of the old topic do not apply to the new one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from consuming import T0, T1, cluster_of, consumer_of, member_of, values
from trio.testing import MockClock

from trikafka import OffsetAndMetadata, TopicPartition
from trikafka._api.consumer.consumer import Consumer
from trikafka.errors import UnknownTopicOrPartitionError
from trikafka.testing import ScriptedCluster

PROTOCOLS = ["classic", "consumer"]


@pytest.mark.parametrize("later", [3, 40])
@pytest.mark.parametrize("gone_for", [0.0, 0.2, 3.0])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_recreated_topic_is_read_once(
    autojump_clock: MockClock, protocol: str, gone_for: float, later: int
) -> None:
    async with cluster_of(1, records=30) as cluster:
        settings = {
            "metadata_max_age_ms": 1000,
            "auto_commit_interval_ms": 500,
            "group_protocol": protocol,
        }
        async with member_of(cluster, **settings) as consumer:
            assert await values(consumer, 30) == [b"%d" % number for number in range(30)]
            await trio.sleep(2)
            cluster.delete_topic("t")
            await trio.sleep(gone_for)
            cluster.create_topic("t", 1)
            wanted = [b"new %d" % number for number in range(later)]
            cluster.append("t", 0, wanted)
            with trio.fail_after(60):
                assert await values(consumer, later) == wanted
            with trio.move_on_after(20) as scope:
                await consumer.receive()
            assert scope.cancelled_caught
        assert cluster.committed("g", T0).offset == later  # type: ignore[union-attr]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_member_outlives_its_partition(autojump_clock: MockClock, protocol: str) -> None:
    """A new topic with fewer partitions is no error of a member: its group takes the rest away."""
    async with cluster_of(2, records=3) as cluster:
        settings = {"metadata_max_age_ms": 300, "group_protocol": protocol}
        async with member_of(cluster, **settings) as consumer:
            assert len(await values(consumer, 6)) == 6
            await trio.sleep(6)
            cluster.delete_topic("t")
            cluster.create_topic("t", 1)
            cluster.append("t", 0, [b"new"] * 3)
            with trio.fail_after(60):
                assert await values(consumer, 3) == [b"new"] * 3
            with trio.move_on_after(20) as scope:
                await consumer.receive()
            assert scope.cancelled_caught
            assert consumer.assignment() == {T0}
            assert await consumer.position(T0) == 3


@asynccontextmanager
async def holding_old_records(cluster: ScriptedCluster, **settings: Any) -> AsyncIterator[Consumer]:
    """Open a consumer that has read five records of a topic recreated since, and does not know it
    yet.
    """
    async with member_of(cluster, enable_auto_commit=False, **settings) as consumer:
        await values(consumer, 5)
        cluster.delete_topic("t")
        cluster.create_topic("t", 2)
        cluster.append("t", 0, [b"new"] * 9)
        yield consumer


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_old_offset_is_not_committed(autojump_clock: MockClock, protocol: str) -> None:
    async with (
        cluster_of(1, records=5) as cluster,
        holding_old_records(cluster, group_protocol=protocol) as consumer,
    ):
        began = trio.current_time()
        with (
            trio.fail_after(5),
            pytest.raises(
                UnknownTopicOrPartitionError, match=r"'t' was deleted and created again.* of t-0"
            ),
        ):
            await consumer.commit()
        # The broker has refused the topic id, and the metadata have shown why.
        assert trio.current_time() == began
        assert cluster.committed("g", T0) is None
        with trio.fail_after(5), pytest.raises(UnknownTopicOrPartitionError):
            await consumer.commit()
        assert cluster.committed("g", T0) is None
        assert await values(consumer, 9) == [b"new"] * 9
        await consumer.commit()
        assert cluster.committed("g", T0) == OffsetAndMetadata(9, 0)


async def test_old_offset_is_not_sent_without_ids(
    autojump_clock: MockClock,
) -> None:
    """The broker takes no topic ids, and metadata show that the topic was recreated."""
    async with cluster_of(1, records=5) as cluster:
        cluster.offer("OffsetCommit", (2, 9))
        cluster.offer("OffsetFetch", (1, 9))
        async with holding_old_records(cluster) as consumer:
            consumer.pause([T0])
            await consumer.partitions_for("u")  # brings news of t too
            with (
                trio.fail_after(5),
                pytest.raises(
                    UnknownTopicOrPartitionError, match="'t' was deleted and created again"
                ),
            ):
                await consumer.commit({T0: 5})
            assert not cluster.requests("OffsetCommit")


async def test_old_commit_is_not_used(
    autojump_clock: MockClock,
) -> None:
    """The broker forgets old offsets late. It knows their topic id and is asked by the id."""
    async with cluster_of(1, records=5) as cluster:
        async with member_of(cluster) as consumer:
            await values(consumer, 5)
        assert all(
            seen.version == 10
            for seen in [*cluster.requests("OffsetCommit"), *cluster.requests("OffsetFetch")]
        )
        async with member_of(cluster) as consumer:
            old = cluster.topic_id("t")
            cluster.delete_topic("t")
            cluster.create_topic("t", 1)
            cluster.append("t", 0, [b"new"])
            with trio.fail_after(10):
                assert await values(consumer, 1) == [b"new"]
        asked = [
            topic.topic_id
            for seen in cluster.requests("OffsetFetch")
            for topic in seen.request.groups[0].topics
        ]
        assert set(asked) <= {old, cluster.topic_id("t")}
        assert asked[-1] == cluster.topic_id("t")


async def test_other_offsets_of_the_call_are_committed(
    autojump_clock: MockClock,
) -> None:
    other = TopicPartition("u", 0)
    async with cluster_of(1, records=5) as cluster:
        cluster.create_topic("u", 1)
        cluster.append("u", 0, [b"u"] * 3)
        async with member_of(cluster, "t", "u", enable_auto_commit=False) as consumer:
            await values(consumer, 8)
            cluster.delete_topic("t")
            cluster.create_topic("t", 1)
            with (
                trio.fail_after(5),
                pytest.raises(
                    UnknownTopicOrPartitionError, match="'t' was deleted and created again"
                ),
            ):
                await consumer.commit({T0: 5, other: 3})
            assert cluster.committed("g", other) == OffsetAndMetadata(3)
            assert cluster.committed("g", T0) is None


@pytest.mark.parametrize("versions", [(2, 9), (2, 10)])
async def test_commit_of_missing_partition_is_refused(
    autojump_clock: MockClock, versions: tuple[int, int]
) -> None:
    async with cluster_of(1) as cluster, consumer_of(cluster, group_id="g") as consumer:
        cluster.offer("OffsetCommit", versions)
        consumer.assign([T0])
        await consumer.position(T0)
        began = trio.current_time()
        with (
            trio.fail_after(10),
            pytest.raises(UnknownTopicOrPartitionError, match=r"t-7 \(the topic has 1 partition\)"),
        ):
            await consumer.commit({TopicPartition("t", 7): 1})
        assert trio.current_time() == began
        # The new topic may be on its way, so the call waits before it fails.
        with (
            trio.fail_after(10),
            pytest.raises(UnknownTopicOrPartitionError, match="x-0"),
        ):
            await consumer.commit({TopicPartition("x", 0): 1})
        assert 3 <= trio.current_time() - began < 5


async def test_new_partition_can_be_committed(
    autojump_clock: MockClock,
) -> None:
    async with cluster_of(1) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.assign([T0])
        await consumer.position(T0)
        cluster.add_partitions("t", 2)
        with trio.fail_after(1):
            await consumer.commit({T1: 1})
        assert cluster.committed("g", T1) == OffsetAndMetadata(1)
