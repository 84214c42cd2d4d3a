"""The consumer as a group member in virtual time: exact times of heartbeats, leaving and rejoining
(KIP-62).
"""

from __future__ import annotations

import re
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from consuming import (
    T0,
    T1,
    T2,
    T3,
    RecordingListener,
    cluster_of,
    consumer_of,
    member_of,
    until,
    values,
)
from trio.testing import MockClock as Clock

from trikafka import TopicPartition, hookimpl
from trikafka.errors import (
    BrokerResponseError,
    CommitFailedError,
    ConfigurationError,
    IllegalStateError,
    KafkaTimeoutError,
    RebalanceInProgressError,
)
from trikafka.testing import ScriptedCluster

FAST = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000, "max_poll_interval_ms": 10_000}
COOPERATIVE = {"partition_assignment_strategy": ["cooperative-sticky"]}
STRATEGIES = [("range",), ("cooperative-sticky",), ("range", "cooperative-sticky")]


def times(cluster: ScriptedCluster, api: str, after: float = 0) -> list[float]:
    return [round(seen.time, 3) for seen in cluster.requests(api) if seen.time >= after]


async def settled(*consumers: Any) -> None:
    """Wait until all are stable, without receiving from any."""
    await until(lambda: all(consumer.statistics().state == "stable" for consumer in consumers))


async def drain(consumer: Any, got: list[tuple[int, int]]) -> None:
    async for record in consumer:
        got.append((record.partition, record.offset))


async def test_join_takes_two_requests(autojump_clock: Clock) -> None:
    async with cluster_of(3, records=1) as cluster, member_of(cluster) as consumer:
        got = [await consumer.receive() for _ in range(3)]
        assert sorted(record.partition for record in got) == [0, 1, 2]
        assert consumer.assignment() == {T0, T1, T2}
        assert consumer.subscription() == {"t"}
        assert len(cluster.requests("JoinGroup")) == 2  # MEMBER_ID_REQUIRED, then with the id
        join = cluster.requests("JoinGroup")[1].request
        assert join.member_id
        assert (join.session_timeout_ms, join.rebalance_timeout_ms) == (45_000, 300_000)
    assert len(cluster.requests("LeaveGroup")) == 1
    assert not cluster.group("g").members


async def test_heartbeats_continue_during_long_work(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(records=2) as cluster,
        member_of(cluster, heartbeat_interval_ms=3_000) as consumer,
    ):
        await consumer.receive()
        joined = cluster.requests("JoinGroup")[-1].answered_at
        await trio.sleep(250)
        beats = times(cluster, "Heartbeat")
        assert beats == [round(joined + 3 * (number + 1), 3) for number in range(len(beats))]
        assert len(beats) == 83
        assert consumer.statistics().state == "stable"


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_late_user_leaves_at_the_exact_time(
    autojump_clock: Clock, strategy: tuple[str, ...]
) -> None:
    events: list[Any] = []
    settings = FAST | {"partition_assignment_strategy": strategy}
    async with cluster_of(2, records=5) as cluster, member_of(cluster, **settings) as consumer:
        consumer.subscribe(["t"], RecordingListener(events))
        await consumer.receive()
        came, before = trio.current_time(), len(cluster.requests("JoinGroup"))
        await trio.sleep(60)
        assert times(cluster, "LeaveGroup") == [came + 10]
        assert max(times(cluster, "Heartbeat")) <= came + 10
        assert consumer.statistics().state == "stale"
        with pytest.raises(CommitFailedError, match="max_poll_interval_ms"):
            await consumer.commit()
        with pytest.raises(CommitFailedError):
            await consumer.commit({T0: 1})
        assert not [seen for seen in times(cluster, "OffsetCommit") if seen >= came + 10]
        assert len(cluster.requests("JoinGroup")) == before  # only the next receive joins again
        events.clear()
        record = await consumer.receive()
        assert record.offset == 0  # nothing had been committed
        assert events == [("lost", [T0, T1]), ("assigned", [T0, T1])]
        assert consumer.statistics().state == "stable"


async def test_every_receive_resets_the_poll_interval(autojump_clock: Clock) -> None:
    async with cluster_of(records=30) as cluster, member_of(cluster, **FAST) as consumer:
        await consumer.receive()
        await trio.sleep(9)
        await consumer.receive()
        await trio.sleep(9)
        consumer.receive_nowait()
        await trio.sleep(9)
        await consumer.receive_batch()
        await trio.sleep(9)
        await consumer.receive_batch(timeout=0)
        await trio.sleep(9)
        with pytest.raises(trio.WouldBlock):
            consumer.receive_nowait()
        await trio.sleep(9)
        assert not cluster.requests("LeaveGroup")


