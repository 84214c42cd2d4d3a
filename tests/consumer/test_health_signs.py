"""The ages of the last heartbeat and fetches in ``health()``, and the last error."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from consuming import T0, T1, T2, cluster_of, consumer_of, member_of
from trio.testing import MockClock as Clock

from trikafka import AuthorizationError, ErrorCode, KafkaConnectionError, NotLeaderError
from trikafka.errors import CoordinatorError, ProtocolError

BEATS = {"classic": "Heartbeat", "consumer": "ConsumerGroupHeartbeat"}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_heartbeat_age_grows_in_an_outage(autojump_clock: Clock, protocol: str) -> None:
    with trio.fail_after(120):
        async with (
            cluster_of(records=3) as cluster,
            member_of(cluster, group_protocol=protocol) as consumer,
        ):
            await consumer.receive_batch()
            for _ in range(10):
                await consumer.receive_batch(timeout=1)
                age = consumer.health().last_heartbeat
                assert age is not None
                assert age <= 5
            assert consumer.health().last_error is None
            cluster.fail(BEATS[protocol], ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
            await consumer.receive_batch(timeout=7)
            assert consumer.health().ok, "it may work again soon"
            await consumer.receive_batch(timeout=13)
            health = consumer.health()
            assert health.last_heartbeat is not None
            assert 15 <= health.last_heartbeat <= 25
            assert isinstance(health.last_error, CoordinatorError)
            assert "group 'g': no progress: no heartbeat has been answered: " in health.reasons[0]


async def test_assigned_consumer_has_no_heartbeat_age(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        await consumer.receive_batch()
        assert consumer.health().last_heartbeat is None


async def test_unsubscribed_consumer_has_no_age(autojump_clock: Clock) -> None:
    """A probe of the age must not judge a consumer dead that reads without a group."""
    with trio.fail_after(120):
        async with cluster_of(records=3) as cluster, member_of(cluster) as consumer:
            await consumer.receive_batch()
            await consumer.receive_batch(timeout=5)
            assert consumer.health().last_heartbeat is not None
            await consumer.unsubscribe()
            assert consumer.health().last_heartbeat is None
            consumer.assign([T0])
            await consumer.receive_batch(timeout=60)
            assert consumer.health().last_heartbeat is None


async def test_fetch_age_is_known_for_each_partition(autojump_clock: Clock) -> None:
    """Also for an idle one, which a session's response confirms by omission."""
    with trio.fail_after(120):
        async with (
            cluster_of(3, records=3) as cluster,
            consumer_of(cluster, fetch_max_wait_ms=500) as consumer,
        ):
            assert dict(consumer.health().last_fetch) == {}
            consumer.assign([T0, T1, T2])
            consumer.pause([T2])
            while (await consumer.receive_batch(timeout=3)).topic:
                pass
            for _ in range(5):
                cluster.append("t", 0, [b"new"])
                await consumer.receive_batch()
                await consumer.receive_batch(timeout=1)
            ages = consumer.health().last_fetch
            assert set(ages) == {T0, T1}
            assert max(ages.values()) <= 0.5
            consumer.pause([T1])
            await consumer.receive_batch(timeout=10)
            ages = consumer.health().last_fetch
            assert ages[T0] <= 0.5
            assert ages[T1] == pytest.approx(10, abs=1)
            consumer.resume([T1, T2])
            await consumer.receive_batch()
            assert max(consumer.health().last_fetch.values()) <= 0.5
            consumer.assign([T0])
            assert set(consumer.health().last_fetch) == {T0}


