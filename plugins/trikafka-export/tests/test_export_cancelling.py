"""Cancellation of an export at every await: the next export finishes it, with every record once."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from test_flow import T0, T1, World

from trikafka.testing import ScriptedCluster
from trikafka.testing.cancellation import assert_all_awaits_cancellable


async def test_export_may_be_cancelled_at_every_await(
    autojump_clock: object, tmp_path: Path
) -> None:
    numbers = itertools.count()

    @asynccontextmanager
    async def setup() -> AsyncIterator[World]:
        async with ScriptedCluster(topics={"t": 2}) as cluster:
            made = World(cluster, tmp_path / str(next(numbers)))
            made.fill(0, 5)
            made.fill(1, 2)
            yield made

    async def scenario(world: World) -> None:
        await world.export(max_records_per_file=3, group_id="g")

    async def check(world: World) -> None:
        await world.export(group_id="g")
        world.check_whole()
        assert [world.cluster.committed("g", tp).offset for tp in (T0, T1)] == [5, 2]  # type: ignore[union-attr]

    with trio.fail_after(10_000_000):
        assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 10
