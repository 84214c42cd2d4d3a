"""Avro's unions of several types, and schema resolution, against fastavro."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import schemaless_reader
from hypothesis import given, settings
from hypothesis import strategies as st
from test_formats_avro import decoded, encoded, field, logical, read_both_ways, record
from trikafka_export.formats.avro_format import AvroDecoder
from trikafka_export.formats.avro_types import AvroSchema

ENUM = {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "Hash", "size": 4}
ONE = record(field("x", "int"), name="One")
TWO = record(field("x", "int"), field("y", ["null", "string"]), name="Two")


def count(number: int) -> bytes:
    return encoded("long", number)


@pytest.mark.parametrize(
    ("union", "type"),
    [
        (["null", "int", "string"], pa.struct([("member0", pa.int32()), ("member1", pa.string())])),
        (
            ["string", "null", "boolean"],
            pa.struct([("member0", pa.string()), ("member1", pa.bool_())]),
        ),
        (["int", "long"], pa.int64()),
        (["null", "double", "float"], pa.float64()),
        (["long", "string", "int"], pa.struct([("member0", pa.int64()), ("member1", pa.string())])),
        ([ONE, "One.X"], None),
    ],
    ids=str,
)
def test_union_has_its_column(union: Any, type: pa.DataType | None) -> None:
    if type is not None:
        assert AvroSchema(union).checked().type == type


#: Branches, the values of each, and the values as Arrow has them.
BRANCHES: list[tuple[Any, Any]] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("string", st.text(max_size=5)),
    ("bytes", st.binary(max_size=6)),
    (logical("bytes", "decimal", precision=20, scale=2), st.decimals(-(10**17), 10**17, places=2)),
    (ENUM, st.sampled_from(["A", "B"])),
    (FIXED, st.binary(min_size=4, max_size=4)),
    (ONE, st.fixed_dictionaries({"x": st.integers(-5, 5)})),
    (TWO, st.fixed_dictionaries({"x": st.integers(-5, 5), "y": st.none() | st.text(max_size=3)})),
    (
        {"type": "array", "items": ["null", "string"]},
        st.lists(st.none() | st.text(max_size=3), max_size=3),
    ),
    (
        {"type": "map", "values": "int"},
        st.dictionaries(st.text(max_size=3), st.integers(-5, 5), max_size=2),
    ),
]


def branches(places: list[int]) -> list[tuple[Any, Any]]:
    """Return lists of branches, without combinations that Avro forbids."""
    chosen = [BRANCHES[place] for place in places]
    return [
        each
        for each in chosen
        if each[0] != "bytes"
        or all(not isinstance(other[0], dict) or other[0]["type"] != "bytes" for other in chosen)
    ]


def members(chosen: list[tuple[Any, Any]]) -> list[int | None]:
    """Return the member of each branch."""
    wide = {"int": "whole", "long": "whole", "float": "floating", "double": "floating"}
    found = []
    next_ = 0
    known: dict[str, int] = {}
    for schema, _ in chosen:
        name = wide.get(schema) if isinstance(schema, str) else None
        if schema == "null":
            found.append(None)
            continue
        if name is None or name not in known:
            number, next_ = next_, next_ + 1
            if name is not None:
                known[name] = number
        else:
            number = known[name]
        found.append(number)
    return found


def as_arrow(schema: Any, value: Any) -> Any:
    if isinstance(schema, dict) and schema["type"] == "map":
        return list(value.items())
    return value


@given(
    st.lists(st.sampled_from(range(len(BRANCHES))), min_size=2, max_size=6, unique=True).map(
        branches
    ),
    st.data(),
)
@settings(max_examples=150, deadline=None)
def test_any_union_is_read_as_written(chosen: list[tuple[Any, Any]], data: st.DataObject) -> None:
    """Any union is read as it was written, by columns and by fastavro."""
    numbers = members(chosen)
    most = len({number for number in numbers if number is not None})
    if not most:
        return
    union = [schema for schema, _ in chosen]
    schema = record(field("before", "long"), field("u", union), field("after", "string"))
    values, wanted = [], []
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(chosen) - 1))
        branch, strategy = chosen[place]
        value = data.draw(strategy)
        values.append(
            count(7)
            + count(place)
            + (b"" if branch == "null" else encoded(branch, value))
            + encoded("string", "x")
        )
        found = as_arrow(branch, value)
        if most > 1 and branch != "null":
            found = {
                f"member{number}": found if number == numbers[place] else None
                for number in range(most)
            }
        wanted.append({"before": 7, "u": found, "after": "x"})
    array, bad = decoded(schema, values)
    assert bad == {}
    assert array.to_pylist() == wanted
    read_both_ways(schema, values)
    damaged = [*values, values[0] + b"\0"]
    slow, bad = decoded(schema, damaged)
    assert (list(bad), slow[: len(values)].to_pylist()) == ([len(values)], wanted), (
        "by fastavro, too"
    )


def test_bytes_beside_a_fixed_type_stay_bytes() -> None:
    """Bytes stay bytes beside a fixed type of the same length.

    The value is among others that must be read one by one.
    """
    array, bad = decoded(
        [FIXED, "bytes", ENUM, "string"],
        [count(1) + encoded("bytes", b"abcd"), count(3) + b"\x02A", b"\x7f"],
    )
    found = [
        row and {name: each for name, each in row.items() if each is not None}
        for row in array.to_pylist()
    ]
    assert (found, list(bad)) == ([{"member1": b"abcd"}, {"member3": "A"}, None], [2])


OLD = record(field("v", ["null", "int", ONE, ENUM]))


def test_longer_union_is_resolved() -> None:
    new = record(
        field("v", ["string", "null", TWO, "One", "Kind", "double"]),
        field("w", ["string", "int"], default="d"),
    )
    new["fields"][0]["type"] = ["null", "string", ONE, "double"]
    values = [encoded(OLD, {"v": value}) for value in (3, None, {"x": 5}, "A")]
    array, bad = decoded(new, values, OLD)
    w = {"member0": "d", "member1": None}
    empty: dict[str, Any] = {"member0": None, "member1": None, "member2": None}
    assert array.to_pylist() == [
        {"v": empty | {"member2": 3.0}, "w": w},
        {"v": None, "w": w},
        {"v": empty | {"member1": {"x": 5}}, "w": w},
        None,
    ]
    assert list(bad) == [3], "an enum is no text"


def test_union_and_single_type_are_resolved() -> None:
    """A single type is read by a union, and a union's value by its single type if it fits."""
    union = record(field("v", ["int", "string"]))
    array, bad = decoded(
        union, [encoded(record(field("v", "string")), {"v": "x"})], record(field("v", "string"))
    )
    assert (array.to_pylist(), bad) == ([{"v": {"member0": None, "member1": "x"}}], {})
    plain = record(field("v", "string"))
    array, bad = decoded(plain, [encoded(union, {"v": "x"}), encoded(union, {"v": 1})], union)
    assert array.to_pylist() == [{"v": "x"}, None]
    assert list(bad) == [1]


