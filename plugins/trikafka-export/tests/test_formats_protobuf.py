"""Protobuf as Arrow columns: each type, missing fields, and bytes that are no message."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st
from trikafka_export.formats.errors import SchemaError
from trikafka_export.formats.protobuf_format import ProtobufDecoder, indexes_of
from trikafka_export.formats.protobuf_types import ProtobufSchema, name_at

F = descriptor_pb2.FieldDescriptorProto
MANY = F.LABEL_REPEATED
TYPES = {
    "double": F.TYPE_DOUBLE,
    "float": F.TYPE_FLOAT,
    "int64": F.TYPE_INT64,
    "uint64": F.TYPE_UINT64,
    "int32": F.TYPE_INT32,
    "fixed64": F.TYPE_FIXED64,
    "fixed32": F.TYPE_FIXED32,
    "bool": F.TYPE_BOOL,
    "string": F.TYPE_STRING,
    "bytes": F.TYPE_BYTES,
    "uint32": F.TYPE_UINT32,
    "sfixed32": F.TYPE_SFIXED32,
    "sfixed64": F.TYPE_SFIXED64,
    "sint32": F.TYPE_SINT32,
    "sint64": F.TYPE_SINT64,
}


def add(
    message: Any, name: str, type: str, label: int = F.LABEL_OPTIONAL, optional: bool = False
) -> None:
    """Add a field with the next number.

    ``type`` is a scalar, or the full name of a message (or of an enum, with ``=``).
    """
    more: dict[str, Any] = (
        {"type": TYPES[type]} if type in TYPES else {"type": F.TYPE_MESSAGE, "type_name": type}
    )
    if type.startswith("="):
        more = {"type": F.TYPE_ENUM, "type_name": type[1:]}
    if optional:
        more |= {"proto3_optional": True, "oneof_index": len(message.oneof_decl)}
        message.oneof_decl.add(name=f"_{name}")
    message.field.add(name=name, number=len(message.field) + 1, label=label, **more)


def a_file(name: str = "a.proto", *imports: str) -> Any:
    return descriptor_pb2.FileDescriptorProto(
        name=name, package="p", syntax="proto3", dependency=imports
    )


def everything() -> Any:
    file = a_file(
        "a.proto",
        *(f"google/protobuf/{name}.proto" for name in ("timestamp", "wrappers", "struct", "empty")),
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="SOME", number=1)
    add(file.message_type.add(name="Inner"), "x", "double")
    message = file.message_type.add(name="M")
    for name in TYPES:
        add(message, f"a_{name}", name)
    entry = message.nested_type.add(name="PairsEntry", options={"map_entry": True})
    add(entry, "key", "string")
    add(entry, "value", ".p.Inner")
    add(message, "maybe", "string", optional=True)
    add(message, "kind", "=.p.Kind")
    add(message, "kinds", "=.p.Kind", MANY)
    add(message, "inner", ".p.Inner")
    add(message, "inners", ".p.Inner", MANY)
    add(message, "numbers", "int32", MANY)
    add(message, "pairs", ".p.M.PairsEntry", MANY)
    add(message, "at", ".google.protobuf.Timestamp")
    add(message, "times", ".google.protobuf.Timestamp", MANY)
    add(message, "wrapped", ".google.protobuf.Int32Value")
    add(message, "any", ".google.protobuf.Struct")
    add(message, "empty", ".google.protobuf.Empty")
    add(message, "from", "int32")  # a keyword of Python
    return file


def schema_of(file: Any, message: str = "p.M") -> ProtobufSchema:
    data = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return ProtobufSchema.of_pinned(
        ProtobufSchema.of_set(data, message, "value_schema").checked().pinned()
    )


def decoded(schema: ProtobufSchema, values: list[bytes]) -> tuple[pa.Array, dict[int, str]]:
    array, bad = ProtobufDecoder(schema).decode(pa.array(values, pa.binary()))
    array.validate(full=True)
    assert array.type == schema.type
    return array, bad


def made(schema: ProtobufSchema) -> Any:
    return message_factory.GetMessageClass(schema.descriptor)


def test_each_type_becomes_its_column() -> None:
    schema = schema_of(everything())
    message = made(schema)(
        maybe="",
        kind=1,
        kinds=[1, 0, 9],
        numbers=[1, 2],
        a_uint64=2**64 - 1,
        a_bytes=b"\xff",
        a_int64=-5,
    )
    message.inner.x = 1.5
    message.wrapped.value = 0
    message.inners.add(x=2.5)
    message.pairs["k"].x = 3.5
    message.at.FromJsonString("2024-02-29T12:30:15.123456789Z")
    message.times.add(seconds=-1)
    message.any["q"] = 1
    message.empty.SetInParent()
    setattr(message, "from", 3)
    array, bad = decoded(schema, [message.SerializeToString(), b"", message.SerializeToString()])
    assert bad == {}
    full, nothing, again = array.to_pylist()
    assert full == again
    assert full["at"] == datetime(2024, 2, 29, 12, 30, 15, 123456, UTC)
    assert full["times"] == [datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)]
    assert (full["kind"], full["kinds"]) == ("SOME", ["SOME", "NONE", "9"])
    assert (full["inner"], full["inners"], full["pairs"]) == (
        {"x": 1.5},
        [{"x": 2.5}],
        [("k", {"x": 3.5})],
    )
    assert (full["a_uint64"], full["a_bytes"], full["a_int64"], full["numbers"]) == (
        2**64 - 1,
        b"\xff",
        -5,
        [1, 2],
    )
    assert (full["maybe"], full["wrapped"], full["any"], full["empty"], full["from"]) == (
        "",
        0,
        '{"q": 1.0}',
        True,
        3,
    )
    assert {name for name, value in nothing.items() if value is None} == {
        "maybe",
        "inner",
        "at",
        "wrapped",
        "any",
        "empty",
    }
    assert (nothing["a_string"], nothing["kind"], nothing["numbers"], nothing["pairs"]) == (
        "",
        "NONE",
        [],
        [],
    )


def test_invalid_bytes_leave_other_records_alone() -> None:
    schema = schema_of(everything())
    good = [made(schema)(a_int64=number).SerializeToString() for number in range(40)]
    # The last is text that is no UTF-8.
    wrong = [
        b"\xff\xff",
        good[5] + b"\x0a",
        b"\x4a\x02\xc3\x28",
    ]
    time = made(schema)()
    time.at.seconds = 2**62
    array, bad = decoded(schema, [*good[:20], *wrong, time.SerializeToString(), *good[20:]])
    assert list(bad) == [20, 21, 22, 23]
    assert "outside of the years" in bad[23]
    rows = array.to_pylist()
    assert [row["a_int64"] for row in rows[:20] + rows[24:]] == list(range(40))


def test_unknown_fields_are_left_out() -> None:
    newer, older = everything(), everything()
    add(newer.message_type[1], "new", "string")
    value = made(schema_of(newer))(new="x", a_int64=1).SerializeToString()
    array, bad = decoded(schema_of(older), [value])
    assert (array.to_pylist()[0]["a_int64"], bad) == (1, {})


def recursive() -> Any:
    file = a_file()
    add(file.message_type.add(name="M"), "next", ".p.M")
    return file


def fieldless() -> Any:
    file = a_file()
    file.message_type.add(name="M")
    return file


def importing() -> Any:
    file = a_file("a.proto", "other.proto")
    add(file.message_type.add(name="M"), "x", "int32")
    return file


@pytest.mark.parametrize(
    ("data", "message", "what"),
    [
        (b"\xff\xff", "p.M", "is not a descriptor set"),
        (
            b'syntax = "proto3";\nmessage M { int32 x = 1; }\n',
            "M",
            "is not a descriptor set .protoc --incl.* from .proto files",
        ),
        (everything(), "p.X", "has no message 'p.X'; it has: p.Inner, p.M"),
        (recursive(), "p.M", "field next is the message p.M again, in itself"),
        (fieldless(), "p.M", "which has no fields"),
        (importing(), "p.M", "imports 'other.proto', which is missing"),
        (b"", "p.M", "it has: none"),
    ],
)
def test_schema_without_a_column_is_refused(data: Any, message: str, what: str) -> None:
    """A schema that no column can have is refused in one sentence, which begins with its option."""
    raw = (
        data
        if isinstance(data, bytes)
        else descriptor_pb2.FileDescriptorSet(file=[data]).SerializeToString()
    )
    with pytest.raises(SchemaError, match=what) as caught:
        ProtobufSchema.of_set(raw, message, "value_schema").checked()
    assert str(caught.value).startswith("value_schema")
    assert "\n" not in str(caught.value)


def test_importing_files_are_pinned_together() -> None:
    base, top = a_file("base.proto"), a_file("top.proto", "base.proto")
    add(base.message_type.add(name="Base"), "x", "int32")
    add(top.message_type.add(name="M"), "base", ".p.Base")
    # In another order than theirs.
    data = descriptor_pb2.FileDescriptorSet(file=[top, base]).SerializeToString()
    schema = ProtobufSchema.of_pinned(ProtobufSchema.of_set(data, ".p.M").pinned())
    message = made(schema)()
    message.base.x = 4
    assert decoded(schema, [message.SerializeToString()])[0].to_pylist() == [{"base": {"x": 4}}]


@pytest.mark.parametrize(
    ("data", "indexes", "rest"),
    [(b"\0rest", [0], 1), (b"\x02\x02rest", [1], 2), (b"\x04\x02\x00rest", [1, 0], 3)],
)
def test_message_indexes_are_read(data: bytes, indexes: list[int], rest: int) -> None:
    assert indexes_of(data) == (indexes, rest)


def test_indexes_lead_to_nested_messages() -> None:
    file = everything().SerializeToString()
    assert [name_at(file, each) for each in ([0], [1], [1, 0], [1, 1], [-1])] == [
        "p.Inner",
        "p.M",
        "p.M.PairsEntry",
        None,
        None,
    ]


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "a_int64": st.integers(-(2**63), 2**63 - 1),
        "a_double": st.floats(allow_nan=False),
        "a_string": st.text(),
        "a_bytes": st.binary(),
        "maybe": st.text(),
        "numbers": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5),
        "inner": st.fixed_dictionaries({"x": st.floats(allow_nan=False)}),
        "inners": st.lists(st.fixed_dictionaries({"x": st.floats(allow_nan=False)}), max_size=3),
        "pairs": st.dictionaries(
            st.text(), st.fixed_dictionaries({"x": st.floats(allow_nan=False)}), max_size=3
        ),
    },
)
SCHEMA = schema_of(everything())


@given(st.lists(FIELDS, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_protobufs_values_are_read_unchanged(values: list[dict[str, Any]]) -> None:
    array, bad = decoded(SCHEMA, [made(SCHEMA)(**value).SerializeToString() for value in values])
    assert bad == {}
    for row, value in zip(array.to_pylist(), values, strict=True):
        for name, given_ in value.items():
            assert row[name] == given_ if name != "pairs" else dict(row[name]) == given_
        for name in ("maybe", "inner"):
            assert (row[name] is None) == (name not in value)


@given(st.lists(st.binary(max_size=40), max_size=20))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read_or_refused(values: list[bytes]) -> None:
    array, bad = decoded(SCHEMA, values)
    assert {index for index, row in enumerate(array.to_pylist()) if row is None} == set(bad)


def test_schema_is_pinned_as_text() -> None:
    pinned = SCHEMA.pinned()
    assert pinned["message"] == "p.M"
    assert all(base64.b64decode(each) for each in pinned["files"])
