"""Bytes that expand: columns have room for missing values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from test_formats_avro import encoded, field, record
from test_formats_pieces import PLANNED
from test_formats_protobuf import MANY, a_file, add, made, schema_of
from trikafka_export.columns import SCHEMA
from trikafka_export.directory_pieces import RangeWork
from trikafka_export.formats import sizes
from trikafka_export.formats.avro_format import AvroDecoder
from trikafka_export.formats.avro_types import AvroSchema
from trikafka_export.formats.json_format import JsonDecoder
from trikafka_export.formats.protobuf_format import ProtobufDecoder
from trikafka_export.formats.sizes import Sizes, width
from trikafka_export.pieces import PieceWriter, Shape

WIDE = record(*(field(f"f{number}", "long") for number in range(200)), name="Wide")


def test_width_of_a_row_is_estimated() -> None:
    assert width(pa.int64()) == 8.125
    assert (
        width(pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())]))
        == 0.125 + 4.125 + 4.125
    )
    assert width(pa.list_(pa.int64())) == 4.125
    assert (
        Sizes(pa.list_(pa.struct([pa.field("m", pa.map_(pa.string(), pa.float64()))])), 10).item
        == 12.25
    )
    assert Sizes(pa.int64(), 10).rows == 10
    assert Sizes(pa.struct([pa.field(str(n), pa.int64()) for n in range(10_000)]), 8192).rows == 412


def test_parts_are_cut_before_large_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MOST_OF_A_VALUE", 100)
    column = pa.array([b"12", b"1" * 50, b"1", b"", b"1" * 8, b"12345"])
    found = [
        (at, len(part), large) for at, part, large in Sizes(pa.list_(pa.int64()), 4).parts(column)
    ]
    assert found == [(0, 1, False), (1, 1, True), (2, 2, False), (4, 1, False), (5, 1, False)]


def test_wide_null_records_take_little_memory(tmp_path: Path) -> None:
    """Null records take little memory: read at once, 200 kB of values would be 340 MB of arrays."""
    (tmp_path / "work").mkdir()
    format = {"value": "avro", "schemas": {"t": {"schema": ["null", WIDE]}}}
    work = RangeWork(tmp_path, 1, PLANNED, folder=tmp_path / "work")
    writer = PieceWriter(work, PLANNED, 0, Shape(), format)
    count = 200_000
    columns: dict[str, Any] = {
        name: pa.nulls(count, SCHEMA.field(name).type) for name in SCHEMA.names
    }
    columns |= {
        "value": pa.array([b"\0"] * count),
        "offset": pa.array(range(count)),
        "topic": pa.array(["t"] * count),
    }
    before, most = pa.total_allocated_bytes(), [0]
    parse = writer._parser.parse  # type: ignore[union-attr]

    def parsed(table: pa.Table) -> Any:
        most[0] = max(most[0], pa.total_allocated_bytes() - before)
        return parse(table)

    writer._parser.parse = parsed  # type: ignore[method-assign, union-attr]
    writer._write(pa.table({name: columns[name] for name in SCHEMA.names}, schema=SCHEMA))
    piece, _ = writer.finish(1_000)
    assert sum(file.rows for file in piece.files) == count
    assert most[0] < 150_000_000


def test_value_of_huge_lists_is_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A value whose lists would take too much memory is a dead letter, in each format."""
    monkeypatch.setattr(sizes, "MOST_OF_A_VALUE", 1_000_000)
    schema = {"type": "array", "items": ["null", WIDE]}
    values = [encoded(schema, [None] * count) for count in (3, 2_000, 300)]
    array, bad = AvroDecoder(AvroSchema(schema)).decode(pa.array(values))
    assert [None if row is None else len(row) for row in array.to_pylist()] == [3, None, 300]
    assert bad == {
        1: "its lists and maps would take 3 MiB or more as columns of this type, which is too much"
    }

    decoder = JsonDecoder({"a": [{f"f{number}": "int64" for number in range(200)}]})
    texts = [b'{"a": [' + b",".join([b"{}"] * count) + b"]}" for count in (3, 2_000, 300)]
    array, bad = decoder.decode(pa.array(texts))
    assert [None if row is None else len(row["a"]) for row in array.to_pylist()] == [3, None, 300]
    assert "too much" in bad[1]

    file = a_file()
    inner = file.message_type.add(name="Inner")
    for number in range(200):
        add(inner, f"f{number}", "int64")
    add(file.message_type.add(name="M"), "inners", ".p.Inner", MANY)
    proto = ProtobufDecoder(schema_of(file))
    array, bad = proto.decode(pa.array([b"\x0a\0" * count for count in (3, 2_000, 300)]))
    assert [None if row is None else len(row["inners"]) for row in array.to_pylist()] == [
        3,
        None,
        300,
    ]
    assert "too much" in bad[1]


