"""An exporter is one task's at a time, and nobody's when its block was left: the plans of two would stand in each other's way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from test_export_flow import World

from trikafka.testing import ScriptedCluster


@pytest.fixture
async def world(tmp_path: Path, autojump_clock: object) -> AsyncIterator[World]:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        made = World(cluster, tmp_path / "out")
        made.fill(0, 25)
        made.fill(1, 7)
        yield made


async def test_of_two_calls_at_once_the_second_is_refused_and_the_first_goes_on(world: World) -> None:
    results: list[Any] = []
    planned = trio.Event()
    world.tell = lambda step: planned.set()  # type: ignore[method-assign]
    async with world.exporter("t") as exporter, trio.open_nursery() as nursery:

        async def run() -> None:
            results.append(await exporter.run())

        nursery.start_soon(run)
        await planned.wait()
        for call in (exporter.run, exporter.abandon):
            with pytest.raises(trio.BusyResourceError, match="one call at a time"):
                await call()
    assert [result.rows for result in results] == [32]
    world.check_whole()


async def test_after_a_cancelled_call_and_after_a_failed_one_it_may_be_used_again(world: World) -> None:
    async with world.exporter("t") as exporter:
        with trio.CancelScope() as scope:
            scope.cancel()
            await exporter.run()
        assert scope.cancelled_caught
        assert (await exporter.run()).rows == 32
        assert (await exporter.run()).already_done


async def test_when_its_block_was_left_it_exports_no_more(world: World) -> None:
    """The destination is not locked then: it wrote all the same, beside whoever had the lock."""
    async with world.exporter("t") as exporter:
        pass
    for call in (exporter.run, exporter.abandon):
        with pytest.raises(trio.ClosedResourceError, match="not locked any more"):
            await call()
    assert not list((world.root / "_trikafka").glob("plan-*"))
