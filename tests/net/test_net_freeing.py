"""Metadata of many partitions is freed a few at a time, and not in the step in which newer metadata comes."""

from __future__ import annotations

import gc
import sys

import pytest
import trio
from netting import open_parts

from trikafka.interfaces.cluster import ClusterSnapshot, TopicInfo
from trikafka.testing import ScriptedCluster
from trikafka.types import PartitionInfo

MANY = 60_000


class Freed(trio.abc.Instrument):
    """The most blocks of memory that any step of a task has given back."""

    most = 0
    _before = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._before = sys.getallocatedblocks()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most = max(self.most, self._before - sys.getallocatedblocks())


def large(version: int = 1) -> ClusterSnapshot:
    parts = {number: PartitionInfo("big", number, 0, 0, (0, number), (0, number)) for number in range(MANY)}
    return ClusterSnapshot(version, "c", 0, {}, {"big": TopicInfo("big", 0, None, False, parts)})


@pytest.mark.parametrize("held", [False, True])
async def test_a_large_snapshot_is_freed_in_slices(held: bool) -> None:
    """Seen before: 0.15 s for a million partitions. ``held``: somebody looks at the old one for a while."""
    async with ScriptedCluster(topics={"t": 1}) as cluster, open_parts(cluster) as parts:
        metadata = parts.metadata
        metadata._replace(large(metadata.snapshot.version + 1))
        kept = [metadata.snapshot] if held else []
        gc.collect()
        before, freed = sys.getallocatedblocks(), Freed()
        trio.lowlevel.add_instrument(freed)
        try:
            with trio.fail_after(30):
                await metadata.refresh(["t"])
                assert "big" not in metadata.snapshot.topics
                if held:
                    await trio.sleep(0.3)
                    assert before - sys.getallocatedblocks() < MANY
                    kept.clear()
                    await trio.lowlevel.checkpoint()
                while before - sys.getallocatedblocks() < MANY:  # noqa: ASYNC110
                    await trio.sleep(0.05)
        finally:
            trio.lowlevel.remove_instrument(freed)
    assert freed.most < MANY  # of four blocks each
