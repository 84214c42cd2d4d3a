"""Edge cases of a member's life: statistics, log lines and the advice in errors.

In virtual time, both protocols.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import trio
from consuming import T0, RecordingListener, cluster_of, consumer_of, member_of, until, values
from trio.testing import MockClock

from trikafka import RebalanceListener, SubscriptionPattern, TopicPartition
from trikafka._net.deadlines import GRACE
from trikafka.errors import (
    AuthorizationError,
    CommitFailedError,
    ConfigurationError,
    ErrorCode,
    KafkaTimeoutError,
)
from trikafka.testing import ScriptedCluster

BEAT = "ConsumerGroupHeartbeat"


@pytest.fixture(autouse=True)
async def limit(autojump_clock: MockClock) -> AsyncIterator[None]:
    """Fail a test that waits for more than 500 s of virtual time."""

    async def end() -> None:
        await trio.sleep(500)
        raise trio.TooSlowError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end)
        yield
        nursery.cancel_scope.cancel()


def modern(cluster: ScriptedCluster, *topics: str, **settings: Any) -> Any:
    """Open a member of the consumer protocol. Without topics it subscribes later."""
    return consumer_of(cluster, *topics, group_id="g", group_protocol="consumer", **settings)


async def drain(consumer: Any) -> None:
    async for _ in consumer:
        pass


# The coordinator's states, and joining.


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_statistics_have_the_coordinator_state(
    autojump_clock: MockClock, protocol: str
) -> None:
    async with (
        cluster_of(nodes=2) as cluster,
        consumer_of(cluster, group_id="g", group_protocol=protocol) as consumer,
    ):
        assert consumer.statistics().coordinator == "initialized"
        cluster.fail("FindCoordinator", ErrorCode.COORDINATOR_NOT_AVAILABLE, 5)
        consumer.subscribe(["t"])
        await until(lambda: len(cluster.requests("FindCoordinator")) == 3)
        assert consumer.statistics().coordinator == "coordinator discovery"
        await until(lambda: consumer.statistics().state == "stable")
        assert consumer.statistics().coordinator == "stable"
        await consumer.aclose()
        assert consumer.statistics().coordinator == "down"
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        assert consumer.statistics().coordinator == "down"


async def test_rejoin_waits_for_the_broker_alone(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator makes an assignment once a second. The member gets it within a few tenths."""
    caplog.set_level(logging.INFO, "trikafka.membership")
    async with cluster_of(1, records=1) as cluster, modern(cluster) as consumer:
        consumer.subscribe(["t"])
        await values(consumer, 1)
        assert trio.current_time() < 0.2
        await trio.sleep_until(0.65)
        await consumer.unsubscribe()
        cluster.append("t", 0, [b"next"])
        began = trio.current_time()
        consumer.subscribe(["t"])
        assert await values(consumer, 1) == [b"next"]
        # The heartbeats are sent after 0.1, 0.3 and 0.7 s. The assignment is made after 0.35 s.
        assert trio.current_time() - began == pytest.approx(0.7, abs=0.05)
    said = [
        record.message
        for record in caplog.records
        if "joined" in record.message or "left" in record.message
    ]
    name = r"[\w-]{22}"
    patterns = [rf"group g: joined in epoch 2 as {name}", rf"group g: {name} left"] * 2
    assert len(said) == 4
    assert all(
        re.fullmatch(pattern.replace("2 as", r"\d as"), line)
        for pattern, line in zip(patterns, said, strict=True)
    )


