"""A member of the consumer protocol (KIP-848) in virtual time: heartbeats, revokes, fencing."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from consuming import T0, T1, T2, T3, RecordingListener, cluster_of, consumer_of, until, values
from trio.testing import MockClock as Clock

from trikafka import OffsetAndMetadata, SubscriptionPattern, TopicPartition
from trikafka.errors import (
    BrokerResponseError,
    CommitFailedError,
    ConfigurationError,
    ErrorCode,
    FencedInstanceIdError,
    InvalidRegularExpressionError,
    UnsupportedAssignorError,
    UnsupportedVersionError,
)
from trikafka.testing import ScriptedCluster

BEAT = "ConsumerGroupHeartbeat"


@pytest.fixture(autouse=True)
async def limit(autojump_clock: Clock) -> AsyncIterator[None]:
    """Fail a test that waits for more than 200 s of virtual time."""

    async def end() -> None:
        await trio.sleep(200)
        raise trio.TooSlowError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end)
        yield
        nursery.cancel_scope.cancel()


def member_of(cluster: ScriptedCluster, *topics: str, **settings: Any) -> Any:
    """Open a member of the group ``g`` by the consumer protocol."""
    return consumer_of(
        cluster, *(topics or ("t",)), **({"group_id": "g", "group_protocol": "consumer"} | settings)
    )


def listening_to(cluster: ScriptedCluster, **settings: Any) -> Any:
    """Do the same as :func:`member_of`, without a subscription."""
    return consumer_of(cluster, **({"group_id": "g", "group_protocol": "consumer"} | settings))


class Said:
    """The members' heartbeats as (time, member epoch, subscription, partitions), of one member or
    all.
    """

    def __init__(self, cluster: ScriptedCluster) -> None:
        self._cluster = cluster

    def __call__(self, after: float = 0, consumer: Any = None) -> list[tuple[float, int, Any, Any]]:
        return [
            (
                round(seen.time, 3),
                seen.request.member_epoch,
                seen.request.subscribed_topic_names,
                self._partitions(seen.request.topic_partitions),
            )
            for seen in self._cluster.requests(BEAT)
            if seen.time >= after and consumer in (None, seen.request.member_id)
        ]

    @staticmethod
    def _partitions(topics: Any) -> list[int] | None:
        return (
            None
            if topics is None
            else sorted(number for topic in topics for number in topic.partitions)
        )


async def drain(consumer: Any, got: list[tuple[int, int]] | None = None) -> None:
    async for record in consumer:
        if got is not None:
            got.append((record.partition, record.offset))


def state(consumer: Any) -> str:
    return str(consumer.statistics().state)


def me(consumer: Any) -> str:
    return str(consumer.statistics().member_id)


# Joining and following.


async def test_join_states_everything_once(autojump_clock: Clock) -> None:
    """One request joins, and later heartbeats repeat nothing."""
    async with cluster_of(3, records=1) as cluster:
        settings = {
            "client_rack": "r1",
            "max_poll_interval_ms": 20_000,
            "group_remote_assignor": "range",
        }
        async with member_of(cluster, **settings) as consumer:
            assert sorted(await values(consumer, 3)) == [b"0"] * 3
            assert consumer.assignment() == {T0, T1, T2}
            with trio.move_on_after(16):
                await drain(consumer)
            first, second, *others = (seen.request for seen in cluster.requests(BEAT))
            assert (first.member_epoch, first.subscribed_topic_names, first.topic_partitions) == (
                0,
                ["t"],
                [],
            )
            assert (first.rebalance_timeout_ms, first.rack_id, first.server_assignor) == (
                20_000,
                "r1",
                "range",
            )
            assert first.subscribed_topic_regex is None
            assert len(first.member_id) == 22
            assert second.topic_partitions[0].topic_id == cluster.topic_id("t")
            for request in others:
                assert (
                    request.member_epoch,
                    request.rebalance_timeout_ms,
                    request.topic_partitions,
                ) == (2, -1, None)
                assert (
                    request.subscribed_topic_names,
                    request.rack_id,
                    request.server_assignor,
                ) == (None, None, None)
            assert Said(cluster)() == [
                (0, 0, ["t"], []),
                (0, 2, None, [0, 1, 2]),  # at once: it is done
                (5, 2, None, None),
                (10, 2, None, None),
                (15, 2, None, None),
            ]
            assert state(consumer) == "stable"
            assert consumer.statistics().generation == 2
        assert Said(cluster)()[-1] == (16, -1, None, None)
        assert not cluster.group("g").modern.members
        assert not cluster.requests("JoinGroup")


async def test_heartbeats_keep_the_brokers_interval(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=1, consumer_heartbeat_interval=0.7) as cluster,
        member_of(cluster) as consumer,
    ):
        await consumer.receive()
        await trio.sleep(69.9)
        assert [time for time, *_ in Said(cluster)()][1:] == [
            round(0.7 * number, 3) for number in range(100)
        ]


async def test_partition_moves_when_its_owner_released(
    autojump_clock: Clock,
) -> None:
    """The first member gets the new target with its next heartbeat, releases the partitions, and
    reports that at once.
    """
    events: list[Any] = []
    async with (
        cluster_of(4, records=3) as cluster,
        listening_to(cluster) as one,
        trio.open_nursery() as nursery,
    ):
        one.subscribe(["t"], RecordingListener(events, "one"))
        nursery.start_soon(drain, one)
        await trio.sleep(7)
        async with listening_to(cluster) as two:
            two.subscribe(["t"], RecordingListener(events, "two"))
            nursery.start_soon(drain, two)
            await until(lambda: len(two.assignment()) == 2)
            assert events == [
                ("one", "assigned", [T0, T1, T2, T3]),
                ("one", "revoked", [T2, T3]),
                ("two", "assigned", [T2, T3]),
            ]
            said = Said(cluster)(7, me(one))
            assert said == [(10, 2, None, None), (10, 2, None, [0, 1])]
            # The one that waits for its first partitions asks every second.
            assert [time for time, *_ in Said(cluster)(7, me(two))] == [
                7,
                7.1,
                7.3,
                7.7,
                8.5,
                9.5,
                10.5,
                10.5,
            ]
            assert round(trio.current_time(), 1) == 10.5
            cluster.append("t", 0, [b"more"])
            await trio.sleep(20)
            assert {state(one), state(two)} == {"stable"}
            assert one.statistics().generation == two.statistics().generation == 3
            assert one.statistics().positions[T0] == 4
            nursery.cancel_scope.cancel()


async def test_revoked_partitions_are_gone_after_receive(
    autojump_clock: Clock,
) -> None:
    """So the commit that follows covers the remaining partitions."""
    events: list[Any] = []
    settings = {"enable_auto_commit": False, "max_poll_records": 1}
    async with cluster_of(2, records=300) as cluster, listening_to(cluster, **settings) as one:
        one.subscribe(["t"], RecordingListener(events))
        await one.receive()
        async with member_of(cluster) as two, trio.open_nursery() as nursery:
            nursery.start_soon(drain, two)
            for _ in range(200):
                assert await one.receive_batch()
                assert (len(one.assignment()) == 1) == (events[-1][0] == "revoked")
                await one.commit()
                await trio.sleep(0.05)
            assert len(one.assignment()) == len(two.assignment()) == 1
            nursery.cancel_scope.cancel()


async def test_member_without_partitions_slows_down(autojump_clock: Clock) -> None:
    async with cluster_of(1) as cluster, member_of(cluster) as one:
        await until(lambda: state(one) == "stable")
        async with member_of(cluster) as two:
            began = trio.current_time()
            await trio.sleep(29)
            times = [round(time - began, 1) for time, *_ in Said(cluster)(began, me(two))]
            assert times == [
                0,
                0.1,
                0.3,
                0.7,
                *(number + 0.5 for number in range(1, 11)),
                15.5,
                20.5,
                25.5,
            ]


async def test_assignment_is_acknowledged_after_listener(
    autojump_clock: Clock,
) -> None:
    """Heartbeats continue while the listener runs."""
    events: list[Any] = []

    async def slow(what: str) -> None:
        events.append(round(trio.current_time(), 2))
        await trio.sleep(12)

    async with (
        cluster_of(2, records=1) as cluster,
        listening_to(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.subscribe(["t"], RecordingListener(events, then=slow))
        nursery.start_soon(drain, consumer)
        await trio.sleep(6)
        assert state(consumer) == "reconciling"
        await trio.sleep(10)
        assert state(consumer) == "stable"
        assert Said(cluster)() == [
            (0, 0, ["t"], []),
            (5, 2, None, None),
            (10, 2, None, None),
            (12, 2, None, [0, 1]),
        ]
        nursery.cancel_scope.cancel()


async def test_changed_target_takes_another_step(
    autojump_clock: Clock,
) -> None:
    events: list[Any] = []

    async def slow(what: str) -> None:
        await trio.sleep(8)

    async with (
        cluster_of(4) as cluster,
        listening_to(cluster) as one,
        trio.open_nursery() as nursery,
    ):
        one.subscribe(["t"], RecordingListener(events, then=slow))
        nursery.start_soon(drain, one)
        await trio.sleep(1)
        async with member_of(cluster) as two:
            nursery.start_soon(drain, two)
            await until(lambda: len(two.assignment()) == 2)
            assert events == [("assigned", [T0, T1, T2, T3]), ("revoked", [T2, T3])]
            # Notified at 5 s, while the listener ran until 8 s; released at 16 s, and reported then.
            reports = [
                (time, owned)
                for time, _, _, owned in Said(cluster)(0.1, me(one))
                if owned is not None
            ]
            assert reports == [(8, [0, 1, 2, 3]), (16, [0, 1])]
            nursery.cancel_scope.cancel()


async def test_new_subscription_is_sent_at_once(autojump_clock: Clock) -> None:
    events: list[Any] = []
    U0 = TopicPartition("u", 0)
    async with cluster_of(1, records=2) as cluster, listening_to(cluster) as consumer:
        cluster.create_topic("u", 1)
        cluster.append("u", 0, [b"u"])
        consumer.subscribe(["t"], listener := RecordingListener(events))
        await consumer.receive()
        await trio.sleep(7)
        consumer.subscribe(["u"], listener)
        assert await values(consumer, 1) == [b"u"]
        assert events == [("assigned", [T0]), ("revoked", [T0]), ("assigned", [U0])]
        assert [(time, names) for time, _, names, _ in Said(cluster)(6) if names] == [(7, ["u"])]
        assert consumer.assignment() == {U0}
        consumer.subscribe(["t", "u"], listener)
        await until(lambda: len(consumer.assignment()) == 1)
        assert await values(consumer, 1) == [b"1"]  # behind the commit of its revocation
        assert consumer.assignment() == {T0, U0}


async def test_added_partitions_are_assigned(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2) as cluster,
        member_of(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(drain, consumer)
        await trio.sleep(6)
        cluster.add_partitions("t", 4)
        await until(lambda: len(consumer.assignment()) == 4)
        assert round(trio.current_time()) <= 11
        nursery.cancel_scope.cancel()


# Topics by their ids.


async def test_unknown_topic_id_is_looked_up(
    autojump_clock: Clock,
) -> None:
    """Owned partitions stay meanwhile."""
    pattern = SubscriptionPattern("[tuv]")
    async with cluster_of(1, records=1) as cluster, listening_to(cluster) as consumer:
        consumer.subscribe(pattern)
        assert await values(consumer, 1) == [b"0"]
        by_id = cluster.fail(
            "Metadata", ErrorCode.UNKNOWN_TOPIC_ID, 3, where=lambda request: bool(_ids(request))
        )
        cluster.create_topic("u", 1)
        cluster.append("u", 0, [b"u"])
        assert await values(consumer, 1) == [b"u"]
        assert by_id.used == 3
        assert consumer.assignment() == {T0, TopicPartition("u", 0)}
        assert consumer.subscription() == {"t", "u"}
        assert all(
            _ids(seen.request) or seen.request.topics != []
            for seen in cluster.requests("Metadata")[2:]
        )


def _ids(request: Any) -> list[Any]:
    return [topic.topic_id for topic in request.topics or () if topic.name is None]


@pytest.mark.parametrize("seen", [False, True])
async def test_recreated_topic_is_another(autojump_clock: Clock, seen: bool) -> None:
    """A heartbeat between deletion and creation makes no difference."""
    events: list[Any] = []
    async with (
        cluster_of(1, records=5) as cluster,
        listening_to(cluster, enable_auto_commit=False) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener(events))
        await values(consumer, 5)
        cluster.delete_topic("t")
        await consumer.receive_batch(timeout=7 if seen else 0)
        cluster.create_topic("t", 1)
        await consumer.receive_batch(timeout=7)
        cluster.append("t", 0, [b"new"])
        # The new topic is read from its beginning: the position belonged to the old one.
        assert await values(consumer, 1) == [b"new"]
        assert events == [("assigned", [T0]), ("revoked", [T0]), ("assigned", [T0])]


# Patterns.


async def test_broker_pattern_brings_its_topics(autojump_clock: Clock) -> None:
    async with cluster_of(1, records=1) as cluster, listening_to(cluster) as consumer:
        consumer.subscribe(SubscriptionPattern("t|v.*"))
        assert await values(consumer, 1) == [b"0"]
        first = cluster.requests(BEAT)[0].request
        assert (first.subscribed_topic_regex, first.subscribed_topic_names) == ("t|v.*", [])
        cluster.create_topic("v2", 1)
        cluster.append("v2", 0, [b"v"])
        assert await values(consumer, 1) == [b"v"]
        assert {seen.request.subscribed_topic_regex for seen in cluster.requests(BEAT)[1:]} == {
            None
        }
        await consumer.unsubscribe()
        consumer.subscribe(["t"])
        await until(lambda: consumer.assignment() == {T0})


async def test_invalid_broker_pattern_is_raised(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(1, records=1) as cluster, listening_to(cluster) as consumer:
        consumer.subscribe(SubscriptionPattern("("))
        with pytest.raises(InvalidRegularExpressionError, match="SubscribedTopicRegex"):
            await consumer.receive()
        consumer.subscribe(SubscriptionPattern("t"))
        assert await values(consumer, 1) == [b"0"]


async def test_broker_pattern_needs_a_new_broker(autojump_clock: Clock) -> None:
    async with cluster_of(1, records=1) as cluster:
        cluster.offer(BEAT, (0, 0))
        async with listening_to(cluster) as consumer:
            consumer.subscribe(SubscriptionPattern("t"))
            with pytest.raises(UnsupportedVersionError):
                await consumer.receive()
            await consumer.unsubscribe()
            consumer.subscribe(["t"])
            assert await values(consumer, 1) == [b"0"]
        cluster.offer(BEAT, None)
        async with listening_to(cluster, group_protocol="auto") as consumer:
            consumer.subscribe(SubscriptionPattern("t"))
            with (
                trio.fail_after(1),
                pytest.raises(UnsupportedVersionError, match="SubscriptionPattern"),
            ):
                await consumer.receive()
        async with listening_to(cluster, group_protocol="classic") as consumer:
            with pytest.raises(ConfigurationError, match="group_protocol"):
                consumer.subscribe(SubscriptionPattern("t"))


async def test_compiled_pattern_is_matched_locally(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(1, records=1) as cluster,
        listening_to(cluster, metadata_max_age_ms=2_000) as consumer,
    ):
        consumer.subscribe(re.compile("t|u.*"))
        assert await values(consumer, 1) == [b"0"]
        cluster.create_topic("u1", 1)
        cluster.append("u1", 0, [b"u"])
        assert await values(consumer, 1) == [b"u"]
        assert [(time, names) for time, _, names, _ in Said(cluster)(0.1) if names] == [
            (2.1, ["t", "u1"])
        ]


# Fenced, and back.


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
async def test_fenced_member_joins_again_at_once(autojump_clock: Clock, code: ErrorCode) -> None:
    events: list[Any] = []
    async with (
        cluster_of(2, records=5) as cluster,
        listening_to(cluster, max_poll_records=1) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener(events))
        await values(consumer, 2)
        who = me(consumer)
        cluster.fail(BEAT, code)
        await trio.sleep(7)
        assert state(consumer) == "fenced"
        with pytest.raises(CommitFailedError):
            await consumer.commit()
        with pytest.raises(trio.WouldBlock):
            consumer.receive_nowait()  # nothing of it is delivered any more
        await values(consumer, 1)
        assert events == [("assigned", [T0, T1]), ("lost", [T0, T1]), ("assigned", [T0, T1])]
        assert me(consumer) == who
        assert [(epoch, owned) for _, epoch, _, owned in Said(cluster)(6)][:2] == [
            (0, []),
            (2, [0, 1]),
        ]


async def test_session_ended_by_the_broker_is_noticed(autojump_clock: Clock) -> None:
    events: list[Any] = []
    async with (
        cluster_of(1, records=1) as cluster,
        listening_to(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.subscribe(["t"], RecordingListener(events))
        nursery.start_soon(drain, consumer)
        await trio.sleep(2)
        cluster.freeze(0)
        await trio.sleep(60)
        cluster.thaw(0)
        await until(lambda: events[1:] == [("lost", [T0]), ("assigned", [T0])], 0.1)
        assert trio.current_time() < 75
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("instance", [None, "i"])
async def test_member_expires_by_its_own_clock(autojump_clock: Clock, instance: str | None) -> None:
    """45 s after the last answered heartbeat was sent, others may have its partitions."""
    events: list[Any] = []

    async def note(what: str) -> None:
        events.append(round(trio.current_time(), 3))

    async with (
        cluster_of(1, records=5) as cluster,
        listening_to(cluster, group_instance_id=instance) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener(events, then=note))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain, consumer)
            await trio.sleep(12)
            cluster.freeze(0)
            await trio.sleep(50)
            assert events == [("assigned", [T0]), 0, ("lost", [T0]), 55]
            cluster.thaw(0)
            await until(lambda: len(events) == 6)
            assert events[4] == ("assigned", [T0])
            assert events[5] < 75
            nursery.cancel_scope.cancel()


async def test_blocked_loop_delivers_nothing_stale(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(1, records=5) as cluster,
        member_of(cluster, enable_auto_commit=False) as consumer,
    ):
        assert await values(consumer, 1) == [b"0"]
        autojump_clock.jump(60)
        # The partition is lost, joined again, and read again from the commits.
        assert (await consumer.receive()).offset == 0


@pytest.mark.parametrize("instance", [None, "i"])
async def test_late_user_makes_the_member_leave(
    autojump_clock: Clock, instance: str | None
) -> None:
    """The interval is the user's though it is below the classic session timeout (KIP-62)."""
    events: list[Any] = []
    settings = {"max_poll_interval_ms": 12_000, "group_instance_id": instance}
    async with cluster_of(2, records=5) as cluster, listening_to(cluster, **settings) as consumer:
        consumer.subscribe(["t"], RecordingListener(events))
        await consumer.receive()
        came = trio.current_time()
        await trio.sleep(60)
        assert state(consumer) == "stale"
        assert Said(cluster)(came + 11) == [(came + 12, -1 if instance is None else -2, None, None)]
        with pytest.raises(CommitFailedError, match="max_poll_interval_ms"):
            await consumer.commit()
        events.clear()
        assert (await consumer.receive()).offset == 0
        assert events == [("lost", [T0, T1]), ("assigned", [T0, T1])]
        assert state(consumer) == "stable"