def test_ambiguous_branch_is_refused() -> None:
    """If several types of the reader's union fit, fastavro's guess is refused."""
    wide = record(field("v", ["null", "string", ENUM]), field("new", "int", default=1))
    old = record(field("v", ["null", "string", ENUM]))
    array, bad = decoded(wide, [encoded(old, {"v": "other"}), count(2) + count(0)], old)
    assert AvroDecoder(AvroSchema(wide), AvroSchema(old))._quick is not None
    assert (bad, [row["v"]["member1"] for row in array.to_pylist()]) == ({}, [None, "A"]), (
        "columns know it"
    )
    renamed = record(field("u", ["null", "string", ENUM], aliases=["v"]))
    array, bad = decoded(renamed, [encoded(old, {"v": "other"}), count(2) + count(0)], old)
    assert array.to_pylist() == [{"u": {"member0": "other", "member1": None}}, None]
    assert bad == {
        1: "the value was written with another schema, and more than one of the types of a union "
        "fits it"
    }


# --- resolution, against fastavro ---

KINDS = ["int", "long", "float", "double", "string", "bytes"]
OF = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
}
NUMBERS = {"int", "long", "float", "double"}


@given(
    st.sampled_from(KINDS),
    st.sampled_from(KINDS),
    st.data(),
    st.sampled_from(["top", "field", "alias", "array", "union"]),
)
@settings(max_examples=150, deadline=None)
def test_type_is_read_as_a_wider_one_or_refused(
    writer: str, reader: str, data: st.DataObject, where: str
) -> None:
    value = data.draw(OF[writer])

    def around(kind: str, name: str, **more: Any) -> Any:
        if where == "top":
            return kind
        type: Any = {"array": {"type": "array", "items": kind}, "union": ["null", kind]}.get(
            where, kind
        )
        return record(field(name, type, **more))

    written = around(writer, "old" if where == "alias" else "f")
    wanted = around(reader, "f", **({"aliases": ["old"]} if where == "alias" else {}))
    old = {
        "alias": {"old": value},
        "field": {"f": value},
        "array": {"f": [value, value]},
        "union": {"f": value},
    }
    one = encoded(written, old.get(where, value))
    array, bad = decoded(wanted, [one], written)
    try:
        expected = schemaless_reader(io.BytesIO(one), written, wanted)
    except Exception:
        assert list(bad) == [0]
        return
    if writer == "bytes" and bad:  # bytes that are no UTF-8
        return
    assert bad == {}
    found = array.to_pylist()[0]
    assert pa.array([found], array.type).equals(pa.array([expected], array.type)) or "nan" in str(
        expected
    )


