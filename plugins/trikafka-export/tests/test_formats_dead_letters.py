"""Dead letters: on the disk as they arrive, of any size, and never into an exported topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from trikafka_export.columns import SCHEMA
from trikafka_export.directory_pieces import RangeWork
from trikafka_export.formats.dead_letters import FileLetters, _record, room_for
from trikafka_export.formats.parsing import rows_of
from trikafka_export.sink import FileSink
from trikafka_export.sink_options import sink_options

from trikafka import ConfigurationError, OffsetRange
from trikafka.interfaces import ExportPlan, ExportState, PlannedRange

PLANNED = PlannedRange("t", 0, 0, 1_000, "t.parquet")


def row(offset: int, value: bytes = b"x") -> dict[str, Any]:
    return {
        "topic": "t",
        "partition": 0,
        "offset": offset,
        "timestamp": None,
        "key": None,
        "value": value,
        "headers": None,
    }


def test_letters_are_on_disk_until_dropped(
    tmp_path: Path,
) -> None:
    """Dead letters are on the disk as they arrive, and removed with their piece."""
    letters = FileLetters(RangeWork(tmp_path, 1, PLANNED, folder=tmp_path))
    letters.add([])
    assert not list(tmp_path.iterdir())
    letters.add([(row(0, b"x" * 1_000), "no"), (row(1), "no")])
    (path,) = tmp_path.iterdir()
    assert (letters.count, letters.bytes) == (2, path.stat().st_size)
    letters.add([(row(2), "\u4e00")])
    assert (letters.count, letters.bytes) == (3, path.stat().st_size)
    letters.drop()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        (0, "1970-01-01T00:00:00+00:00"),
        (1_700_000_000_123_000, "2023-11-14T22:13:20.123000+00:00"),
        (-1, "1969-12-31T23:59:59.999999+00:00"),
        (1_700_000_000_000_000_000, "+55840-11-08T22:13:20+00:00"),
        (-100_000_000_000_000_000, "-1199-02-15T14:13:20+00:00"),
    ],
)
def test_time_of_a_letter_may_be_in_any_year(tmp_path: Path, time: int, shown: str) -> None:
    """A producer may send microseconds in the place of milliseconds."""
    columns = {name: [value] for name, value in (row(0) | {"timestamp": time}).items()}
    records = pa.table(columns, schema=SCHEMA.remove(SCHEMA.get_field_index("timestampType")))
    (letter,) = rows_of(records)
    letters = FileLetters(RangeWork(tmp_path, 1, PLANNED, folder=tmp_path))
    letters.add([(letter, "no")])
    letters.staged(0)
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["timestamp"] == shown
    headers = dict(_record(letter, "no")["headers"])
    assert headers["trikafka.timestamp"] == b"%d" % (time // 1_000)
    assert not {"trikafka.group", "trikafka.traceback"} & headers.keys()


def test_letters_become_one_file_of_the_piece(tmp_path: Path) -> None:
    letters = FileLetters(RangeWork(tmp_path, 1, PLANNED, folder=tmp_path))
    letters.add([(row(0), "no")])
    letters.add([(row(1), "no")])
    file = letters.staged(0)
    assert file is not None
    assert (file.name, file.rows, file.bytes, file.data) == (
        "_dead_letters/t.jsonl",
        2,
        letters.bytes,
        False,
    )
    letters.drop()
    assert (tmp_path / file.staged).exists(), "it is the piece's now"


def test_producer_takes_records_of_any_size() -> None:
    """The producer of dead letters accepts records as large as those of the topic."""

    def record(size: int) -> dict[str, Any]:
        return {"key": None, "value": bytes(size), "headers": [("h", None)]}

    assert room_for([record(10_000)]) == {}
    found = room_for([record(10), record(5_000_000)])
    assert list(found) == ["max_request_size"]
    assert found["max_request_size"] > 5_000_000
    assert set(room_for([record(100_000_000)])) == {"max_request_size", "buffer_memory"}


async def test_exported_topic_gets_no_letters(
    tmp_path: Path,
) -> None:
    """A dead-letter topic that is itself exported is refused, even without new records."""
    options = sink_options(
        {"value_format": "json", "value_schema": {"n": "int64"}, "dead_letter_topic": "dead"}
    )
    sink = FileSink(tmp_path, options)
    with pytest.raises(ConfigurationError, match="'dead' is itself exported"):
        await sink.pin(ExportState(), [OffsetRange("dead", 0, 0, 1)], {})
    with pytest.raises(ConfigurationError, match="'dead' is itself exported"):
        await sink.pin(ExportState(topic_ids={"t": None, "dead": None}), [], {})
    plan = ExportPlan(
        1, "id", "now", None, {"t": None, "dead": None}, "read_committed", (PLANNED,), {}, {}, ()
    )
    with pytest.raises(ConfigurationError, match="'dead' is itself exported"):
        await sink.write(plan, plan.ranges, {}, lambda *_: None)
