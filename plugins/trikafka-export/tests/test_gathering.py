"""Files that wait for more records: the rules, and an exporter in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from test_flow import T0, T1, World
from trikafka_export.gathering import Gathering
from trio.testing import MockClock

from trikafka import ConfigurationError
from trikafka.interfaces import PlannedRange, RangeResult, WrittenFile
from trikafka.testing import ScriptedCluster


def test_default_waits_for_nothing() -> None:
    gathering = Gathering(1, 10, 3600.0)
    assert gathering.ends({T0: 0, T1: 5}, {T0: 1, T1: 28}, 0.0) == {T0: 1, T1: 28}
    assert gathering.left == 0


def test_only_a_partitions_rest_waits() -> None:
    gathering = Gathering(4, 10, 60.0)
    assert gathering.ends({T0: 0}, {T0: 23}, 0.0) == {T0: 20}
    assert gathering.left == 3
    assert gathering.ends({T0: 20}, {T0: 24}, 1.0) == {T0: 24}
    assert gathering.left == 0


def test_waiting_begins_with_the_first_record() -> None:
    gathering = Gathering(4, 10, 60.0)
    assert gathering.ends({T0: 0}, {T0: 1}, 100.0) == {T0: 0}
    assert gathering.ends({T0: 0}, {T0: 2}, 159.0) == {T0: 0}
    assert gathering.ends({T0: 0}, {T0: 2}, 160.0) == {T0: 2}
    assert gathering.ends({T0: 0}, {T0: 2}, 161.0) == {T0: 2}, "the run before has failed"
    assert gathering.ends({T0: 2}, {T0: 3}, 162.0) == {T0: 2}, "others wait from now on"


def result(partition: int, start: int, end: int, size: int) -> RangeResult:
    """Return a range that was written as one file."""
    planned = PlannedRange("t", partition, start, end, "f")
    return RangeResult(planned, end, (WrittenFile(planned, "f", start, end, end - start, size),))


def test_bytes_are_estimated_by_the_last_files() -> None:
    gathering = Gathering(1, 100, 60.0, least_bytes=1_000)
    assert gathering.ends({T0: 0}, {T0: 5}, 0.0) == {T0: 5}, "nothing is known of the topic"
    gathering.learn([result(0, 0, 5, 100), result(1, 0, 15, 300)])  # 20 bytes a record
    assert gathering.ends({T0: 5, T1: 15}, {T0: 54, T1: 65}, 1.0) == {T0: 5, T1: 65}
    assert gathering.left == 49
    assert gathering.ends({T0: 5}, {T0: 54}, 61.0) == {T0: 54}
    gathering.learn([result(0, 54, 54, 0)])
    gathering.learn([result(0, 54, 104, 2_500)])
    assert gathering.ends({T0: 104}, {T0: 123}, 62.0) == {T0: 104}
    assert gathering.ends({T0: 104}, {T0: 124}, 62.0) == {T0: 124}


def test_file_of_the_most_records_is_enough() -> None:
    gathering = Gathering(1, 10, 60.0, least_bytes=10**9)
    gathering.learn([result(0, 0, 10, 10)])
    assert gathering.ends({T0: 10}, {T0: 25}, 0.0) == {T0: 20}
    assert gathering.left == 5


async def test_files_of_few_bytes_wait(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        world = World(cluster, tmp_path / "out")
        world.fill(0, 10)
        async with world.exporter("t", min_bytes_per_file=1, max_file_delay_ms=600_000) as exporter:
            size = (await exporter.run()).files[0].bytes
        assert size > 10
        async with world.exporter(
            "t", min_bytes_per_file=size, max_file_delay_ms=600_000
        ) as exporter:
            world.fill(0, 10)
            assert (await exporter.run()).rows == 10, "a new exporter knows no sizes"
            world.fill(0, 4)
            run = await exporter.run()
            assert (run.rows, run.waiting) == (0, 4)
            await trio.sleep(600)
            assert (await exporter.run()).rows == 4
        world.check_whole()


async def test_files_of_few_records_wait(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        world = World(cluster, tmp_path / "out")
        async with world.exporter(
            "t", min_records_per_file=5, max_file_delay_ms=600_000
        ) as exporter:
            world.fill(0, 7)
            world.fill(1, 2)
            result = await exporter.run()
            assert (result.rows, result.waiting) == (7, 2)
            world.fill(0, 1)
            result = await exporter.run()
            assert (result.already_done, result.rows, result.waiting) == (True, 0, 3)
            world.fill(0, 4)
            result = await exporter.run()
            assert (result.rows, result.waiting) == (5, 2)
            await trio.sleep(600)
            result = await exporter.run()
            assert (result.rows, result.waiting) == (2, 0)
        world.check_whole()


async def test_next_exporter_takes_what_waited(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The records that waited when the first one ended are neither lost nor doubled."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        world = World(cluster, tmp_path / "out")
        world.fill(0, 7)
        world.fill(1, 2)
        assert (await world.export(min_records_per_file=5)).rows == 7
        assert (await world.export()).rows == 2
        world.check_whole()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"min_records_per_file": 0}, "min_records_per_file must be a whole number of at least 1"),
        ({"min_bytes_per_file": 0}, "min_bytes_per_file must be a whole number of at least 1"),
        ({"max_file_delay_ms": -1}, "max_file_delay_ms must be a whole number of at least 0"),
        (
            {"min_records_per_file": 11, "max_records_per_file": 10},
            r"\(11\) must not be above max_records_per_file \(10\)",
        ),
    ],
)
async def test_contradictory_limits_are_refused(
    given: dict[str, int], says: str, tmp_path: Path
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        with pytest.raises(ConfigurationError, match=says):
            await World(cluster, tmp_path).export(**given)
