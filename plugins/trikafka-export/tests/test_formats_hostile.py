"""Records and schemas that try to end or spoil an export.

The result is dead letters, or an error of one sentence.
"""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastavro import parse_schema, schemaless_writer
from google.protobuf import descriptor_pb2
from scripted_registry import ScriptedRegistry, framed
from trikafka_export.formats.avro_types import AvroSchema
from trikafka_export.formats.errors import SchemaError, SchemaRegistryTimeoutError
from trikafka_export.formats.json_format import JsonDecoder, infer
from trikafka_export.formats.options import check_schemas, parse_options
from trikafka_export.formats.parsing import Parser
from trikafka_export.formats.protobuf_format import IndexedDecoder, ProtobufDecoder
from trikafka_export.formats.protobuf_types import ProtobufSchema
from trikafka_export.formats.registry import RegistryClient
from trikafka_export.formats.schema_choice import choose, named

from trikafka import ConfigurationError, ExportError

PLAIN = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}


@pytest.fixture
def registry() -> Iterator[ScriptedRegistry]:
    with ScriptedRegistry() as registry:
        yield registry


def record_of(type: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "fields": [*PLAIN["fields"], {"name": "f", "type": type, **more}],
    }  # type: ignore[misc]


def fixed(size: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size}


def doubling(depth: int) -> dict[str, Any]:
    """Return a record whose each level contains the level below twice."""
    inner = PLAIN | {"name": "R0"}
    for number in range(1, depth):
        twice = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{number - 1}"}]
        inner = {"type": "record", "name": f"R{number}", "fields": twice}
    return record_of(inner)


STRANGE = [
    pytest.param(record_of(fixed(2**40)), "cannot be used: OverflowError", id="huge"),
    pytest.param(record_of(fixed(-5)), "cannot be a column of a Parquet file", id="negative"),
    pytest.param(record_of(fixed("8")), "cannot be used", id="text"),
    pytest.param(record_of(fixed(0)), "cannot be a column of a Parquet file", id="no-size"),
    pytest.param(
        record_of("bytes", default="\u4e00"), "cannot be used: UnicodeEncodeError", id="default"
    ),
    pytest.param(
        record_of({"type": "record", "name": "trikafka_mark", "fields": []}),
        "cannot be used|no fields",
        id="our-name",
    ),
    pytest.param(doubling(40), "has more than 10,000 fields", id="doubling"),
]


@pytest.mark.parametrize(("schema", "what"), STRANGE)
def test_strange_avro_schema_is_refused(schema: Any, what: str) -> None:
    with pytest.raises(SchemaError, match=what):
        AvroSchema(schema, where="it").checked()


@pytest.mark.parametrize(
    "schema", [each.values[0] for each in STRANGE], ids=[each.id for each in STRANGE]
)
def test_strange_registry_schema_ends_no_range(registry: ScriptedRegistry, schema: Any) -> None:
    registry.avro(1, PLAIN)
    registry.avro(2, schema)
    schemaless_writer(file := io.BytesIO(), parse_schema(PLAIN), {"n": 5})
    format = {"value": "avro", "value_framing": "registry", "schemas": {"t": {"schema": PLAIN}}}
    settings = parse_options({"value_format": "avro", "schema_registry": registry.url}).registry
    parser = Parser.of(format, "t", settings)
    assert parser is not None
    values = [framed(1, file.getvalue()), framed(2, b"\x0a"), framed(1, file.getvalue())]
    table, _ = parser.parse(pa.table({"value": pa.array(values, pa.binary()), "offset": [0, 1, 2]}))
    assert {row["offset"]: row["value"] for row in table.to_pylist()}[2] == {"n": 5}


def test_doubling_protobuf_message_is_refused() -> None:
    """A message whose nested fields double at each level is refused at once."""
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3")
    file.message_type.add(name="M0").field.add(name="x", number=1, type=5, label=1)
    for number in range(1, 40):
        message = file.message_type.add(name=f"M{number}")
        for field in (1, 2):
            message.field.add(
                name=f"f{field}", number=field, type=11, label=1, type_name=f".M{number - 1}"
            )
    with pytest.raises(SchemaError, match="it has more than 10,000 fields"):
        ProtobufSchema([file.SerializeToString()], "M39", "it").checked()


def test_message_of_a_record_is_looked_up_once() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3")
    for name in ("A", "B"):
        file.message_type.add(name=name).field.add(name="x", number=1, type=5, label=1)
    asked = []
    inner = ProtobufDecoder(ProtobufSchema([file.SerializeToString()], "B"))
    decoder = IndexedDecoder(
        inner, lambda indexes: asked.append(list(indexes)) or "AB"[indexes[0]], "B"
    )  # type: ignore[func-returns-value]
    array, bad = decoder.decode(pa.array([b"\x02\x02\x08\x07"] * 100))
    assert (array.to_pylist(), bad) == ([{"x": 7}] * 100, {})
    assert asked == [[0], [1]]


