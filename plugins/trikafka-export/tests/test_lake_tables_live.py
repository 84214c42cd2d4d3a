"""Parsed values, days, dead letters and existing tables: Delta and Iceberg, from a real Kafka."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from known_topics import TIME, add_records, create_known
from lakes import Lake, make_lake
from test_formats_avro import encoded, field, logical, record

import trikafka
from trikafka import ConfigurationError, ExportError

DAY_MS = 86_400_000
AVRO = record(
    field("id", "long"),
    field("at", logical("long", "timestamp-millis")),
    field("tags", {"type": "map", "values": {"type": "array", "items": "string"}}),
    name="shop.Order",
)


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return make_lake(request.param, tmp_path / "lake")


async def test_values_are_columns_or_dead_letters(
    kafka_broker: Any, new_topic: Any, lake: Lake
) -> None:
    """Parsed values are columns; values that no column can hold are dead letters."""
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(0, 1)
    values: list[dict[str, Any]] = [
        {"id": n, "at": TIME + n, "tags": {"a": ["x", str(n)]}} for n in range(40)
    ]
    values[7]["at"] = 2**62  # a time that microseconds cannot hold
    async with trikafka.open_producer(bootstrap_servers=servers) as producer:
        for value in values:
            await producer.send(topic, encoded(AVRO, value), timestamp=TIME)
        await producer.send(topic, b"\xff", timestamp=TIME)
        await producer.send(topic, None, timestamp=TIME)
    options = {**lake.options, "value_format": "avro", "value_schema": json.dumps(AVRO)}
    result = await trikafka.export(
        topic, lake.destination, bootstrap_servers=servers, sink_options=options
    )
    assert (result.rows, result.dead_letters) == (40, 2)
    rows = {row["offset"]: row["value"] for row in lake.read().to_pylist()}
    assert sorted(rows) == [*range(7), *range(8, 40), 41]
    assert rows[41] is None
    assert (rows[3]["id"], dict(rows[3]["tags"])) == (3, {"a": ["x", "3"]})
    assert rows[3]["at"] == datetime.datetime.fromtimestamp((TIME + 3) / 1000, datetime.UTC)
    letters = [
        json.loads(line)
        for path in (lake.root / "_dead_letters").iterdir()
        for line in path.read_text().splitlines()
    ]
    assert sorted(each["offset"] for each in letters) == [7, 40]
    assert not (await trikafka.check_export(lake.destination, sink_options=options)).problems


async def test_types_are_widened_to_the_tables(
    kafka_broker: Any, new_topic: Any, lake: Lake
) -> None:
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(0, 1)
    row = {
        "small": 7,
        "big": 2**64 - 1,
        "at": "2024-01-31T10:00:00.123456789Z",
        "list": [{"half": 1}],
    }
    await make_values(servers, topic, [json.dumps(row).encode()])
    schema = {"small": "int8", "big": "uint64", "at": "timestamp[ns]", "list": [{"half": "uint16"}]}
    options = {**lake.options, "value_format": "json", "value_schema": json.dumps(schema)}
    result = await trikafka.export(
        topic, lake.destination, bootstrap_servers=servers, sink_options=options
    )
    assert (result.rows, result.dead_letters) == (1, 0)
    (found,) = lake.read()["value"].to_pylist()
    assert (found["small"], int(found["big"]), found["list"]) == (7, 2**64 - 1, [{"half": 1}])
    assert found["at"] == datetime.datetime(2024, 1, 31, 10, 0, 0, 123456)


async def make_values(servers: str, topic: str, values: list[bytes]) -> None:
    async with trikafka.open_producer(bootstrap_servers=servers) as producer:
        for value in values:
            await producer.send(topic, value, timestamp=TIME)


async def test_days_and_topics_are_partitions(kafka_broker: Any, lake: Lake) -> None:
    """Days and topics are partitions; a day beyond the year 9999 is null."""
    servers, topic = kafka_broker.bootstrap_servers, f"days-{lake.format}"
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        config = {"message.timestamp.after.max.ms": str(2**63 - 1)}
        await create_known(admin, topic, **config)
    times = [TIME, TIME + DAY_MS, 1, TIME * 1000]
    async with trikafka.open_producer(bootstrap_servers=servers) as producer:
        for time in times:
            await producer.send(topic, b"v", timestamp=time)
    options = {**lake.options, "partition_by": "date,topic"}
    result = await trikafka.export(
        topic, lake.destination, bootstrap_servers=servers, sink_options=options
    )
    assert (result.rows, len(result.files)) == (4, 4)
    places = {path.parent.name for path in lake.root.rglob("*.parquet")}
    assert places == {
        "date=2023-11-14",
        "date=2023-11-15",
        "date=1970-01-01",
        "date=__HIVE_DEFAULT_PARTITION__",
    }
    assert lake.rows_of_day(datetime.date(2023, 11, 15)) == [1]
    assert lake.rows_of_day(datetime.date(1970, 1, 1)) == [2]
    assert not (await trikafka.check_export(lake.destination, sink_options=lake.options)).problems


async def test_existing_table_is_used_if_it_fits(
    kafka_broker: Any, new_topic: Any, lake: Lake
) -> None:
    """An existing table is used with its partitions if its columns and partitions fit."""
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(200)
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    wrong = pa.schema([pa.field("topic", pa.string()), pa.field("offset", pa.int32())])
    lake.create(wrong)
    with pytest.raises(ConfigurationError, match=r"has no column key \(binary\)"):
        await trikafka.export(topic, lake.destination, **where)
    lake.drop()
    lake.create(lake.columns().append(pa.field("noted", pa.string())), by_day=True)
    options = {**lake.options, "partition_by": "topic"}
    with pytest.raises(
        ConfigurationError, match=r"is partitioned by \['date'\], not by \['topic'\]"
    ):
        await trikafka.export(
            topic, lake.destination, bootstrap_servers=servers, sink_options=options
        )
    result = await trikafka.export(topic, lake.destination, **where)
    assert result.rows == 200
    assert set(lake.check(200)["noted"].to_pylist()) == {None}
    assert {path.parent.name for path in lake.root.rglob("topic*.parquet")} == {"date=2023-11-14"}


async def test_recreated_table_is_refused(kafka_broker: Any, new_topic: Any, lake: Lake) -> None:
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(200)
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    assert (await trikafka.export(topic, lake.destination, **where)).rows == 200
    lake.drop()
    lake.create(lake.columns())
    await add_records(servers, topic, 200, 40, 4)
    with pytest.raises(ExportError, match="is not the table that earlier exports wrote to"):
        await trikafka.export(topic, lake.destination, **where)


async def test_topics_of_other_columns_are_refused(
    kafka_broker: Any, new_topic: Any, lake: Lake
) -> None:
    servers = kafka_broker.bootstrap_servers
    topics = [await new_topic(0, 1), await new_topic(0, 1)]
    await make_values(servers, topics[0], [b'{"a": 1}'])
    await make_values(servers, topics[1], [b'{"a": "x"}'])
    options = {**lake.options, "value_format": "json"}
    with pytest.raises(ConfigurationError, match="have different schemas, and a table has one"):
        await trikafka.export(
            topics, lake.destination, bootstrap_servers=servers, sink_options=options
        )
    assert not lake.exists()


async def test_two_topics_go_to_one_table(kafka_broker: Any, new_topic: Any, lake: Lake) -> None:
    topics = [await new_topic(100, 1), await new_topic(40, 1)]
    where = {"bootstrap_servers": kafka_broker.bootstrap_servers, "sink_options": lake.options}
    result = await trikafka.export(topics, lake.destination, **where)
    assert (result.rows, len(result.versions)) == (140, 1)
    assert sorted(lake.read()["topic"].to_pylist()) == sorted([topics[0]] * 100 + [topics[1]] * 40)
    assert not (await trikafka.check_export(lake.destination, sink_options=lake.options)).problems
