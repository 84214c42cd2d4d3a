"""The options for keys and values, and those that a destination keeps."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_formats_avro import field, record
from test_formats_protobuf import everything
from trikafka_export.formats.framing import by_head
from trikafka_export.formats.json_format import JsonDecoder
from trikafka_export.formats.parsing import Parser
from trikafka_export.formats.rows import decode_rows
from trikafka_export.sink import FileSink, pinned
from trikafka_export.sink_options import sink_options

import trikafka
from trikafka import ConfigurationError
from trikafka.interfaces import ExportState

sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "security"))
from searching import Search

SCHEMA = record(field("n", "int"))
REGISTRY = "http://registry:8081"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (
            {"value_format": "xml"},
            "value_format must be one of 'binary', 'json', 'avro', 'protobuf', not 'xml'",
        ),
        ({"value_schema": "{}"}, "value_schema needs value_format="),
        ({"value_format": "avro"}, "value_format=avro needs value_schema or schema_registry"),
        ({"key_format": "protobuf"}, "key_format=protobuf needs key_schema or schema_registry"),
        (
            {"value_format": "avro", "value_schema": "/no/such.avsc"},
            "value_schema is neither a schema nor a file that can be read",
        ),
        (
            {"value_format": "avro", "value_schema": "{"},
            "value_schema is no Avro schema: it is not JSON",
        ),
        ({"value_format": "avro", "value_schema": {"type": "x"}}, "value_schema cannot be parsed"),
        (
            {"value_format": "protobuf", "value_schema": b"\xff", "value_message": "M"},
            "value_schema is not a descriptor set",
        ),
        ({"value_format": "protobuf", "value_schema": b""}, "value_message is missing"),
        (
            {"value_format": "avro", "value_schema": SCHEMA, "value_message": "M"},
            "value_message is the name of a message",
        ),
        (
            {"value_format": "json", "schema_registry": "registry:8081"},
            "schema_registry must be a URL like",
        ),
        (
            {"value_format": "json", "schema_registry": "http://a:x"},
            "schema_registry must be a URL like",
        ),
        ({"schema_registry_token": "x"}, "schema_registry_token needs schema_registry"),
        (
            {"schema_registry": REGISTRY, "schema_registry_auth": "x"},
            "schema_registry_auth must be USER:PASSWORD",
        ),
        (
            {
                "schema_registry": REGISTRY,
                "schema_registry_auth": "a:b",
                "schema_registry_token": "c",
            },
            "exclude each other",
        ),
        (
            {"schema_registry": REGISTRY, "schema_registry_token": "a\nb"},
            "characters that no HTTP header may hold",
        ),
        (
            {"schema_registry": REGISTRY, "schema_registry_token": "\u20ac"},
            "characters that no HTTP header may hold",
        ),
        (
            {"schema_registry": REGISTRY, "schema_registry_token": "@/no/such"},
            "the file after @ cannot be read",
        ),
        ({"schema_registry": REGISTRY, "schema_registry_cafile": "/no/such"}, "there is no file"),
        (
            {"schema_registry": REGISTRY, "schema_registry_timeout_ms": "0"},
            "must be a whole number of at least 1",
        ),
        (
            {"value_format": "json", "value_schema": "no/such.json"},
            r"^value_schema is neither a schema nor a file that can be read: .*no/such.json",
        ),
        (
            {"value_format": "avro", "value_schema": "no/such.avsc"},
            r"^value_schema is neither a schema nor a file that can be read: .*no/such.avsc",
        ),
        (
            {"value_format": "protobuf", "value_schema": 5, "value_message": "M"},
            r"^value_schema must be a descriptor set \(bytes\) or its file, not 5",
        ),
        (
            {"schema_registry": REGISTRY, "schema_registry_cafile": 5},
            "^schema_registry_cafile must be the name of a file, not 5",
        ),
        ({"partition_by": 5}, "^partition_by must name some of date, topic, not 5"),
        ({"partition_by": None}, "^partition_by must name some of date, topic, not None"),
        ({"partition_by": [["date"]]}, "^partition_by must name some of date, topic, not"),
        (
            {"store.endpoint": "http://h"},
            "^unknown option 'store.endpoint' of an export to Parquet: it belongs to a destination "
            "in an object store or HDFS",
        ),
        ({"dead_letter_topic": " "}, "dead_letter_topic must be the name of a topic"),
        ({"dead_letter_topic": "a b"}, "^topic 'a b' has ' ' in its name"),
        ({"value_forma": "json"}, "did you mean 'value_format'"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        sink_options(given)


@pytest.mark.parametrize(
    "schema", [SCHEMA, json.dumps(SCHEMA), "file", "path"], ids=["mapping", "text", "file", "path"]
)
def test_schema_is_accepted_in_each_form(schema: Any, tmp_path: Path) -> None:
    (tmp_path / "a.avsc").write_text(json.dumps(SCHEMA))
    given = (
        {"file": str(tmp_path / "a.avsc"), "path": tmp_path / "a.avsc"}.get(schema)
        if schema in ("file", "path")
        else schema
    )
    options = sink_options(
        {
            "value_format": "avro",
            "value_schema": given,
            "key_format": "avro",
            "key_schema": "string",
        }
    )
    assert options.parsing.value.schema == {"schema": SCHEMA}
    assert options.parsing.key.schema == {"schema": "string"}


@pytest.mark.parametrize(
    ("format", "package"), [("avro", "fastavro"), ("protobuf", "google.protobuf")]
)
def test_missing_package_is_named(
    format: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == package else find(name, *rest),
    )
    with pytest.raises(ConfigurationError, match=rf"pip install 'trikafka-export\[{format}\]'"):
        sink_options({"key_format": format, "schema_registry": REGISTRY})


async def test_schema_without_a_column_frees_the_lock(
    tmp_path: Path,
) -> None:
    """A schema that no column can have is refused before there is a plan; the lock is released."""
    schema = record(field("u", ["null", "a.R"]))
    options = {"destination": str(tmp_path / "out"), "value_format": "avro", "value_schema": schema}
    with pytest.raises(ConfigurationError, match=r"field u is the record a\.R again, in itself"):
        async with FileSink.from_options(options):
            pass
    # The lock is released, so another sink can be opened.
    async with FileSink.from_options({"destination": str(tmp_path / "out")}):
        pass


AVRO = {"value_format": "avro", "value_schema": SCHEMA}


def kept(**given: Any) -> dict[str, Any]:
    return pinned(ExportState(), sink_options(given), "here")


@pytest.mark.parametrize(
    ("first", "then", "what"),
    [
        (AVRO, {"value_format": "json"}, "was exported with value_format='avro' and keeps it"),
        ({}, AVRO, "was exported with value_format='binary' and keeps it"),
        (
            AVRO,
            {**AVRO, "value_schema": "int"},
            "was exported with another value_schema and keeps it",
        ),
        (
            AVRO,
            {**AVRO, "schema_registry": REGISTRY},
            "was exported without schema_registry and keeps that",
        ),
        ({**AVRO, "schema_registry": REGISTRY}, AVRO, "give schema_registry, its URL"),
        (
            AVRO,
            {**AVRO, "key_format": "json"},
            "was exported with key_format='binary' and keeps it",
        ),
        ({}, {"dead_letter_topic": "x"}, "dead_letter_topic needs value_format or key_format"),
        ({}, {"schema_registry": REGISTRY}, "schema_registry needs value_format or key_format"),
    ],
)
def test_destination_keeps_its_formats(
    first: dict[str, Any], then: dict[str, Any], what: str
) -> None:
    format = kept(**first)
    if format["value"] != "binary":
        format["schemas"] = {"t": {"schema": SCHEMA}}
    state = ExportState(last_number=1, format=json.loads(json.dumps(format)))
    assert pinned(state, sink_options(first), "here") == format
    with pytest.raises(ConfigurationError, match=what):
        pinned(state, sink_options(then), "here")


def test_plan_has_no_secret_and_no_url() -> None:
    format = kept(**AVRO, schema_registry="http://me:MARK-1@registry:8081")
    assert format == {
        "name": "parquet",
        "partition_by": [],
        "value": "avro",
        "value_framing": "registry",
    }
    search = Search("MARK-1")
    search.text(
        "options", repr(sink_options({**AVRO, "schema_registry": "http://me:MARK-1@registry:8081"}))
    )
    search.verify()


async def test_wrong_option_hides_the_others_secrets(tmp_path: Path) -> None:
    search = Search("MARK-1")
    for wrong in (
        {"schema_registry": "nonsense:MARK-1@x"},
        {"schema_registry": "http://a:MARK-1@b", "threads": 0},
    ):
        with pytest.raises(ConfigurationError) as caught:
            FileSink.from_options({"destination": str(tmp_path), "value_format": "json", **wrong})
        search.text("error", f"{caught.value!r}")
    search.verify()


@pytest.mark.parametrize(
    "wrong",
    [
        {"threads": 0},
        {"schema_registry_token": "MARK-1"},
        {"schema_registry_timeout_ms": 0},
        {"value_format": "xml"},
    ],
    ids=str,
)
async def test_refused_export_has_no_secret_in_frames(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    options = {
        "value_format": "json",
        "schema_registry": "http://me:MARK-1@b",
        "schema_registry_auth": "me:MARK-1",
        **wrong,
    }
    with pytest.raises(ConfigurationError) as caught:
        await trikafka.export(
            "t", tmp_path / "out", bootstrap_servers="127.0.0.1:1", sink_options=options
        )
    search = Search("MARK-1")
    search.error(caught.value)
    search.verify()


def test_json_export_of_an_old_release_continues() -> None:
    """A JSON export of a release that did not parse keys continues, with its plans' format."""
    parser = Parser.of(
        {"name": "parquet", "partition_by": [], "value": "json", "schemas": {"t": {"n": "int64"}}},
        "t",
    )
    assert parser is not None
    table = pa.table({"key": pa.array([b"k"]), "value": pa.array([b'{"n": 1}'])})
    assert parser.parse(table)[0].to_pylist() == [{"key": b"k", "value": {"n": 1}}]


