"""The admin client's calls about transactions (KIP-664) with the scripted cluster, in virtual time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import click
import pytest
import trio
import trio.testing

import trikafka
from trikafka import Admin, ErrorCode, TopicPartition
from trikafka.cli.partly import noted_errors
from trikafka.cli.transactions import hanging
from trikafka.testing import ScriptedCluster, encode_batch
from trikafka.testing.transactions import Identity

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@asynccontextmanager
async def opened(nodes: int = 1) -> AsyncIterator[tuple[ScriptedCluster, Admin]]:
    async with ScriptedCluster(nodes=nodes, topics={"t": 2, "u": 1}) as cluster:
        async with trikafka.open_admin(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as admin:
            yield cluster, admin


def begin(
    cluster: ScriptedCluster, name: str, *parts: tuple[str, int], written: int | None = None
) -> Identity:
    """Begin a transaction that has written to these partitions at ``written`` (ms since the epoch)."""
    outcome = cluster.transactions.initialize(name, 60_000, None, two_phase=False, keep=False)
    assert outcome.error == 0
    if parts:
        assert cluster.transactions.add(name, outcome.identity, parts) == 0
    for topic, number in parts:
        write(cluster, (topic, number), outcome.identity, written)
    return outcome.identity


def write(
    cluster: ScriptedCluster, tp: tuple[str, int], producer: Identity, written: int | None = None
) -> int:
    data = encode_batch(
        [b"x"],
        timestamp=cluster.now_ms() if written is None else written,
        producer=(*producer, 0),
        transactional=True,
    )
    return cluster.partition(*tp).store(data)


async def test_transactions_are_listed_and_described(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(3) as (cluster, admin):
        for node, name in enumerate(("x", "y", "other")):
            cluster.move_coordinator(node, name)
        x, y = begin(cluster, "x", ("t", 1), ("t", 0)), begin(cluster, "y")
        await trio.sleep(5)
        assert cluster.transactions.add("y", y, ["g"]) == 0
        begin(cluster, "other")
        listed = await admin.list_transactions()
        assert [(t.transactional_id, t.producer_id, t.state) for t in listed] == [
            ("other", 1002, "Empty"),
            ("x", x.producer_id, "Ongoing"),
            ("y", y.producer_id, "Ongoing"),
        ]
        assert {seen.node_id for seen in cluster.requests("ListTransactions")} == {0, 1, 2}
        for wanted, names in (
            ({"states": ["Empty"]}, ["other"]),
            ({"producer_ids": [x.producer_id, 77]}, ["x"]),
            ({"longer_than": 4.9}, ["x"]),
            ({"pattern": "[xy]"}, ["x", "y"]),
        ):
            found: Any = await admin.list_transactions(**wanted)  # type: ignore[arg-type]
            assert [t.transactional_id for t in found] == names
        described = await admin.describe_transactions(["y", "x"])
        assert list(described) == ["y", "x"]
        assert described["x"].partitions == (T0, T1)
        assert (described["x"].timeout, described["x"].started) == (60, 1_700_000_000_000)
        assert [tp.topic for tp in described["y"].partitions] == ["__consumer_offsets"]
        with pytest.raises(
            trikafka.AdminErrors, match=r"no such transactional id .*'none'; also failed: nor"
        ) as raised:
            await admin.describe_transactions(["none", "x", "nor"])
        assert list(raised.value.results) == ["x"]


async def test_moved_or_loading_coordinator_is_retried(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(2) as (cluster, admin):
        begin(cluster, "x")
        assert (await admin.describe_transactions(["x"]))["x"].state == "Empty"
        cluster.move_coordinator(1, "x")
        cluster.fail("DescribeTransactions", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, node=1)
        assert (await admin.describe_transactions(["x"]))["x"].started is None
        cluster.fail("ListTransactions", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert len(await admin.list_transactions()) == 1


async def test_producers_of_partitions_are_described(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(2) as (cluster, admin):
        x = begin(cluster, "x", ("t", 0))
        found = await admin.describe_producers([T1, T0])
        assert found[T1] == ()
        (producer,) = found[T0]
        assert producer == trikafka.ProducerDescription(
            x.producer_id, 0, 0, 1_700_000_000_000, None, 0
        )
        cluster.move_leader("t", 0, 1)
        cluster.transactions.end("x", x, commit=True, bumps=True)
        (producer,) = (await admin.describe_producers([T0]))[T0]
        assert (producer.producer_epoch, producer.last_sequence, producer.transaction_start) == (
            1,
            None,
            None,
        )
        with pytest.raises(trikafka.UnknownTopicOrPartitionError):
            await admin.describe_producers([TopicPartition("t", 9)])


async def test_only_hanging_transactions_are_aborted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(2) as (cluster, admin):
        begin(cluster, "x", ("t", 0), ("u", 0))  # a coordinator knows of it
        write(cluster, T0, Identity(5, 3))  # of a producer without a coordinator
        y = begin(cluster, "y")
        write(cluster, T1, y)  # of one that is known, but not to have written there
        write(cluster, ("u", 0), Identity(6, 0), round(time.time() * 1000))  # young
        found = await admin.find_hanging_transactions()
        assert [
            (h.partition, h.start_offset, h.producer_id, h.producer_epoch, h.transactional_id)
            for h in found
        ] == [
            (T0, 1, 5, 3, None),
            (T1, 0, y.producer_id, 0, "y"),
        ]
        assert [
            h.producer_id for h in await admin.find_hanging_transactions(["u"], longer_than=0)
        ] == [6]
        for hanging in found:
            await admin.abort_transaction(hanging.partition, hanging.start_offset)
        assert await admin.find_hanging_transactions() == []
        assert cluster.partition("t", 1).stable_end == cluster.partition("t", 1).end == 2
        assert cluster.partition("t", 0).open_transactions == {1000: 0}
        assert cluster.transactions.by_id["x"].state.value == "Ongoing"
        with pytest.raises(
            trikafka.TransactionNotOpenError,
            match="t-0 has no open transaction that begins at offset 1",
        ):
            await admin.abort_transaction(T0, 1)


async def test_search_leaves_out_what_has_no_leader(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its leader may be down for hours; what hangs elsewhere is in the error."""
    async with opened(2) as (cluster, admin):
        write(cluster, T1, Identity(5, 3))
        cluster.move_leader("t", 0, None)
        began = trio.current_time()
        with pytest.raises(trikafka.AdminErrors, match=r"1 of 3 failed.*no leader.*t-0") as raised:
            await admin.find_hanging_transactions()
        assert list(raised.value.failures) == [T0]
        (found,) = raised.value.results[T1]
        assert (found.partition, found.producer_id) == (T1, 5)
        assert raised.value.results[TopicPartition("u", 0)] == []
        cluster.move_leader("u", 0, None)
        with pytest.raises(trikafka.BrokerResponseError, match=r"no leader.*u-0"):
            await admin.find_hanging_transactions(["u"])
        with click.Context(click.Command("find-hanging")):
            assert await hanging(admin, None, 900) == [found]
            assert len(noted_errors()) == 2
        assert trio.current_time() - began < 1


