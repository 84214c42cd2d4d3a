"""Faults in a member's way into, through and out of its group. In virtual time."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import trio
from consuming import T0, T1, RecordingListener, cluster_of, consumer_of, member_of, until, values
from trio.testing import MockClock as Clock

import trikafka
from trikafka._managers.group.group_messages import encode_assignment
from trikafka.errors import ErrorCode, GroupIdNotFoundError, KafkaTimeoutError, TrikafkaError
from trikafka.testing import respond
from trikafka.types import OffsetAndMetadata

BEAT = "ConsumerGroupHeartbeat"
PROTOCOLS = ["classic", "consumer"]


async def drain(consumer: Any) -> None:
    async for _ in consumer:
        pass


async def test_auto_falls_back_if_protocol_is_refused(
    autojump_clock: Clock,
) -> None:
    """Brokers offer the protocol while the feature ``group.version`` is off (an upgrade)."""
    async with cluster_of(1, records=1) as cluster:
        cluster.fail(BEAT, ErrorCode.UNSUPPORTED_VERSION, None)
        async with consumer_of(cluster, "t", group_id="g", group_protocol="auto") as consumer:
            with trio.fail_after(5):
                assert await values(consumer, 1) == [b"0"]
        assert len(cluster.requests(BEAT)) == 1


async def test_auto_falls_back_as_the_same_member(autojump_clock: Clock) -> None:
    """After ``group.version`` is turned off, the coordinator keeps the member for its session."""
    async with (
        cluster_of(1, records=1) as cluster,
        consumer_of(cluster, "t", group_id="g", group_protocol="auto") as consumer,
    ):
        assert await values(consumer, 1) == [b"0"]
        cluster.fail(BEAT, ErrorCode.UNSUPPORTED_VERSION, None)
        cluster.fail("JoinGroup", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)
        with trio.fail_after(30):
            while not cluster.requests("JoinGroup"):
                await consumer.receive_batch(timeout=0.1)
        (member,) = {seen.request.member_id for seen in cluster.requests(BEAT)}
        assert cluster.requests("JoinGroup")[0].request.member_id == member


async def test_member_that_falls_back_is_assigned(autojump_clock: Clock) -> None:
    """A coordinator takes the classic requests of a member of the newer protocol (KIP-848)."""

    async def joined(request: Any, _: object) -> Any:
        return respond(
            request,
            generation_id=5,
            protocol_type="consumer",
            protocol_name=request.protocols[0].name,
            leader="another",
            member_id=request.member_id,
        )

    async def synced(request: Any, _: object) -> Any:
        return respond(
            request,
            protocol_type="consumer",
            protocol_name=request.protocol_name,
            assignment=encode_assignment([T0]),
        )

    async def beaten(request: Any, _: object) -> Any:
        return respond(request)

    async with (
        cluster_of(2, records=1) as cluster,
        consumer_of(cluster, "t", group_id="g", group_protocol="auto") as consumer,
    ):
        assert len(await values(consumer, 2)) == 2
        cluster.fail(BEAT, ErrorCode.UNSUPPORTED_VERSION, None)
        for api, handler in ("JoinGroup", joined), ("SyncGroup", synced), ("Heartbeat", beaten):
            cluster.on(api, handler)
        with trio.fail_after(60):
            while not cluster.requests("Heartbeat"):
                await consumer.receive_batch(timeout=0.1)
        assert consumer.assignment() == {T0}
        cluster.append("t", 0, [b"later"])
        with trio.fail_after(10):
            while await values(consumer, 1) != [b"later"]:
                pass


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("way", ["aclose", "unsubscribe"])
async def test_leave_after_a_blocked_loop_loses_all(
    autojump_clock: Clock, protocol: str, way: str
) -> None:
    """Partitions that others may own are neither revoked nor committed."""
    events: list[Any] = []
    async with (
        cluster_of(2, records=50) as cluster,
        consumer_of(cluster, group_id="g", group_protocol=protocol) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener(events))
        await values(consumer, 3)
        await trio.sleep(0.5)
        autojump_clock.jump(60)
        await getattr(consumer, way)()
        assert events == [("assigned", [T0, T1]), ("lost", [T0, T1])]
        assert not cluster.requests("OffsetCommit")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_blocked_cancelled_exit_commits_nothing(autojump_clock: Clock, protocol: str) -> None:
    settings: Any = {
        "group_id": "g",
        "group_protocol": protocol,
        "auto_commit_interval_ms": 1_000_000,
    }
    async with cluster_of(2, records=50) as cluster:
        with trio.CancelScope() as scope:
            async with consumer_of(cluster, "t", **settings) as consumer:
                await values(consumer, 3)
                await trio.sleep(0.5)
                autojump_clock.jump(60)
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert not cluster.requests("OffsetCommit")


async def test_listener_has_the_poll_interval(
    autojump_clock: Clock,
) -> None:
    async def hang(what: str) -> None:
        if what == "assigned":
            await trio.sleep_forever()

    settings: Any = {"group_id": "g", "group_protocol": "consumer", "max_poll_interval_ms": 9_000}
    async with cluster_of(1, records=3) as cluster, consumer_of(cluster, **settings) as consumer:
        consumer.subscribe(["t"], RecordingListener([], then=hang))
        with trio.fail_after(12), pytest.raises(KafkaTimeoutError):
            await consumer.receive()


async def test_assigned_reads_are_not_member_commits(autojump_clock: Clock) -> None:
    """Another member has the partition by then and has read further."""
    async with cluster_of(2, records=30) as cluster, member_of(cluster) as other:
        async with (
            consumer_of(cluster, group_id="g", auto_commit_interval_ms=1_000) as consumer,
            trio.open_nursery() as nursery,
        ):
            consumer.assign([T0, T1])
            assert len(await values(consumer, 5)) == 5
            consumer.assign([])
            consumer.subscribe(["t"])
            nursery.start_soon(drain, other)
            nursery.start_soon(drain, consumer)
            await until(lambda: len(consumer.assignment()) == len(other.assignment()) == 1)
            before = len(cluster.requests("OffsetCommit"))
            await trio.sleep(3)
            (mine,) = consumer.assignment()
            for seen in cluster.requests("OffsetCommit")[before:]:
                if seen.request.member_id == consumer.statistics().member_id:
                    assert [
                        part.partition_index
                        for topic in seen.request.topics
                        for part in topic.partitions
                    ] == [mine.partition]
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("interval", [0, -5])
async def test_missing_heartbeat_interval_is_no_storm(autojump_clock: Clock, interval: int) -> None:
    async def answer(request: Any, default: Any) -> Any:
        got = await default()
        got.heartbeat_interval_ms = interval
        return got

    async with cluster_of(1, records=1) as cluster:
        cluster.on(BEAT, answer)
        cluster.delay(BEAT, 0.001)
        async with consumer_of(cluster, "t", group_id="g", group_protocol="consumer") as consumer:
            await values(consumer, 1)
            before = len(cluster.requests(BEAT))
            await trio.sleep(1)
            assert len(cluster.requests(BEAT)) - before in range(5, 12)


async def test_member_of_an_unknown_group_rejoins(autojump_clock: Clock) -> None:
    """As when the broker removed the member and converted the group, or lost the group."""
    events: list[Any] = []
    given: Any = {"group_id": "g", "group_protocol": "consumer", "enable_auto_commit": False}
    async with cluster_of(1, records=3) as cluster, consumer_of(cluster, **given) as consumer:
        consumer.subscribe(["t"], RecordingListener(events))
        await values(consumer, 3)
        cluster.fail(BEAT, ErrorCode.GROUP_ID_NOT_FOUND)
        with trio.fail_after(20):
            assert await values(consumer, 1) == [b"0"]
        assert [what for what, _ in events] == ["assigned", "lost", "assigned"]


async def test_unjoinable_group_is_raised(autojump_clock: Clock) -> None:
    async with cluster_of(1, records=3) as cluster:
        cluster.fail(BEAT, ErrorCode.GROUP_ID_NOT_FOUND, 1)
        async with consumer_of(cluster, "t", group_id="g", group_protocol="consumer") as consumer:
            for _ in range(2):
                with trio.fail_after(6), pytest.raises(GroupIdNotFoundError, match="group 'g'"):
                    await consumer.receive()
            assert len(cluster.requests(BEAT)) == 1
            consumer.subscribe(["t"])
            assert await values(consumer, 1) == [b"0"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_new_pattern_counts_at_once(autojump_clock: Clock, protocol: str) -> None:
    async with (
        cluster_of(1, records=3) as cluster,
        consumer_of(cluster, group_id="g", group_protocol=protocol) as consumer,
    ):
        cluster.create_topic("u", 1)
        cluster.append("u", 0, [b"of u"])
        consumer.subscribe(re.compile("t"))
        await values(consumer, 3)
        consumer.subscribe(re.compile("u"))
        with trio.fail_after(6):
            assert await values(consumer, 1) == [b"of u"]


@pytest.mark.parametrize("response", ["nothing", "error"])
async def test_empty_group_description_is_harmless(autojump_clock: Clock, response: str) -> None:
    async def nothing(request: Any, default: Any) -> Any:
        got = await default()
        got.groups[0].error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        got.groups[0].members = []
        if response == "nothing":
            got.groups = []
        return got

    one, two = (
        {"partition_assignment_strategy": ["range"], "group_instance_id": name}
        for name in ("one", "two")
    )
    async with cluster_of(2, records=1, initial_rebalance_delay=1) as cluster:
        async with (
            member_of(cluster, **one) as first,
            member_of(cluster, **two) as second,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(drain, first)
            nursery.start_soon(drain, second)
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
            group = cluster.group("g")
            assert group is not None
            static = group.static_member("one")
            leads = static is not None and static.member_id == group.leader
            nursery.cancel_scope.cancel()
        cluster.on("DescribeGroups", nothing, 1)
        async with (
            member_of(cluster, **(one if leads else two)) as again,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(drain, again)
            with trio.fail_after(60):
                await until(
                    lambda: again.statistics().state == "stable" and len(again.assignment()) == 2
                )
            nursery.cancel_scope.cancel()
        assert cluster.requests("DescribeGroups")


async def test_restored_commit_spares_later_offsets(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(2, records=20) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.assign([T0, T1])
        await consumer.receive()
        cluster.fail("OffsetCommit", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 1)
        failed: list[Exception] = []

        async def later() -> None:
            try:
                await consumer.commit({T0: 9, T1: 9})
            except TrikafkaError as error:
                failed.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.commit, {T0: 5, T1: 5})
            await cluster.seen("OffsetCommit")
            cluster.fail(
                "OffsetCommit", ErrorCode.OFFSET_METADATA_TOO_LARGE, 1, topic="t", partition=1
            )
            nursery.start_soon(later)
        assert failed
        assert cluster.committed("g", T0) == OffsetAndMetadata(9)
        assert cluster.committed("g", T1) == OffsetAndMetadata(5)


async def test_unanswered_join_expires_with_the_session(
    autojump_clock: Clock,
) -> None:
    """A JoinGroup may take as long as the slowest member does, but its coordinator must be
    reachable.
    """
    events: list[Any] = []
    settings: Any = {
        "partition_assignment_strategy": ["cooperative-sticky"],
        "session_timeout_ms": 6_000,
        "group_id": "g",
    }
    async with (
        cluster_of(1, nodes=2, records=3) as cluster,
        consumer_of(cluster, **settings) as consumer,
    ):
        cluster.move_leader("t", 0, 1)
        consumer.subscribe(["t"], RecordingListener(events))
        await values(consumer, 3)
        cluster.freeze(0)
        began = trio.current_time()
        consumer.enforce_rebalance()
        await trio.sleep_until(began + 5)
        cluster.append("t", 0, [b"still mine"])
        assert await values(consumer, 1) == [b"still mine"]
        await trio.sleep_until(began + 7)
        cluster.append("t", 0, [b"another's"])
        assert not await consumer.receive_batch(timeout=1)
        assert [what for what, _ in events] == ["assigned", "lost"]


async def test_long_cooperative_join_keeps_partitions(
    autojump_clock: Clock,
) -> None:
    events: list[Any] = []
    settings: Any = {
        "partition_assignment_strategy": ["cooperative-sticky"],
        "session_timeout_ms": 6_000,
        "group_id": "g",
    }
    async with cluster_of(1, records=3) as cluster, consumer_of(cluster, **settings) as consumer:
        consumer.subscribe(["t"], RecordingListener(events))
        await values(consumer, 3)
        cluster.delay("JoinGroup", 30, 1)
        consumer.enforce_rebalance()
        await trio.sleep(20)
        cluster.append("t", 0, [b"mine"])
        assert await values(consumer, 1) == [b"mine"]
        await trio.sleep(20)
        assert consumer.statistics().state == "stable"
        assert [what for what, _ in events] == ["assigned"]


@pytest.mark.parametrize("commit", ["stream", "record"])
async def test_handlers_may_commit_during_a_close(autojump_clock: Clock, commit: str) -> None:
    async with cluster_of(2, records=5) as cluster:
        ended: list[int] = []

        async def handle(consumer: trikafka.Consumer, stream: trikafka.PartitionStream) -> None:
            async with stream:
                async for record in stream:
                    await trio.sleep(3)
                    if commit == "record":
                        await consumer.commit(record)
                if commit == "stream":
                    await stream.commit()
            ended.append(stream.partition.partition)

        async with (
            member_of(cluster, enable_auto_commit=False) as consumer,
            trio.open_nursery() as nursery,
        ):

            async def close_soon() -> None:
                await trio.sleep(7)
                await consumer.aclose(timeout=20)

            nursery.start_soon(close_soon)
            async for stream in consumer.partitions():
                nursery.start_soon(handle, consumer, stream)
        assert sorted(ended) == [0, 1]
        offsets = [
            found.offset
            for number in (0, 1)
            if (found := cluster.committed("g", ("t", number))) is not None
        ]
        assert len(offsets) == 2
        assert min(offsets) >= 2


async def test_kept_idle_partition_is_not_stalled(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """An eager rebalance revokes and reassigns it, and the fetch session has no news of it."""
    caplog.set_level(logging.WARNING, logger="trikafka.consumer")
    settings: dict[str, Any] = {"partition_assignment_strategy": ["range"]}
    async with cluster_of(2, records=3) as cluster, member_of(cluster, **settings) as consumer:
        for _ in range(6):
            await consumer.receive()
        consumer.enforce_rebalance("a test")
        await consumer.receive_batch(timeout=5)
        await until(lambda: consumer.assignment() == {T0, T1})
        await consumer.receive_batch(timeout=60)
        assert consumer.health().ok
        assert set(consumer.statistics().lag.values()) == {0}
    assert not [record for record in caplog.records if record.name == "trikafka.consumer"]


async def test_lost_group_is_joined_again(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2, records=3) as cluster,
        member_of(cluster, group_protocol="consumer") as consumer,
    ):
        for _ in range(6):
            await consumer.receive()
        cluster.fail("ConsumerGroupHeartbeat", 69, 1)
        with trio.fail_after(60):
            while len(cluster.requests("ConsumerGroupHeartbeat")) < 3 or consumer.assignment() != {
                T0,
                T1,
            }:
                await consumer.receive_batch(timeout=1)
            cluster.append("t", 0, [b"new"])
            while (await consumer.receive()).value != b"new":
                pass


async def test_class_as_listener_is_refused(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, member_of(cluster) as consumer:
        with pytest.raises(
            trikafka.ConfigurationError, match=r"not a class: write RebalanceListener\(\.\.\.\)"
        ):
            consumer.subscribe(["t"], trikafka.RebalanceListener)  # type: ignore[arg-type]
