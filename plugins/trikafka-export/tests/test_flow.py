"""The way of an export with a scripted cluster: its files, their order, and interruptions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from export_sinks import LinesPlugin, LinesSink, names_in, read_lines
from trio.testing import MockClock

from trikafka import (
    ConfigurationError,
    ExportError,
    ExportProgress,
    ExportResult,
    PluginError,
    TopicPartition,
    export,
    open_exporter,
)
from trikafka.testing import ScriptedCluster, control_batch

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Killed(BaseException):
    """The end of the process."""


class World:
    """A cluster with a topic of two partitions, and a destination."""

    def __init__(self, cluster: ScriptedCluster, root: Path) -> None:
        self.cluster = cluster
        self.root = root
        self.stages: list[str] = []
        self.kill_at: str | None = None

    def tell(self, progress: ExportProgress) -> None:
        self.stages.append(progress.stage)
        if progress.stage == self.kill_at:
            raise Killed

    async def export(
        self,
        topics: str | list[str] = "t",
        before_file: Callable[[int], None] | None = None,
        **more: Any,
    ) -> ExportResult:
        with trio.fail_after(10_000):
            async with self.exporter(topics, before_file, **more) as exporter:
                return await exporter.run()

    async def abandon(self) -> ExportResult:
        async with self.exporter("t") as exporter:
            return await exporter.abandon()

    def exporter(self, topics: str | list[str], before_file: Any = None, **more: Any) -> Any:
        plugin = LinesPlugin(before_file) if before_file else LinesPlugin()
        settings = {
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "dial": self.cluster.dial,
            "plugins": [plugin],
        }
        return open_exporter(
            topics,
            f"lines://{self.root}",
            on_progress=lambda step: self.tell(step),
            **settings,
            **more,
        )

    def fill(self, partition: int, count: int) -> None:
        log = self.cluster.partition("t", partition)
        self.cluster.append(
            "t", partition, [f"{partition}/{log.end + i}".encode() for i in range(count)]
        )

    def check_whole(self) -> None:
        """Check that every record is in the files exactly once, and that no other file is left."""
        rows = sorted(read_lines(self.root))
        expected = sorted(
            (record.partition, record.offset, (record.value or b"").decode())
            for partition in (0, 1)
            for record in self.cluster.records("t", partition)
        )
        assert rows == expected
        assert {name for name in names_in(self.root) if "json" not in name} == {"_trikafka/lock"}


@pytest.fixture
async def world(tmp_path: Path, autojump_clock: MockClock) -> Any:
    async with ScriptedCluster(topics={"t": 2, "other": 1}) as cluster:
        made = World(cluster, tmp_path / "out")
        made.fill(0, 25)
        made.fill(1, 7)
        yield made


def manifest_of(root: Path, number: int) -> Any:
    return json.loads((root / "_trikafka" / f"manifest-{number:06d}.json").read_text())


async def test_second_export_writes_only_new_records(
    autojump_clock: MockClock, world: World
) -> None:
    first = await world.export(max_records_per_file=10, group_id="g")
    assert (first.rows, len(first.files), first.already_done, first.resumed) == (
        32,
        4,
        False,
        False,
    )
    assert world.stages == [
        "planned",
        "writing",
        "writing",
        "writing",
        "writing",
        "written",
        "published",
        "committed",
    ]
    assert (
        first.positions
        == {T0: 25, T1: 7}
        == {tp: world.cluster.committed("g", tp).offset for tp in (T0, T1)}
    )  # type: ignore[union-attr]
    before = names_in(world.root)

    again = await world.export(group_id="g")
    assert again.already_done
    assert (again.rows, again.plans, again.committed) == (0, (), {})
    assert names_in(world.root) == before

    world.fill(1, 5)
    more = await world.export(group_id="g")
    assert [
        (file.planned.partition, file.planned.start, file.planned.end) for file in more.files
    ] == [(1, 7, 12)]
    assert world.cluster.committed("g", T1).offset == 12  # type: ignore[union-attr]
    world.check_whole()


@pytest.mark.parametrize("stage", ["planned", "writing", "written", "published", "committed"])
async def test_killed_export_is_finished_by_the_next(
    autojump_clock: MockClock, world: World, stage: str
) -> None:
    world.kill_at = stage
    with pytest.raises(Killed):
        await world.export(max_records_per_file=10, group_id="g")
    assert ("_trikafka/manifest-000001.json" in names_in(world.root)) is (
        stage in ("published", "committed")
    )
    world.fill(0, 3)
    world.kill_at = None
    result = await world.export(max_records_per_file=1000, group_id="g")
    assert result.resumed is (stage not in ("published", "committed"))
    assert [file.planned.start for file in result.files if file.planned.partition == 0][-1] == 25, (
        "new records, in a new plan"
    )
    world.check_whole()
    committed = [world.cluster.committed("g", tp) for tp in (T0, T1)]
    assert [each.offset for each in committed if each is not None] == [28, 7]


async def test_offsets_are_committed_after_a_kill(autojump_clock: MockClock, world: World) -> None:
    """A killed export published but did not commit.

    The next commits although there are no new records.
    """
    world.kill_at = "published"
    with pytest.raises(Killed):
        await world.export(group_id="g")
    assert world.cluster.committed("g", T0) is None
    result = await world.export(group_id="g")
    assert result.already_done
    assert result.committed == {T0: 25, T1: 7}


async def test_failed_commit_keeps_the_published_data(
    autojump_clock: MockClock, world: World
) -> None:
    """The error says that the data is published."""
    world.cluster.fail("OffsetCommit", 30)
    with pytest.raises(ExportError, match="published, but the offsets of group 'g'") as caught:
        await world.export(group_id="g")
    assert caught.value.__cause__ is not None
    assert (await world.export(group_id="g")).already_done


async def test_cancelled_export_is_finished_by_the_next(
    autojump_clock: MockClock, world: World
) -> None:
    with trio.CancelScope() as scope:
        await world.export(
            max_records_per_file=10,
            before_file=lambda index: scope.cancel() if index == 2 else None,
        )
    assert scope.cancelled_caught
    assert (await world.export()).resumed
    world.check_whole()


async def test_error_of_the_sink_is_unchanged(autojump_clock: MockClock, world: World) -> None:
    """The next export goes on."""

    def fail(index: int) -> None:
        raise ExportError("the disk is full")

    with pytest.raises(ExportError, match="the disk is full"):
        await world.export(before_file=fail)
    await world.export()
    world.check_whole()


async def test_concurrent_export_is_refused(autojump_clock: MockClock, world: World) -> None:
    async with LinesSink(world.root):
        with pytest.raises(ExportError, match=r"another export to .* is at work"):
            await world.export()
    await world.export()
    world.check_whole()


async def test_empty_range_is_only_in_the_manifest(autojump_clock: MockClock, world: World) -> None:
    """A range without records has no file."""
    world.cluster.append_batch("other", 0, control_batch(1, 0, commit=True, timestamp=0))
    result = await world.export(["t", "other"])
    assert [file for file in result.files if file.planned.topic == "other"] == []
    (other,) = [each for each in manifest_of(world.root, 1)["ranges"] if each["topic"] == "other"]
    assert (other["rows"], other["files"], other["reached"]) == (0, [], 1)
    assert (await world.export(["t", "other"])).already_done


async def test_records_lost_to_retention_are_an_error(
    autojump_clock: MockClock, world: World
) -> None:
    """They are accepted with ``fail_on_data_loss=False``."""
    await world.export()
    world.fill(0, 10)
    world.cluster.delete_records("t", 0, 30)
    with pytest.raises(ExportError, match=r"gone from the log: t-0 \[25, 30\)"):
        await world.export()
    result = await world.export(fail_on_data_loss=False)
    assert [(file.planned.start, file.planned.end, file.rows) for file in result.files] == [
        (30, 35, 5)
    ]


async def test_start_of_the_first_export_is_chosen(autojump_clock: MockClock, world: World) -> None:
    result = await world.export(start={T0: 20})
    assert [(file.planned.partition, file.planned.start) for file in result.files] == [
        (0, 20),
        (1, 0),
    ]


async def test_start_by_time_begins_at_that_time(autojump_clock: MockClock, world: World) -> None:
    world.cluster.append("t", 0, [(None, b"young", 5_000_000_000_000)])
    result = await world.export(start=4_000_000_000_000)
    assert [(file.planned.partition, file.planned.start) for file in result.files] == [(0, 25)]


async def test_another_cluster_is_refused(autojump_clock: MockClock, world: World) -> None:
    await world.export()
    async with ScriptedCluster(topics={"t": 2}, cluster_id="elsewhere") as cluster:
        with pytest.raises(ExportError, match="from another cluster"):
            await World(cluster, world.root).export()


async def test_topic_that_ends_too_early_is_refused(
    autojump_clock: MockClock, world: World
) -> None:
    await world.export()
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        with pytest.raises(
            ExportError, match="t-0 ends at offset 0, but the export is to go on from 25"
        ):
            await World(cluster, world.root).export()


async def test_missing_topic_is_named(autojump_clock: MockClock, world: World) -> None:
    """Nothing is left in the destination."""
    with pytest.raises(ExportError, match="topic 'nope' does not exist"):
        await world.export("nope")
    assert not world.root.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topics": []}, "names of one or more topics"),
        (
            {"topics": ["./flights"]},
            "'./flights' cannot be a topic's name: the topics come first, the destination last",
        ),
        ({"max_records_per_file": 0}, "max_records_per_file"),
        ({"start": "latest"}, "start must be"),
        ({"start": -5}, "start must be a whole number from 0 to"),
        ({"auto_offset_reset": "latest"}, "auto_offset_reset is not a setting of an export"),
        ({"bootstrap_server": "x:1"}, "did you mean 'bootstrap_servers'"),
    ],
)
async def test_wrong_arguments_are_refused_early(
    autojump_clock: MockClock, world: World, arguments: dict[str, Any], message: str
) -> None:
    """Nothing is written."""
    with pytest.raises(ConfigurationError, match=message):
        await world.export(**arguments)
    assert not world.root.exists()


async def test_destination_without_a_plugin_is_named(
    autojump_clock: MockClock, world: World
) -> None:
    with pytest.raises(PluginError, match="no plugin writes exports to 'teapot' destinations"):
        await export("t", "teapot://x", bootstrap_servers="localhost:1")
