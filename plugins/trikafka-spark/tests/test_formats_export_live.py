"""Exports of Avro, Protobuf and JSON from a real Kafka, with a schema registry over HTTP."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import trio
from google.protobuf import descriptor_pb2, message_factory
from known_topics import TIME, create_known, data_files
from scripted_registry import ScriptedRegistry, framed
from test_formats_avro import encoded, field, logical, record
from test_formats_protobuf import a_file, add
from trikafka_export.formats import registry as registry_module
from trikafka_export.formats.protobuf_types import ProtobufSchema

import trikafka
from trikafka import ConfigurationError, ExportIncompleteError

OLD = record(field("id", "long"), field("gone", "string"), name="shop.Order")
NEW = record(
    field("id", "long"),
    field("at", ["null", logical("long", "timestamp-millis")], default=None),
    name="shop.Order",
)
PASSWORD = "MARK-77-registry"


@pytest.fixture
def registry() -> Iterator[ScriptedRegistry]:
    with ScriptedRegistry() as registry:
        yield registry


async def make(servers: str, topic: str, records: list[tuple[bytes | None, bytes | None]]) -> None:
    """Create a topic of one partition with these keys and values."""
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await create_known(admin, topic)
    await send(servers, topic, records)


async def send(servers: str, topic: str, records: list[tuple[bytes | None, bytes | None]]) -> None:
    async with trikafka.open_producer(bootstrap_servers=servers) as producer:
        for key, value in records:
            await producer.enqueue(topic, value, key=key, headers=[("h", b"1")], timestamp=TIME)
        await producer.flush()


async def letters_of(servers: str, topic: str, count: int) -> list[trikafka.Record]:
    found: list[trikafka.Record] = []
    async with trikafka.open_consumer(
        bootstrap_servers=servers, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([trikafka.TopicPartition(topic, 0)])
        with trio.fail_after(900):
            while len(found) < count:
                found += await consumer.receive_batch()
    return found


def rows(root: Path) -> dict[int, dict[str, Any]]:
    """Return the rows that a reader with a glob finds, by offsets."""
    table = ds.dataset([str(path) for path in data_files(root)]).to_table()
    found = {row["offset"]: row for row in table.to_pylist()}
    assert len(found) == table.num_rows
    return found


async def test_avro_with_registry_and_dead_letters(
    kafka_broker: Any, registry: ScriptedRegistry, tmp_path: Path
) -> None:
    """Avro keys and values are exported; invalid ones reach the dead-letter topic."""
    servers, root = kafka_broker.bootstrap_servers, tmp_path / "out"
    registry.avro(1, OLD)
    registry.avro(2, NEW)
    registry.avro(3, "string")
    registry.says["/schemas/ids/4"] = {"schema": "{}", "schemaType": "JSON"}
    key = framed(3, encoded("string", "kunde"))
    old = framed(1, encoded(OLD, {"id": 1, "gone": "x"}))
    new = framed(2, encoded(NEW, {"id": 2, "at": None}))
    bad = [(key, b"junk"), (key, framed(99, b"??")), (key, framed(4, b"{}")), (b"no key", new)]
    await make(
        servers,
        "avro-orders",
        [*[(key, old)] * 20, *bad, (key, None), (None, new), *[(key, new)] * 20],
    )
    options = {
        "value_format": "avro",
        "key_format": "avro",
        "dead_letter_topic": "avro-orders.dead",
        "schema_registry": registry.url,
        "schema_registry_auth": f"me:{PASSWORD}",
        "schema_registry_timeout_ms": 8_000,
    }

    async def export(**more: Any) -> trikafka.ExportResult:
        return await trikafka.export(
            "avro-orders", root, bootstrap_servers=servers, sink_options=options, **more
        )

    with pytest.raises(
        ConfigurationError, match=r"dead_letter_topic 'avro-orders.dead' does not exist; create it"
    ):
        await export()
    assert not list(root.rglob("plan-*"))
    await make(servers, "avro-orders.dead", [])
    result = await export()
    assert (result.rows, result.dead_letters) == (42, 4)
    found = rows(root)
    assert (found[0]["key"], found[0]["value"]) == ("kunde", {"id": 1, "at": None})
    assert (found[24]["value"], found[25]["key"], found[25]["value"]["id"]) == (None, None, 2)
    letters = await letters_of(servers, "avro-orders.dead", 4)
    headers = [
        {name: value and value.decode() for name, value in letter.headers} for letter in letters
    ]
    assert [each["trikafka.offset"] for each in headers] == ["20", "21", "22", "23"]
    assert [(letter.key, letter.value) for letter in letters] == bad
    assert {each["trikafka.topic"] for each in headers} == {"avro-orders"}
    assert headers[0] == {
        "h": "1",
        "trikafka.topic": "avro-orders",
        "trikafka.partition": "0",
        "trikafka.offset": "20",
        "trikafka.timestamp": str(TIME),
        "trikafka.error": "trikafka_export.formats.errors.UnreadableError",
        "trikafka.message": "the value does not begin with a zero byte and the id of a schema",
        "trikafka.attempts": "1",
    }
    assert "has no schema 99" in str(headers[1]["trikafka.message"])
    assert headers[2]["trikafka.message"] == "schema 4 is one of JSON, not of AVRO"
    assert str(headers[3]["trikafka.message"]).startswith("key: ")
    plan = json.loads((root / "_trikafka" / "plan-000001.json").read_text())
    assert plan["format"]["schemas"]["avro-orders"] == {"schema": NEW}, (
        "the newest is the one that is pinned"
    )
    assert all(
        PASSWORD.encode() not in path.read_bytes() for path in root.rglob("*") if path.is_file()
    )
    assert (
        base64.b64encode(f"me:{PASSWORD}".encode()).decode() in registry.headers[0]["Authorization"]
    )

    # An outage of the registry is no reason for a dead letter: the range waits.
    registry.says["/schemas/ids/5"] = [(503, {})]
    await send(servers, "avro-orders", [(key, framed(5, encoded(OLD, {"id": 5, "gone": ""})))] * 3)
    with pytest.raises(
        ExportIncompleteError, match=f"asking the schema registry {registry.url} for the schema 5"
    ) as caught:
        await export(task_timeout_ms=0)
    assert (caught.value.result.dead_letters, caught.value.result.rows) == (0, 0)
    registry.avro(5, OLD)
    result = await export()
    assert (result.rows, result.dead_letters) == (3, 0)
    assert rows(root)[46]["value"] == {"id": 5, "at": None}


async def test_protobuf_and_json_with_a_registry(
    kafka_broker: Any, registry: ScriptedRegistry, tmp_path: Path
) -> None:
    servers = kafka_broker.bootstrap_servers
    base, file = a_file("common/base.proto"), a_file("any-name.proto", "common/base.proto")
    add(base.message_type.add(name="Base"), "x", "int32")
    add(file.message_type.add(name="Other"), "y", "int32")
    message = file.message_type.add(name="M")
    add(message, "base", ".p.Base")
    add(message, "name", "string")
    encoded_base = base64.b64encode(base.SerializeToString()).decode()
    registry.protobuf(
        7, file, references=[{"name": "common/base.proto", "subject": "base", "version": 2}]
    )
    registry.says["/subjects/base/versions/2"] = {
        "schemaType": "PROTOBUF",
        "schema": encoded_base,
        "id": 6,
        "version": 2,
    }
    files = descriptor_pb2.FileDescriptorSet(file=[base, file]).SerializeToString()
    value = message_factory.GetMessageClass(ProtobufSchema.of_set(files, "p.M").descriptor)(
        name="n"
    )
    value.base.x = 5
    good, other = framed(7, b"\x02\x02" + value.SerializeToString()), framed(7, b"\0\x08\x01")
    await make(
        servers,
        "protos",
        [(None, each) for each in (good, other, framed(7, b"\x02\x02\xff"), good)],
    )
    options = {"value_format": "protobuf", "schema_registry": registry.url}
    result = await trikafka.export(
        "protos", tmp_path / "p", bootstrap_servers=servers, sink_options=options
    )
    assert (result.rows, result.dead_letters) == (2, 2)
    assert rows(tmp_path / "p")[3]["value"] == {"base": {"x": 5}, "name": "n"}
    (letters,) = (tmp_path / "p" / "_dead_letters").iterdir()
    assert (
        json.loads(letters.read_text().splitlines()[0])["error"]
        == "the value is a message p.Other, not p.M"
    )

    registry.says["/schemas/ids/9"] = {"schema": "{}", "schemaType": "JSON"}
    await make(
        servers,
        "jsons",
        [(None, framed(9, b'{"n": 1}')), (None, b'{"n": 2}'), (None, framed(8, b'{"n": 3}'))],
    )
    options = {"value_format": "json", "schema_registry": registry.url}
    result = await trikafka.export(
        "jsons", tmp_path / "j", bootstrap_servers=servers, sink_options=options
    )
    assert (result.rows, result.dead_letters, rows(tmp_path / "j")[0]["value"]) == (1, 2, {"n": 1})
    with pytest.raises(
        ConfigurationError, match="name schemas of a registry: give schema_registry"
    ):
        await trikafka.export("jsons", tmp_path / "j", bootstrap_servers=servers)


@pytest.mark.usefixtures("spark_context")
async def test_spark_exports_avro_with_a_registry(
    kafka_broker: Any, registry: ScriptedRegistry, tmp_path: Path
) -> None:
    servers = kafka_broker.bootstrap_servers
    registry.avro(1, OLD)
    await make(servers, "avro-spark.dead", [])
    values = [framed(1, encoded(OLD, {"id": number, "gone": ""})) for number in range(50)]
    await make(servers, "avro-spark", [(None, value) for value in [*values, b"junk"]])
    (tmp_path / "new.avsc").write_text(json.dumps(NEW))
    options = {
        "value_format": "avro",
        "value_schema": str(tmp_path / "new.avsc"),
        "schema_registry": registry.url,
        "dead_letter_topic": "avro-spark.dead",
        "spark_above": 0,
    }
    result = await trikafka.export(
        "avro-spark", tmp_path / "out", bootstrap_servers=servers, sink_options=options
    )
    assert (result.rows, result.dead_letters) == (50, 1)
    assert rows(tmp_path / "out")[49]["value"] == {"id": 49, "at": None}
    (letter,) = await letters_of(servers, "avro-spark.dead", 1)
    assert letter.value == b"junk"


async def test_missing_schema_stops_its_topic_only(
    kafka_broker: Any, registry: ScriptedRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic whose schema is missing or refused waits; the other topics are exported."""
    servers, root = kafka_broker.bootstrap_servers, tmp_path / "out"
    # Seconds for which an id counts as unknown.
    monkeypatch.setattr(registry_module, "_UNKNOWN_FOR", 0.0)
    registry.avro(1, OLD)
    good = [(None, framed(1, encoded(OLD, {"id": number, "gone": ""}))) for number in range(5)]
    await make(servers, "known", good)
    await make(servers, "unknown", [(None, framed(77, encoded(OLD, {"id": 7, "gone": ""})))])
    await make(servers, "refused", [(None, framed(78, encoded(OLD, {"id": 8, "gone": ""})))])
    registry.says["/schemas/ids/78"] = [(401, {})]
    options = {
        "value_format": "avro",
        "schema_registry": registry.url,
        "schema_registry_timeout_ms": 8_000,
    }

    async def export(*topics: str, **more: Any) -> trikafka.ExportResult:
        return await trikafka.export(
            topics, root, bootstrap_servers=servers, sink_options=options, **more
        )

    with pytest.raises(
        trikafka.TrikafkaError,
        match=r"no schema could be found: the schema registry .* has no schema 77",
    ):
        await export("unknown")
    assert not list(root.rglob("plan-*")), "of a first export in which nothing can be read"

    what = (
        "refused-0, unknown-0 could not be exported: the schema registry .* refuses access to the "
        "schema 78"
    )
    with pytest.raises(ExportIncompleteError, match=what) as caught:
        await export("known", "unknown", "refused")
    assert caught.value.result.rows == 5
    assert sorted(each.topic for each in caught.value.result.carried) == ["refused", "unknown"]

    # The registry responds for one id again, and not for the other. The export waits for that id,
    # as long as a task may take.
    registry.avro(78, OLD)
    registry.says["/schemas/ids/77"] = [(503, {})]
    await send(servers, "known", good)
    with pytest.raises(
        ExportIncompleteError, match="unknown-0 could not be exported: asking the schema registry"
    ):
        await export("known", "unknown", "refused", task_timeout_ms=0)
    found = ds.dataset([str(path) for path in data_files(root)]).to_table().to_pylist()
    assert sorted(row["topic"] for row in found) == ["known"] * 10 + ["refused"]

    registry.avro(77, OLD)
    result = await export("known", "unknown", "refused")
    assert (result.rows, result.carried) == (1, ())
