"""Commits of a cooperative member while its group rebalances, also when it leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from consuming import cluster_of, member_of, until, values
from trio.testing import MockClock as Clock

from trikafka._api.consumer.consumer import Consumer
from trikafka._state.group.member import MemberState
from trikafka.testing import ScriptedCluster

SETTINGS = {"partition_assignment_strategy": ["cooperative-sticky"], "auto_commit_interval_ms": 1e9}


@asynccontextmanager
async def joining(
    api: str, late: float = 1, scope: trio.CancelScope | None = None
) -> AsyncIterator[tuple[ScriptedCluster, Consumer]]:
    """Open a member with five records of two partitions whose coordinator's responses to ``api``
    are late (seconds). ``scope`` is put around the member.
    """

    async def other() -> None:
        async with member_of(cluster, **SETTINGS):
            await trio.sleep_forever()

    async with cluster_of(2, records=9) as cluster, trio.open_nursery() as nursery:
        with scope or trio.CancelScope():
            async with member_of(cluster, **SETTINGS) as consumer:
                await values(consumer, 5)
                member, generation = consumer._parts.core.member, cluster.group("g").generation
                mine = member.identity.member_id
                cluster.delay(
                    api, late, where=lambda request: request.member_id == mine, after=True
                )
                nursery.start_soon(other)
                await until(
                    lambda: (
                        cluster.group("g").generation > generation
                        and member.state is not MemberState.STABLE
                    )
                )
                if api == "SyncGroup":
                    await until(lambda: member.state is MemberState.SYNCING)
                yield cluster, consumer
        nursery.cancel_scope.cancel()


def committed(cluster: ScriptedCluster) -> int:
    return sum(position.offset for position in cluster.group("g").offsets.values())


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
async def test_commit_survives_a_rebalance(api: str, autojump_clock: Clock) -> None:
    async with joining(api) as (cluster, consumer):
        await consumer.commit()
        assert committed(cluster) == 5


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
@pytest.mark.parametrize("how", ["aclose", "unsubscribe"])
async def test_leaving_member_has_committed(api: str, how: str, autojump_clock: Clock) -> None:
    async with joining(api) as (cluster, consumer):
        began = trio.current_time()
        await getattr(consumer, how)()
        assert committed(cluster) == 5
        assert trio.current_time() - began < 3


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
async def test_cancelled_member_has_committed(api: str, autojump_clock: Clock) -> None:
    scope = trio.CancelScope()
    async with joining(api, 0.1, scope) as (cluster, _):
        scope.cancel()
        await trio.sleep_forever()
    assert committed(cluster) >= 4  # the record in the user's hand is not processed
