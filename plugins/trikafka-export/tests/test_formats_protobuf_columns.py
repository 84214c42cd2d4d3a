"""Protobuf by columns against Google's library: the same result, or left to the library."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from test_formats_protobuf import MANY, TYPES, F, a_file, add, everything, made, schema_of
from trikafka_export.formats.column_bytes import OddError
from trikafka_export.formats.protobuf_format import ProtobufDecoder
from trikafka_export.formats.protobuf_types import ProtobufSchema


def whole() -> Any:
    """Return a message type with all plain fields, each also as a list, and a oneof."""
    file = everything()
    message = next(each for each in file.message_type if each.name == "M")
    for name in TYPES:
        add(message, f"r_{name}", name, MANY)
        add(message, f"o_{name}", name, optional=True)
    entry = message.nested_type.add(name="CountsEntry", options={"map_entry": True})
    add(entry, "key", "int32")
    add(entry, "value", "sint64")
    add(message, "counts", ".p.M.CountsEntry", MANY)
    for kind in ("String", "Double", "Bool", "UInt64", "Bytes"):
        add(message, f"w_{kind}", f".google.protobuf.{kind}Value")
    add(message, "empties", ".google.protobuf.Empty", MANY)
    for name in ("one_x", "one_y"):
        add(message, name, "string")
    add(message, "one_z", ".p.Inner")
    message.oneof_decl.add(name="one")
    # Synthetic oneofs stand last.
    last = len(message.oneof_decl) - 1
    order = [message.oneof_decl[last], *message.oneof_decl[:last]]
    names = [each.name for each in order]
    for field in message.field:
        if field.HasField("oneof_index"):
            field.oneof_index += 1
        if field.name.startswith("one_"):
            field.oneof_index = 0
    del message.oneof_decl[:]
    for name in names:
        message.oneof_decl.add(name=name)
    return file


SCHEMA = schema_of(whole())
MESSAGE = made(SCHEMA)
OF: dict[str, Any] = {
    "double": st.floats(allow_nan=False),
    "float": st.floats(width=32, allow_nan=False),
    "bool": st.booleans(),
    "string": st.text(max_size=4),
    "bytes": st.binary(max_size=4),
    **{f"{kind}32": st.integers(-(2**31), 2**31 - 1) for kind in ("int", "sint", "sfixed")},
    **{f"{kind}64": st.integers(-(2**63), 2**63 - 1) for kind in ("int", "sint", "sfixed")},
    **{f"{kind}32": st.integers(0, 2**32 - 1) for kind in ("uint", "fixed")},
    **{f"{kind}64": st.integers(0, 2**64 - 1) for kind in ("uint", "fixed")},
}
INNER = st.fixed_dictionaries({}, optional={"x": st.floats(allow_nan=False)})
SECONDS = st.integers(-62_135_596_800, 253_402_300_799)
TIMES = st.fixed_dictionaries(
    {}, optional={"seconds": SECONDS, "nanos": st.integers(0, 999_999_999)}
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        **{f"a_{name}": OF[name] for name in TYPES},
        **{f"o_{name}": OF[name] for name in TYPES},
        **{f"r_{name}": st.lists(OF[name], max_size=3) for name in TYPES},
        "maybe": st.text(max_size=3),
        "kind": st.sampled_from([0, 1]),
        "kinds": st.lists(st.sampled_from([0, 1]), max_size=3),
        "inner": INNER,
        "inners": st.lists(INNER, max_size=3),
        "pairs": st.dictionaries(st.text(max_size=2), INNER, max_size=3),
        "counts": st.dictionaries(st.integers(-3, 3), st.integers(-5, 5), max_size=3),
        "at": TIMES,
        "times": st.lists(TIMES, max_size=3),
        "wrapped": st.fixed_dictionaries({}, optional={"value": OF["int32"]}),
        "w_String": st.fixed_dictionaries({}, optional={"value": OF["string"]}),
        "w_Double": st.fixed_dictionaries({}, optional={"value": OF["double"]}),
        "w_UInt64": st.fixed_dictionaries({}, optional={"value": OF["uint64"]}),
        "any": st.dictionaries(
            st.text(max_size=2), st.booleans() | st.text(max_size=2) | st.none(), max_size=2
        ),
        "empty": st.just({}),
        "empties": st.lists(st.just({}), max_size=2),
        "one_z": INNER,
    },
)


def plain(value: Any) -> Any:
    """Return a value without the order of its maps."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return sorted(((key, plain(each)) for key, each in value), key=lambda pair: repr(pair[0]))
    return [plain(each) for each in value] if isinstance(value, list) else value