LOGICAL = [
    (logical("int", "date"), st.integers(-(2**31), 2**31 - 1)),
    (logical("int", "time-millis"), st.integers(0, 86_399_999)),
    (logical("long", "time-micros"), st.integers(0, 86_399_999_999)),
    *(
        (logical("long", f"{local}timestamp-{unit}"), st.integers(-most, most))
        for local in ("", "local-")
        for unit, most in (
            ("millis", (2**63 - 1) // 1_000),  # readers convert them to microseconds
            ("micros", 2**63 - 1),
            ("nanos", 2**63 - 1),
        )
    ),
]


@pytest.mark.parametrize(
    ("schema", "numbers"),
    LOGICAL,
    ids=lambda each: each["logicalType"] if isinstance(each, dict) else "",
)
@given(st.data())
@settings(max_examples=20, deadline=None)
def test_times_keep_their_numbers(schema: Any, numbers: Any, data: st.DataObject) -> None:
    whole = record(field("f", ["null", schema]), field("g", {"type": "array", "items": schema}))
    plain = record(
        field("f", ["null", schema["type"]]), field("g", {"type": "array", "items": schema["type"]})
    )
    value = {"f": data.draw(st.none() | numbers), "g": data.draw(st.lists(numbers, max_size=3))}
    array, bad = decoded(whole, [encoded(plain, value)])
    found = (
        array.field("g")
        .flatten()
        .cast(pa.int64() if schema["type"] == "long" else pa.int32())
        .to_pylist()
    )
    assert (found, bad) == (value["g"], {})
    read_both_ways(whole, [encoded(plain, value)])


def test_fixed_logical_types_keep_their_bytes() -> None:
    """A duration stays twelve bytes, a fixed uuid 16 bytes; a decimal of bytes is a decimal."""
    duration = logical("fixed", "duration", name="D", size=12)
    array, _ = decoded(duration, [bytes(range(12))])
    assert (array.type, array.to_pylist()) == (pa.binary(12), [bytes(range(12))])
    array, _ = decoded(logical("fixed", "uuid", name="U", size=16), [bytes(range(16))])
    assert array.type == pa.binary(16)
    assert decoded(logical("bytes", "decimal", precision=3, scale=1), [b"\x02\x7d"])[
        0
    ].to_pylist() == [Decimal("12.5")]
