"""Freeing of metadata of many partitions: beside the loop, a few at a time, not in one step."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import trio
from freeing import MANY, Freed, large
from netting import open_parts
from trio.testing import MockClock as Clock

from trikafka.testing import ScriptedCluster


def living() -> Iterator[str]:
    """Return the names of all tasks."""
    root = trio.lowlevel.current_root_task()
    tasks = [] if root is None else [root]
    while tasks:
        task = tasks.pop()
        yield task.name
        tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


@pytest.mark.parametrize("held", [False, True])
async def test_large_snapshot_is_freed_beside_the_loop(held: bool) -> None:
    """Freeing a million partitions takes 0.15 s.

    ``held``: a reference to the old snapshot is kept for a while.
    """
    async with ScriptedCluster(topics={"t": 1}) as cluster, open_parts(cluster) as parts:
        metadata, freed = parts.metadata, Freed()
        metadata._replace(large(metadata.snapshot.version + 1, freed))
        kept = [metadata.snapshot] if held else []
        with trio.fail_after(240):
            await metadata.refresh(["t"])
            assert "big" not in metadata.snapshot.topics
            if held:
                await trio.sleep(0.3)
                assert freed.here == freed.elsewhere == 0
                kept.clear()
            while freed.elsewhere < MANY:  # noqa: ASYNC110
                await trio.sleep(0.05)
    assert (freed.here, freed.elsewhere) == (0, MANY)


async def test_no_task_runs_until_it_is_dropped(autojump_clock: Clock) -> None:
    """However late the last reference is dropped, the snapshot is freed in slices."""
    async with ScriptedCluster(topics={"t": 1}) as cluster, open_parts(cluster) as parts:
        metadata, freed = parts.metadata, Freed()
        metadata._replace(large(metadata.snapshot.version + 1, freed))
        kept = [metadata.snapshot]
        await metadata.refresh(["t"])
        await trio.sleep(0.5)
        assert not [name for name in living() if "decoding" in name]
        await trio.sleep(300)
        kept.clear()
        with trio.fail_after(600):
            while freed.elsewhere < MANY:
                await trio.sleep(0.05)
                time.sleep(0.005)  # noqa: ASYNC251  (the thread has no virtual time: ten minutes of that pass in a second)
    assert (freed.here, freed.elsewhere) == (0, MANY)
