"""Exports that begin at a time: what a later ``start`` means, and what it must not skip."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import deltalake
import pytest
from export_sinks import read_lines
from lakes import make_lake
from test_flow import T0, World
from trikafka_export.command import _sentence
from trio.testing import MockClock

from trikafka import (
    ConfigurationError,
    ExportIncompleteError,
    ExportResult,
    TopicPartition,
    export,
)
from trikafka.testing import ScriptedCluster

HOUR = 3_600_000


@pytest.fixture
async def world(tmp_path: Path, autojump_clock: MockClock) -> Any:
    async with ScriptedCluster(topics={"t": 1, "other": 1}) as cluster:
        yield World(cluster, tmp_path / "out")


def add(world: World, partition: int, time: int, value: bytes, topic: str = "t") -> None:
    world.cluster.append(topic, partition, [(None, value, time)])


def values(world: World) -> list[str]:
    return sorted(row[2] for row in read_lines(world.root))


async def test_added_partition_is_read_whole(autojump_clock: MockClock, world: World) -> None:
    """A nightly export from an hour ago: the partition is older than that."""
    add(world, 0, 10 * HOUR, b"first")
    await world.export(start=9 * HOUR)
    world.cluster.add_partitions("t", 2)
    add(world, 1, 20 * HOUR, b"noon")
    add(world, 1, 33 * HOUR, b"night")
    await world.export(start=33 * HOUR)
    assert values(world) == ["first", "night", "noon"]


async def test_added_partition_begins_at_the_first_start(
    autojump_clock: MockClock, world: World
) -> None:
    """Also without a ``start`` in the later export."""
    add(world, 0, 10 * HOUR, b"first")
    await world.export(start=9 * HOUR)
    world.cluster.add_partitions("t", 2)
    add(world, 1, 8 * HOUR, b"before the export's time")
    add(world, 1, 20 * HOUR, b"noon")
    await world.export()
    assert values(world) == ["first", "noon"]


@pytest.mark.parametrize("left", [0, 1])
async def test_loss_in_an_added_partition_is_reported(
    autojump_clock: MockClock, world: World, left: int
) -> None:
    """Retention deleted records that were as young as the first export's time."""
    add(world, 0, 10 * HOUR, b"first")
    await world.export(start=9 * HOUR)
    world.cluster.add_partitions("t", 2)
    for value in (b"noon", b"night")[: 1 + left]:
        add(world, 1, 20 * HOUR, value)
    world.cluster.delete_records("t", 1, 1)
    with pytest.raises(ExportIncompleteError, match=r"gone from the log: t-1 \[0, 1\)"):
        await world.export()
    result = await world.export(fail_on_data_loss=False)
    assert [(lost.partition, lost.start, lost.end) for lost in result.lost] == [(1, 0, 1)]
    assert values(world) == ["first", "night"][: 1 + left]


async def test_old_gap_of_an_added_partition_is_no_loss(
    autojump_clock: MockClock, world: World
) -> None:
    """A record that is left is older than the first export's time, and so were the deleted ones."""
    add(world, 0, 10 * HOUR, b"first")
    await world.export(start=9 * HOUR)
    world.cluster.add_partitions("t", 2)
    for time, value in ((7, b"deleted"), (8, b"old"), (20, b"noon")):
        add(world, 1, time * HOUR, value)
    world.cluster.delete_records("t", 1, 1)
    result = await world.export()
    assert (values(world), result.lost) == (["first", "noon"], ())


