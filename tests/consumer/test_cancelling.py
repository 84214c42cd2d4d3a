"""Cancellation at every await of the consumer's calls.

It takes effect at once, and the consumer works afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
import trio
from consuming import T0, T1, RecordingListener, cluster_of, consumer_of, member_of, values
from trio.testing import MockClock as Clock

from trikafka._api.consumer.consumer import Consumer
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable
from trikafka.testing._leftovers import assert_nothing_left

#: A member's settings, by the classic protocol and by the consumer protocol (KIP-848).
PROTOCOLS = pytest.mark.parametrize(
    "protocol",
    [{"group_protocol": "classic"}, {"group_protocol": "consumer"}],
    ids=["classic", "consumer"],
)
STRATEGIES = pytest.mark.parametrize(
    "strategy",
    [
        {"partition_assignment_strategy": ["range"]},
        {"partition_assignment_strategy": ["cooperative-sticky"]},
        {"group_protocol": "consumer"},
    ],
    ids=["range", "cooperative-sticky", "consumer"],
)


class Given(NamedTuple):
    cluster: ScriptedCluster
    consumer: Consumer
    got: list[tuple[int, int]]


@asynccontextmanager
async def fresh(**settings: Any) -> AsyncIterator[Given]:
    async with (
        cluster_of(2, records=6) as cluster,
        member_of(cluster, max_poll_records=2, **settings) as consumer,
    ):
        yield Given(cluster, consumer, [])


async def one_by_one(given: Given) -> None:
    while len(given.got) < 8:
        record = await given.consumer.receive()
        given.got.append((record.partition, record.offset))


async def by_batch(given: Given) -> None:
    while len(given.got) < 8:
        batch = await given.consumer.receive_batch(timeout=1)
        given.got.extend((batch.partition, offset) for offset in batch.offsets)


async def by_iteration(given: Given) -> None:
    async for batch in given.consumer.batches({T0: 3, T1: 4}):
        given.got.extend((batch.partition, offset) for offset in batch.offsets)


async def the_rest_comes(given: Given) -> None:
    """Check that each record is received once, wherever the scenario was cancelled, and nothing is
    left.
    """
    with trio.fail_after(30):
        while len(given.got) < 12:
            record = await given.consumer.receive()
            given.got.append((record.partition, record.offset))
    assert sorted(given.got) == [(partition, offset) for partition in (0, 1) for offset in range(6)]
    await assert_nothing_left(given.cluster, given.consumer)


@pytest.mark.parametrize("scenario", [one_by_one, by_batch])
@STRATEGIES
async def test_cancelled_receive_loses_nothing(
    autojump_clock: Clock, scenario: Any, strategy: dict[str, Any]
) -> None:
    def setup() -> Any:
        return fresh(**strategy)

    assert await assert_all_awaits_cancellable(scenario, the_rest_comes, setup=setup) >= 3


async def test_cancelled_iteration_loses_nothing(autojump_clock: Clock) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[Given]:
        async with (
            cluster_of(2, records=6) as cluster,
            consumer_of(cluster, max_poll_records=2) as consumer,
        ):
            consumer.assign([T0, T1])
            yield Given(cluster, consumer, [])

    assert await assert_all_awaits_cancellable(by_iteration, the_rest_comes, setup=setup) > 3


@asynccontextmanager
async def listening(**settings: Any) -> AsyncIterator[Given]:
    """Open a member whose listener works for half a second."""

    async def work(what: str) -> None:
        await trio.sleep(0.5)

    async with (
        cluster_of(2, records=6) as cluster,
        consumer_of(cluster, group_id="g", **settings) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener([], then=work))
        yield Given(cluster, consumer, [])


async def test_cancelled_receive_reruns_listeners(autojump_clock: Clock) -> None:
    assert await assert_all_awaits_cancellable(one_by_one, the_rest_comes, setup=listening) > 3


async def commit(given: Given) -> None:
    await given.consumer.commit({T0: 2})


async def ask(given: Given) -> None:
    await given.consumer.committed([T0])
    await given.consumer.position(T0)
    await given.consumer.end_offsets([T0, T1])
    await given.consumer.offsets_for_times({T0: 0})
    await given.consumer.partitions_for("t")
    await given.consumer.list_topics()


async def unsubscribe(given: Given) -> None:
    await given.consumer.unsubscribe()


async def all_calls_work(given: Given) -> None:
    with trio.fail_after(30):
        if not given.consumer.subscription():
            given.consumer.subscribe(["t"])
            await given.consumer.receive_batch()
        await commit(given)
        assert given.cluster.committed("g", T0).offset == 2
        await ask(given)
        given.consumer.seek_to_end()
    await assert_nothing_left(given.cluster, given.consumer)


@pytest.mark.parametrize("scenario", [commit, ask, unsubscribe])
@PROTOCOLS
async def test_cancelled_call_leaves_consumer_usable(
    autojump_clock: Clock, scenario: Any, protocol: dict[str, Any]
) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[Given]:
        async with fresh(enable_auto_commit=False, **protocol) as given:
            await given.consumer.receive()
            yield given

    assert await assert_all_awaits_cancellable(scenario, all_calls_work, setup=setup) >= 1


async def test_cancelled_exit_leaves_the_group(
    autojump_clock: Clock,
) -> None:
    """No connection is left either."""

    @asynccontextmanager
    async def setup() -> AsyncIterator[ScriptedCluster]:
        async with cluster_of(records=5) as cluster:
            yield cluster

    async def scenario(cluster: ScriptedCluster) -> None:
        async with member_of(cluster, heartbeat_interval_ms=500) as consumer:
            await values(consumer, 3)
            await trio.sleep(1)

    async def check(cluster: ScriptedCluster) -> None:
        await trio.sleep(1)
        group = cluster.group("g")
        # Cancelled on the way in, before it knew its id, it leaves an id that was promised; never a
        # member.
        assert group is None or not group.members
        assert cluster.connections() == 0

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) > 5
    assert trio.current_time() < 1000
