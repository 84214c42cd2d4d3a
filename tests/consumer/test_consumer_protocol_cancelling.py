"""Cancellation at every await of a member of the consumer protocol (KIP-848).

Nothing is lost, and it continues or leaves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio
from consuming import T0, T1, RecordingListener, cluster_of, consumer_of, until, values
from trio.testing import MockClock as Clock

from trikafka._api.consumer.consumer import Consumer
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable
from trikafka.testing._leftovers import assert_nothing_left

PROTOCOL = {"group_id": "g", "group_protocol": "consumer"}


class Given(NamedTuple):
    cluster: ScriptedCluster
    consumer: Consumer
    got: list[tuple[int, int]]
    events: list[Any]


@asynccontextmanager
async def fresh(**settings: Any) -> AsyncIterator[Given]:
    async def work(what: str) -> None:
        await trio.sleep(0.5)

    async with (
        cluster_of(2, records=6) as cluster,
        consumer_of(cluster, **(PROTOCOL | settings)) as consumer,
    ):
        given = Given(cluster, consumer, [], [])
        consumer.subscribe(["t"], RecordingListener(given.events, then=work))
        yield given


async def receive(given: Given) -> None:
    while len(given.got) < 8:
        record = await given.consumer.receive()
        given.got.append((record.partition, record.offset))


async def the_rest_comes(given: Given) -> None:
    with trio.fail_after(60):
        while len(given.got) < 12:
            record = await given.consumer.receive()
            given.got.append((record.partition, record.offset))
    assert sorted(given.got) == [(partition, offset) for partition in (0, 1) for offset in range(6)]
    assert given.events[-1] == ("assigned", [T0, T1])
    await assert_nothing_left(given.cluster, given.consumer)


async def test_joining_receive_may_be_cancelled(autojump_clock: Clock) -> None:
    assert await assert_all_awaits_cancellable(receive, the_rest_comes, setup=fresh) > 3


async def test_revoking_receive_may_be_cancelled(autojump_clock: Clock) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[Given]:
        async with fresh(enable_auto_commit=False) as given:
            await given.consumer.receive()
            await until(lambda: given.consumer.statistics().state == "stable")
            async with consumer_of(given.cluster, "t", **PROTOCOL) as other:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(other.receive_batch)
                    yield given
                    nursery.cancel_scope.cancel()

    async def scenario(given: Given) -> None:
        while len(given.consumer.assignment()) == 2:
            await given.consumer.receive_batch(timeout=1)

    async def check(given: Given) -> None:
        with trio.fail_after(60):
            await scenario(given)
            while given.consumer.statistics().generation != 3:
                await given.consumer.receive_batch(timeout=1)
        first, *others = [what for what, _ in given.events]
        assert (first, set(others)) == ("assigned", {"revoked"})
        assert len(given.consumer.assignment()) == 1

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) > 3


async def test_unsubscribe_may_be_cancelled(autojump_clock: Clock) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[Given]:
        async with fresh() as given:
            await given.consumer.receive()
            yield given

    async def scenario(given: Given) -> None:
        await given.consumer.unsubscribe()

    async def check(given: Given) -> None:
        with trio.fail_after(60):
            if not given.consumer.subscription():
                # The leave that was cut is made up for.
                await until(lambda: not given.cluster.group("g").modern.members)
                given.consumer.subscribe(["t"])
            await values(given.consumer, 1)
        assert given.consumer.assignment() == {T0, T1}
        given.consumer.seek_to_end()
        await assert_nothing_left(given.cluster, given.consumer)

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 1


async def test_whole_life_may_be_cancelled(autojump_clock: Clock) -> None:
    for instance in (None, "i"):

        @asynccontextmanager
        async def setup() -> AsyncIterator[ScriptedCluster]:
            async with cluster_of(records=5) as cluster:
                yield cluster

        async def scenario(cluster: ScriptedCluster, instance: str | None = instance) -> None:
            async with consumer_of(
                cluster, "t", group_instance_id=instance, **PROTOCOL
            ) as consumer:
                await values(consumer, 3)
                await trio.sleep(6)

        async def check(cluster: ScriptedCluster) -> None:
            await trio.sleep(1)
            group = cluster.group("g")
            members = (
                group.modern.members.values()
                if group is not None and group.modern is not None
                else ()
            )
            assert all(member.epoch == -2 for member in members)  # static: it may come back
            assert cluster.connections() == 0

        assert await assert_all_awaits_cancellable(scenario, check, setup=setup) > 5