async def test_waiting_receive_keeps_the_member(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, member_of(cluster, **FAST) as consumer:
        assert not await consumer.receive_batch(timeout=100)
        ended = trio.current_time()
        await trio.sleep(30)
        assert times(cluster, "LeaveGroup") == [ended + 10]


async def test_poll_interval_is_at_least_the_session(autojump_clock: Clock) -> None:
    settings = FAST | {"session_timeout_ms": 20_000}
    async with cluster_of(records=2) as cluster, member_of(cluster, **settings) as consumer:
        await consumer.receive()
        came = trio.current_time()
        await trio.sleep(60)
        assert times(cluster, "LeaveGroup") == [came + 20]
        assert cluster.requests("JoinGroup")[0].request.rebalance_timeout_ms == 20_000


async def test_slow_listener_exceeds_the_interval(autojump_clock: Clock) -> None:
    events: list[Any] = []

    async def dawdle(what: str) -> None:
        if what == "assigned" and len(events) == 1:
            await trio.sleep(25)

    async with (
        cluster_of(records=2) as cluster,
        consumer_of(cluster, group_id="g", **FAST) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener(events, then=dawdle))
        with pytest.raises(
            KafkaTimeoutError, match=r"on_partitions_assigned of .* did not finish within 10 s"
        ):
            await consumer.receive()
        assert trio.current_time() == 10
        assert await values(consumer, 1) == [b"0"]
        assert times(cluster, "LeaveGroup") == [10]
        assert events == [("assigned", [T0]), ("lost", [T0]), ("assigned", [T0])]


async def test_heartbeats_continue_in_a_listener(autojump_clock: Clock) -> None:
    async def work(what: str) -> None:
        await trio.sleep(9)

    async with (
        cluster_of(records=2) as cluster,
        consumer_of(cluster, group_id="g", **FAST) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener([], then=work))
        assert await values(consumer, 1) == [b"0"]
        assert len(cluster.requests("Heartbeat")) >= 8


async def test_eager_rebalance_waits_for_the_user(autojump_clock: Clock) -> None:
    events: list[Any] = []
    settings = FAST | {"partition_assignment_strategy": ["range"]}
    async with cluster_of(2, records=10) as cluster, member_of(cluster, **settings) as first:
        first.subscribe(["t"], RecordingListener(events))
        await first.receive()
        began = trio.current_time()
        async with member_of(cluster, **settings) as second, trio.open_nursery() as nursery:
            nursery.start_soon(drain, second, [])
            await trio.sleep(8)
            assert not [seen for seen in times(cluster, "JoinGroup", began) if seen > began + 1]
            assert len([seen for seen in times(cluster, "Heartbeat") if seen > began]) >= 7
            await first.receive()
            assert [what for what, _ in events] == ["assigned", "revoked", "assigned"]
            assert events[1][1] == [T0, T1]
            assert len(first.assignment()) == len(second.assignment()) == 1
            assert not cluster.requests("LeaveGroup")
            nursery.cancel_scope.cancel()


async def test_cooperative_rebalance_moves_few(autojump_clock: Clock) -> None:
    events: list[Any] = []
    async with cluster_of(4, records=10) as cluster, member_of(cluster, **COOPERATIVE) as first:
        first.subscribe(["t"], RecordingListener(events))
        await first.receive()
        async with member_of(cluster, **COOPERATIVE) as second, trio.open_nursery() as nursery:
            nursery.start_soon(drain, first, [])
            await until(lambda: len(second.assignment()) == 2)
            kept, gone = sorted(first.assignment()), sorted(second.assignment())
            assert len(kept) == len(gone) == 2
            assert sorted(kept + gone) == [T0, T1, T2, T3]
            assert events == [("assigned", [T0, T1, T2, T3]), ("revoked", gone)]
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_two_members_read_each_record_once(
    autojump_clock: Clock, strategy: tuple[str, ...]
) -> None:
    got: list[tuple[int, int]] = []
    settings = {
        "partition_assignment_strategy": strategy,
        "max_poll_records": 3,
        "heartbeat_interval_ms": 500,
    }
    async with (
        cluster_of(4, records=50) as cluster,
        member_of(cluster, **settings) as first,
        trio.open_nursery() as nursery,
    ):

        async def read(consumer: Any) -> None:
            async for record in consumer:
                got.append((record.partition, record.offset))
                await trio.sleep(0.05)

        nursery.start_soon(read, first)
        await until(lambda: len(got) > 20)
        async with member_of(cluster, **settings) as second:
            async for record in second:
                got.append((record.partition, record.offset))
                await trio.sleep(0.05)
                if len(got) > 120:
                    break
        await until(lambda: len(set(got)) == 200)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert len(got) == 200


async def test_batch_survives_a_cooperative_rebalance(autojump_clock: Clock) -> None:
    """The partition that stays continues in the middle of its batch, in order."""
    settings = COOPERATIVE | {"heartbeat_interval_ms": 500}
    async with cluster_of(2, records=20) as cluster, member_of(cluster, **settings) as first:
        mine: list[tuple[int, int]] = []
        for _ in range(5):
            record = await first.receive()
            mine.append((record.partition, record.offset))
        theirs: list[tuple[int, int]] = []
        async with member_of(cluster, **settings) as second, trio.open_nursery() as nursery:
            nursery.start_soon(drain, second, theirs)
            await trio.sleep(2)
            while len(mine) + len(theirs) < 40:
                batch = await first.receive_batch(timeout=5)
                mine += [(batch.partition, offset) for offset in batch.offsets]
            nursery.cancel_scope.cancel()
        for part in (0, 1):
            for log in (mine, theirs):
                offsets = [offset for partition, offset in log if partition == part]
                assert offsets == sorted(set(offsets))
        assert sorted(mine + theirs) == [(part, offset) for part in (0, 1) for offset in range(20)]


async def test_listeners_run_backwards_on_revoke(autojump_clock: Clock) -> None:
    events: list[Any] = []
    plugin = SimpleNamespace(
        trikafka_rebalance_listener=hookimpl(lambda context: RecordingListener(events, "plugin"))
    )
    async with (
        cluster_of() as cluster,
        consumer_of(cluster, group_id="g", plugins=[plugin]) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener(events, "user"))
        await consumer.receive_batch(timeout=1)
    assert events == [
        ("plugin", "assigned", [T0]),
        ("user", "assigned", [T0]),
        ("user", "revoked", [T0]),
        ("plugin", "revoked", [T0]),
    ]


async def test_listener_error_is_raised_by_receive(
    autojump_clock: Clock,
) -> None:
    events: list[Any] = []

    async def fail(what: str) -> None:
        raise LookupError(what)

    async with cluster_of(records=1) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"], RecordingListener(events, then=fail))
        with pytest.raises(LookupError, match="assigned"):
            await consumer.receive()
        assert await values(consumer, 1) == [b"0"]
        with pytest.raises(LookupError, match="revoked"):
            await consumer.unsubscribe()
        consumer.subscribe(["t"], RecordingListener(events))
        assert events == [("assigned", [T0]), ("revoked", [T0])]
        assert not await consumer.receive_batch(timeout=2)
        assert events[2:] == [("assigned", [T0])]


async def test_listener_does_not_end_a_loop(autojump_clock: Clock) -> None:
    """``anext()`` at the end of another iterator, say; the loop over the consumer ended silently."""

    async def end(_: str) -> None:
        raise StopAsyncIteration

    async with cluster_of(records=1) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"], RecordingListener([], then=end))
        with pytest.raises(RuntimeError, match=r"on_partitions_assigned .* StopAsyncIteration"):
            await anext(consumer)
        assert await values(consumer, 1) == [b"0"]
        consumer.subscribe(["t"], RecordingListener([]))


async def test_cancelled_listener_runs_again(autojump_clock: Clock) -> None:
    events: list[Any] = []

    async def slow(what: str) -> None:
        await trio.sleep(2)
        events.append("through")

    async with cluster_of(records=1) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"], RecordingListener(events, then=slow))
        with trio.move_on_after(1):
            await consumer.receive()
        assert events == [("assigned", [T0])]
        assert await values(consumer, 1) == [b"0"]
        assert events == [("assigned", [T0]), ("assigned", [T0]), "through"]


async def test_listener_may_seek_and_commit(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=10) as cluster,
        consumer_of(cluster, group_id="g", enable_auto_commit=False) as consumer,
    ):

        async def act(what: str) -> None:
            if what == "assigned":
                consumer.seek(T0, 6)
            else:
                await consumer.commit()

        consumer.subscribe(["t"], RecordingListener([], then=act))
        assert await values(consumer, 2) == [b"6", b"7"]
        await consumer.unsubscribe()
        assert cluster.committed("g", T0).offset == 8


