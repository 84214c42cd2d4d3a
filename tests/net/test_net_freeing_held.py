"""An old snapshot that somebody holds: nobody looks after it meanwhile, and it is freed in slices whenever it is dropped."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import trio
from netting import open_parts
from test_net_freeing import MANY, Freed, large
from trio.testing import MockClock as Clock

from trikafka.testing import ScriptedCluster


def living() -> Iterator[str]:
    """The names of all tasks."""
    root = trio.lowlevel.current_root_task()
    tasks = [] if root is None else [root]
    while tasks:
        task = tasks.pop()
        yield task.name
        tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


async def test_nothing_runs_until_it_is_dropped(autojump_clock: Clock) -> None:
    """Before, a task looked once a second, and after a minute not at all: then whoever dropped it freed it in one step."""
    async with ScriptedCluster(topics={"t": 1}) as cluster, open_parts(cluster) as parts:
        metadata = parts.metadata
        metadata._replace(large(metadata.snapshot.version + 1))
        kept = [metadata.snapshot]
        gc.collect()
        before, freed = sys.getallocatedblocks(), Freed()
        await metadata.refresh(["t"])
        await trio.sleep(0.5)
        assert not [name for name in living() if "decoding" in name]
        await trio.sleep(300)
        trio.lowlevel.add_instrument(freed)
        try:
            kept.clear()
            with trio.fail_after(600):
                while before - sys.getallocatedblocks() < MANY:  # noqa: ASYNC110
                    await trio.sleep(0.05)
        finally:
            trio.lowlevel.remove_instrument(freed)
    assert freed.most < MANY