async def test_late_user_without_partitions_leaves(autojump_clock: Clock) -> None:
    async with (
        cluster_of(0) as cluster,
        member_of(cluster, "u", max_poll_interval_ms=12_000) as consumer,
    ):
        await trio.sleep(60)
        assert Said(cluster)(11)[-1] == (12, -1, None, None)
        assert state(consumer) == "stale"


async def test_member_that_keeps_partitions_is_fenced(autojump_clock: Clock) -> None:
    events: list[Any] = []
    async with (
        cluster_of(2) as cluster,
        listening_to(cluster, max_poll_interval_ms=20_000) as one,
        trio.open_nursery() as nursery,
    ):
        one.subscribe(["t"], RecordingListener(events))
        await one.receive_batch(timeout=1)
        async with member_of(cluster) as two:
            nursery.start_soon(drain, two)
            who = me(one)
            await until(lambda: len(two.assignment()) == 2)
            # It left by itself when its time was up, 20 s after its receive.
            assert state(one) == "stale"
            assert Said(cluster)(6, who)[-1] == (21, -1, None, None)
            assert round(trio.current_time(), 1) == 21.5  # at its heartbeat after that
            await one.receive_batch(timeout=1)
            assert events[1:] == [("lost", [T0, T1])]
            nursery.cancel_scope.cancel()