async def test_failing_fetch_is_the_last_error(autojump_clock: Clock) -> None:
    with trio.fail_after(200):
        async with cluster_of(2, records=3) as cluster, consumer_of(cluster) as consumer:
            consumer.assign([T0, T1])
            while (await consumer.receive_batch(timeout=3)).topic:
                pass
            assert consumer.health().last_error is None
            cluster.append("t", 0, [b"new"])
            rule = cluster.fail(
                "Fetch", ErrorCode.NOT_LEADER_OR_FOLLOWER, None, topic="t", partition=0
            )
            consumer.seek(T0, 0)
            await consumer.receive_batch(timeout=40)
            health = consumer.health()
            assert isinstance(health.last_error, NotLeaderError)
            assert health.last_fetch[T1] <= 1
            assert health.last_fetch[T0] == pytest.approx(40, abs=2)
            assert (
                "fetching it fails: the broker does not lead this partition" in health.stalled[T0]
            )
            rule.remove()
            await consumer.receive_batch()
            await consumer.receive_batch(timeout=2)
            health = consumer.health()
            assert health.last_error is None
            assert max(health.last_fetch.values()) <= 1


async def test_last_error_lasts_until_the_broker_returns(
    autojump_clock: Clock,
) -> None:
    with trio.fail_after(200):
        async with cluster_of(records=3) as cluster, consumer_of(cluster) as consumer:
            consumer.assign([T0])
            await consumer.receive_batch()
            cluster.stop(0)
            await consumer.receive_batch(timeout=10)
            health = consumer.health()
            assert isinstance(health.last_error, KafkaConnectionError)
            assert health.last_fetch[T0] >= 9
            cluster.start(0)
            await consumer.receive_batch(timeout=10)
            health = consumer.health()
            assert (health.ok, health.last_error) == (True, None)
            assert health.last_fetch[T0] <= 1


async def test_seek_clears_the_last_lookup_error(autojump_clock: Clock) -> None:
    """No further look-up follows that could succeed."""
    settings: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False}
    with trio.fail_after(200):
        async with cluster_of(records=3) as cluster, consumer_of(cluster, **settings) as consumer:
            cluster.fail("OffsetFetch", ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
            consumer.assign([T0])
            await consumer.receive_batch(timeout=5)
            assert isinstance(consumer.health().last_error, CoordinatorError)
            consumer.seek(T0, 0)
            await consumer.receive_batch()
            await consumer.receive_batch(timeout=5)
            assert consumer.health().last_error is None


async def test_error_of_a_former_leader_is_cleared(autojump_clock: Clock) -> None:
    """Its responses were unreadable, and another broker leads now."""
    with trio.fail_after(200):
        async with (
            cluster_of(nodes=2, records=3) as cluster,
            consumer_of(cluster, metadata_max_age_ms=1_000) as consumer,
        ):
            cluster.move_leader("t", 0, 0)
            cluster.damage("Fetch", None, node=0, change=lambda frame: frame[:-1] + b"x")
            consumer.assign([T0])
            consumer.seek(T0, 0)
            await consumer.receive_batch(timeout=5)
            assert isinstance(consumer.health().last_error, ProtocolError)
            cluster.move_leader("t", 0, 1)
            await consumer.receive_batch()
            await consumer.receive_batch(timeout=5)
            assert consumer.health().last_error is None


async def test_silent_broker_is_the_last_error(autojump_clock: Clock) -> None:
    with trio.fail_after(200):
        async with (
            cluster_of(records=3) as cluster,
            consumer_of(cluster, request_timeout_ms=5000) as consumer,
        ):
            consumer.assign([T0])
            await consumer.receive_batch()
            cluster.freeze(0)
            await consumer.receive_batch(timeout=20)
            health = consumer.health()
            assert "did not respond" in str(health.last_error)
            assert health.last_fetch[T0] >= 19
            cluster.thaw(0)


async def test_commit_clears_an_auto_commit_error(autojump_clock: Clock) -> None:
    with trio.fail_after(120):
        async with (
            cluster_of(records=3) as cluster,
            member_of(cluster, auto_commit_interval_ms=60_000) as consumer,
        ):
            await consumer.receive_batch()
            cluster.fail("OffsetCommit", ErrorCode.GROUP_AUTHORIZATION_FAILED)
            await consumer.receive_batch(timeout=65)
            assert isinstance(consumer.health().last_error, AuthorizationError)
            await consumer.commit()
            assert consumer.health().last_error is None
