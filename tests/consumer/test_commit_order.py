"""Commits of one consumer: in order, one at a time, and never for another member's partition."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from consuming import T0, T1, cluster_of, consumer_of, member_of, until
from trio.testing import MockClock as Clock

from trikafka import (
    BrokerResponseError,
    CommitFailedError,
    KafkaTimeoutError,
    OffsetAndMetadata,
    PartitionNotOwnedError,
)
from trikafka.testing import ScriptedCluster


def committed(cluster: ScriptedCluster, partition: int = 0) -> int | None:
    found = cluster.committed("g", ("t", partition))
    return None if found is None else found.offset


@pytest.mark.parametrize("how", ["error", "lost response"])
async def test_retried_commit_spares_a_later_one(autojump_clock: Clock, how: str) -> None:
    async with (
        cluster_of(2, records=20) as cluster,
        consumer_of(cluster, group_id="g", enable_auto_commit=False) as consumer,
    ):
        consumer.assign([T0, T1])
        if how == "error":
            cluster.fail("OffsetCommit", 14, 1)
        else:
            cluster.drop("OffsetCommit", 1, after=True)
        ended: list[str] = []

        async def older() -> None:
            await consumer.commit({T0: 5, T1: 7})
            ended.append("older")

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(older)
                await cluster.seen("OffsetCommit")
                await consumer.commit({T0: 9})
                ended.append("newer")
        assert (committed(cluster, 0), committed(cluster, 1)) == (9, 7)
        assert sorted(ended) == ["newer", "older"]


@pytest.mark.parametrize("turn", range(8))  # Trio chooses at random which of the two goes on first
async def test_waiting_commits_end_in_order(autojump_clock: Clock, turn: int) -> None:
    """Seen live: an auto commit that waited for a broker's restart overwrote a later commit()."""
    async with (
        cluster_of(records=20) as cluster,
        consumer_of(cluster, group_id="g", enable_auto_commit=False) as consumer,
    ):
        consumer.assign([T0])

        async def slow(request: Any, default: Any) -> Any:
            await trio.sleep(1)
            return await default()

        cluster.on("FindCoordinator", slow)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for offset in (5, 7, 9):
                    nursery.start_soon(consumer.commit, {T0: offset})
                    await trio.sleep(0.1)
        assert committed(cluster) == 9
        assert len(cluster.requests("OffsetCommit")) < 3


async def test_failed_commit_restores_the_earlier_one(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(records=20) as cluster,
        consumer_of(cluster, group_id="g", enable_auto_commit=False) as consumer,
    ):
        consumer.assign([T0])
        cluster.fail("OffsetCommit", 14, 3)

        async def older() -> None:
            await consumer.commit({T0: 5})

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(older)
                await cluster.seen("OffsetCommit")
                with pytest.raises(KafkaTimeoutError):
                    await consumer.commit({T0: 9}, timeout=0)
        assert committed(cluster) == 5


async def test_cancelled_commit_restores_the_earlier(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(records=20) as cluster,
        consumer_of(cluster, group_id="g", enable_auto_commit=False) as consumer,
    ):
        consumer.assign([T0])
        cluster.fail("OffsetCommit", 14, 10)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.commit, {T0: 5})
                await cluster.seen("OffsetCommit")
                with trio.move_on_after(1) as scope:
                    await consumer.commit({T0: 9})
                assert scope.cancelled_caught
        assert committed(cluster) == 5


async def test_one_auto_commit_is_in_flight_at_a_time(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=50) as cluster,
        member_of(cluster, auto_commit_interval_ms=1000, max_poll_records=1) as consumer,
    ):
        in_flight = most = 0

        async def slow(request: Any, default: Any) -> Any:
            nonlocal in_flight, most
            in_flight += 1
            most = max(most, in_flight)
            await trio.sleep(3.5)
            in_flight -= 1
            return await default()

        rule = cluster.on("OffsetCommit", slow)
        for _ in range(20):
            await consumer.receive_batch()
            await trio.sleep(1)
        assert rule is not None
        assert most == 1
        assert len(cluster.requests("OffsetCommit")) >= 4


