"""First positions of a consumer: durations, reset policy none, competing errors. Also its lag."""

from __future__ import annotations

import time
from typing import Any

import pytest
import trio
from consuming import T0, T1, T2, cluster_of, consumer_of, values
from trio.testing import MockClock as Clock

from trikafka import TopicPartition
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    AuthorizationError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    UnknownTopicOrPartitionError,
)
from trikafka.testing import control_batch, encode_batch, respond


def aged(*hours: float) -> list[bytes]:
    """Return batches of one record each, so many hours old by the wall clock."""
    now = time.time() * 1000
    return [encode_batch([b"%g" % age], timestamp=round(now - age * 3_600_000)) for age in hours]


async def test_by_duration_begins_at_a_young_record(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(2) as cluster,
        consumer_of(cluster, auto_offset_reset="by_duration:PT3H") as consumer,
    ):
        for batch in aged(9, 5, 2, 1):
            cluster.append_batch("t", 0, batch)
        for batch in aged(9, 5):
            cluster.append_batch("t", 1, batch)
        consumer.assign([T0, T1])
        assert await values(consumer, 2) == [b"2", b"1"]
        assert await consumer.position(T1) == 2, "no record is young enough: to the end"


async def test_out_of_range_resets_by_duration(autojump_clock: Clock) -> None:
    async with (
        cluster_of() as cluster,
        consumer_of(cluster, auto_offset_reset="by_duration:PT3H") as consumer,
    ):
        for batch in aged(9, 5, 2, 1):
            cluster.append_batch("t", 0, batch)
        consumer.assign([T0])
        consumer.seek(T0, 99)
        assert await values(consumer, 1) == [b"2"]


async def test_reset_none_names_all_partitions(autojump_clock: Clock) -> None:
    async with (
        cluster_of(3) as cluster,
        consumer_of(cluster, group_id="g", auto_offset_reset="none") as consumer,
    ):
        consumer.assign([T0, T1, T2])
        with pytest.raises(
            NoOffsetForPartitionError,
            match=r"partitions t-0, t-1, t-2 have no committed offset in group 'g'",
        ):
            await consumer.receive()


async def test_unauthorized_wins_over_leaderless(
    autojump_clock: Clock,
) -> None:
    codes = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    async def both(request: Any, default: Any) -> Any:
        response = await default()
        for part in response.topics[0].partitions:
            part.error_code = codes[part.partition_index]
            part.offset = -1
        return response

    async with cluster_of(2) as cluster, consumer_of(cluster) as consumer:
        cluster.on("ListOffsets", both)
        consumer.assign([T0, T1])
        with trio.fail_after(1), pytest.raises(AuthorizationError, match="t-1"):
            await consumer.receive()
        with pytest.raises(AuthorizationError, match="t-1"):
            await consumer.end_offsets([T0, T1], timeout=30)
        assert trio.current_time() < 2


@pytest.mark.parametrize("asked", ["later", "together"])
async def test_look_up_waits_for_no_silent_leader(autojump_clock: Clock, asked: str) -> None:
    """Another position is found at once, and tried again, while the first leader is frozen."""
    async with cluster_of(2, records=1, nodes=3) as cluster, consumer_of(cluster) as consumer:
        cluster.move_leader("t", 0, 1)
        cluster.move_leader("t", 1, 2)
        await consumer.partitions_for("t")
        cluster.freeze(1)
        if asked == "later":
            consumer.assign([T0])
            await trio.sleep(1)
        cluster.fail("ListOffsets", ErrorCode.NOT_LEADER_OR_FOLLOWER, 1, node=2)
        consumer.assign([T0, T1])
        with trio.fail_after(2):
            assert (await consumer.receive()).partition == 1


async def test_reset_waits_for_no_silent_coordinator(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2, records=1, nodes=2) as cluster,
        consumer_of(cluster, group_id="g", enable_auto_commit=False) as consumer,
    ):
        cluster.move_coordinator(1)
        cluster.move_leader("t", 0, 0)
        cluster.move_leader("t", 1, 0)
        await consumer.partitions_for("t")
        cluster.freeze(1)
        consumer.assign([T0, T1])
        await trio.sleep(1)
        consumer.seek_to_beginning([T1])
        with trio.fail_after(2):
            assert (await consumer.receive()).partition == 1


@pytest.mark.parametrize("how", ["reset", "assign"])
async def test_resets_in_a_loop_pile_up_no_requests(autojump_clock: Clock, how: str) -> None:
    """Also while the leader is silent; once it answers, the last reset counts."""
    async with cluster_of(2, records=1, nodes=2) as cluster, consumer_of(cluster) as consumer:
        cluster.move_leader("t", 0, 1)
        await consumer.partitions_for("t")
        consumer.assign([T0])
        cluster.freeze(1)
        for _ in range(100):
            if how == "assign":
                consumer.assign([])
                consumer.assign([T0])
            consumer.seek_to_beginning([T0])
            await trio.sleep(0.01)
        assert len(cluster.requests("ListOffsets")) <= 2
        cluster.thaw(1)
        with trio.fail_after(5):
            assert (await consumer.receive()).offset == 0


