"""Avro as Arrow columns: each type, changing schemas, and bytes that are not Avro.

The reference is fastavro's own writer.
"""

from __future__ import annotations

import io
import math
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st
from trikafka_export.formats.avro_format import AvroDecoder
from trikafka_export.formats.avro_types import AvroSchema
from trikafka_export.formats.column_bytes import OddError
from trikafka_export.formats.errors import SchemaError

NOW = datetime(2024, 2, 29, 12, 30, 15, 123456, UTC)
INNER = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "float"}]}


def logical(type: str, named: str, **more: Any) -> dict[str, Any]:
    return {"type": type, "logicalType": named, **more}


def record(*fields: dict[str, Any], name: str = "a.R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, type: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **more}


def encoded(schema: Any, value: Any) -> bytes:
    file = io.BytesIO()
    schemaless_writer(file, parse_schema(schema), value)
    return file.getvalue()


def decoded(
    schema: Any, values: list[bytes], writer: Any = None
) -> tuple[pa.Array, dict[int, str]]:
    decoder = AvroDecoder(
        AvroSchema(schema).checked(), None if writer is None else AvroSchema(writer)
    )
    array, bad = decoder.decode(pa.array(values, pa.binary()))
    array.validate(full=True)
    assert array.type == decoder.type
    assert len(array) == len(values)
    return array, bad


@pytest.mark.parametrize(
    ("schema", "value", "type", "found"),
    [
        ("boolean", True, pa.bool_(), True),
        ("int", -(2**31), pa.int32(), -(2**31)),
        ("long", 2**63 - 1, pa.int64(), 2**63 - 1),
        ("float", 1.5, pa.float32(), 1.5),
        ("double", -0.1, pa.float64(), -0.1),
        ("bytes", b"\0\xff", pa.binary(), b"\0\xff"),
        ("string", "häß\0", pa.string(), "häß\0"),
        (logical("int", "date"), date(1969, 12, 31), pa.date32(), date(1969, 12, 31)),
        (logical("int", "time-millis"), time(1, 2, 3, 4000), pa.time32("ms"), time(1, 2, 3, 4000)),
        (logical("long", "time-micros"), time(1, 2, 3, 4), pa.time64("us"), time(1, 2, 3, 4)),
        (
            logical("long", "timestamp-millis"),
            NOW,
            pa.timestamp("ms", "UTC"),
            NOW.replace(microsecond=123000),
        ),
        (logical("long", "timestamp-micros"), NOW, pa.timestamp("us", "UTC"), NOW),
        (
            logical("long", "local-timestamp-micros"),
            NOW.replace(tzinfo=None),
            pa.timestamp("us"),
            NOW.replace(tzinfo=None),
        ),
        (
            logical("bytes", "decimal", precision=9, scale=2),
            Decimal("-12.34"),
            pa.decimal128(9, 2),
            Decimal("-12.34"),
        ),
        (
            logical("bytes", "decimal", precision=40),
            Decimal(-(10**39)),
            pa.decimal256(40, 0),
            Decimal(-(10**39)),
        ),
        (
            logical("fixed", "decimal", precision=5, scale=1, name="D", size=4),
            Decimal("1.5"),
            pa.decimal128(5, 1),
            Decimal("1.5"),
        ),
        (logical("string", "uuid"), "0-0", pa.string(), "0-0"),
        (logical("string", "not-known"), "x", pa.string(), "x"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
        ({"type": "fixed", "name": "F", "size": 3}, b"abc", pa.binary(3), b"abc"),
        ({"type": "array", "items": ["null", "long"]}, [1, None], None, [1, None]),
        ({"type": "map", "values": INNER}, {"k": {"x": 2.5}}, None, [("k", {"x": 2.5})]),
        (["null", "string"], None, pa.string(), None),
        (["string", "null"], "s", pa.string(), "s"),
        (["long"], 5, pa.int64(), 5),
        (
            record(field("a", INNER), field("b", "a.Inner"), field("c", ["null", "Inner"])),
            {"a": {"x": 1.0}, "b": {"x": 2.0}, "c": None},
            None,
            {"a": {"x": 1.0}, "b": {"x": 2.0}, "c": None},
        ),
    ],
    ids=str,
)
def test_each_type_becomes_its_column(
    schema: Any, value: Any, type: pa.DataType | None, found: Any
) -> None:
    array, bad = decoded(schema, [encoded(schema, value)] * 3)
    assert (array.to_pylist(), bad) == ([found] * 3, {})
    if type is not None:
        assert array.type == type


def test_time_beyond_pythons_range_is_read() -> None:
    schema = logical("long", "timestamp-micros")
    array, bad = decoded(schema, [encoded("long", 2**62)])
    assert (array.cast(pa.int64()).to_pylist(), bad) == ([2**62], {})


@pytest.mark.parametrize(
    ("type", "name", "number"),
    [
        ("int", "time-millis", 86_400_000),
        ("int", "time-millis", -1),
        ("long", "time-micros", 86_400_000_000),
        ("long", "timestamp-millis", 1_700_000_000_000_000_000),  # nanoseconds
        ("long", "local-timestamp-millis", -(2**62)),
    ],
)
def test_unreadable_time_is_a_dead_letter(type: str, name: str, number: int) -> None:
    """DuckDB refuses the whole file of such a value, and Spark the whole query."""
    schema = logical(type, name)
    inner = record(field("x", schema), name="In")
    for wrap, value in (
        (schema, lambda each: each),
        (["null", schema], lambda each: each),
        ({"type": "array", "items": schema}, lambda each: [1, each]),
        ({"type": "map", "values": schema}, lambda each: {"k": each}),
        (
            record(field("a", "string"), field("in", inner)),
            lambda each: {"a": "", "in": {"x": each}},
        ),
        (["string", schema, "boolean"], lambda each: each),
    ):
        raw = [encoded(_plain(wrap), value(each)) for each in (5, number, 6)]
        array, bad = decoded(wrap, raw)
        assert list(bad) == [1], wrap
        assert f"{number} " in bad[1]
        assert array.is_valid().to_pylist() == [True, False, True]


def _plain(schema: Any) -> Any:
    """Return the schema without logical types, to write any number."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "logicalType" in schema:
        return schema["type"]
    return {
        name: [{**each, "type": _plain(each["type"])} for each in value]
        if name == "fields"
        else _plain(value)
        if name in ("items", "values")
        else value
        for name, value in schema.items()
    }


OLD = record(
    field("id", "int"), field("gone", {"type": "array", "items": "string"}), field("name", "string")
)
NEW = record(
    field("name", ["null", "string"]),
    field("id", "double"),
    field("more", ["null", "long"], default=None),
    field("raw", "bytes", default="\u00ff\u0001"),
    field("price", logical("bytes", "decimal", precision=4, scale=1), default="\u000f"),
    field("day", logical("int", "date"), default=1),
    field("in", INNER, default={"x": 0.5}),
    field("tags", {"type": "map", "values": "int"}, default={"a": 1}),
)


def test_older_schema_is_read_by_the_pinned_one() -> None:
    array, bad = decoded(NEW, [encoded(OLD, {"id": 7, "gone": ["x"], "name": "n"})] * 2, OLD)
    assert bad == {}
    assert array.to_pylist()[1] == {
        "name": "n",
        "id": 7.0,
        "more": None,
        "raw": b"\xff\x01",
        "price": Decimal("1.5"),
        "day": date(1970, 1, 2),
        "in": {"x": 0.5},
        "tags": [("a", 1)],
    }


def test_union_of_the_writer_is_read_by_branch() -> None:
    """A value of the writer's union is read if the reader has its branch, or else refused."""
    writer = record(field("v", ["null", "int", "string"]))
    values = [encoded(writer, {"v": each}) for each in (1, None, "text", 2)]
    array, bad = decoded(record(field("v", ["null", "int"])), values, writer)
    assert [row and row["v"] for row in array.to_pylist()] == [1, None, None, 2]
    assert list(bad) == [2]


def test_unresolvable_schema_makes_dead_letters() -> None:
    array, bad = decoded(
        record(field("other", "int")), [encoded(OLD, {"id": 7, "gone": [], "name": "n"})], OLD
    )
    assert (array.null_count, list(bad)) == (1, [0])
    assert "other" in bad[0]


def test_invalid_bytes_leave_other_records_alone() -> None:
    schema = record(field("n", "long"), field("s", "string"))
    good = [encoded(schema, {"n": number, "s": "x" * number}) for number in range(100)]
    wrong = [
        b"",
        b"\x02",
        good[5] + b"\0",
        good[7][:-1],
        b"\xff" * 20,
        encoded(schema, {"n": 1, "s": "é"})[:-1] + b"\xff",
    ]
    values = [*good[:50], *wrong, *good[50:]]
    array, bad = decoded(schema, values)
    assert list(bad) == list(range(50, 56))
    assert all(bad.values())
    assert [row["n"] for row in array.to_pylist() if row is not None] == list(range(100))


@pytest.mark.parametrize("more", [b"", b"\x01"], ids=["short", "long"])
def test_other_end_is_named(more: bytes) -> None:
    """A value that is too short or too long gets the same text each time, without random numbers.

    The text was that of a length, which the mark behind the value was taken for.
    """
    schema = record(field("n", "int"), field("s", "string"), field("o", ["null", "string"]))
    whole = encoded(schema, {"n": 1, "s": "t", "o": None})
    wrong = whole + more if more else whole[:1]
    found = {decoded(schema, [whole, wrong])[1][1] for _ in range(400)}
    assert found == {"the value does not end where its schema says"}


def test_neighbouring_halves_are_both_refused() -> None:
    """Both values are refused although, read as one stream, they would be two valid strings."""
    array, bad = decoded("string", [b"\x06a", b"bc\x02d", encoded("string", "good")])
    assert (list(bad), array.to_pylist()[2]) == ([0, 1], "good")


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"type": "nonsense"}, "cannot be parsed"),
        (5, "cannot be parsed"),
        ({"type": "record", "fields": []}, "cannot be parsed"),
        (
            record(field("u", ["null", logical("int", "date"), "long", "string"])),
            "field u is a union of null, int, long, string: some of its whole numbers have the "
            "logical type date",
        ),
        (record(field("next", ["null", "a.R"])), "field next is the record a.R again, in itself"),
        (record(), "which has no fields"),
        ("null", "is null: such values have no content"),
        ({"type": "array", "items": "null"}, "an array whose items take no bytes"),
        (
            record(
                field("a", {"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}})
            ),
            "an array whose items take no bytes",
        ),
        (
            logical("bytes", "decimal", precision=90),
            "is a decimal of precision 90|cannot be parsed",
        ),
    ],
    ids=str,
)
def test_schema_without_a_column_is_refused(schema: Any, what: str) -> None:
    """A schema that no column can have is refused in one sentence, which begins with its option."""
    with pytest.raises(SchemaError, match=what) as caught:
        AvroSchema(schema, where="value_schema").checked()
    assert str(caught.value).startswith("value_schema ") or str(caught.value).startswith(
        "value_schema:"
    )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "writer", [{"type": "array", "items": "null"}, record(field("next", ["null", "a.R"]))], ids=str
)
def test_expanding_writer_schema_is_refused(writer: Any) -> None:
    """A writer's schema by which a few bytes become many values, or endless ones, is refused."""
    with pytest.raises(SchemaError):
        AvroDecoder(AvroSchema("long"), AvroSchema(writer))


