"""A topic that is gone for good where that is allowed: the others are exported and committed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from test_flow import T0, T1, World
from trio.testing import MockClock

from trikafka import ExportError, TopicPartition
from trikafka.testing import ScriptedCluster

OTHER = TopicPartition("other", 0)
WARNING = "topic 'other' does not exist: it is not exported"


@pytest.fixture
async def world(tmp_path: Path, autojump_clock: MockClock) -> Any:
    async with ScriptedCluster(topics={"t": 2, "other": 1}) as cluster:
        made = World(cluster, tmp_path / "out")
        made.fill(0, 25)
        made.fill(1, 7)
        cluster.append("other", 0, [b"x"] * 5)
        yield made


async def test_deleted_topic_is_not_committed(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The group's offsets of the topic went with it, so committing them would fail."""
    await world.export(["t", "other"], group_id="g")
    world.cluster.delete_topic("other")
    world.fill(0, 5)
    result = await world.export(["t", "other"], group_id="g", fail_on_data_loss=False)
    assert (result.rows, result.committed) == (5, {T0: 30})
    committed = [world.cluster.committed("g", tp) for tp in (T0, T1)]
    assert [each.offset for each in committed if each is not None] == [30, 7]
    assert caplog.messages.count(WARNING) == 1


async def test_deleted_topic_is_logged_once(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.export(["t", "other"])
    async with world.exporter(["t", "other"], fail_on_data_loss=False) as exporter:
        world.cluster.delete_topic("other")
        for _ in range(3):
            await exporter.run()
        logged = [
            record
            for record in caplog.records
            if record.levelno == logging.WARNING and record.getMessage() == WARNING
        ]
        assert len(logged) == 1


async def test_missing_topic_suggests_those_of_the_cluster(
    autojump_clock: MockClock, world: World
) -> None:
    with pytest.raises(ExportError, match="topic 'othr' does not exist; did you mean 'other'"):
        await world.export(["t", "othr"])
    assert not world.root.exists()


async def test_records_of_a_deleted_topic_wait_no_more(
    autojump_clock: MockClock, world: World
) -> None:
    """A report would otherwise count them for as long as the exporter runs."""
    await world.export(["t", "other"])
    world.fill(0, 3)
    async with world.exporter(
        ["t", "other"], min_records_per_file=100, fail_on_data_loss=False
    ) as exporter:
        assert (await exporter.run()).waiting == 3
        world.cluster.delete_topic("t")
        assert (await exporter.run()).waiting == 0
