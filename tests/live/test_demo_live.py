"""The demo at small size, by the same code, on the shared broker.

The demo's own checks are the assertions.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import trio
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from flights import demo, reading, source
from flights.display import Screen

FLIGHTS, MORE = 3_000, 100


def options(servers: str, output: Path, **others: Any) -> demo.Options:
    name = uuid.uuid4().hex
    return demo.Options(
        output=output,
        limit=FLIGHTS,
        more=MORE,
        servers=servers,
        topic=f"flights-{name}",
        group=name,
        export_group=f"{name}-x",
        **others,
    )


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    # A busy machine may read nothing for half a minute, which the demo takes for a loss.
    monkeypatch.setattr(reading, "_PATIENCE", 240.0)
    return Screen(Console(file=sys.stdout, force_terminal=False))


async def test_every_comparison_of_the_demo_is_equal(
    kafka_broker: Any, tmp_path: Path, screen: Screen
) -> None:
    await demo.run(options(kafka_broker.bootstrap_servers, tmp_path), screen)
    assert [check for check in screen.checks if not check.ok] == []
    assert screen.ok
    found = {check.what: check.found for check in screen.checks}
    assert found["records read"] == FLIGHTS
    assert found["rows of the new files"] == MORE
    assert found["rows in Parquet"] == FLIGHTS + MORE
    assert (tmp_path / "flights.png").read_bytes().startswith(b"\x89PNG")


async def test_changed_record_is_reported(
    kafka_broker: Any, tmp_path: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks of the demo can fail.

    Here one value of the expected records differs from the written one.
    """
    chosen = options(kafka_broker.bootstrap_servers, tmp_path)
    write = demo.writing.write

    async def write_and_change(servers: str, flights: source.Flights, *others: Any) -> None:
        await write(servers, flights, *others)
        flights.values[17] = b"{}"

    monkeypatch.setattr(demo.writing, "write", write_and_change)
    monkeypatch.setattr(demo, "_export", trio_nothing)
    monkeypatch.setattr(demo, "_export_more", trio_nothing)
    monkeypatch.setattr(demo, "_read_back", trio_nothing)
    await demo.run(chosen, screen)
    wrong = {check.what: check.found for check in screen.checks if not check.ok}
    assert wrong == {"records unlike what was written": 1}
    assert not screen.ok


async def test_second_demo_keeps_the_first_ones_files(tmp_path: Path, screen: Screen) -> None:
    (tmp_path / "flights").mkdir()
    (tmp_path / "flights" / "part").write_text("the first one's")
    with (
        demo._ours(tmp_path),
        pytest.raises(demo.OutputInUseError, match=r"another demo is writing to .*--output"),
    ):
        await demo.run(options("localhost:1", tmp_path), screen)
    assert (tmp_path / "flights" / "part").exists()


async def trio_nothing(*_: object) -> None:
    await trio.lowlevel.checkpoint()


def test_missing_fields_are_null() -> None:
    flights = source.load(1_000)
    assert len(flights) == 1_000
    assert b'"dep_time":null' in b"".join(flights.values)
    assert b"NaN" not in b"".join(flights.values)
    assert flights.values[0].startswith(b'{"year":2013,"month":1,"day":1,"dep_time":517,')
    assert flights.values[0].endswith(b'"time_hour":"2013-01-01T10:00:00Z"}')
    assert flights.timestamps[0] == 1357034400000
    assert flights.keys[0] == b"UA"
