"""Logs that lost records which had been read (KIP-320): a reset by the policy or a typed error."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from consuming import T0, T1, cluster_of, consumer_of, values
from trio.testing import MockClock as Clock

from trikafka import OffsetAndMetadata
from trikafka.error_codes import ErrorCode
from trikafka.errors import LogTruncationError, UnknownTopicOrPartitionError
from trikafka.testing import ScriptedCluster, control_batch, encode_batch


def write(cluster: ScriptedCluster, count: int, partition: int = 0, name: str = "") -> None:
    """Append one record a batch, because whole batches are lost."""
    for number in range(count):
        cluster.append("t", partition, [f"{name}{number}".encode()])


async def test_validated_log_loses_nothing(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(nodes=2) as cluster, consumer_of(cluster) as consumer:
        write(cluster, 10)
        consumer.assign([T0])
        assert await values(consumer, 4) == [b"%d" % number for number in range(4)]
        cluster.move_leader("t", 0, 1)
        write(cluster, 2, name="new ")
        with trio.fail_after(3):
            assert await values(consumer, 8) == [b"%d" % number for number in range(4, 10)] + [
                b"new 0",
                b"new 1",
            ]
        assert len(cluster.requests("OffsetForLeaderEpoch", node=1)) == 1


async def test_truncation_continues_at_divergence(autojump_clock: Clock) -> None:
    async with cluster_of(nodes=2) as cluster, consumer_of(cluster) as consumer:
        write(cluster, 10)
        consumer.assign([T0])
        assert len(await values(consumer, 10)) == 10
        cluster.elect_uncleanly("t", 0, 1, 6)
        write(cluster, 8, name="new ")
        with trio.fail_after(3):
            assert await values(consumer, 2) == [b"new 0", b"new 1"]
        assert await consumer.position(T0) == 8


@pytest.mark.parametrize("taken", [0, 2])
async def test_diverged_buffer_is_not_delivered(autojump_clock: Clock, taken: int) -> None:
    async with cluster_of(nodes=2) as cluster, consumer_of(cluster) as consumer:
        write(cluster, 10)
        consumer.assign([T0])
        assert len(await values(consumer, taken)) == taken
        await trio.sleep(1)  # the rest is buffered
        cluster.elect_uncleanly("t", 0, 1, 5)
        write(cluster, 6, name="new ")
        await trio.sleep(2)
        kept = [b"%d" % number for number in range(taken, 5)]
        new = [b"new %d" % number for number in range(6)]
        assert await values(consumer, len(kept + new)) == kept + new


async def test_truncation_without_reset_is_an_error(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(2, nodes=2) as cluster,
        consumer_of(cluster, auto_offset_reset="none") as consumer,
    ):
        write(cluster, 10)
        consumer.assign([T0, T1])
        consumer.seek(T0, 0)
        consumer.seek(T1, 0)
        assert len(await values(consumer, 10)) == 10
        cluster.elect_uncleanly("t", 0, 1, 6)
        write(cluster, 8, name="new ")
        for _ in range(2):
            with trio.fail_after(3), pytest.raises(LogTruncationError) as raised:
                await consumer.receive()
            error = raised.value
            assert (error.partition, error.position, error.diverging) == (
                T0,
                10,
                OffsetAndMetadata(6, 0),
            )
        assert error.diverging is not None
        consumer.seek(T0, error.diverging.offset)
        assert await values(consumer, 1) == [b"new 0"]


async def test_seek_wins_over_a_validation(autojump_clock: Clock) -> None:
    async with cluster_of(nodes=2) as cluster, consumer_of(cluster) as consumer:
        write(cluster, 10)
        consumer.assign([T0])
        assert len(await values(consumer, 10)) == 10
        cluster.delay("OffsetForLeaderEpoch", 2, 1, after=True)
        cluster.elect_uncleanly("t", 0, 1, 6)
        write(cluster, 8, name="new ")
        await cluster.seen("OffsetForLeaderEpoch")
        consumer.seek(T0, 9)
        assert await values(consumer, 1) == [b"new 3"]
        await trio.sleep(5)
        assert await values(consumer, 1) == [b"new 4"]


async def test_validation_is_retried(autojump_clock: Clock) -> None:
    async with cluster_of(nodes=2) as cluster, consumer_of(cluster) as consumer:
        write(cluster, 3)
        consumer.assign([T0])
        assert len(await values(consumer, 3)) == 3
        cluster.fail("OffsetForLeaderEpoch", ErrorCode.NOT_LEADER_OR_FOLLOWER, 3)
        cluster.leave_out("OffsetForLeaderEpoch", "t", 0, 2)
        cluster.move_leader("t", 0, 1)
        write(cluster, 1, name="new ")
        began = trio.current_time()
        assert await values(consumer, 1) == [b"new 0"]
        assert 0.5 < trio.current_time() - began < 5
        assert len(cluster.requests("OffsetForLeaderEpoch")) == 6


@pytest.mark.parametrize("moved", ["later", "together"])
async def test_validation_waits_for_no_silent_leader(autojump_clock: Clock, moved: str) -> None:
    """Another partition is validated at once, and tried again, while the first leader is frozen."""
    async with cluster_of(2, nodes=3) as cluster, consumer_of(cluster) as consumer:
        write(cluster, 1, 0)
        write(cluster, 1, 1)
        consumer.assign([T0, T1])
        assert len(await values(consumer, 2)) == 2
        cluster.freeze(1)
        cluster.move_leader("t", 0, 1)
        if moved == "later":
            with trio.move_on_after(2):
                await consumer.receive()
            assert cluster.requests("OffsetForLeaderEpoch")
        cluster.fail("OffsetForLeaderEpoch", ErrorCode.UNKNOWN_LEADER_EPOCH, 1, node=2)
        cluster.move_leader("t", 1, 2)
        write(cluster, 1, 1, name="new ")
        with trio.fail_after(3):
            assert await values(consumer, 1) == [b"new 0"]


async def test_error_of_a_validation_is_the_partitions_own(autojump_clock: Clock) -> None:
    async with cluster_of(2, nodes=3) as cluster:
        write(cluster, 1, 0)
        write(cluster, 1, 1)
        async with consumer_of(cluster, stall_warning_ms=1000) as consumer:
            consumer.assign([T0, T1])
            assert len(await values(consumer, 2)) == 2
            cluster.freeze(2)
            code = ErrorCode.UNKNOWN_LEADER_EPOCH
            cluster.fail("OffsetForLeaderEpoch", code, None, node=1)
            cluster.move_leader("t", 0, 1)
            cluster.move_leader("t", 1, 2)

            async def stalled() -> tuple[str, str]:
                with trio.move_on_after(4):
                    await consumer.receive()
                found = consumer.health().stalled
                return found[T0], found[T1]

            refused, silent = await stalled()
            assert "UNKNOWN_LEADER_EPOCH" in refused
            assert "UNKNOWN_LEADER_EPOCH" not in silent
            cluster.move_leader("t", 0, 2)
            assert "UNKNOWN_LEADER_EPOCH" not in "".join(await stalled())


async def test_errors_of_one_validation_are_kept_apart(
    autojump_clock: Clock,
) -> None:
    codes = {0: ErrorCode.UNKNOWN_LEADER_EPOCH, 1: ErrorCode.KAFKA_STORAGE_ERROR}

    async def refuse(request: Any, default: Any) -> Any:
        response = await default()
        for part in response.topics[0].partitions:
            part.error_code = codes[part.partition]
        return response

    async with cluster_of(2, nodes=2) as cluster:
        cluster.move_leader("t", 1, 0)
        write(cluster, 1, 0)
        write(cluster, 1, 1)
        async with consumer_of(cluster, stall_warning_ms=1000) as consumer:
            consumer.assign([T0, T1])
            assert len(await values(consumer, 2)) == 2
            cluster.on("OffsetForLeaderEpoch", refuse)
            cluster.move_leader("t", 0, 1)
            cluster.move_leader("t", 1, 1)
            with trio.move_on_after(4):
                await consumer.receive()
            found = consumer.health().stalled
            assert "UNKNOWN_LEADER_EPOCH" in found[T0]
            assert "KAFKA_STORAGE_ERROR" in found[T1]


async def test_old_broker_skips_validation(autojump_clock: Clock) -> None:
    async with cluster_of(nodes=2) as cluster:
        cluster.offer("OffsetForLeaderEpoch", None)
        async with consumer_of(cluster) as consumer:
            write(cluster, 3)
            consumer.assign([T0])
            assert len(await values(consumer, 3)) == 3
            cluster.move_leader("t", 0, 1)
            write(cluster, 1, name="new ")
            with trio.fail_after(1):
                assert await values(consumer, 1) == [b"new 0"]


async def test_lost_committed_epoch_is_found_by_fetch(
    autojump_clock: Clock,
) -> None:
    for reset in ("latest", "none"):
        async with cluster_of(nodes=2) as cluster:
            write(cluster, 10)
            async with consumer_of(cluster, group_id="g") as consumer:
                consumer.assign([T0])
                assert len(await values(consumer, 10)) == 10
                await consumer.commit()
            cluster.elect_uncleanly("t", 0, 1, 6)
            write(cluster, 8, name="new ")
            async with consumer_of(cluster, group_id="g", auto_offset_reset=reset) as consumer:
                consumer.assign([T0])
                with trio.fail_after(3):
                    if reset == "none":
                        with pytest.raises(LogTruncationError) as raised:
                            await consumer.receive()
                        assert raised.value.diverging == OffsetAndMetadata(6, 0)
                    else:
                        assert await values(consumer, 1) == [b"new 0"]
            assert not cluster.requests("OffsetForLeaderEpoch"), "the fetch says it by itself"


async def test_matching_committed_epoch_is_no_truncation(autojump_clock: Clock) -> None:
    async with cluster_of(nodes=2) as cluster:
        write(cluster, 4)
        cluster.move_leader("t", 0, 1)
        write(cluster, 4, name="new ")
        async with consumer_of(cluster, group_id="g") as consumer:
            consumer.assign([T0])
            assert len(await values(consumer, 4)) == 4
            await consumer.commit()
        cluster.move_leader("t", 0, 0)
        async with consumer_of(cluster, group_id="g") as consumer:
            consumer.assign([T0])
            with trio.fail_after(1):
                assert await values(consumer, 4) == [b"new %d" % number for number in range(4)]


async def test_deleted_topic_ends_its_validation(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(nodes=2) as cluster, consumer_of(cluster) as consumer:
        write(cluster, 3)
        consumer.assign([T0])
        assert len(await values(consumer, 3)) == 3
        cluster.fail("OffsetForLeaderEpoch", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
        cluster.move_leader("t", 0, 1)
        await cluster.seen("OffsetForLeaderEpoch")
        cluster.delete_topic("t")
        with trio.fail_after(10), pytest.raises(UnknownTopicOrPartitionError, match="t"):
            await consumer.receive()


async def test_skipped_records_are_no_truncation(autojump_clock: Clock) -> None:
    """The aborted records of a later epoch were read, though none was delivered."""
    committed = {"isolation_level": "read_committed", "auto_offset_reset": "none"}
    async with cluster_of(nodes=2) as cluster:
        async with consumer_of(cluster, group_id="g", **committed) as consumer:
            write(cluster, 3)
            consumer.assign([T0])
            consumer.seek(T0, 0)
            assert len(await values(consumer, 3)) == 3
            cluster.move_leader("t", 0, 1)
            aborted = encode_batch([b"a"], timestamp=0, producer=(7, 0, 0), transactional=True)
            cluster.append_batch("t", 0, aborted)
            cluster.append_batch("t", 0, control_batch(7, 0, commit=False, timestamp=0))
            assert not await consumer.receive_batch(timeout=3)
            assert await consumer.position(T0) == 5
            cluster.move_leader("t", 0, 0)
            assert not await consumer.receive_batch(timeout=3)
            assert await consumer.position(T0) == 5
            await consumer.commit()
            assert cluster.committed("g", ("t", 0)) == OffsetAndMetadata(5, 1)
        write(cluster, 1, name="new ")
        async with consumer_of(cluster, group_id="g", **committed) as consumer:
            consumer.assign([T0])
            assert await values(consumer, 1) == [b"new 0"]


@pytest.mark.parametrize("paused", [False, True])
async def test_truncation_before_first_record_skips_none(
    autojump_clock: Clock, paused: bool
) -> None:
    """A position that was looked up is validated, too, before anything is read from it."""
    async with (
        cluster_of(nodes=2) as cluster,
        consumer_of(cluster, auto_offset_reset="latest") as consumer,
    ):
        write(cluster, 10)
        consumer.assign([T0])
        if paused:
            consumer.pause([T0])
        assert await consumer.position(T0) == 10
        cluster.elect_uncleanly("t", 0, 1, 4)
        write(cluster, 8, name="new ")
        await trio.sleep(1)
        consumer.resume([T0])
        with trio.fail_after(3):
            assert await values(consumer, 8) == [b"new %d" % number for number in range(8)]


async def test_follower_without_the_epoch_is_read(autojump_clock: Clock) -> None:
    """A committed epoch without records is compared by the leader; no replica is distrusted."""
    settings = {"group_id": "g", "client_rack": "b", "auto_offset_reset": "latest"}
    async with cluster_of(records=3, nodes=3, racks=("a", "b", "c")) as cluster:
        cluster.move_leader("t", 0, 2)
        async with consumer_of(cluster, **settings) as consumer:
            consumer.assign([T0])
            assert await consumer.position(T0) == 3
            await consumer.commit()
        assert cluster.committed("g", ("t", 0)) == OffsetAndMetadata(3, 1)
        async with consumer_of(cluster, **settings) as consumer:
            consumer.assign([T0])
            assert not await consumer.receive_batch(timeout=5)
            asked = len(cluster.requests("Fetch"))
            write(cluster, 1, name="new ")
            assert await values(consumer, 1) == [b"new 0"]
            assert not await consumer.receive_batch(timeout=5)
            assert {each.node_id for each in cluster.requests("Fetch")[asked:]} == {1}
        assert len(cluster.requests("OffsetForLeaderEpoch")) == 1


@pytest.mark.parametrize("taken", [0, 2])
@pytest.mark.parametrize("nowait", [False, True])
async def test_paused_partition_drops_truncated_records(
    autojump_clock: Clock, taken: int, nowait: bool
) -> None:
    async with cluster_of(nodes=2) as cluster, consumer_of(cluster) as consumer:
        write(cluster, 10)
        consumer.assign([T0])
        assert len(await values(consumer, taken)) == taken
        await trio.sleep(1)  # the rest is buffered
        consumer.pause([T0])
        await trio.sleep(1)
        cluster.elect_uncleanly("t", 0, 1, 5)
        write(cluster, 8, name="new ")
        await trio.sleep(400)  # longer than metadata_max_age_ms
        consumer.resume([T0])
        got: list[object] = []
        with trio.fail_after(30):
            while len(got) < 13 - taken:
                try:
                    record = consumer.receive_nowait() if nowait else await consumer.receive()
                    got.append(record.value)
                except trio.WouldBlock:
                    await trio.sleep(0.1)
        assert got == [b"%d" % number for number in range(taken, 5)] + [
            b"new %d" % number for number in range(8)
        ]


async def test_position_of_a_time_is_read_at_once(autojump_clock: Clock) -> None:
    """The epoch of the time's record is older than the leader that has found the record."""
    settings = {"auto_offset_reset": "by_duration:P10000D"}
    async with cluster_of(nodes=2) as cluster:
        write(cluster, 2)
        cluster.move_leader("t", 0, 1)
        async with consumer_of(cluster, **settings) as consumer:
            assert await consumer.partitions_for("t")  # the leader's epoch is known
            consumer.assign([T0])
            assert await values(consumer, 2) == [b"0", b"1"]
            assert not cluster.requests("OffsetForLeaderEpoch")