async def test_failing_auto_commit_is_logged_once(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A second line says when it works again."""
    caplog.set_level(logging.INFO, logger="trikafka.commit")
    async with (
        cluster_of(records=50) as cluster,
        member_of(cluster, auto_commit_interval_ms=1000, max_poll_records=1) as consumer,
    ):
        cluster.fail("OffsetCommit", 28, 4)
        for _ in range(8):
            await consumer.receive_batch()
            await trio.sleep(1)
    logged = [
        (record.levelname, record.message.split(",")[0])
        for record in caplog.records
        if record.name == "trikafka.commit"
    ]
    assert logged == [("WARNING", "auto commit failed"), ("INFO", "auto commit works again")]


async def test_partition_of_another_is_not_committed(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=5) as cluster, member_of(cluster) as first:
        await first.receive()
        async with trio.open_nursery() as nursery:
            async with member_of(cluster) as second:

                async def read(consumer: Any) -> None:
                    async for _ in consumer:
                        pass

                nursery.start_soon(read, first)
                nursery.start_soon(read, second)
                with trio.fail_after(60):
                    await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
                foreign = next(iter(second.assignment()))
                before = committed(cluster, foreign.partition)
                with pytest.raises(
                    PartitionNotOwnedError,
                    match=f"does not own {foreign}, .*without a subscription, or the admin",
                ):
                    await first.commit({foreign: 0})
                assert issubclass(PartitionNotOwnedError, CommitFailedError)
                assert committed(cluster, foreign.partition) == before
                nursery.cancel_scope.cancel()
    async with cluster_of(2) as cluster, consumer_of(cluster, group_id="g") as outsider:
        await outsider.commit({T1: 3})  # who has no subscription may
        assert committed(cluster, 1) == 3


async def test_revoked_partition_is_not_committed_late(
    autojump_clock: Clock,
) -> None:
    """In a new generation the coordinator would accept the waiting commit."""
    async with (
        cluster_of(2, records=5) as cluster,
        consumer_of(cluster, group_id="g", enable_auto_commit=False) as consumer,
    ):
        owned, held = [T0], trio.Event()

        async def hold(request: Any, default: Any) -> Any:
            await held.wait()
            return await default()

        def check() -> None:
            if not owned:
                raise PartitionNotOwnedError([T0])

        async def late() -> None:
            with pytest.raises(PartitionNotOwnedError):
                await consumer._commits().commit({T0: OffsetAndMetadata(1)}, check=check)

        cluster.on("OffsetCommit", hold, 1)
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.commit, {T1: 1})
                await cluster.seen("OffsetCommit")
                nursery.start_soon(late)
                await trio.sleep(1)
                owned.clear()
                held.set()
        assert (committed(cluster, 0), committed(cluster, 1)) == (None, 1)


@pytest.mark.parametrize("api", ["OffsetFetch", "OffsetCommit"])
async def test_incomplete_response_is_retried(autojump_clock: Clock, api: str) -> None:
    async with cluster_of(2, records=50) as cluster:
        async with consumer_of(cluster, group_id="g") as consumer:
            if api == "OffsetCommit":
                cluster.leave_out(api, "t", 1)
            await consumer.commit({T0: 38, T1: 39})
            assert len(cluster.requests("OffsetCommit")) == (2 if api == "OffsetCommit" else 1)
        async with consumer_of(cluster, group_id="g") as consumer:
            if api == "OffsetFetch":
                cluster.leave_out(api, "t", 1)
            consumer.assign([T0, T1])
            assert (await consumer.position(T0), await consumer.position(T1)) == (38, 39)


async def test_fatal_error_wins_over_a_transient_one(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=5) as cluster, consumer_of(cluster, group_id="g") as consumer:

        async def both(request: Any, default: Any) -> Any:
            response = await default()
            for part in response.topics[0].partitions:
                part.error_code = 28 if part.partition_index else 14
            return response

        cluster.on("OffsetCommit", both)
        start = trio.current_time()
        with pytest.raises(BrokerResponseError, match="INVALID_COMMIT_OFFSET_SIZE"):
            await consumer.commit({T0: 1, T1: 1})
        assert trio.current_time() - start < 1
