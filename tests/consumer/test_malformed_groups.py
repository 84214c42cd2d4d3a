"""Subscriptions and assignments that are malformed or outdated.

They stall no group and are not adopted.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from consuming import T0, T1, RecordingListener, cluster_of, consumer_of, until, values
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from trio.testing import MockClock as Clock

from trikafka import TopicPartition
from trikafka._managers.group.group_messages import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from trikafka._state.group.member import MemberState
from trikafka.error_codes import ErrorCode
from trikafka.errors import DamagedResponseError
from trikafka.testing import ScriptedCluster

Default = Callable[[], Awaitable[Any]]
BEAT = "ConsumerGroupHeartbeat"
STRATEGIES = ["range", "cooperative-sticky"]
strategies = pytest.mark.parametrize("strategy", STRATEGIES)


def member_of(
    cluster: ScriptedCluster, *topics: str, strategy: str = "range", **settings: Any
) -> Any:
    given: dict[str, Any] = {
        "group_id": "g",
        "heartbeat_interval_ms": 1_000,
        "partition_assignment_strategy": [strategy],
    }
    return consumer_of(cluster, *topics, **(given | settings))


async def drain(consumer: Any) -> None:
    async for _ in consumer:
        pass


def packed(*partitions: tuple[str, int]) -> bytes:
    """Return an assignment as its leader encodes it, whatever the numbers."""
    parts = [
        ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=[number])
        for topic, number in partitions
    ]
    return bytes(
        ConsumerProtocolAssignment(version=0, assigned_partitions=parts, user_data=None).encode(
            version=0
        )
    )


def owning(number: int) -> bytes:
    """Return a subscription to ``t`` whose member owns the partition ``number``."""
    part = ConsumerProtocolSubscription.TopicPartition(topic="t", partitions=[number])
    subscription = ConsumerProtocolSubscription(
        version=1, topics=["t"], user_data=None, owned_partitions=[part]
    )
    return bytes(subscription.encode(version=1))


GARBAGE = {"empty": b"", "short": b"\0", "noise": b"\xff" * 40}


# As the leader.


@strategies
@pytest.mark.parametrize("metadata", GARBAGE.values(), ids=GARBAGE.keys())
async def test_leader_skips_an_unreadable_member(
    autojump_clock: Clock, strategy: str, metadata: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The others have all partitions. The malformed member gets a valid empty assignment."""

    async def strange(request: Any, default: Default) -> Any:
        response = await default()
        for member in response.members:
            if member.member_id != response.member_id:
                member.metadata = metadata
        return response

    async with cluster_of(4, records=1) as cluster, trio.open_nursery() as nursery:
        async with member_of(cluster, "t", strategy=strategy) as leader:
            nursery.start_soon(drain, leader)
            await until(lambda: len(leader.assignment()) == 4)
            cluster.on("JoinGroup", strange)
            async with member_of(cluster, "t", strategy=strategy) as other:
                nursery.start_soon(drain, other)
                await trio.sleep(12)
                assert len(leader.assignment()) == 4
                assert not other.assignment()
                assert len(cluster.requests("JoinGroup")) <= 8
                health, strange_id = leader.health(), other.statistics().member_id
                assert not health.ok
                assert strange_id in health.reasons[0]
                sync = [
                    seen.request
                    for seen in cluster.requests("SyncGroup")
                    if seen.request.assignments
                ][-1]
                sent = {entry.member_id: bytes(entry.assignment) for entry in sync.assignments}
                assert sent[strange_id]
                assert decode_assignment(sent[strange_id]) == []
                nursery.cancel_scope.cancel()
    lines = [each for each in caplog.records if "assigns nothing to member" in each.getMessage()]
    assert strange_id in lines[0].getMessage()
    assert len(lines) <= 3


@strategies
async def test_member_with_wrong_ownership_has_a_share(
    autojump_clock: Clock, strategy: str
) -> None:
    """As Java reads it."""

    async def strange(request: Any, default: Default) -> Any:
        response = await default()
        for member in response.members:
            if member.member_id != response.member_id:
                member.metadata = owning(-1)
        return response

    async with cluster_of(4, records=1) as cluster, trio.open_nursery() as nursery:
        cluster.on("JoinGroup", strange)
        async with (
            member_of(cluster, "t", strategy=strategy) as one,
            member_of(cluster, "t", strategy=strategy) as two,
        ):
            nursery.start_soon(drain, one)
            nursery.start_soon(drain, two)
            await until(lambda: len(one.assignment()) == len(two.assignment()) == 2, 0.1)
            nursery.cancel_scope.cancel()