async def test_quiet_first_export_keeps_its_start(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is new at the first export: the second one must not begin at its own time."""
    add(world, 0, 5 * HOUR, b"old")
    first = await world.export(start=9 * HOUR)
    assert (first.rows, first.positions) == (0, {T0: 1})
    assert _sentence(first) == f"nothing written to {first.destination}: no record is new"
    assert "no record of t is as young as the start, 1970-01-01T09:00:00+00:00" in caplog.text
    add(world, 0, 20 * HOUR, b"noon")
    await world.export(start=33 * HOUR)
    assert values(world) == ["noon"]


async def test_start_to_come_is_refused(autojump_clock: MockClock, world: World) -> None:
    """Microseconds would skip the whole log, for good; a destination keeps its first start."""
    add(world, 0, 5 * HOUR, b"old")
    for late in (4_000_000_000_000, 2**62):
        with pytest.raises(ConfigurationError, match="not come yet, and no record of t is as late"):
            await world.export(start=late)
    await world.export(start=4 * HOUR)
    assert values(world) == ["old"]


async def test_start_to_come_finds_late_records(autojump_clock: MockClock, world: World) -> None:
    """A producer's clock may be ahead."""
    add(world, 0, 5 * HOUR, b"old")
    add(world, 0, 4_000_000_000_000, b"late")
    world.cluster.add_partitions("t", 2)
    await world.export(start=3_999_999_999_999)
    assert values(world) == ["late"]


async def test_start_to_come_is_ignored_later(autojump_clock: MockClock, world: World) -> None:
    """A destination that is continued does not use it; a new topic would."""
    add(world, 0, 10 * HOUR, b"first")
    await world.export(start=9 * HOUR)
    world.cluster.add_partitions("t", 2)
    add(world, 1, 20 * HOUR, b"noon")
    await world.export(start=4_000_000_000_000)
    assert values(world) == ["first", "noon"]
    with pytest.raises(ConfigurationError, match="no record of other is as late"):
        await world.export(["t", "other"], start=4_000_000_000_000)


@pytest.mark.parametrize(
    ("start", "warned"), [(1_769_860_800, True), (31_536_000_000, False), (63_072_000_000, False)]
)
async def test_early_start_is_used(
    autojump_clock: MockClock,
    world: World,
    start: int,
    warned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A date of 1971 or 1972, or seconds, with which the export has too much rather than less."""
    add(world, 0, start - 1, b"before")
    add(world, 0, start, b"at")
    await world.export(start=start)
    assert values(world) == ["at"]
    assert caplog.text.count("a time to look up was probably given in seconds") == warned
    caplog.clear()
    await world.export(start=start)
    assert "in seconds" not in caplog.text


async def test_silent_partition_is_not_called_quiet(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition that timed out may have records since the start, which is stored all the same."""
    add(world, 0, 20 * HOUR, b"noon")
    world.cluster.move_leader("t", 0, None)
    with pytest.raises(ExportIncompleteError):
        await world.export(start=9 * HOUR, task_timeout_ms=0, default_api_timeout_ms=7_000)
    assert "as young as the start" not in caplog.text
    world.cluster.move_leader("t", 0, 0)
    await world.export(start=33 * HOUR)
    assert values(world) == ["noon"]


async def test_gathered_records_keep_their_start(autojump_clock: MockClock, world: World) -> None:
    """Records that wait for a larger file are not skipped by the next process."""
    add(world, 0, 9 * HOUR, b"waits")
    result = await world.export(start=9 * HOUR, min_records_per_file=10)
    assert (result.rows, result.waiting) == (0, 1)
    await world.export(start=33 * HOUR)
    assert values(world) == ["waits"]


async def test_new_topic_begins_at_its_own_start(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    add(world, 0, 10 * HOUR, b"first")
    await world.export(start=9 * HOUR)
    add(world, 0, 20 * HOUR, b"skipped", "other")
    add(world, 0, 34 * HOUR, b"other", "other")
    await world.export(["t", "other"], start=33 * HOUR)
    assert values(world) == ["first", "other"]
    assert "beside" in caplog.text


async def test_offsets_for_an_added_partition(autojump_clock: MockClock, world: World) -> None:
    """An offset that the caller names wins over the first export's time."""
    add(world, 0, 10 * HOUR, b"first")
    await world.export(start=9 * HOUR)
    world.cluster.add_partitions("t", 2)
    for value in (b"zero", b"one"):
        add(world, 1, 20 * HOUR, value)
    await world.export(start={TopicPartition("t", 1): 1})
    assert values(world) == ["first", "one"]


async def first_export(
    world: World, destination: str | None = None, start: int = 9 * HOUR, **options: str
) -> ExportResult:
    """Export a topic without records since the start, as files or a table."""
    add(world, 0, 5 * HOUR, b"old")
    return await export(
        "t",
        destination or world.root,
        start=start,
        sink_options=options,
        bootstrap_servers=world.cluster.bootstrap_servers,
        dial=world.cluster.dial,
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"value_format": "json"},
        {"format": "delta"},
        {"format": "delta", "value_format": "json"},
    ],
)
async def test_quiet_destination_stores_its_start(
    autojump_clock: MockClock, world: World, options: dict[str, str]
) -> None:
    autojump_clock.autojump_threshold = 1  # a table is asked in threads, which take real time
    assert (await first_export(world, **options)).positions == {T0: 1}
    plan = json.loads((world.root / "_trikafka" / "plan-000001.json").read_text())
    assert (plan["ranges"], plan["since"]) == ([], {"t": 9 * HOUR})


async def test_start_is_kept_for_a_table_to_be(autojump_clock: MockClock, world: World) -> None:
    """The first record shows the columns of the table, which keeps the partitions of the start."""
    autojump_clock.autojump_threshold = 1  # a table is asked in threads, which take real time
    options = {"format": "delta", "value_format": "json", "partition_by": "topic"}
    assert (await first_export(world, **options)).rows == 0
    assert not (world.root / "_delta_log").exists()
    world.cluster.add_partitions("t", 2)
    add(world, 1, 8 * HOUR, b'{"n": 1}')
    add(world, 1, 20 * HOUR, b'{"n": 2}')
    del options["partition_by"]
    later = await first_export(world, start=33 * HOUR, **options)
    assert later.rows == 1
    table = deltalake.DeltaTable(str(world.root))
    assert table.metadata().partition_columns == ["topic"]
    assert table.to_pyarrow_table()["value"].to_pylist() == [{"n": 2}]


async def test_quiet_table_without_columns_warns(
    autojump_clock: MockClock, world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The catalog decides where the table will be, so no folder can store the start yet."""
    autojump_clock.autojump_threshold = 10  # a table is asked in threads, which take real time
    lake = make_lake("iceberg", tmp_path)
    options = {**lake.options, "value_format": "json"}
    first = await first_export(world, destination=lake.destination, **options)
    assert _sentence(first) == f"nothing written to {first.destination}: no record is new"
    assert "so the next export begins at its own start time" in caplog.text