async def test_listener_may_not_receive(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, consumer_of(cluster, group_id="g") as consumer:

        async def act(what: str) -> None:
            if what == "assigned":
                await consumer.receive()

        consumer.subscribe(["t"], RecordingListener([], then=act))
        with pytest.raises(trio.BusyResourceError):
            await consumer.receive()


@pytest.mark.parametrize(
    ("api", "code"),
    [
        ("JoinGroup", 25),
        *product(("JoinGroup", "SyncGroup"), (14, 15, 16)),
        *product(["SyncGroup"], (22, 27)),  # another generation
    ],
)
async def test_transient_join_errors_are_retried(
    autojump_clock: Clock, api: str, code: int
) -> None:
    async with cluster_of(records=1) as cluster:
        cluster.fail(api, code, 3)
        async with member_of(cluster) as consumer:
            with trio.fail_after(5):
                assert await values(consumer, 1) == [b"0"]
        assert not cluster.group("g").members  # no old self stays behind


async def test_member_forgotten_while_syncing_rejoins(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:

        async def forget(request: Any, default: Any) -> Any:
            cluster.group("g").remove(request.member_id)
            return await default()

        cluster.on("SyncGroup", forget, 2)
        async with member_of(cluster) as consumer:
            with trio.fail_after(5):
                assert await values(consumer, 1) == [b"0"]
            assert len(cluster.group("g").members) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("code", [22, 25])
async def test_forgotten_member_loses_its_partitions(
    autojump_clock: Clock, code: int, strategy: tuple[str, ...]
) -> None:
    events: list[Any] = []
    settings = FAST | {"partition_assignment_strategy": strategy}
    async with (
        cluster_of(records=9) as cluster,
        consumer_of(cluster, group_id="g", **settings) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener(events))
        await consumer.receive()
        member = consumer.statistics().member_id
        cluster.fail("Heartbeat", code)
        await trio.sleep(3)
        assert consumer.statistics().state == "fenced"
        with pytest.raises(CommitFailedError):
            await consumer.commit()
        assert (await consumer.receive()).offset == 0
        assert events == [("assigned", [T0]), ("lost", [T0]), ("assigned", [T0])]
        assert (consumer.statistics().member_id == member) is (code == 22)


async def test_transient_heartbeat_errors_are_harmless(autojump_clock: Clock) -> None:
    async with cluster_of(records=2) as cluster, member_of(cluster, **FAST) as consumer:
        await consumer.receive()
        for code in (14, 15, 16):
            cluster.fail("Heartbeat", code)
        cluster.drop("Heartbeat")
        await trio.sleep(8)
        assert await values(consumer, 1) == [b"1"]
        assert len(cluster.requests("JoinGroup")) == 2


@pytest.mark.parametrize("code", [24, 82])
async def test_fatal_heartbeat_error_is_raised(autojump_clock: Clock, code: int) -> None:
    events: list[Any] = []
    async with (
        cluster_of(records=9) as cluster,
        consumer_of(cluster, group_id="g", **FAST) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener(events))
        await consumer.receive()
        cluster.fail("Heartbeat", code, None)
        await trio.sleep(3)
        for _ in range(2):
            with pytest.raises(
                BrokerResponseError, match=r"FENCED_INSTANCE|INVALID_GROUP_ID"
            ) as caught:
                await consumer.receive()
            assert caught.value.code == code
        assert events == [("assigned", [T0]), ("lost", [T0])]
        assert len(cluster.requests("JoinGroup")) == 2


@pytest.mark.parametrize("code", [23, 24, 26, 82])
async def test_fatal_join_error_is_raised(autojump_clock: Clock, code: int) -> None:
    async with cluster_of(records=1) as cluster:
        rule = cluster.fail("JoinGroup", code, None)
        async with member_of(cluster) as consumer:
            for _ in range(2):
                with pytest.raises(BrokerResponseError) as caught:
                    await consumer.receive()
                assert caught.value.code == code
            assert len(cluster.requests("JoinGroup")) == 1
            rule.remove()
            await consumer.unsubscribe()
            consumer.subscribe(["t"])
            assert await values(consumer, 1) == [b"0"]


async def test_endless_fencing_is_no_storm(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:
        cluster.fail("JoinGroup", 25, None)
        async with member_of(cluster) as consumer:
            assert not await consumer.receive_batch(timeout=60)
            assert len(cluster.requests("JoinGroup")) < 100


async def test_coordinator_move_keeps_the_generation(autojump_clock: Clock) -> None:
    async with cluster_of(nodes=2, records=2) as cluster, member_of(cluster, **FAST) as consumer:
        await consumer.receive()
        cluster.move_coordinator(1)
        await consumer.commit()
        await trio.sleep(5)
        assert await values(consumer, 1) == [b"1"]
        assert len(cluster.requests("JoinGroup")) == 2
        assert cluster.requests("Heartbeat")[-1].node_id == 1
    assert not cluster.group("g").members


async def test_coordinator_move_does_not_stop_a_leave(autojump_clock: Clock) -> None:
    async with cluster_of(nodes=2, records=2) as cluster:
        async with member_of(cluster, enable_auto_commit=False) as consumer:
            await consumer.receive()
            cluster.move_coordinator(1)
        assert not cluster.group("g").members


async def test_coordinator_outage_keeps_the_member(autojump_clock: Clock) -> None:
    async with cluster_of(nodes=2, records=3) as cluster, member_of(cluster) as consumer:
        cluster.move_leader("t", 0, 1)
        await consumer.receive()
        cluster.stop(0)
        await trio.sleep(20)
        assert await values(consumer, 1) == [b"1"]  # records come from the other broker
        cluster.start(0)
        await trio.sleep(5)
        await consumer.commit()
        assert await values(consumer, 1) == [b"2"]
        assert len(cluster.requests("JoinGroup")) == 2


async def test_frozen_sync_is_retried(autojump_clock: Clock) -> None:
    async with cluster_of(nodes=2, records=1) as cluster:
        cluster.move_leader("t", 0, 1)

        async def hang(request: Any, default: Any) -> Any:
            await trio.sleep_forever()

        cluster.on("SyncGroup", hang, 1)
        async with member_of(cluster, request_timeout_ms=5_000) as consumer:
            assert await values(consumer, 1) == [b"0"]
            assert trio.current_time() < 10


async def test_late_topic_is_read(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, member_of(cluster) as consumer:
        assert not await consumer.receive_batch(timeout=20)
        cluster.create_topic("t", 2)
        cluster.append("t", 1, [b"new"])
        with trio.fail_after(10):
            assert await values(consumer, 1) == [b"new"]


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_added_partitions_are_read(autojump_clock: Clock, strategy: tuple[str, ...]) -> None:
    settings = {"partition_assignment_strategy": strategy, "metadata_max_age_ms": 5_000}
    async with cluster_of(records=1) as cluster, member_of(cluster, **settings) as consumer:
        await consumer.receive()
        grow(cluster, "t", 3)
        cluster.append("t", 2, [b"there"])
        with trio.fail_after(10):
            assert await values(consumer, 1) == [b"there"]
        assert consumer.assignment() == {T0, T1, T2}


def grow(cluster: ScriptedCluster, topic: str, partitions: int) -> None:
    cluster._state.grow_topic(cluster._state.topics[topic], partitions)


async def test_pattern_follows_new_topics(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"log-a": 1, "other": 1, "xlog-a": 1}) as cluster:
        for topic in ("log-a", "other", "xlog-a"):
            cluster.append(topic, 0, [topic.encode()])
        async with consumer_of(cluster, group_id="g", metadata_max_age_ms=5_000) as consumer:
            consumer.subscribe(re.compile("log-.*"))
            assert await values(consumer, 1) == [b"log-a"]
            assert consumer.subscription() == {"log-a"}
            cluster.create_topic("log-b", 1)
            cluster.append("log-b", 0, [b"log-b"])
            with trio.fail_after(10):
                assert await values(consumer, 1) == [b"log-b"]
            assert consumer.subscription() == {"log-a", "log-b"}


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_new_subscription_replaces_the_old(
    autojump_clock: Clock, strategy: tuple[str, ...]
) -> None:
    events: list[Any] = []
    async with ScriptedCluster(topics={"a": 1, "b": 1}) as cluster:
        cluster.append("a", 0, [b"a0", b"a1"])
        cluster.append("b", 0, [b"b0"])
        settings = {"group_id": "g", "partition_assignment_strategy": strategy}
        async with consumer_of(cluster, **settings) as consumer:
            consumer.subscribe(["a"], RecordingListener(events))
            assert await values(consumer, 1) == [b"a0"]
            consumer.subscribe(["b"], RecordingListener(events))
            assert await values(consumer, 1) == [b"b0"]
            assert consumer.assignment() == {("b", 0)}
            a, b = TopicPartition("a", 0), TopicPartition("b", 0)
            assert events == [("assigned", [a]), ("revoked", [a]), ("assigned", [b])]
            assert cluster.committed("g", a).offset == 1
            last = cluster.requests("JoinGroup")[-1].request
            owned = b"\x00\x01a" in bytes(last.protocols[0].metadata)
            assert not owned  # revoked before joining, since it is no longer subscribed to


async def test_resubscribing_continues_at_the_commit(autojump_clock: Clock) -> None:
    events: list[Any] = []
    async with cluster_of(records=5) as cluster, consumer_of(cluster, group_id="g") as consumer:
        for round_ in range(3):
            consumer.subscribe(["t"], RecordingListener(events))
            assert await values(consumer, 1) == [b"%d" % round_]
            await consumer.unsubscribe()
            assert not cluster.group("g").members
            assert consumer.assignment() == consumer.subscription() == frozenset()
            assert consumer.statistics().state == "unjoined"
            with pytest.raises(IllegalStateError):
                await consumer.receive()
        assert events == [("assigned", [T0]), ("revoked", [T0])] * 3
        consumer.assign([T0])
        assert await values(consumer, 1) == [b"3"]


async def test_unsubscribe_after_the_poll_interval(autojump_clock: Clock) -> None:
    events: list[Any] = []
    async with (
        cluster_of(records=5) as cluster,
        consumer_of(cluster, group_id="g", **FAST) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener(events))
        await consumer.receive()
        await trio.sleep(20)
        await consumer.unsubscribe()
        assert events == [("assigned", [T0]), ("lost", [T0])]
        consumer.subscribe(["t"])
        assert await values(consumer, 1) == [b"0"]


async def test_cancelled_unsubscribe_allows_another(autojump_clock: Clock) -> None:
    async with cluster_of(records=5) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"])
        await consumer.receive()
        cluster.delay("OffsetCommit", 10, 1)
        with trio.move_on_after(1):
            await consumer.unsubscribe()
        assert consumer.assignment() == frozenset()
        consumer.subscribe(["t"])
        assert await values(consumer, 1)


async def test_static_members_regain_their_partitions(autojump_clock: Clock) -> None:
    settings = {"group_instance_id": "one", "session_timeout_ms": 30_000}
    async with cluster_of(records=5) as cluster:
        async with member_of(cluster, **settings) as consumer:
            assert await values(consumer, 1) == [b"0"]
        assert not cluster.requests("LeaveGroup")
        generation = cluster.group("g").generation
        await trio.sleep(10)
        async with member_of(cluster, **settings) as consumer:
            assert await values(consumer, 1) == [b"1"]
            assert cluster.group("g").generation == generation
            await trio.sleep(40)
            assert await values(consumer, 1) == [b"2"]
        assert cluster.committed("g", T0).offset == 3


async def test_older_of_two_static_members_is_fenced(autojump_clock: Clock) -> None:
    settings = FAST | {"group_instance_id": "one"}
    async with cluster_of(records=5) as cluster, member_of(cluster, **settings) as older:
        await older.receive()
        async with member_of(cluster, **settings) as newer:
            await newer.receive()
            await trio.sleep(3)
            with pytest.raises(BrokerResponseError, match="FENCED_INSTANCE_ID"):
                await older.receive()
            await trio.sleep(3)
            await newer.receive()


async def test_group_misuse_is_refused(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        async with consumer_of(cluster) as consumer:
            with pytest.raises(ConfigurationError, match="group_id"):
                consumer.subscribe(["t"])
            with pytest.raises(ConfigurationError, match="group_id"):
                await consumer.commit()
        async with consumer_of(cluster, group_id="g") as consumer:
            for wrong in ("t", [""], [3]):
                with pytest.raises(ConfigurationError):
                    consumer.subscribe(wrong)
            consumer.subscribe(["t"])
            with pytest.raises(IllegalStateError):
                consumer.assign([T0])
            with pytest.raises(RebalanceInProgressError):
                await consumer.commit({T0: 1})


async def test_older_commit_never_overwrites_a_newer(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=10) as cluster,
        member_of(cluster, auto_commit_interval_ms=1_000) as consumer,
    ):
        await values(consumer, 3)
        cluster.fail("OffsetCommit", 14, 3)
        await cluster.seen("OffsetCommit", 2)  # the timer's, for two records, is under way
        await values(consumer, 3)
        await consumer.commit()
        await trio.sleep(10)
        assert cluster.committed("g", T0).offset == 6