def test_groups_do_not_hide_a_long_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long list counts behind an unknown group, and in a known one (proto2)."""
    monkeypatch.setattr(sizes, "MOST_OF_A_VALUE", 1_000_000)
    file = a_file()
    file.syntax = "proto2"
    inner = file.message_type.add(name="Inner")
    for number in range(200):
        add(inner, f"f{number}", "int64")
    message = file.message_type.add(name="M")
    add(message, "inners", ".p.Inner", MANY)
    add(message.nested_type.add(name="G"), "inners", ".p.Inner", MANY)
    kind = descriptor_pb2.FieldDescriptorProto.TYPE_GROUP
    message.field.add(name="g", number=2, label=1, type=kind, type_name=".p.M.G")
    decoder = ProtobufDecoder(schema_of(file))
    unknown = b"\x9b\x06\x08\x01\x13\x14\x9c\x06"  # field 99: a group with a group in it
    few, many = b"\x0a\0" * 3, b"\x0a\0" * 2_000
    values = [unknown + few, unknown + many, b"\x13" + many + b"\x14", b"\x13" + few + b"\x14"]
    array, bad = decoder.decode(pa.array(values))
    assert len(array[0].as_py()["inners"]) == len(array[3].as_py()["g"]["inners"]) == 3
    assert bad.keys() == {1, 2}
    assert all("too much" in why for why in bad.values())


def test_long_lists_of_small_items_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Long lists of small items are read, also beside lists of large items."""
    monkeypatch.setattr(sizes, "MOST_OF_A_VALUE", 1_000_000)
    numbers = list(range(20_000))
    wide = field("wide", {"type": "array", "items": ["null", WIDE]})
    maps = field(
        "m", {"type": "map", "values": ["null", "string", {"type": "array", "items": "int"}]}
    )
    schema = record(field("n", {"type": "array", "items": "int"}), wide, maps)
    value = {"n": numbers, "wide": [None], "m": {"a": [1, 2], "b": "x"}}
    array, bad = AvroDecoder(AvroSchema(schema)).decode(pa.array([encoded(schema, value)] * 2))
    assert (array.field("n").to_pylist(), bad) == ([numbers] * 2, {})

    spec = {"n": ["int64"], "wide": [{f"f{number}": "int64" for number in range(200)}]}
    text = (
        b'{"n": [' + b",".join(b"%d" % number for number in numbers) + b'], "wide": [{"f1": null}]}'
    )
    array, bad = JsonDecoder(spec).decode(pa.array([text]))
    assert (array.field("n").to_pylist(), bad) == ([numbers], {})

    file = a_file()
    inner = file.message_type.add(name="Inner")
    for number in range(200):
        add(inner, f"f{number}", "int64")
    message = file.message_type.add(name="M")
    add(message, "inners", ".p.Inner", MANY)
    add(message, "n", "int32", MANY)
    add(message, "texts", "string", MANY)
    proto = schema_of(file)
    data = made(proto)(n=numbers, inners=[{}], texts=["x" * 100_000]).SerializeToString()
    array, bad = ProtobufDecoder(proto).decode(pa.array([data]))
    assert (array.field("n").to_pylist(), bad) == ([numbers], {})