def test_invalid_key_and_value_are_one_letter() -> None:
    """A record with an invalid key and an invalid value is one dead letter."""
    decoder = JsonDecoder({"n": "int64"})
    table = pa.table({"key": pa.array([b"x", None, b"{}"]), "value": pa.array([b"y", b"{}", b"z"])})
    read, refused = Parser({"value": decoder, "key": decoder}).parse(table)
    assert read.to_pylist() == [{"key": None, "value": {"n": None}}]
    assert [row["value"] for row, _ in refused] == [b"y", b"z"]
    assert "; key: " in refused[0][1]


def test_values_of_mixed_schemas_keep_their_order() -> None:
    values = [bytes([number * 7 % 13, number]) for number in range(200)]

    class Second:
        type = pa.int64()

        def decode(self, column: pa.BinaryArray) -> tuple[pa.Array, dict[int, str]]:
            return decode_rows(
                column.to_pylist(),
                lambda some: pa.array([each[0] for each in some], pa.int64()),
                self.type,
            )

    array, bad = by_head(
        pa.array(values),
        1,
        pa.int64(),
        lambda head: ("unlucky", 1) if head == b"\x05" else (Second(), 1),
    )
    unlucky = {index for index, value in enumerate(values) if value[0] == 5}
    assert set(bad) == unlucky
    assert array.to_pylist() == [None if index in unlucky else index for index in range(200)]


def test_descriptor_set_is_pinned_as_its_files() -> None:
    from google.protobuf import descriptor_pb2

    data = descriptor_pb2.FileDescriptorSet(file=[everything()]).SerializeToString()
    format = kept(value_format="protobuf", value_schema=data, value_message="p.M")
    assert format["value"] == "protobuf"
