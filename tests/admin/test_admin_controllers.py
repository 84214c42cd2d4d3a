"""An admin client of KRaft controllers (KIP-919): it asks no broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

import trikafka
from trikafka import (
    AclBinding,
    Admin,
    BootstrapError,
    ConfigResource,
    ConfigurationError,
    IllegalStateError,
    NewTopic,
    OffsetSpec,
    TopicPartition,
)
from trikafka._api.admin.controllers import BY_CONTROLLERS
from trikafka.testing import ScriptedCluster

NOT_CONTROLLER, MISMATCHED_ENDPOINT_TYPE = 41, 114
T0 = TopicPartition("t", 0)


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[ScriptedCluster, Admin]]:
    async with ScriptedCluster(nodes=3, topics={"t": 1}) as cluster:
        for api in ("Metadata", "FindCoordinator", "DescribeTopicPartitions"):
            cluster.offer(api, None)  # no controller has these
        async with trikafka.open_admin(
            bootstrap_controllers=cluster.bootstrap_servers, dial=cluster.dial
        ) as admin:
            yield cluster, admin


async def test_controllers_serve_their_calls(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (cluster, admin):
        seen = await admin.describe_cluster()
        assert ([node.node_id for node in seen.nodes], seen.controller) == (
            [0, 1, 2],
            seen.nodes[0],
        )
        asked = [each.request.endpoint_type for each in cluster.requests("DescribeCluster")]
        assert set(asked) == {2}
        await admin.create_topics({"u": NewTopic(2, 1)})
        await admin.create_acls([AclBinding("User:a", "read", "topic", "u")])
        assert len(await admin.describe_acls()) == 1
        await admin.alter_configs({ConfigResource("topic", "u"): {"flush.ms": 7}})
        assert await admin.topic_configs(["u"]) == {"u": {"flush.ms": "7"}}
        assert (await admin.describe_metadata_quorum()).leader_id == 0
        await admin.delete_topics(["u"])
        assert not cluster.requests("Metadata")


async def test_active_controller_is_found_again(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (cluster, admin):
        cluster.fail("CreateTopics", NOT_CONTROLLER)
        await admin.create_topics({"u": NewTopic(1)})
        assert len(cluster.requests("CreateTopics")) == 2
        assert len(cluster.requests("DescribeCluster")) > 1


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.list_topics(),
        lambda admin: admin.describe_topics(["t"]),
        lambda admin: admin.list_groups(),
        lambda admin: admin.describe_groups(["g"]),
        lambda admin: admin.list_offsets({T0: OffsetSpec.LATEST}),
        lambda admin: admin.delete_records({T0: 0}),
        lambda admin: admin.fence_producers(["x"]),
        lambda admin: admin.client_instance_id(),
    ],
)
async def test_call_for_brokers_is_refused(
    autojump_clock: trio.testing.MockClock, call: Any
) -> None:
    async with opened() as (cluster, admin):
        before = len(cluster.log)
        with pytest.raises(IllegalStateError, match="open one with bootstrap_servers"):
            await call(admin)
        assert len(cluster.log) == before


async def test_address_of_a_broker_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster() as cluster:
        cluster.fail("DescribeCluster", MISMATCHED_ENDPOINT_TYPE, None)
        with pytest.raises(BootstrapError, match="MISMATCHED_ENDPOINT_TYPE"):
            async with trikafka.open_admin(
                bootstrap_controllers=cluster.bootstrap_servers, dial=cluster.dial
            ):
                raise AssertionError


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"bootstrap_servers": "a:1", "bootstrap_controllers": "b:1"}, "not both"),
        ({"bootstrap_controllers": "b"}, "has no port"),
        ({"bootstrap_controllers": ["b:1", ","]}, "has no port"),
        ({"bootstrap_controllers": "http://b:1"}, "^bootstrap_controllers: write 'host:port'"),
    ],
)
async def test_wrong_addresses_are_refused(settings: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        async with trikafka.open_admin(**settings):
            raise AssertionError


def test_listed_calls_exist() -> None:
    assert all(callable(getattr(Admin, name)) for name in BY_CONTROLLERS)


def test_java_property_is_accepted() -> None:
    assert trikafka.from_properties({"bootstrap.controllers": "c:9093"}) == {
        "bootstrap_controllers": "c:9093"
    }
