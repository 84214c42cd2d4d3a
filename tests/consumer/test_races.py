"""Races between tasks of one consumer: the later call wins, in any order of Trio."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from consuming import T0, T1, cluster_of, consumer_of, member_of
from trio.testing import MockClock as Clock

from trikafka import OffsetAndMetadata, TopicPartition, TrikafkaError
from trikafka._managers.commits.commit import _Commit, _Order
from trikafka.error_codes import ErrorCode


def committed(cluster: Any, partition: int = 0) -> int | None:
    found = cluster.committed("g", ("t", partition))
    return None if found is None else found.offset


@pytest.mark.parametrize("turn", range(8))  # Trio chooses at random which of the two goes on first
async def test_commits_end_in_order_if_the_last_fails(autojump_clock: Clock, turn: int) -> None:
    """Both had left their partition to the last one, and the older one overwrote the other's."""
    async with (
        cluster_of(records=20) as cluster,
        consumer_of(cluster, group_id="g", enable_auto_commit=False) as consumer,
    ):
        consumer.assign([T0])
        held = trio.Event()

        async def hold(request: Any, default: Any) -> Any:
            await held.wait()
            return await default()

        cluster.on("FindCoordinator", hold)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for offset in (5, 7):
                    nursery.start_soon(consumer.commit, {T0: offset})
                    await trio.sleep(0.1)
                with trio.move_on_after(1) as scope:
                    await consumer.commit({T0: 9})
                assert scope.cancelled_caught
                held.set()
        assert committed(cluster) == 7


async def test_seek_wins_over_a_refused_reset(autojump_clock: Clock) -> None:
    """The topic was recreated, and the policy gives no position.

    The user seeks while another partition is looked up.
    """
    other = TopicPartition("u", 0)
    settings = {"group_id": "g", "auto_offset_reset": "none", "enable_auto_commit": False}
    async with cluster_of(records=5) as cluster, consumer_of(cluster, **settings) as consumer:
        cluster.create_topic("u", 1)
        consumer.assign([T0])
        consumer.seek(T0, 0)
        assert len(await consumer.receive_batch()) == 5
        await consumer.commit({other: 0})
        both = trio.Event()

        def made_anew(_: Any) -> bool:
            return consumer._assignment.get(T0).reset is not None

        async def hold(request: Any, default: Any) -> Any:
            both.set()
            await trio.sleep(1)
            return await default()

        cluster.fail(
            "OffsetFetch",
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            None,
            where=lambda seen: not made_anew(seen),
        )
        cluster.on("OffsetFetch", hold, where=made_anew)
        consumer.assign([T0, other])
        await trio.sleep(0.1)
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)
        cluster.append("t", 0, [b"new"])
        await consumer.partitions_for("t")  # and so learns of it
        with trio.fail_after(30):
            await both.wait()
            consumer.seek(T0, 0)
            await trio.sleep(3)
            assert (await consumer.receive()).value == b"new"


@pytest.mark.parametrize("turn", range(8))
async def test_seek_back_after_a_commit_is_committed(autojump_clock: Clock, turn: int) -> None:
    """A commit() overtook an auto commit. The position of a later seek is committed on leaving."""
    settings = {"group_id": "g", "auto_commit_interval_ms": 1000, "max_poll_records": 5}
    async with cluster_of(records=20) as cluster:
        async with consumer_of(cluster, **settings) as consumer:
            consumer.assign([T0])
            for _ in range(2):  # the first five are processed
                assert len(await consumer.receive_batch()) == 5
            cluster.fail("OffsetCommit", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=1)
            with trio.fail_after(30):
                await cluster.seen("OffsetCommit")
                await consumer.commit()
                assert committed(cluster) == 10
                consumer.seek(T0, 5)
                await trio.sleep(0.5)
        assert committed(cluster) == 5


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_auto_commit_is_not_retried_after_a_loss(
    autojump_clock: Clock, protocol: str
) -> None:
    """The member rejoined under its old id, so the coordinator would accept the old commit."""
    settings = {
        "auto_commit_interval_ms": 1000,
        "retry_backoff_ms": 8000,
        "retry_backoff_max_ms": 8000,
        "group_protocol": protocol,
    }
    heartbeat, code = "Heartbeat", ErrorCode.ILLEGAL_GENERATION
    if protocol == "consumer":
        heartbeat, code = "ConsumerGroupHeartbeat", ErrorCode.FENCED_MEMBER_EPOCH
    async with (
        cluster_of(records=20) as cluster,
        member_of(cluster, max_poll_records=5, **settings) as consumer,
    ):
        for _ in range(2):  # the first five are processed
            assert len(await consumer.receive_batch()) == 5
        held = consumer._assignment.get(T0)
        cluster.fail("OffsetCommit", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        with trio.fail_after(60):
            await cluster.seen("OffsetCommit")
            cluster.fail(heartbeat, code)
            while consumer._assignment.partitions.get(T0) in (held, None):
                await consumer.receive_batch(timeout=0.1)
            consumer.seek(T0, 3)  # whatever others made of it meanwhile
            await trio.sleep(20)
        assert [
            seen.request.topics[0].partitions[0].committed_offset
            for seen in cluster.requests("OffsetCommit")
        ] == [5, 3]


@pytest.mark.parametrize("how", ["one partition is refused", "cancelled", "timed out"])
async def test_failed_commit_forgets_the_committed(autojump_clock: Clock, how: str) -> None:
    """The failed commit was written all the same. A seek back must be committed again."""
    async with cluster_of(2, records=20) as cluster:
        settings: dict[str, Any] = {
            "group_id": "g",
            "enable_auto_commit": True,
            "auto_commit_interval_ms": 1000,
        }
        async with consumer_of(cluster, **settings) as consumer:
            consumer.assign([T0, T1])
            consumer.seek(T0, 5)
            consumer.seek(T1, 0)
            await consumer.commit({T0: 5})

            async def odd(request: Any, default: Any) -> Any:
                response = await default()
                if how != "one partition is refused":
                    await trio.sleep(20)
                for part in response.topics[0].partitions:
                    part.error_code = (
                        ErrorCode.OFFSET_METADATA_TOO_LARGE if part.partition_index else 0
                    )
                return response

            cluster.on("OffsetCommit", odd, 1)
            if how == "cancelled":
                with trio.move_on_after(1):
                    await consumer.commit({T0: 9})
            else:
                with pytest.raises(TrikafkaError):
                    await consumer.commit(
                        {T0: 9, T1: 3} if how != "timed out" else {T0: 9}, timeout=1
                    )
            assert committed(cluster) == 9
            consumer.seek(T0, 5)
            await trio.sleep(30)
        assert committed(cluster) == 5


async def test_many_commits_take_linear_time() -> None:
    """When each looked at all others, 4,000 commits took a second in one step of the loop."""
    looked = 0

    class Counted(_Commit):
        def has_pending(self, tp: TopicPartition) -> bool:
            nonlocal looked
            looked += 1
            return super().has_pending(tp)

    order = _Order()
    commits = [Counted({T0: OffsetAndMetadata(number)}, {}) for number in range(1_000)]
    for commit in commits:
        order.begun(commit)
    for commit in commits[:500]:
        commit.succeeded = True
        commit.done.set()
        order.ended(commit, [T0])
    assert order.newest(T0) is commits[-1]
    for commit in commits[:499:-1]:  # the newest fail first
        commit.done.set()
        order.ended(commit, [T0])
    assert looked <= 2 * len(commits)
    assert not order._rows
    assert not order._written