def test_endless_array_is_a_dead_letter() -> None:
    huge = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    _, bad = decoded({"type": "array", "items": "long"}, [huge + b"\x02", b"\0"])
    assert list(bad) == [0]


def test_schema_survives_the_plan() -> None:
    first = AvroSchema(
        record(field("a", "other.Named")),
        [{"type": "enum", "name": "other.Named", "symbols": ["S"]}],
    )
    again = AvroSchema.of_pinned(first.pinned()).checked()
    assert again.type == pa.struct([pa.field("a", pa.string())])
    assert again.same(first)


# --- any schema, any value ---

NAMES = st.integers(0, 10**9).map("n{}".format)
LEAVES = st.one_of(
    st.sampled_from([("boolean", st.booleans()), ("string", st.text()), ("bytes", st.binary())]),
    st.just(("double", st.floats(allow_nan=False))),
    st.just(("int", st.integers(-(2**31), 2**31 - 1))),
    st.just(("long", st.integers(-(2**63), 2**63 - 1))),
)


def of_inner(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def a_record(found: tuple[str, list[Any]]) -> tuple[Any, Any]:
        name, fields = found
        schema = record(
            *(field(f"f{number}", each[0]) for number, each in enumerate(fields)), name=name
        )
        return schema, st.fixed_dictionaries(
            {f"f{number}": each[1] for number, each in enumerate(fields)}
        )

    return st.one_of(
        inner.map(
            lambda each: ({"type": "array", "items": each[0]}, st.lists(each[1], max_size=4))
        ),
        inner.map(
            lambda each: (
                {"type": "map", "values": each[0]},
                st.dictionaries(st.text(), each[1], max_size=4),
            )
        ),
        st.tuples(NAMES, st.lists(inner, min_size=1, max_size=4)).map(a_record),
    )


def nullable(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(of, of.map(lambda each: (["null", each[0]], st.none() | each[1])))


SCHEMAS = st.recursive(LEAVES, lambda inner: of_inner(nullable(inner)), max_leaves=6)


def unique_names(schema: Any, seen: list[int]) -> Any:
    if isinstance(schema, dict):
        found = {
            name: unique_names(each, seen) if name in ("items", "values", "type") else each
            for name, each in schema.items()
        }
        if schema["type"] == "record":
            seen.append(1)
            found["name"] = f"R{len(seen)}"
            found["fields"] = [
                {**each, "type": unique_names(each["type"], seen)} for each in schema["fields"]
            ]
        return found
    return [unique_names(each, seen) for each in schema] if isinstance(schema, list) else schema


def as_arrow(value: Any, schema: Any) -> Any:
    """Return the value as pyarrow does: a map as pairs."""
    if isinstance(schema, list):
        return None if value is None else as_arrow(value, schema[-1])
    if isinstance(schema, str):
        return value
    if schema["type"] == "array":
        return [as_arrow(each, schema["items"]) for each in value]
    if schema["type"] == "map":
        return [(name, as_arrow(each, schema["values"])) for name, each in value.items()]
    return {each["name"]: as_arrow(value[each["name"]], each["type"]) for each in schema["fields"]}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_fastavros_values_are_read_unchanged(data: st.DataObject) -> None:
    schema, values = data.draw(SCHEMAS)
    schema = unique_names(schema, [])
    drawn = data.draw(st.lists(values, min_size=1, max_size=6))
    array, bad = decoded(schema, [encoded(schema, value) for value in drawn])
    assert bad == {}
    assert array.to_pylist() == [as_arrow(value, schema) for value in drawn]
    read_both_ways(schema, [encoded(schema, value) for value in drawn])


def without_doubles(type: pa.DataType) -> pa.DataType:
    """Return the type with integers of the same size instead of floats.

    Integers have comparable bits; a NaN equals nothing.
    """
    if pa.types.is_struct(type):
        return pa.struct([each.with_type(without_doubles(each.type)) for each in type])
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(without_doubles(type.value_type)))
    return pa.int64() if type == pa.float64() else type


def read_both_ways(schema: Any, values: list[bytes], writer: Any = None) -> None:
    """Check that the fast reader agrees with fastavro to the bit, or leaves the work to it."""
    decoder = AvroDecoder(AvroSchema(schema), None if writer is None else AvroSchema(writer))
    quick = decoder._quick
    assert quick is not None
    column = pa.array([b"before", *values, b"behind"], pa.binary()).slice(1, len(values))
    decoder._quick = None
    slow, bad = decoder.decode(column)
    try:
        found = quick(column)
    except OddError:
        return
    assert bad == {}
    found.validate(full=True)
    assert found.type == slow.type
    assert found.view(without_doubles(found.type)).equals(slow.view(without_doubles(slow.type)))


FIXED = {"type": "fixed", "name": "F", "size": 3}
PLAIN = record(
    *(field(name, name) for name in ("boolean", "int", "long", "double", "bytes", "string")),
    field("inner", ["null", record(field("s", ["string", "null"]), field("f", FIXED), name="In")]),
    field("again", ["null", "In"]),
    field("only", ["long"]),
    field("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
    field("day", logical("int", "date")),
    field("at", ["null", logical("long", "timestamp-micros")]),
    field("price", logical("bytes", "decimal", precision=20, scale=2)),
    field("fixed", logical("fixed", "decimal", precision=5, scale=1, name="D", size=4)),
    field("many", {"type": "array", "items": ["null", "string"]}),
    field("pairs", {"type": "map", "values": {"type": "array", "items": "In"}}),
)
INNER_RECORDS = st.fixed_dictionaries(
    {"s": st.none() | st.text(), "f": st.binary(min_size=3, max_size=3)}
)
INNERS = st.none() | INNER_RECORDS
PLAINS = st.fixed_dictionaries(
    {
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "double": st.floats(allow_nan=False),
        "bytes": st.binary(),
        "string": st.text(),
        "inner": INNERS,
        "again": INNERS,
        "only": st.integers(-300, 300),
        "kind": st.sampled_from(["A", "B"]),
        "day": st.integers(-1000, 1000),
        "at": st.none() | st.integers(-(2**63), 2**63 - 1),
        "price": st.decimals(-(10**17), 10**17, places=2),
        "fixed": st.decimals(-9999, 9999, places=1),
        "many": st.lists(st.none() | st.text(), max_size=4),
        "pairs": st.dictionaries(st.text(), st.lists(INNER_RECORDS, max_size=3), max_size=3),
    }
)


@given(st.lists(PLAINS, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_plain_values_are_read_by_columns(values: list[Any]) -> None:
    """Plain values are read by columns, with the same result as one by one."""
    data = [encoded(PLAIN, value) for value in values]
    read_both_ways(PLAIN, data)
    quick = AvroDecoder(AvroSchema(PLAIN))._quick
    assert quick is not None
    assert len(quick(pa.array(data, pa.binary()))) == len(values), "and nothing was odd about them"


LATER = record(
    *(
        each
        for each in reversed(PLAIN["fields"])
        if each["name"] not in ("bytes", "inner", "again", "many", "pairs")
    ),
    field("new", ["null", "string"], default=None),
    field("raw", "bytes", default="\u00ff"),
    field("day2", logical("int", "date"), default=3),
    field("inner", ["null", record(field("s", ["string", "null"]), field("f", FIXED), name="In")]),
    field("numbers", {"type": "array", "items": "long"}, default=[1, 2]),
)


@given(st.lists(PLAINS, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_added_and_removed_fields_stay_quick(values: list[Any]) -> None:
    """Values of a schema with other fields are read by columns, too."""
    data = [encoded(PLAIN, value) for value in values]
    read_both_ways(LATER, data, PLAIN)
    quick = AvroDecoder(AvroSchema(LATER), AvroSchema(PLAIN))._quick
    assert quick is not None
    assert quick(pa.array(data, pa.binary())).field("numbers").to_pylist() == [[1, 2]] * len(values)


def changed(name: str, type: Any, **more: Any) -> Any:
    return record(
        *(field(name, type, **more) if each["name"] == name else each for each in PLAIN["fields"])
    )


@pytest.mark.parametrize(
    "reader",
    [
        changed("int", "long"),
        changed("kind", {"type": "enum", "name": "Kind", "symbols": ["B", "A"]}),
        changed("inner", ["null", record(field("s", ["string", "null"]), name="In")]),
        changed("day", "int"),
        record(field("other", "string", aliases=["string"])),
        record(field("lacking", "long")),
        {**PLAIN, "name": "b.Other"},
    ],
    ids=["wider", "symbols", "inner", "logical", "alias", "missing", "name"],
)
def test_other_changes_are_resolved_by_fastavro(reader: Any) -> None:
    """Changes other than added or removed fields are left to fastavro's schema resolution."""
    assert AvroDecoder(AvroSchema(reader), AvroSchema(PLAIN))._quick is None


@given(st.lists(PLAINS, min_size=1, max_size=3), st.data())
@settings(max_examples=150, deadline=None)
def test_damage_is_odd_or_read_the_same(values: list[Any], data: st.DataObject) -> None:
    """Damaged values are left to fastavro, or read by columns to the same result."""
    encoded_ = [encoded(PLAIN, value) for value in values]
    index = data.draw(st.integers(0, len(values) - 1))
    damaged = bytearray(encoded_[index])
    at = data.draw(st.integers(0, len(damaged)))
    damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    encoded_[index] = bytes(damaged)
    read_both_ways(PLAIN, encoded_)


@pytest.mark.parametrize("kind", ["boolean", "int", "long", "float", "double", "bytes", "string"])
@given(st.lists(st.binary(max_size=12), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_any_bytes_are_odd_or_read_the_same(kind: str, values: list[bytes]) -> None:
    """Any bytes are left to fastavro, or read by columns to the same result."""
    if kind == "float":  # of a NaN, Python's double has other bits
        values = [value.replace(b"\x7f", b"\0").replace(b"\xff", b"\0") for value in values]
    read_both_ways(kind, values)


@given(st.lists(st.binary(max_size=30), max_size=20))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read_or_refused(values: list[bytes]) -> None:
    many = {"type": "array", "items": "int"}
    schema = record(
        field("n", "long"), field("s", ["null", "string"]), field("d", "double"), field("a", many)
    )
    array, bad = decoded(schema, values)
    for index, row in enumerate(array.to_pylist()):
        assert (row is None) == (index in bad)
        if row is not None and not math.isnan(row["d"]):
            again, _ = decoded(schema, [encoded(schema, row)])
            assert again.to_pylist() == [row]
            assert struct.pack("<d", row["d"]) in values[index]