async def test_search_leaves_out_what_is_forbidden(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as (cluster, admin):
        write(cluster, T0, Identity(5, 3))
        write(cluster, T1, Identity(6, 0))
        code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

        async def forbid(request: Any, default: Callable[[], Awaitable[Any]]) -> Any:
            response = await default()
            for part in (part for topic in response.topics for part in topic.partitions):
                if part.partition_index == 0:
                    part.error_code = code
            return response

        forbidden = cluster.on("DescribeProducers", forbid)
        with pytest.raises(trikafka.AdminErrors) as raised:
            await admin.find_hanging_transactions(["t"])
        assert list(raised.value.failures) == [T0]
        assert [each.producer_id for each in raised.value.results[T1]] == [6]
        forbidden.remove()
        assert len(await admin.find_hanging_transactions(["t"])) == 2


async def test_transaction_that_just_ended_is_no_hang(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as (cluster, admin):
        x = begin(cluster, "x", ("t", 0))

        async def end_first(request: Any, default: Callable[[], Awaitable[Any]]) -> Any:
            cluster.transactions.end("x", x, commit=True, bumps=True)
            return await default()

        cluster.on("ListTransactions", end_first, 1)
        assert await admin.find_hanging_transactions() == []
        assert len(cluster.requests("DescribeProducers")) == 2


async def test_permission_errors_name_the_resource(autojump_clock: trio.testing.MockClock) -> None:
    """They also name the operation."""
    ids = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    topic = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    cluster_wide = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    async with opened() as (cluster, admin):
        write(cluster, T0, Identity(5, 3))
        begin(cluster, "x")
        calls: list[tuple[str, ErrorCode, str, Callable[[], Awaitable[object]], str]] = [
            (
                "ListTransactions",
                ids,
                "Describe",
                admin.list_transactions,
                "listing the transactions",
            ),
            (
                "DescribeTransactions",
                ids,
                "Describe",
                lambda: admin.describe_transactions(["x"]),
                "transactional id 'x'",
            ),
            (
                "DescribeProducers",
                topic,
                "Read",
                lambda: admin.describe_producers([T0]),
                "producers of t-0",
            ),
            (
                "WriteTxnMarkers",
                cluster_wide,
                "ClusterAction",
                lambda: admin.abort_transaction(T0, 0),
                "at offset 0 of t-0",
            ),
        ]
        for api, code, operation, call, says in calls:
            cluster.fail(api, code)
            with pytest.raises(
                trikafka.AuthorizationError, match=f"{says}.*the operation {operation}"
            ) as caught:
                await call()
            assert caught.value.operation == operation
            await call()


async def test_abort_with_a_lost_response_succeeds(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (cluster, admin):
        write(cluster, T0, Identity(5, 3))
        cluster.drop("WriteTxnMarkers", after=True)
        await admin.abort_transaction(T0, 0)
        assert cluster.partition("t", 0).aborted == [(5, 0, 1)]


async def test_abort_of_nothing_fails_after_a_retry(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An attempt that failed before the marker was asked for has not written it."""
    async with opened() as (cluster, admin):
        cluster.fail("DescribeProducers", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        with pytest.raises(trikafka.TransactionNotOpenError):
            await admin.abort_transaction(T0, 5)
        assert len(cluster.requests("DescribeProducers")) == 2


async def test_wrong_arguments_are_refused_early(autojump_clock: trio.testing.MockClock) -> None:
    wrong: list[Callable[[Admin], Awaitable[object]]] = [
        lambda admin: admin.list_transactions(states="Ongoing"),
        lambda admin: admin.list_transactions(states=["ongoing"]),
        lambda admin: admin.list_transactions(producer_ids=[True]),
        lambda admin: admin.list_transactions(longer_than=-1),
        lambda admin: admin.list_transactions(pattern=b"x"),  # type: ignore[arg-type]
        lambda admin: admin.describe_transactions("x"),
        lambda admin: admin.describe_producers(T0),  # type: ignore[arg-type]
        lambda admin: admin.describe_producers([("t", "0")]),  # type: ignore[list-item]
        lambda admin: admin.find_hanging_transactions("t"),
        lambda admin: admin.find_hanging_transactions(longer_than=True),
        lambda admin: admin.abort_transaction(T0, -1),
        lambda admin: admin.abort_transaction("t", 0),  # type: ignore[arg-type]
    ]
    async with opened() as (cluster, admin):
        before = len(cluster.log)
        for call in wrong:
            with pytest.raises(trikafka.ConfigurationError):
                await call(admin)
        assert await admin.describe_transactions([]) == {}
        assert await admin.describe_producers([]) == {}
        assert len(cluster.log) == before
    async with opened() as (cluster, admin):
        cluster.offer("ListTransactions", (0, 0))
        assert await admin.list_transactions() == []
        for options in ({"pattern": "x"}, {"longer_than": 1.0}):
            with pytest.raises(trikafka.UnsupportedVersionError):
                await admin.list_transactions(**options)  # type: ignore[arg-type]