def test_empty_objects_are_not_inferred() -> None:
    values = [b'{"n": 1, "meta": {}, "list": [{}], "deep": {"a": {"b": {}}}}']
    schema = infer(values, "t")
    assert schema == {"n": "int64"}
    array, bad = JsonDecoder(schema).decode(pa.array(values))
    pq.write_table(pa.table({"value": array}), io.BytesIO())
    assert not bad
    with pytest.raises(
        ExportError, match="the first 1 values of 't' are empty objects; give value_schema"
    ):
        infer([b'{"a": {}}'], "t")


def test_times_are_inferred_as_text() -> None:
    """A time is inferred as text, since the next one may have fractions of a second."""
    first, later = b'{"at": "2024-01-01T00:00:00+02:00"}', b'{"at": "2024-01-01T00:00:00.5Z"}'
    schema = infer([first], "t")
    assert schema == {"at": "string"}
    array, bad = JsonDecoder(schema).decode(pa.array([first, later]))
    assert (array.to_pylist(), bad) == (
        [{"at": "2024-01-01T00:00:00+02:00"}, {"at": "2024-01-01T00:00:00.5Z"}],
        {},
    )


@pytest.mark.parametrize("deep", [120, 900, 100_000])
def test_very_deep_object_is_not_inferred(deep: int) -> None:
    assert infer([b'{"n": 1}', b'{"a":' * deep + b"1" + b"}" * deep], "t") == {"n": "int64"}


def test_unwritable_json_schema_is_refused() -> None:
    """A JSON schema that Parquet cannot hold is refused before there is a plan."""
    with pytest.raises(
        ConfigurationError,
        match="value_schema cannot be a column of a Parquet file: Cannot write struct type 'a'",
    ):
        check_schemas(parse_options({"value_format": "json", "value_schema": {"a": {}}}))


@pytest.mark.parametrize("spec", ["float16", "duration[s]", ["halffloat"], {"b": "duration[ns]"}])
def test_type_that_is_not_read_from_json_is_refused(spec: Any) -> None:
    """Without the check, each value would become a dead letter."""
    with pytest.raises(
        ConfigurationError, match="value_schema has a type that pyarrow does not read"
    ):
        check_schemas(parse_options({"value_format": "json", "value_schema": {"a": spec}}))


@pytest.mark.parametrize(
    "bad", [b'{"a": "\xff\xfe"}', b'{"a": "\xed\xa0\x80"}', b'{"a": "\\udc00"}']
)
def test_invalid_utf8_in_json_is_a_dead_letter(bad: bytes) -> None:
    array, wrong = JsonDecoder({"a": "string"}).decode(
        pa.array([b'{"a": "x"}', bad, b'{"a": "y"}'])
    )
    array.validate(full=True)
    assert array.to_pylist() in (
        [{"a": "x"}, None, {"a": "y"}],
        [{"a": "x"}, {"a": None}, {"a": "y"}],
    )
    assert list(wrong) == [1]


def test_stray_ids_do_not_hide_the_common_schema(
    registry: ScriptedRegistry,
) -> None:
    """Thirty unknown ids do not hide the schema of most values, and cost at most 20 requests."""
    registry.avro(7, PLAIN)
    stray = [framed(2**32 - 1 - number, b"") for number in range(30)]
    found = named([*stray, *[framed(7, b"\x02")] * 2])
    settings = parse_options({"value_format": "avro", "schema_registry": registry.url}).registry
    assert settings is not None
    assert (
        choose("avro", found, "t", "value", settings, lambda seconds: None)["schema"]["name"] == "R"
    )
    assert len(registry.asked) <= 20


def test_endless_response_is_a_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = threading.Event()

        def trickle() -> None:
            while not left.is_set():
                with server.accept()[0] as stream:
                    stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                    while not left.wait(0.02):
                        try:
                            stream.sendall(b" ")
                        except OSError:
                            break

        threading.Thread(target=trickle, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        given = {"value_format": "json", "schema_registry": url, "schema_registry_timeout_ms": 300}
        began = time.monotonic()
        settings = parse_options(given).registry
        assert settings is not None
        with pytest.raises(SchemaRegistryTimeoutError):
            RegistryClient(settings).schema(1)
        left.set()
    assert time.monotonic() - began < 60


def test_cut_response_is_requested_again(registry: ScriptedRegistry) -> None:
    body = json.dumps({"schema": '"int"'}).encode()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for part in (body[:5], body):
                with server.accept()[0] as stream:
                    stream.recv(10_000)
                    stream.sendall(
                        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + part
                    )

        threading.Thread(target=serve, daemon=True).start()
        settings = parse_options(
            {
                "value_format": "json",
                "schema_registry": f"http://127.0.0.1:{server.getsockname()[1]}",
            }
        ).registry
        assert settings is not None
        assert RegistryClient(settings).schema(1).text == '"int"'


@pytest.mark.parametrize(
    "url",
    [
        "http://a..b/",
        f"http://{'a' * 70}.x/",
        "http://host/\u00fc",
        "http://host/a b",
        "http://ho st/",
    ],
)
def test_unusable_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="schema_registry must be a URL"):
        parse_options({"value_format": "json", "schema_registry": url})
