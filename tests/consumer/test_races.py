"""What one task does while another waits: who comes later wins, in whatever order Trio goes on."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from consuming import T0, cluster_of, consumer_of
from trio.testing import MockClock as Clock

from trikafka import TopicPartition
from trikafka.error_codes import ErrorCode


def committed(cluster: Any, partition: int = 0) -> int | None:
    found = cluster.committed("g", ("t", partition))
    return None if found is None else found.offset


@pytest.mark.parametrize("turn", range(8))  # Trio chooses at random which of the two goes on first
async def test_two_commits_whose_successor_fails_end_in_order(autojump_clock: Clock, turn: int) -> None:
    """Both had left their partition to the last; the older one overwrote the other's."""
    async with cluster_of(records=20) as cluster, consumer_of(cluster, group_id="g", enable_auto_commit=False) as consumer:
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


async def test_a_seek_wins_over_a_reset_that_is_refused(autojump_clock: Clock) -> None:
    """The topic was made anew, and nothing tells where to go on; while another partition was looked up, the user did."""
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

        cluster.fail("OffsetFetch", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None, where=lambda seen: not made_anew(seen))
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
async def test_what_is_committed_last_is_what_the_last_commit_wrote(autojump_clock: Clock, turn: int) -> None:
    """An auto commit that was overtaken by a commit(): where the user then goes back, that is to be committed on leaving."""
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