# Errors on the way.


@pytest.mark.parametrize("carried_out", [False, True])
async def test_lost_heartbeat_is_repeated_in_full(autojump_clock: Clock, carried_out: bool) -> None:
    events: list[Any] = []
    async with (
        cluster_of(2, records=2) as cluster,
        listening_to(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.subscribe(["t"], RecordingListener(events))
        nursery.start_soon(drain, consumer)
        await trio.sleep(6)
        cluster.drop(BEAT, after=carried_out)
        await trio.sleep(5)
        (at, *_), again, *_ = Said(cluster)(6)
        assert at == 10
        assert again[1:] == (2, ["t"], [0, 1])
        assert 10.07 < again[0] < 10.3  # after one backoff
        request = cluster.requests(BEAT)[-1].request
        assert request.rebalance_timeout_ms == 300_000
        assert events == [("assigned", [T0, T1])]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("instance", [None, "i"])
async def test_lost_join_response_is_retried(autojump_clock: Clock, instance: str | None) -> None:
    """The broker refuses a static member that it believes present, so the old one leaves first."""
    async with cluster_of(1, records=1) as cluster:
        cluster.drop(BEAT, after=True)
        async with member_of(cluster, group_instance_id=instance) as consumer:
            assert await values(consumer, 1) == [b"0"]
            epochs = [epoch for _, epoch, *_ in Said(cluster)()]
            assert epochs[: 2 if instance is None else 3] == (
                [0, 0] if instance is None else [0, -2, 0]
            )
            assert len({seen.request.member_id for seen in cluster.requests(BEAT)}) == 1


async def test_heartbeat_is_retried_after_the_interval(autojump_clock: Clock) -> None:
    async with (
        cluster_of(1, records=1) as cluster,
        member_of(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(drain, consumer)
        await trio.sleep(6)
        cluster.delay(BEAT, 20, 1)
        await trio.sleep(12)
        times = [time for time, *_ in Said(cluster)(6)]
        assert times[0] == 10
        assert 15.07 < times[1] < 15.3
        nursery.cancel_scope.cancel()


async def test_member_survives_a_coordinator_move(autojump_clock: Clock) -> None:
    events: list[Any] = []
    async with (
        cluster_of(1, nodes=2) as cluster,
        listening_to(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.subscribe(["t"], RecordingListener(events))
        nursery.start_soon(drain, consumer)
        await trio.sleep(6)
        cluster.move_coordinator(1)
        await trio.sleep(10)
        assert events == [("assigned", [T0])]
        assert state(consumer) == "stable"
        assert {seen.node_id for seen in cluster.requests(BEAT) if seen.time > 11} == {1}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.FENCED_INSTANCE_ID, FencedInstanceIdError),
        (ErrorCode.INVALID_REGULAR_EXPRESSION, InvalidRegularExpressionError),
        (ErrorCode.INVALID_GROUP_ID, BrokerResponseError),
    ],
)
@pytest.mark.parametrize("joined", [False, True])
async def test_fatal_group_error_is_raised_by_receive(
    autojump_clock: Clock, code: ErrorCode, kind: type[Exception], joined: bool
) -> None:
    events: list[Any] = []
    async with cluster_of(1, records=1) as cluster:
        failing = cluster.fail(BEAT, code, 1) if not joined else None
        async with listening_to(cluster, enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"], RecordingListener(events))
            if joined:
                await consumer.receive()
                failing = cluster.fail(BEAT, code, 1)
            for _ in range(2):
                with trio.fail_after(6), pytest.raises(kind, match="group 'g'"):
                    await consumer.receive()
            assert failing is not None
            assert failing.used == 1
            consumer.subscribe(["t"], RecordingListener(events))
            assert await values(consumer, 1) == [b"0"]
            assert events == ([("assigned", [T0]), ("lost", [T0])] if joined else []) + [
                ("assigned", [T0])
            ]


async def test_missing_broker_assignor_is_raised(autojump_clock: Clock) -> None:
    async with (
        cluster_of(1) as cluster,
        member_of(cluster, group_remote_assignor="mine") as consumer,
    ):
        with pytest.raises(UnsupportedAssignorError, match="uniform"):
            await consumer.receive()


# Commits.


async def test_commit_with_a_stale_epoch_is_retried(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(1, records=3) as cluster,
        member_of(cluster, enable_auto_commit=False) as consumer,
    ):
        await values(consumer, 2)
        failing = cluster.fail("OffsetCommit", ErrorCode.STALE_MEMBER_EPOCH, 2)
        await consumer.commit()
        assert failing.used == 2
        assert cluster.committed("g", T0) == OffsetAndMetadata(2, 0)
        commit = cluster.requests("OffsetCommit")[-1].request
        assert (commit.generation_id_or_member_epoch, commit.member_id) == (2, me(consumer))
        fetch = cluster.requests("OffsetFetch")[0].request.groups[0]
        assert (fetch.member_id, fetch.member_epoch) == (me(consumer), 2)
        cluster.fail("OffsetCommit", ErrorCode.UNKNOWN_MEMBER_ID)
        with pytest.raises(CommitFailedError):
            await consumer.commit()


async def test_offset_fetch_with_stale_epoch_is_retried(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(1, records=3) as cluster:
        cluster.fail("OffsetFetch", ErrorCode.STALE_MEMBER_EPOCH, 2)
        async with member_of(cluster) as consumer:
            with trio.fail_after(2):
                assert await values(consumer, 1) == [b"0"]


# Leaving.


async def test_static_member_regains_its_partitions(autojump_clock: Clock) -> None:
    async with cluster_of(4, records=3) as cluster:
        async with (
            member_of(cluster, group_instance_id="a") as other,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(drain, other)
            ids, had = [], []
            for _ in range(2):
                async with member_of(cluster, group_instance_id="b") as consumer:
                    await until(lambda consumer=consumer: len(consumer.assignment()) == 2)
                    ids.append(me(consumer))
                    had.append(consumer.assignment())
                assert Said(cluster)()[-1][1] == -2
                await trio.sleep(20)
                assert len(other.assignment()) == 2  # they wait for it
            assert ids[0] != ids[1]
            assert had[0] == had[1]
            await trio.sleep(50)
            assert len(other.assignment()) == 4  # its session is over
            nursery.cancel_scope.cancel()


async def test_resubscribed_member_keeps_its_id(
    autojump_clock: Clock,
) -> None:
    events: list[Any] = []
    async with cluster_of(1, records=3) as cluster, listening_to(cluster) as consumer:
        consumer.subscribe(["t"], RecordingListener(events))
        await consumer.receive()
        who = me(consumer)
        await consumer.unsubscribe()
        assert Said(cluster)()[-1][1] == -1
        assert state(consumer) == "unjoined"
        await trio.sleep(20)
        assert Said(cluster)()[-1][1] == -1
        consumer.subscribe(["t"], RecordingListener(events))
        assert (await consumer.receive()).offset == 1
        assert events == [("assigned", [T0]), ("revoked", [T0]), ("assigned", [T0])]
        assert me(consumer) == who


async def test_unanswered_leave_ends_at_its_limit(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(1, records=1) as cluster:
        async with member_of(cluster) as consumer:
            await consumer.receive()
            await trio.sleep(1)
            cluster.silence(BEAT)
            began = trio.current_time()
        assert trio.current_time() - began <= 5
