"""Use of an exporter: one task at a time, within its block.

Two plans would interfere with each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from test_flow import World
from trio.testing import MockClock

from trikafka.testing import ScriptedCluster


@pytest.fixture
async def world(tmp_path: Path, autojump_clock: MockClock) -> AsyncIterator[World]:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        made = World(cluster, tmp_path / "out")
        made.fill(0, 25)
        made.fill(1, 7)
        yield made


async def test_second_call_at_once_is_refused(autojump_clock: MockClock, world: World) -> None:
    """The first goes on."""
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


async def test_cancelled_call_leaves_it_usable(autojump_clock: MockClock, world: World) -> None:
    async with world.exporter("t") as exporter:
        with trio.CancelScope() as scope:
            scope.cancel()
            await exporter.run()
        assert scope.cancelled_caught
        assert (await exporter.run()).rows == 32
        assert (await exporter.run()).already_done


async def test_closed_exporter_exports_no_more(autojump_clock: MockClock, world: World) -> None:
    """Its destination is no longer locked."""
    async with world.exporter("t") as exporter:
        pass
    for call in (exporter.run, exporter.abandon):
        with pytest.raises(trio.ClosedResourceError, match="not locked any more"):
            await call()
    assert not list((world.root / "_trikafka").glob("plan-*"))