async def test_refused_position_waits_for_no_silent_leader(autojump_clock: Clock) -> None:
    """It is asked for again after a commit, while another look-up of its attempt waits."""
    async with (
        cluster_of(2, records=1, nodes=2) as cluster,
        consumer_of(cluster, group_id="g", auto_offset_reset="none") as consumer,
    ):
        cluster.move_leader("t", 0, 1)
        cluster.move_leader("t", 1, 0)
        await consumer.partitions_for("t")
        cluster.freeze(1)
        consumer.assign([T0, T1])
        consumer.seek_to_beginning([T0])
        with pytest.raises(NoOffsetForPartitionError):
            await consumer.receive()
        await consumer.commit({T1: 0})
        with trio.fail_after(5):
            assert (await consumer.receive()).partition == 1


async def test_refused_position_is_asked_for_seldom(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2, nodes=1) as cluster,
        consumer_of(cluster, group_id="g", auto_offset_reset="none") as consumer,
    ):
        consumer.assign([T0, T1])
        until = trio.current_time() + 20
        errors = 0
        while trio.current_time() < until:
            with pytest.raises(NoOffsetForPartitionError):
                await consumer.receive()
            errors += 1
        assert errors >= 20
        assert len(cluster.requests("OffsetFetch")) <= 30


async def test_incomplete_offset_fetch_is_retried(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(2, records=50) as cluster:
        async with consumer_of(cluster, group_id="g") as consumer:
            consumer.assign([T0, T1])
            await consumer.commit({T0: 39, T1: 40})
        cluster.leave_out("OffsetFetch", "t", 0, 1)
        async with consumer_of(cluster, group_id="g") as consumer:
            consumer.assign([T0, T1])
            assert await consumer.position(T0) == 39
            assert await consumer.position(T1) == 40


async def test_unknown_end_offset_is_not_zero(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster, consumer_of(cluster) as consumer:

        async def unknown(request: object, _: object) -> object:
            part = {
                "partition_index": 0,
                "error_code": 0,
                "timestamp": -1,
                "offset": -1,
                "leader_epoch": -1,
            }
            return respond(request, topics=[{"name": "t", "partitions": [part]}])

        cluster.on("ListOffsets", unknown, 2)
        assert await consumer.end_offsets([T0]) == {T0: 3}
        cluster.on("ListOffsets", unknown)
        with pytest.raises(KafkaTimeoutError, match="gave no offset"):
            await consumer.end_offsets([T0], timeout=2)


async def test_missing_partition_is_an_error_at_once(
    autojump_clock: Clock,
) -> None:
    missing = TopicPartition("t", 9)
    async with cluster_of(2, records=1) as cluster, consumer_of(cluster) as consumer:
        for ask in (
            lambda: consumer.end_offsets([missing], timeout=30),
            lambda: consumer.beginning_offsets([T0, missing], timeout=30),
            lambda: consumer.offsets_for_times({missing: 5}, timeout=30),
        ):
            with pytest.raises(
                UnknownTopicOrPartitionError, match=r"t-9 \(the topic has 2 partitions\)"
            ):
                await ask()
        consumer.assign([missing])
        with pytest.raises(UnknownTopicOrPartitionError, match="t-9"):
            await consumer.position(missing, timeout=30)
        consumer.assign([missing])
        consumer.seek(missing, 3)
        with pytest.raises(UnknownTopicOrPartitionError, match="t-9"):
            await consumer.receive()
        assert trio.current_time() < 0.5


async def test_added_partition_is_found(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=1) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        assert await consumer.end_offsets([T0]) == {T0: 1}
        cluster.add_partitions("t", 3)
        assert await consumer.end_offsets([T2]) == {T2: 0}
        cluster.append("t", 2, [b"x"])
        consumer.assign([T2])
        consumer.seek(T2, 0)
        assert await values(consumer, 1) == [b"x"]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
async def test_lag_counts_to_the_readable_end(autojump_clock: Clock, level: str) -> None:
    async with (
        cluster_of(records=3) as cluster,
        consumer_of(cluster, isolation_level=level) as consumer,
    ):
        cluster.append_batch(
            "t", 0, encode_batch([b"open"] * 4, timestamp=0, producer=(5, 0, 0), transactional=True)
        )
        consumer.assign([T0])
        count = 3 if level == "read_committed" else 7
        assert len(await values(consumer, count)) == count
        await consumer.receive_batch(timeout=2)
        assert consumer.statistics().lag == {T0: 0}
        cluster.append_batch("t", 0, control_batch(5, 0, commit=True, timestamp=0))
        if level == "read_committed":
            assert len(await values(consumer, 4)) == 4
        await consumer.receive_batch(timeout=2)
        assert consumer.statistics().lag == {T0: 0}
