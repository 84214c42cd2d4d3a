"""Topics added to a destination of other topics, and checks that name a topic that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from export_sinks import LinesPlugin
from test_flow import World, manifest_of, world
from trikafka_export.plan import listed, topics_of
from trio.testing import MockClock

from trikafka import ConfigurationError, ExportError, ExportIncompleteError, check_export
from trikafka.interfaces import ExportState

__all__ = ["world"]


async def test_additional_topic_is_logged_once(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Some users want it, others made a mistake."""
    await world.export(["t"])
    world.cluster.append("other", 0, [b"x"])
    await world.export(["t", "other"])
    world.cluster.append("other", 0, [b"y"])
    await world.export(["other"])
    lines = [record.getMessage() for record in caplog.records if "beside" in record.getMessage()]
    assert lines == [
        f"lines://{world.root} holds an export of t, and gets other beside it: its readers see "
        "both (column topic)"
    ]


async def test_topics_exported_together_are_not_logged(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.export(["t", "other"])
    world.cluster.append("other", 0, [b"x"])
    await world.export(["t", "other"])
    assert "beside" not in caplog.text


def test_many_topics_are_shortened() -> None:
    state = ExportState(last_number=1, topic_ids={f"t{number}": None for number in range(8)})
    assert listed(topics_of(state)) == "t0, t1, t2, t3, t4 and 3 more"


async def test_check_of_no_topics_finds_no_export(tmp_path: Path) -> None:
    for none in ((), [], frozenset()):
        with pytest.raises(ExportError, match="holds no export"):
            await check_export(tmp_path, topics=none)


async def test_check_of_an_empty_name_is_refused(tmp_path: Path) -> None:
    wrong: Any = [""]
    with pytest.raises(ConfigurationError, match="names of one or more topics"):
        await check_export(f"lines://{tmp_path}", topics=wrong, plugins=[LinesPlugin()])


async def test_loss_in_an_added_partition_is_reported(
    autojump_clock: MockClock, world: World
) -> None:
    """Retention deletes records of a partition that was added after the topic's first export."""
    await world.export()
    world.cluster.add_partitions("t", 3)
    world.fill(2, 9)
    world.cluster.delete_records("t", 2, 4)
    with pytest.raises(ExportIncompleteError, match=r"gone from the log: t-2 \[0, 4\)"):
        await world.export()
    result = await world.export(fail_on_data_loss=False)
    assert [(lost.partition, lost.start, lost.end) for lost in result.lost] == [(2, 0, 4)]
    assert [(file.planned.partition, file.start) for file in result.files] == [(2, 4)]
    assert (await world.export()).already_done


async def test_old_gap_of_a_late_partition_is_no_loss(
    autojump_clock: MockClock, world: World
) -> None:
    """Records that were gone before the first export are not lost by it.

    One partition has no leader at the first export, so the destination has no position of it.
    """
    world.cluster.delete_records("t", 1, 4)
    world.cluster.move_leader("t", 1, None)
    with pytest.raises(ExportIncompleteError):
        await world.export(task_timeout_ms=0)
    assert manifest_of(world.root, 1)["partitions"] == {"t": 2}
    world.cluster.move_leader("t", 1, 0)
    result = await world.export()
    assert (result.rows, result.lost) == (3, ())
