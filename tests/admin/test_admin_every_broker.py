"""Calls that ask every broker, while some brokers do not answer, or refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio.testing

import trikafka
from trikafka import (
    Admin,
    AdminErrors,
    BrokerResponseError,
    KafkaTimeoutError,
    TopicPartition,
    UnsupportedVersionError,
)
from trikafka.testing import ScriptedCluster

T0 = TopicPartition("t", 0)
COORDINATOR_LOADING, INVALID_REQUEST = 14, 42
Ask = Callable[[Admin], Awaitable[Any]]
LISTS = [
    pytest.param("ListGroups", Admin.list_groups, id="groups"),
    pytest.param("ListTransactions", Admin.list_transactions, id="transactions"),
]


def settings(cluster: ScriptedCluster, **more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial, **more}


@asynccontextmanager
async def three_groups() -> AsyncIterator[tuple[ScriptedCluster, Admin]]:
    """Yield a cluster of three brokers, each of which coordinates a group with its number."""
    async with (
        ScriptedCluster(nodes=3, topics={"t": 1}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        for node in range(3):
            cluster.move_coordinator(node, f"g{node}")
            await admin.alter_group_offsets(f"g{node}", {T0: 0})
        yield cluster, admin


@pytest.mark.parametrize(("api", "ask"), LISTS)
async def test_refusing_broker_fails_alone(
    api: str, ask: Ask, autojump_clock: trio.testing.MockClock
) -> None:
    async with three_groups() as (cluster, admin):
        cluster.fail(api, INVALID_REQUEST, None, node=1)
        began = trio.current_time()
        with pytest.raises(AdminErrors, match="1 of 3 failed") as caught:
            await ask(admin)
        assert trio.current_time() == began
        assert list(caught.value.failures) == [1]
        assert caught.value.failures[1].code == INVALID_REQUEST
        assert list(caught.value.results) == [0, 2]
        if api == "ListGroups":
            listed = {node: [g.group_id for g in of] for node, of in caught.value.results.items()}
            assert listed == {0: ["g0"], 2: ["g2"]}


@pytest.mark.parametrize(("api", "ask"), LISTS)
@pytest.mark.parametrize("fault", ["refuses", "is silent", "is away"])
async def test_broker_that_stays_away_fails_alone(
    fault: str, api: str, ask: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with three_groups() as (cluster, admin):
        if fault == "refuses":
            cluster.fail(api, COORDINATOR_LOADING, None, node=1)
        elif fault == "is silent":
            cluster.silence(api, node=1)
        else:
            cluster.stop(1, noticed=False)
        began = trio.current_time()
        with pytest.raises(AdminErrors) as caught:
            await ask(admin, timeout=10)
        assert trio.current_time() - began == pytest.approx(10, abs=0.03)
        assert list(caught.value.failures) == [1]
        assert isinstance(caught.value.failures[1], KafkaTimeoutError)
        assert list(caught.value.results) == [0, 2]


@pytest.mark.parametrize(("api", "ask"), LISTS)
async def test_brokers_that_all_fail_raise_one_error(
    api: str, ask: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with three_groups() as (cluster, admin):
        refusals = cluster.fail(api, INVALID_REQUEST, None)
        with pytest.raises(BrokerResponseError, match="INVALID_REQUEST"):
            await ask(admin)
        refusals.remove()
        silence = cluster.silence(api)
        with pytest.raises(KafkaTimeoutError):
            await ask(admin, timeout=10)
        silence.remove()
        cluster.offer(api, None)
        cluster.disconnect()
        with pytest.raises(UnsupportedVersionError):
            await ask(admin)


@pytest.mark.parametrize("silent", [[1], [0, 1, 2]])
async def test_one_clause_handles_each_timeout(
    silent: list[int], autojump_clock: trio.testing.MockClock
) -> None:
    """Of a call that is half done, and of one of which nothing is done."""
    handled = 0
    async with three_groups() as (cluster, admin):
        for node in silent:
            cluster.silence("ListGroups", node=node)
        try:
            await admin.list_groups(timeout=10)
        except* KafkaTimeoutError:
            handled += 1
    assert handled == 1


async def test_groups_that_move_are_listed(autojump_clock: trio.testing.MockClock) -> None:
    """The coordinator of a group fails, and one that had answered already has the group now."""
    async with three_groups() as (cluster, admin):

        async def fails(request: Any, default: Any) -> Any:
            cluster.stop(1)
            cluster.move_coordinator(0, "g1")
            await trio.sleep_forever()

        cluster.on("ListGroups", fails, 1, node=1)
        with trio.fail_after(60):
            assert [g.group_id for g in await admin.list_groups()] == ["g0", "g1", "g2"]


async def test_refusal_waits_for_passing_failures(autojump_clock: trio.testing.MockClock) -> None:
    """Another broker's failure that passes is not lost for one that does not."""
    async with three_groups() as (cluster, admin):
        cluster.fail("ListGroups", INVALID_REQUEST, None, node=1)
        cluster.fail("ListGroups", COORDINATOR_LOADING, 3, node=2)
        with pytest.raises(AdminErrors) as caught:
            await admin.list_groups()
        assert list(caught.value.failures) == [1]
        assert list(caught.value.results) == [0, 2]


@asynccontextmanager
async def modern_group(cluster: ScriptedCluster, node: int) -> AsyncIterator[None]:
    """Keep a member of the consumer protocol in the group ``modern`` at ``node``."""
    cluster.move_coordinator(node, "modern")
    async with trikafka.open_consumer(
        "t", **settings(cluster, group_id="modern", group_protocol="consumer")
    ) as consumer:
        with trio.fail_after(60):
            while not consumer.assignment():
                with trio.move_on_after(1):
                    await consumer.receive()
        yield


async def test_other_broker_delays_no_description(autojump_clock: trio.testing.MockClock) -> None:
    """The kind of a group is known to its coordinator; no other broker is asked."""
    async with three_groups() as (cluster, admin), modern_group(cluster, 0):
        cluster.stop(2, noticed=False)
        began = trio.current_time()
        found = await admin.describe_groups(["modern", "g1"])
        assert {name: one.state for name, one in found.items()} == {
            "modern": "Stable",
            "g1": "Empty",
        }
        assert found["modern"].type == "consumer"
        assert trio.current_time() == began
        assert {seen.node_id for seen in cluster.requests("ListGroups")} == {0}


@pytest.mark.parametrize("api", ["DescribeGroups", "ListGroups", "ConsumerGroupDescribe"])
async def test_coordinator_fails_its_own_groups(
    api: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with three_groups() as (cluster, admin), modern_group(cluster, 0):
        cluster.move_coordinator(1, "dead")
        cluster.silence(api, node=1 if api != "ConsumerGroupDescribe" else 0)
        with pytest.raises(AdminErrors) as caught:
            await admin.describe_groups(["modern", "g2", "dead", "g1"], timeout=10)
        failed = {
            "DescribeGroups": ["dead", "g1"],
            "ListGroups": ["dead"],
            "ConsumerGroupDescribe": ["modern", "dead"],
        }[api]
        assert list(caught.value.failures) == failed
        assert set(caught.value.results) == {"modern", "g2", "dead", "g1"} - set(failed)