def read_both_ways(schema: ProtobufSchema, values: list[bytes], must: bool = False) -> None:
    """Check that the fast reader gives what Google's library gives, or leaves the work to it."""
    decoder = ProtobufDecoder(schema)
    quick = decoder._quick
    assert quick is not None
    column = pa.array([b"before", *values, b"behind"], pa.binary()).slice(1, len(values))
    decoder._quick = None
    slow, bad = decoder.decode(column)
    try:
        found = quick(column)
    except OddError:
        assert not must
        return
    assert bad == {}
    found.validate(full=True)
    assert found.type == slow.type
    # NaN, and the sign of zero.
    assert repr(plain(found.to_pylist())) == repr(plain(slow.to_pylist()))


@given(st.lists(FIELDS, min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_protobufs_values_are_read_by_columns(values: list[dict[str, Any]]) -> None:
    read_both_ways(SCHEMA, [MESSAGE(**value).SerializeToString() for value in values], must=True)


@given(st.lists(FIELDS, min_size=2, max_size=4))
@settings(max_examples=25, deadline=None)
def test_split_messages_are_merged_or_left(values: list[dict[str, Any]]) -> None:
    """A message in two halves is merged, or left to Google's library."""
    data = [MESSAGE(**value).SerializeToString() for value in values]
    read_both_ways(SCHEMA, [data[0], b"".join(data), data[1] + data[0]])


@given(st.lists(FIELDS, min_size=1, max_size=3), st.data())
@settings(max_examples=60, deadline=None)
def test_damage_is_odd_or_read_the_same(values: list[dict[str, Any]], data: st.DataObject) -> None:
    """Damaged messages are left to Google's library, or read to the same result."""
    encoded = [MESSAGE(**value).SerializeToString() for value in values]
    index = data.draw(st.integers(0, len(values) - 1))
    damaged = bytearray(encoded[index])
    at = data.draw(st.integers(0, len(damaged)))
    damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    encoded[index] = bytes(damaged)
    read_both_ways(SCHEMA, encoded)


NARROW = a_file()
for _number, _name in enumerate(("int32", "string", "sint32", "bool", "double"), 1):
    _message = NARROW.message_type[0] if NARROW.message_type else NARROW.message_type.add(name="M")
    add(_message, f"f{_number}", _name)
add(_message, "many", "uint32", MANY)
add(_message, "in", ".p.M2")
add(NARROW.message_type.add(name="M2"), "x", "int64")


@given(st.lists(st.binary(max_size=14), min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_odd_or_read_the_same(values: list[bytes]) -> None:
    """Any bytes are left to Google's library, or read to the same result."""
    read_both_ways(schema_of(NARROW), values)


ANY_FIELDS = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from([0, 1, 2, 5]), st.binary(max_size=9)), max_size=4
)


@given(st.lists(ANY_FIELDS, min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_any_fields_are_odd_or_read_the_same(values: list[list[tuple[int, int, bytes]]]) -> None:
    """Any fields are read to the same result, or left to the library.

    Their numbers may be unknown to the schema, in any order, of any wire type, and repeated.
    """

    def field(number: int, wire: int, data: bytes) -> bytes:
        if wire == 0:
            body = bytes(each | 0x80 for each in data) + b"\x01"
        else:
            body = {
                1: data[:8].ljust(8, b"\0"),
                2: bytes([len(data)]) + data,
                5: data[:4].ljust(4, b"\0"),
            }[wire]
        return bytes([number << 3 | wire]) + body

    read_both_ways(
        schema_of(NARROW), [b"".join(field(*each) for each in value) for value in values]
    )


def test_unknown_fields_are_skipped_by_columns() -> None:
    """Messages with fields that the schema lacks are read by columns."""
    newer = whole()
    message = next(each for each in newer.message_type if each.name == "M")
    for name in ("string", "fixed64", "int64", "float"):
        add(message, f"new_{name}", name, MANY)
    add(message, "new", ".p.M")
    made_ = made(schema_of_message(newer))
    inner = {"a_int64": 1}
    value = made_(
        a_int64=5,
        new_string=["x", "y"],
        new_fixed64=[1],
        new_int64=[1, 2],
        new_float=[1.0],
        r_string=["z"],
        new=inner,
    )
    read_both_ways(
        SCHEMA,
        [value.SerializeToString(), b"", MESSAGE(a_string="q").SerializeToString()],
        must=True,
    )


def schema_of_message(file: Any) -> ProtobufSchema:
    data = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return ProtobufSchema.of_set(data, "p.M")


def test_packed_and_single_numbers_keep_order() -> None:
    """Repeated numbers keep their order, whether they are packed, single or mixed."""
    schema = schema_of(NARROW)
    single, packed = b"\x30\x07", b"\x32\x03\x01\x80\x01"
    values = [single + packed + single, packed, single, b"\x32\x00", b""]
    quick = ProtobufDecoder(schema)._quick
    assert quick is not None
    assert quick(pa.array(values)).field("many").to_pylist() == [
        [7, 1, 128, 7],
        [1, 128],
        [7],
        [],
        [],
    ]
    read_both_ways(schema, values, must=True)
    with pytest.raises(OddError):
        quick(pa.array([b"\x32\x01\x80"]))


def second(syntax: str = "proto2") -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="p", syntax=syntax)
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="A", number=1)
    kind.value.add(name="B", number=-1)
    message = file.message_type.add(name="M")
    message.field.add(name="n", number=1, label=1, type=F.TYPE_INT32, default_value="5")
    message.field.add(
        name="k", number=2, label=1, type=F.TYPE_ENUM, type_name=".p.Kind", default_value="B"
    )
    message.field.add(name="ks", number=3, label=3, type=F.TYPE_ENUM, type_name=".p.Kind")
    message.field.add(name="s", number=4, label=1, type=F.TYPE_STRING)
    return file


@pytest.mark.parametrize(
    "values",
    [
        [b""],
        [b"\x08\x01\x10\x01"],
        [b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"],
        [b"\x10\x07"],
        [b"\x18\x01\x18\x07"],
        [b"\x1a\x02\x01\x07"],
        [b"\x22\x01\xff"],
        [b"\x22\x01x"],
    ],
)
def test_proto2_is_read_the_same(values: list[bytes]) -> None:
    read_both_ways(schema_of(second()), values)


@pytest.mark.parametrize(
    ("label", "type"), [(F.LABEL_REQUIRED, F.TYPE_INT32), (F.LABEL_OPTIONAL, F.TYPE_GROUP)]
)
def test_special_fields_are_left_to_the_library(label: int, type: int) -> None:
    file = second()
    nested = file.message_type[0].nested_type.add(name="Odd")
    nested.field.add(name="x", number=1, label=1, type=F.TYPE_INT32)
    more = {"type_name": ".p.M.Odd"} if type == F.TYPE_GROUP else {}
    file.message_type[0].field.add(name="odd", number=9, label=label, type=type, **more)
    assert ProtobufDecoder(schema_of(file))._quick is None


def test_odd_message_leaves_the_others_right() -> None:
    good = [
        MESSAGE(a_int64=number, inners=[{"x": number}] * (number % 3)).SerializeToString()
        for number in range(500)
    ]
    array, bad = ProtobufDecoder(SCHEMA).decode(pa.array([*good[:250], b"\xff", *good[250:]]))
    assert list(bad) == [250]
    assert [row["a_int64"] for row in array.to_pylist() if row is not None] == list(range(500))
