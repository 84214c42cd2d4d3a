"""Topics that come into a destination of others, and a check that names one which is not there, over a scripted cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from export_sinks import LinesPlugin
from test_export_flow import World, world

from trikafka import ConfigurationError, ExportError, check_export
from trikafka._api.export_plan import listed, topics_of
from trikafka.interfaces import ExportState

__all__ = ["world"]


async def test_a_topic_that_comes_beside_another_is_told_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It is what some want, and a slip of others: before, there was no word."""
    await world.export(["t"])
    world.cluster.append("other", 0, [b"x"])
    await world.export(["t", "other"])
    world.cluster.append("other", 0, [b"y"])
    await world.export(["other"])
    lines = [record.getMessage() for record in caplog.records if "beside" in record.getMessage()]
    assert lines == [
        f"lines://{world.root} holds an export of t, and gets other beside it: who reads all of it gets both (column topic)"
    ]


async def test_topics_that_begin_together_are_no_news(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.export(["t", "other"])
    world.cluster.append("other", 0, [b"x"])
    await world.export(["t", "other"])
    assert "beside" not in caplog.text


def test_many_topics_are_told_in_a_few() -> None:
    state = ExportState(last_number=1, topic_ids={f"t{number}": None for number in range(8)})
    assert listed(topics_of(state)) == "t0, t1, t2, t3, t4 and 3 more"


async def test_a_check_of_whatever_there_is(tmp_path: Path) -> None:
    for none in ((), [], frozenset()):
        with pytest.raises(ExportError, match="holds no export"):
            await check_export(tmp_path, topics=none)


async def test_a_check_of_no_name(tmp_path: Path) -> None:
    wrong: Any = [""]
    with pytest.raises(ConfigurationError, match="names of one or more topics"):
        await check_export(f"lines://{tmp_path}", topics=wrong, plugins=[LinesPlugin()])
