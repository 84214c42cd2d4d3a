"""Brokers that go away while an export plans: it waits, as it does while it reads (KIP-572)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from test_flow import T0, T1, Killed, World, manifest_of

from trikafka import BootstrapError, ExportIncompleteError, ExportProgress, KafkaTimeoutError
from trikafka.testing import ScriptedCluster

NODES = 2


@pytest.fixture
async def world(tmp_path: Path, autojump_clock: object) -> Any:
    async with ScriptedCluster(topics={"t": 2, "other": 1}, nodes=NODES) as cluster:
        made = World(cluster, tmp_path / "out")
        made.fill(0, 25)
        made.fill(1, 7)
        yield made


def all_go(world: World, stage: str, number: int = 1) -> None:
    """Stop all brokers when the export first reaches this stage."""
    gone: list[bool] = []

    def tell(step: ExportProgress) -> None:
        if step.stage == stage and step.plan.number == number and not gone:
            gone.append(True)
            for node in range(NODES):
                world.cluster.stop(node)

    world.tell = tell  # type: ignore[method-assign]


async def come_back(world: World, seconds: float) -> None:
    await trio.sleep(seconds)
    for node in range(NODES):
        world.cluster.start(node)


async def test_brokers_lost_after_planning_return(autojump_clock: object, world: World) -> None:
    """The export asks once more whether the topics are the planned ones.

    Without a response it waits.
    """
    all_go(world, "planned")
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(come_back, world, 60)
        result = await world.export(task_timeout_ms=200_000, group_id="g")
    assert 60 <= trio.current_time() - begun < 100
    assert (result.rows, result.carried) == (32, ())
    first = manifest_of(world.root, 1)
    assert [each["files"] for each in first["ranges"]] == [[], []]
    assert [world.cluster.committed("g", tp).offset for tp in (T0, T1)] == [25, 7]  # type: ignore[union-attr]
    world.check_whole()


async def test_brokers_that_stay_away_end_the_export(autojump_clock: object, world: World) -> None:
    all_go(world, "planned")
    begun = trio.current_time()
    with pytest.raises(
        ExportIncompleteError, match=r"t-0, t-1 could not be exported: reading t-0 did not finish"
    ) as caught:
        await world.export(task_timeout_ms=30_000)
    assert isinstance(caught.value.__cause__, KafkaTimeoutError)
    assert 30 <= trio.current_time() - begun < 60
    assert [(each.partition, each.start, each.end) for each in caught.value.result.carried] == [
        (0, 0, 25),
        (1, 0, 7),
    ]
    await come_back(world, 0)
    assert (await world.export()).rows == 32
    world.check_whole()


async def test_zero_task_timeout_fails_at_once(autojump_clock: object, world: World) -> None:
    all_go(world, "planned")
    begun = trio.current_time()
    with pytest.raises(ExportIncompleteError):
        await world.export(task_timeout_ms=0)
    assert trio.current_time() - begun < 15


async def test_brokers_lost_after_resuming_return(autojump_clock: object, world: World) -> None:
    """The plan that was found is published. Then the export asks for new records."""
    world.kill_at = "written"
    with pytest.raises(Killed):
        await world.export()
    world.kill_at = None
    world.fill(0, 5)
    all_go(world, "published")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(come_back, world, 60)
        result = await world.export(task_timeout_ms=200_000)
    assert (result.resumed, result.rows, result.carried) == (True, 37, ())
    world.check_whole()


async def test_missing_brokers_keep_an_unfinished_plan(
    autojump_clock: object, world: World
) -> None:
    """No broker responds from the start."""
    world.kill_at = "planned"
    with pytest.raises(Killed):
        await world.export()
    world.kill_at = None
    for node in range(NODES):
        world.cluster.stop(node)
    begun = trio.current_time()
    with pytest.raises(BootstrapError):
        await world.export(task_timeout_ms=200_000)
    assert trio.current_time() - begun < 15
    assert not list((world.root / "_trikafka").glob("manifest-*"))
    await come_back(world, 0)
    assert (await world.export()).resumed
    world.check_whole()
