"""A piece with parsed keys and values, as a Parquet file and dead letters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_formats_avro import INNER, encoded, field, logical, record
from test_formats_protobuf import everything, made, schema_of
from trikafka_export.columns import SCHEMA
from trikafka_export.directory_pieces import RangeWork
from trikafka_export.formats import parsing
from trikafka_export.formats.range_parsing import RangeParsing
from trikafka_export.piece_log import ExportPiece
from trikafka_export.pieces import PieceWriter, Shape

from trikafka.interfaces import PlannedRange

PLANNED = PlannedRange("t", 0, 0, 1_000, "t.parquet")
VALUE = record(
    field("n", "long"),
    field("in", ["null", INNER]),
    field("at", logical("long", "timestamp-micros")),
    field("price", logical("bytes", "decimal", precision=9, scale=2)),
    field("tags", {"type": "map", "values": ["null", "string"]}),
    field("many", {"type": "array", "items": record(field("x", "int"), name="Item")}),
    field("kind", {"type": "enum", "name": "Kind", "symbols": ["A"]}),
)


def written(
    root: Path, format: dict[str, Any], records: list[tuple[bytes | None, bytes | None]]
) -> tuple[ExportPiece, pa.Table]:
    (root / "work").mkdir()
    writer = PieceWriter(
        RangeWork(root, 1, PLANNED, folder=root / "work"),
        PLANNED,
        0,
        Shape(),
        format,
        RangeParsing.of(format, "t"),
    )
    rows = [
        {
            "key": key,
            "value": value,
            "topic": "t",
            "partition": 0,
            "offset": offset,
            "timestamp": 1,
            "headers": None,
        }
        for offset, (key, value) in enumerate(records)
    ]
    writer._write(pa.Table.from_pylist(rows, schema=SCHEMA))
    piece, _ = writer.finish(1_000)
    (file,) = (each for each in piece.files if each.data)
    return piece, pq.ParquetFile(root / file.name).read()


@pytest.mark.parametrize("at_once", [1, 2, 32_768])
def test_avro_values_and_keys_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(parsing, "_MOST_AT_ONCE", at_once)
    value = {
        "n": 1,
        "in": {"x": 0.5},
        "at": 5,
        "price": "1.25",
        "tags": {"k": None},
        "many": [{"x": 1}],
        "kind": "A",
    }
    as_text = (
        {**each, "type": "string" if each["name"] == "price" else each["type"]}
        for each in VALUE["fields"]
    )
    data = encoded(record(*as_text), value)
    data = data.replace(b"\x081.25", b"\x02\x7d")  # as a decimal: 125 hundredths
    format = {
        "value": "avro",
        "schemas": {"t": {"schema": VALUE}},
        "key": "avro",
        "key_schemas": {"t": {"schema": "string"}},
    }
    records = [
        (b"\x04ab", data),
        (None, None),
        (b"\x04ab", b"junk"),
        (b"junk", data),
        (b"\x04ab", None),
    ]
    piece, table = written(tmp_path, format, records)
    assert piece.dead_letters == 2
    assert table["offset"].to_pylist() == [0, 1, 4]
    assert table["key"].to_pylist() == ["ab", None, "ab"]
    first, *rest = table["value"].to_pylist()
    assert rest == [None, None]
    assert (first["n"], first["in"], str(first["price"]), first["many"]) == (
        1,
        {"x": 0.5},
        "1.25",
        [{"x": 1}],
    )
    assert (first["tags"], first["kind"], first["at"].isoformat()) == (
        [("k", None)],
        "A",
        "1970-01-01T00:00:00.000005+00:00",
    )
    lines = [
        json.loads(line)
        for line in (tmp_path / "_dead_letters" / "t.jsonl").read_text().splitlines()
    ]
    assert [line["offset"] for line in lines] == [2, 3]
    assert lines[1]["error"].startswith("key: ")


@pytest.mark.parametrize("at_once", [3, 32_768])
def test_protobuf_values_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(parsing, "_MOST_AT_ONCE", at_once)
    schema = schema_of(everything())
    message = made(schema)(a_int64=5, maybe="x", numbers=[1])
    message.pairs["k"].x = 1
    message.at.seconds = 1
    format = {"value": "protobuf", "schemas": {"t": schema.pinned()}}
    piece, table = written(
        tmp_path,
        format,
        [(b"k", message.SerializeToString()), (b"k", None), (b"k", b"\xff"), (b"k", b"")],
    )
    assert (piece.dead_letters, table["offset"].to_pylist()) == (1, [0, 1, 3])
    first, none, empty = table["value"].to_pylist()
    assert (first["a_int64"], first["pairs"], first["numbers"]) == (5, [("k", {"x": 1.0})], [1])
    assert none is None
    assert (empty["a_int64"], empty["at"], empty["inner"]) == (0, None, None)


def test_unreadable_piece_has_no_data_file(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    format = {"value": "avro", "schemas": {"t": {"schema": "string"}}}
    writer = PieceWriter(
        RangeWork(tmp_path, 1, PLANNED, folder=tmp_path / "work"), PLANNED, 0, Shape(), format
    )
    row = {
        "key": None,
        "value": b"\xff",
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": None,
    }
    row["headers"] = [{"key": "h", "value": None}]
    rows = writer._write(pa.Table.from_pylist([row] * 3, schema=SCHEMA))
    piece, _ = writer.finish(1_000)
    assert (rows, piece.dead_letters, [file.data for file in piece.files]) == (3, 3, [False])


def test_key_of_several_fields_is_written(tmp_path: Path) -> None:
    schema = record(field("a", "int"), field("b", "string"))
    format = {
        "value": "binary",
        "key": "avro",
        "key_schemas": {"t": {"schema": schema}},
        "partition_by": ["topic"],
    }
    _, table = written(
        tmp_path, format, [(encoded(schema, {"a": 1, "b": "x"}), b"v"), (None, b"w")]
    )
    assert table["key"].to_pylist() == [{"a": 1, "b": "x"}, None]
    assert table["value"].to_pylist() == [b"v", b"w"]
