"""The group protocol that ``group_protocol="auto"``, the default, chooses (KIP-848)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from consuming import T0, cluster_of, consumer_of, until, values
from trio.testing import MockClock as Clock

from trikafka import SubscriptionPattern, hookimpl
from trikafka.errors import (
    AuthorizationError,
    ConfigurationError,
    ErrorCode,
    UnsupportedVersionError,
)
from trikafka.testing import ScriptedCluster

BEAT = "ConsumerGroupHeartbeat"


async def drain(consumer: Any) -> None:
    async for _ in consumer:
        pass


async def chosen(cluster: ScriptedCluster, **settings: Any) -> str:
    async with consumer_of(
        cluster, "t", group_id="g", group_protocol="auto", **settings
    ) as consumer:
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
async def test_auto_takes_the_protocol_of_the_settings(
    autojump_clock: Clock, settings: dict[str, Any], expected: str
) -> None:
    async with cluster_of(1, records=1) as cluster:
        assert await chosen(cluster, **settings) == expected


async def test_auto_is_classic_on_old_brokers(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(1, records=1) as cluster:
        cluster.offer(BEAT, None)
        assert await chosen(cluster) == "classic"


class Beating:
    """A plugin with heartbeats of its own, by the name that errors and logs show."""

    @hookimpl
    def trikafka_request_manager(self, kind: str, context: Any) -> object | None:
        return self if kind == "heartbeat" else None

    async def run(self, rejoin: Any, fenced: Any) -> None:
        await trio.sleep_forever()


async def test_auto_is_classic_with_a_heartbeat_plugin(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trikafka.membership")
    async with cluster_of(1, records=1) as cluster:
        assert await chosen(cluster, plugins=[Beating()]) == "classic"
    (line,) = [
        each.getMessage()
        for each in caplog.records
        if "goes by the classic protocol" in each.getMessage()
    ]
    assert "Beating" in line
    assert "heartbeat manager" in line


async def test_heartbeat_plugin_needs_classic_protocol(autojump_clock: Clock) -> None:
    """Its heartbeats would never run, so opening raises an error."""
    async with cluster_of(1, records=1) as cluster:
        given: dict[str, Any] = {"group_id": "g", "plugins": [Beating()]}
        with pytest.raises(ConfigurationError, match=r"plugin .*Beating.*group_protocol='classic'"):
            async with consumer_of(cluster, "t", group_protocol="consumer", **given):
                pass
        assert not cluster.log
        async with consumer_of(cluster, group_protocol="consumer", plugins=[Beating()]) as consumer:
            consumer.assign([T0])  # in no group there are no heartbeats to miss
            assert await values(consumer, 1) == [b"0"]


async def test_heartbeat_plugin_rules_out_patterns(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    given: dict[str, Any] = {"group_id": "g", "group_protocol": "auto", "plugins": [Beating()]}
    async with cluster_of(1, records=1) as cluster:
        async with consumer_of(cluster, group_remote_assignor="range", **given) as consumer:
            assert "group_remote_assignor='range' has no effect" in caplog.text
            consumer.subscribe(SubscriptionPattern("t.*"))
            with (
                trio.fail_after(1),
                pytest.raises(UnsupportedVersionError, match="consumer group protocol"),
            ):
                await consumer.receive()


async def test_auto_stays_classic_in_a_classic_group(
    autojump_clock: Clock,
) -> None:
    """As with group.consumer.migration.policy=disabled; otherwise the broker converts the group."""
    async with cluster_of(2, records=3) as cluster, trio.open_nursery() as nursery:
        given = {"group_id": "g", "group_protocol": "auto"}
        async with (
            consumer_of(cluster, "t", group_id="g") as old,
            consumer_of(cluster, "t", **given) as new,
        ):
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


async def test_assign_alone_chooses_no_protocol(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(1, records=1) as cluster,
        consumer_of(cluster, group_id="g", group_protocol="auto") as consumer,
    ):
        consumer.assign([T0])
        assert await values(consumer, 1) == [b"0"]
        await trio.sleep(30)
        assert not cluster.requests(BEAT)
        assert not cluster.requests("JoinGroup")


async def test_missing_group_right_is_raised_first(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(1, records=1) as cluster:
        cluster.fail("FindCoordinator", ErrorCode.GROUP_AUTHORIZATION_FAILED)
        async with consumer_of(cluster, "t", group_id="g", group_protocol="auto") as consumer:
            with trio.fail_after(1), pytest.raises(AuthorizationError):
                await consumer.receive()
            consumer.subscribe(["t"])
            assert await values(consumer, 1) == [b"0"]