async def test_idle_member_slows_its_heartbeats(
    autojump_clock: MockClock,
) -> None:
    async with (
        cluster_of(1, records=1) as cluster,
        modern(cluster, "t") as one,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(drain, one)
        await trio.sleep(1)
        async with modern(cluster, "t") as two:
            with trio.move_on_after(20):
                await drain(two)
            mine = two.statistics().member_id
            times = [
                seen.time - 1 for seen in cluster.requests(BEAT) if seen.request.member_id == mine
            ]
            gaps = [round(later - before, 1) for before, later in itertools.pairwise(times)]
            assert gaps[:5] == [0.1, 0.2, 0.4, 0.8, 1.0]
            assert gaps[-1] == 5
            assert len(gaps) <= 16
        nursery.cancel_scope.cancel()


async def test_old_pattern_ends_after_a_lost_leave(
    autojump_clock: MockClock,
) -> None:
    async with cluster_of(1, records=1) as cluster, modern(cluster) as consumer:
        cluster.create_topic("u", 1)
        cluster.append("u", 0, [b"u"])
        consumer.subscribe(SubscriptionPattern("t|u"))
        assert sorted(await values(consumer, 2)) == [b"0", b"u"]
        cluster.drop(BEAT, None, where=lambda request: request.member_epoch < 0)
        await consumer.unsubscribe()
        consumer.subscribe(["u"])
        await until(lambda: consumer.statistics().state == "stable" and bool(consumer.assignment()))
        with trio.move_on_after(12):
            await drain(consumer)
        assert consumer.assignment() == {TopicPartition("u", 0)}
        (member,) = cluster.group("g").modern.members.values()  # type: ignore[union-attr]
        assert (member.regex, member.names) == ("", {"u"})


# An assignor for the other protocol.


async def test_unused_broker_assignor_is_logged_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of(1, records=1) as cluster:
        cluster.offer(BEAT, None)
        async with consumer_of(
            cluster, "t", group_id="g", group_protocol="auto", group_remote_assignor="uniform"
        ) as consumer:
            await values(consumer, 1)
            await consumer.unsubscribe()
            cluster.append("t", 0, [b"next"])
            consumer.subscribe(["t"])
            await values(consumer, 1)
    logged = [
        record.message for record in caplog.records if "group_remote_assignor" in record.message
    ]
    assert logged == [
        "group g: group_remote_assignor='uniform' has no effect, because the group uses the "
        "classic protocol; set partition_assignment_strategy for it"
    ]


@pytest.mark.parametrize(
    "setting", [{"partition_assignment_strategy": ["range"]}, {"session_timeout_ms": 30_000}]
)
async def test_broker_and_classic_settings_conflict(
    autojump_clock: MockClock, setting: dict[str, Any]
) -> None:
    (name,) = setting
    async with cluster_of() as cluster:
        with pytest.raises(
            ConfigurationError,
            match=f"group_remote_assignor is for the consumer .*{name} for the classic",
        ):
            async with consumer_of(
                cluster,
                group_id="g",
                group_protocol="auto",
                group_remote_assignor="uniform",
                **setting,
            ):
                pass


# Errors that say what to do.


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_outside_commit_into_a_group_is_explained(
    autojump_clock: MockClock, protocol: str
) -> None:
    async with (
        cluster_of(1, records=1) as cluster,
        member_of(cluster, group_protocol=protocol) as member,
    ):
        await values(member, 1)
        async with consumer_of(cluster, group_id="g") as outside:
            outside.assign([T0])
            with pytest.raises(
                CommitFailedError, match="group 'g' has members, and only they may commit"
            ) as caught:
                await outside.commit({T0: 1})
            assert "max_poll_interval_ms" not in str(caught.value)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_commit_error_names_a_long_outage(autojump_clock: MockClock, protocol: str) -> None:
    async with (
        cluster_of(1, records=1) as cluster,
        member_of(cluster, group_protocol=protocol) as consumer,
    ):
        await values(consumer, 1)
        cluster.stop(0)
        with pytest.raises(
            CommitFailedError, match=r"could not be reached for a session: .*broker-0"
        ) as caught:
            await consumer.commit(timeout=60)
        assert trio.current_time() < 80
        assert "max_poll_interval_ms" not in str(caught.value)
        assert caught.value.__cause__ is not None


async def test_blocked_loop_commits_nothing(
    autojump_clock: MockClock,
) -> None:
    for _ in range(10):  # who comes first after the block is chance
        async with cluster_of(1, records=3) as cluster:
            settings = {"session_timeout_ms": 6_000, "auto_commit_interval_ms": 1_000}
            async with member_of(cluster, **settings) as consumer:
                await values(consumer, 3)
                await trio.sleep(0.5)
                consumer._assignment.all_processed()
                autojump_clock.jump(20)
                await trio.sleep(0.01)
                assert not cluster.requests("OffsetCommit")


async def test_waiting_commit_keeps_its_timeout(
    autojump_clock: MockClock,
) -> None:
    """An auto commit overtakes it, and neither reaches a broker.

    Each wait ends after ``request_timeout_ms``.
    """
    async with cluster_of(1, records=2) as cluster:
        async with member_of(
            cluster, auto_commit_interval_ms=1_000, request_timeout_ms=5_000
        ) as consumer:
            await values(consumer, 2)
            cluster.stop(0)
            began = trio.current_time()
            with pytest.raises(KafkaTimeoutError, match="commit did not finish within 20 s"):
                await consumer.commit(timeout=20)
            # A step that begins just before the limit gets GRACE.
            assert trio.current_time() - began == pytest.approx(20, abs=GRACE)
        assert not cluster.requests("OffsetCommit")


# Listeners.


class Misspelt(RebalanceListener):
    async def on_partition_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """No code calls it."""


class Java(RebalanceListener):
    async def onPartitionsLost(self, partitions: Sequence[TopicPartition]) -> None:
        """No code calls it."""


class NotInherited:
    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None: ...

    async def on_partitions_revoke(self, partitions: Sequence[TopicPartition]) -> None: ...

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None: ...


class Helped(RebalanceListener):
    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        await self.on_partitions_assigned_to(partitions)

    async def on_partitions_assigned_to(self, partitions: Sequence[TopicPartition]) -> None:
        """Do nothing: a helper whose name resembles a method that exists."""


@pytest.mark.parametrize(
    ("listener", "error"),
    [
        (
            Misspelt(),
            "on_partition_revoked of .* is never called; did you mean on_partitions_revoked?",
        ),
        (Java(), "onPartitionsLost of .* is never called; did you mean on_partitions_lost?"),
        (
            NotInherited(),
            "has no on_partitions_revoked; did you mean on_partitions_revoked by "
            "on_partitions_revoke?",
        ),
    ],
)
async def test_misspelt_listener_method_is_refused(
    autojump_clock: MockClock, listener: Any, error: str
) -> None:
    async with cluster_of() as cluster, consumer_of(cluster, group_id="g") as consumer:
        with pytest.raises(ConfigurationError, match=error.replace("?", r"\?")):
            consumer.subscribe(["t"], listener)
        consumer.subscribe(["t"], Helped())
        consumer.subscribe(["t"], RecordingListener([]))


# An error that stops the group's work, at whatever moment.


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_error_at_the_last_revocation_is_raised(
    autojump_clock: MockClock, protocol: str
) -> None:
    """The end of the listener and the error of the metadata come in either order."""
    for _ in range(12):
        async with cluster_of(1, records=1) as cluster:
            cluster.create_topic("u", 1)
            cluster.append("u", 0, [b"u"])
            refused: list[Any] = []

            async def then(
                what: str, cluster: ScriptedCluster = cluster, refused: list[Any] = refused
            ) -> None:
                if what == "revoked":
                    refused.append(
                        cluster.fail(
                            "Metadata", ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, topic="u"
                        )
                    )
                    await consumer._parts.metadata.refresh(["u"])

            settings: dict[str, Any] = {"group_id": "g", "group_protocol": protocol}
            async with consumer_of(cluster, **settings) as consumer:
                consumer.subscribe(["t"], RecordingListener([], then=then))
                await values(consumer, 1)
                consumer.subscribe(["u"], RecordingListener([], then=then))
                with pytest.raises(AuthorizationError):
                    await values(consumer, 1)
                refused[0].remove()
                cluster.append("t", 0, [b"again"])
                consumer.subscribe(["t"])
                assert (await values(consumer, 1))[0] in (b"0", b"again")