async def test_unreadable_members_are_no_loop(autojump_clock: Clock) -> None:
    async def strange(request: Any, default: Default) -> Any:
        response = await default()
        for member in response.members:
            member.metadata = b"\xff"
        return response

    async with cluster_of(1, records=1) as cluster:
        cluster.create_topic("u", 1)
        rule = cluster.on("JoinGroup", strange)
        async with member_of(cluster, "t") as consumer:
            assert not await consumer.receive_batch(timeout=12)
            assert len(cluster.requests("JoinGroup")) == 2  # the first one gets an id
            assert not consumer.health().ok
            rule.remove()
            consumer.subscribe(["t", "u"])
            assert await values(consumer, 1) == [b"0"]
            assert consumer.health().ok


# As a follower.

ABSURD = {
    "negative": packed(("t", -1)),
    "noise": b"\xff" * 30,
    "cut": packed(("t", 0), ("t", 1))[:-3],
    "not subscribed": packed(("u", 0)),
}


@strategies
@pytest.mark.parametrize("data", ABSURD.values(), ids=ABSURD.keys())
async def test_malformed_assignment_is_no_livelock(
    autojump_clock: Clock, strategy: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def absurd(request: Any, default: Default) -> Any:
        response = await default()
        response.assignment = data
        return response

    async with cluster_of(2, records=1) as cluster, trio.open_nursery() as nursery:
        rule = cluster.on("SyncGroup", absurd)
        async with member_of(cluster, "t", strategy=strategy) as consumer:
            nursery.start_soon(drain, consumer)
            await trio.sleep(12)
            assert 3 <= len(cluster.requests("JoinGroup")) <= 8
            health = consumer.health()
            assert not health.ok
            assert "not in its group" in health.reasons[0]
            assert not consumer.assignment()
            (line,) = [
                each.getMessage()
                for each in caplog.records
                if "cannot get into its group" in each.getMessage()
            ]
            assert "trying again in" in line
            rule.remove()
            with trio.fail_after(12.1):
                await until(lambda: len(consumer.assignment()) == 2)
            assert consumer.health().ok
            nursery.cancel_scope.cancel()


async def test_pauses_between_joins_keep_the_session(autojump_clock: Clock) -> None:
    async def absurd(request: Any, default: Default) -> Any:
        response = await default()
        response.assignment = b"\xff"
        return response

    async with cluster_of(1) as cluster:
        cluster.on("SyncGroup", absurd)
        async with member_of(cluster, "t", session_timeout_ms=6_000) as consumer:
            assert not await consumer.receive_batch(timeout=60)
            times = [seen.time for seen in cluster.requests("JoinGroup")]
            pauses = [after - before for before, after in itertools.pairwise(times)]
            assert max(pauses) < 2.01
            # The first request has no member id.
            assert len({seen.request.member_id for seen in cluster.requests("JoinGroup")}) == 2


@strategies
async def test_duplicate_partition_is_assigned_once(autojump_clock: Clock, strategy: str) -> None:
    async def twice(request: Any, default: Default) -> Any:
        response = await default()
        response.assignment = packed(("t", 0), ("t", 0), ("t", 1))
        return response

    events: list[Any] = []
    async with cluster_of(2, records=1) as cluster:
        cluster.on("SyncGroup", twice)
        async with member_of(cluster, strategy=strategy) as consumer:
            consumer.subscribe(["t"], RecordingListener(events))
            assert await values(consumer, 2) == [b"0", b"0"]
            assert events == [("assigned", [T0, T1])]


@pytest.mark.parametrize("number", [-1, 0])
async def test_malformed_targets_change_nothing(autojump_clock: Clock, number: int) -> None:
    """The consumer protocol (KIP-848): a negative partition changes nothing, and a duplicate counts
    once.
    """

    async def strange(request: Any, default: Default) -> Any:
        response = await default()
        if response.assignment is not None:
            for topic in response.assignment.topic_partitions:
                topic.partitions = [*topic.partitions, number]
        return response

    events: list[Any] = []
    async with cluster_of(2, records=1) as cluster, trio.open_nursery() as nursery:
        rule = cluster.on(BEAT, strange)
        async with consumer_of(cluster, group_id="g", group_protocol="consumer") as consumer:
            consumer.subscribe(["t"], RecordingListener(events))
            nursery.start_soon(drain, consumer)
            await trio.sleep(30)
            if number < 0:
                assert events == []
                assert len(cluster.requests(BEAT)) < 45
                assert any("partition -1" in why for why in consumer.health().reasons)
                rule.remove()
                await until(lambda: bool(events), 0.1)
            assert events == [("assigned", [T0, T1])]
            await until(lambda: consumer.health().ok, 0.1)
            nursery.cancel_scope.cancel()


def test_unreadable_assignment_is_an_error() -> None:
    with pytest.raises(DamagedResponseError, match="t--1"):
        decode_assignment(packed(("t", -1)))
    # As in Java's client, what a member owned is only a hint.
    assert decode_subscription(owning(-1), None).topics == {"t"}
    assert decode_assignment(encode_assignment([T0, T1])) == [T0, T1]


# Assignments for an earlier subscription.


@strategies
async def test_outdated_assignment_is_not_adopted(autojump_clock: Clock, strategy: str) -> None:
    """SyncGroup for ``t`` is in flight when ``u`` is subscribed to."""
    events: list[Any] = []
    async with cluster_of(1, records=3) as cluster:
        cluster.create_topic("u", 1)
        cluster.append("u", 0, [b"u"])
        cluster.delay("SyncGroup", 1, 1, after=True)
        async with member_of(cluster, strategy=strategy) as consumer:
            consumer.subscribe(["t"], listener := RecordingListener(events))
            assert not await consumer.receive_batch(timeout=0.5)
            consumer.subscribe(["u"], listener)
            assert await values(consumer, 1) == [b"u"]
            assert events == [("assigned", [TopicPartition("u", 0)])]
            assert round(trio.current_time(), 2) <= 1.05, "it joins again at once"


@strategies
async def test_subscription_may_change_at_any_step(autojump_clock: Clock, strategy: str) -> None:
    """After subscribe() no record of the old topic is delivered, and those of the new one follow
    soon.
    """
    moments = 0
    for step in range(0, 60, 4):
        got: list[bytes | None] = []
        async with cluster_of(2, records=3) as cluster, trio.open_nursery() as nursery:
            cluster.create_topic("u", 2)
            for number in (0, 1):
                cluster.append("u", number, [b"u"] * 3)
            for api in (
                "FindCoordinator",
                "JoinGroup",
                "SyncGroup",
                "OffsetFetch",
                "ListOffsets",
                "Fetch",
            ):
                cluster.delay(api, 0.005)
                cluster.delay(api, 0.005, after=True)
            async with (
                member_of(cluster, "t", strategy=strategy) as one,
                member_of(cluster, strategy=strategy) as two,
            ):

                async def read(consumer: Any = one, to: list[bytes | None] = got) -> None:
                    async for record in consumer:
                        to.append(record.value)

                nursery.start_soon(read)
                two.subscribe(["t", "u"])
                nursery.start_soon(drain, two)
                await trio.sleep(step * 0.0025)
                one.subscribe(["u"])
                got.clear()
                with trio.fail_after(20):
                    await until(lambda: {tp.topic for tp in one.assignment()} == {"u"}, 0.01)
                    await until(
                        lambda: {str(tp) for tp in two.assignment()} >= {"t-0", "t-1"}, 0.01
                    )
                assert set(got) <= {b"u"}, step
                moments += 1
                nursery.cancel_scope.cancel()
    assert moments == 15


async def test_unoffered_assignor_is_reported(autojump_clock: Clock) -> None:
    async def strange(request: Any, default: Default) -> Any:
        response = await default()
        response.protocol_name = "mine"
        response.leader = "another member"
        return response

    async with cluster_of(1, records=1) as cluster:
        rule = cluster.on("JoinGroup", strange)
        async with member_of(cluster, "t") as consumer:
            assert not await consumer.receive_batch(timeout=8)
            assert "'mine', which was not offered" in consumer.health().reasons[0]
            rule.remove()
            assert await values(consumer, 1) == [b"0"]


@strategies
@pytest.mark.parametrize("running", [False, True])
async def test_group_code_in_metadata_is_harmless(
    autojump_clock: Clock, strategy: str, running: bool
) -> None:
    """Metadata have REBALANCE_IN_PROGRESS for a topic, before or while the listener runs."""
    log: list[Any] = []

    async def then(what: str) -> None:
        if what == "revoked" and running:
            await trio.sleep_forever()

    async with cluster_of(1, records=1) as cluster:
        cluster.create_topic("u", 1)
        cluster.append("u", 0, [b"u"])
        settings = {"strategy": strategy, "metadata_max_age_ms": 10_000}
        async with member_of(cluster, **settings) as consumer, trio.open_nursery() as nursery:
            consumer.subscribe(["t"], RecordingListener(log, then=then))
            assert await values(consumer, 1) == [b"0"]
            consumer.subscribe(["u"], RecordingListener(log, then=then))
            state = MemberState.REVOKING if running else MemberState.PREPARE_REVOCATION
            if running:
                with trio.move_on_after(5):
                    await values(consumer, 1)
            else:
                await trio.sleep(5)
            assert consumer.statistics().state == state.value
            rule = cluster.fail("Metadata", ErrorCode.REBALANCE_IN_PROGRESS, None, topic="u")
            nursery.start_soon(consumer._parts.metadata.refresh, ["u"])
            await trio.sleep(1)
            rule.remove()
            running = False
            with trio.fail_after(60):
                assert await values(consumer, 1) == [b"u"]
            assert log[-1] == ("assigned", [TopicPartition("u", 0)])
            nursery.cancel_scope.cancel()
