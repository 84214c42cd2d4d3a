"""Topics added to a destination of other topics, and checks that name a topic that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from export_sinks import LinesPlugin
from test_flow import World, world
from trikafka_export.plan import listed, topics_of
from trio.testing import MockClock

from trikafka import ConfigurationError, ExportError, check_export
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
