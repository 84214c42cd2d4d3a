"""Which group protocol a consumer takes with ``group_protocol="auto"``, its default (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from consuming import T0, cluster_of, consumer_of, until, values
from trio.testing import MockClock as Clock

from trikafka import hookimpl
from trikafka.errors import AuthorizationError, ErrorCode
from trikafka.testing import ScriptedCluster

BEAT = "ConsumerGroupHeartbeat"


async def drain(consumer: Any) -> None:
    async for _ in consumer:
        pass


async def chosen(cluster: ScriptedCluster, **settings: Any) -> str:
    async with consumer_of(cluster, "t", group_id="g", group_protocol="auto", **settings) as consumer:
        with trio.fail_after(20):
            assert await values(consumer, 1) == [b"0"]
        return "consumer" if cluster.requests(BEAT) else "classic"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "consumer"),
        ({"group_remote_assignor": "uniform"}, "consumer"),
        ({"max_poll_interval_ms": 9_000}, "consumer"),
        ({"partition_assignment_strategy": ["range"]}, "classic"),
        ({"session_timeout_ms": 30_000}, "classic"),
        ({"heartbeat_interval_ms": 1_000}, "classic"),
    ],
)
async def test_auto_takes_the_consumer_protocol_unless_a_setting_says_otherwise(
    autojump_clock: Clock, settings: dict[str, Any], expected: str
) -> None:
    async with cluster_of(1, records=1) as cluster:
        assert await chosen(cluster, **settings) == expected


async def test_auto_takes_the_classic_protocol_where_there_is_no_other(autojump_clock: Clock) -> None:
    async with cluster_of(1, records=1) as cluster:
        cluster.offer(BEAT, None)
        assert await chosen(cluster) == "classic"


async def test_auto_heeds_a_plugin_that_has_heartbeats_of_its_own(autojump_clock: Clock) -> None:
    class Mine:
        async def run(self, rejoin: Any, fenced: Any) -> None:
            await trio.sleep_forever()

    class Plugin:
        @hookimpl
        def trikafka_request_manager(self, kind: str, context: Any) -> object | None:
            return Mine() if kind == "heartbeat" else None

    async with cluster_of(1, records=1) as cluster:
        assert await chosen(cluster, plugins=[Plugin()]) == "classic"


async def test_auto_goes_on_by_the_classic_protocol_in_a_group_of_that_kind(autojump_clock: Clock) -> None:
    """As with group.consumer.migration.policy=disabled: elsewhere the broker turns the group into one of the new kind."""
    async with cluster_of(2, records=3) as cluster, trio.open_nursery() as nursery:
        given = {"group_id": "g", "group_protocol": "auto"}
        async with consumer_of(cluster, "t", group_id="g") as old, consumer_of(cluster, "t", **given) as new:
            nursery.start_soon(drain, old)
            await until(lambda: old.statistics().state == "stable")
            nursery.start_soon(drain, new)
            await until(lambda: len(new.assignment()) == 1)
            assert new.statistics().state == "stable"
            join = cluster.requests("JoinGroup")[-1].request
            assert join.member_id.startswith("trikafka")  # not what the other protocol knew it as
            await trio.sleep(20)
            assert len(cluster.requests(BEAT)) <= 1
            nursery.cancel_scope.cancel()
        assert len(cluster.requests("LeaveGroup")) == 2


async def test_with_assign_alone_nobody_asks_for_a_coordinators_protocol(autojump_clock: Clock) -> None:
    async with cluster_of(1, records=1) as cluster, consumer_of(cluster, group_id="g", group_protocol="auto") as consumer:
        consumer.assign([T0])
        assert await values(consumer, 1) == [b"0"]
        await trio.sleep(30)
        assert not cluster.requests(BEAT)
        assert not cluster.requests("JoinGroup")


async def test_no_access_to_the_group_is_told_before_a_protocol_is_chosen(autojump_clock: Clock) -> None:
    async with cluster_of(1, records=1) as cluster:
        cluster.fail("FindCoordinator", ErrorCode.GROUP_AUTHORIZATION_FAILED)
        async with consumer_of(cluster, "t", group_id="g", group_protocol="auto") as consumer:
            with trio.fail_after(1), pytest.raises(AuthorizationError):
                await consumer.receive()
            consumer.subscribe(["t"])
            assert await values(consumer, 1) == [b"0"]
