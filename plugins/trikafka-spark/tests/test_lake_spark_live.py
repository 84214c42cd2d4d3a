"""Spark's own Delta Lake reads, compacts and changes a table, and the next export continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio
from known_topics import TIME, add_records
from lakes import make_lake
from spark_delta import check_delta, few_partitions

import trikafka


async def test_export_continues_after_sparks_commands(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, spark: Any
) -> None:
    """The export continues after Spark's commands, and the check finds a deleted row."""
    lake, topic = make_lake("delta", tmp_path), await new_topic(400)
    table, servers = f"delta.`{lake.destination}`", kafka_broker.bootstrap_servers

    async def export(**more: Any) -> trikafka.ExportResult:
        return await trikafka.export(
            topic,
            lake.destination,
            bootstrap_servers=servers,
            sink_options={**lake.options, **more},
            max_records_per_file=50,
        )

    async def sql(text: str) -> Any:
        return await trio.to_thread.run_sync(lambda: spark.sql(text).collect())

    with few_partitions(spark):
        assert (await export(partition_by="date")).rows == 400
        await trio.to_thread.run_sync(check_delta, spark, lake.root, 400)
        (day,) = await sql(
            f"SELECT date, count(*), max(timestamp), min(offset) FROM {table} GROUP BY date"
        )
        assert (str(day[0]), day[1], day[3]) == ("2023-11-14", 400, 0)
        assert int(day[2].timestamp() * 1000) == TIME + 399
        where = f"topic = '{topic}' AND partition = 3 AND offset BETWEEN 10 AND 19"
        (pruned,) = await sql(f"SELECT count(*) FROM {table} WHERE {where}")
        assert pruned[0] == 10
        await sql(f"OPTIMIZE {table}")
        await sql(f"VACUUM {table} RETAIN 0 HOURS")
        await sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
        await sql(f"DELETE FROM {table} WHERE partition = 2 AND offset = 7")
    assert len(list(lake.root.rglob("*.parquet"))) == 1
    await add_records(servers, topic, 400, 100, 4)
    assert (await export()).rows == 100
    found = await trikafka.check_export(lake.destination, sink_options=lake.options)
    assert (found.rows, found.problems) == (499, (f"{topic}-2 [0, 50) has 49 rows, not 50",))
    (rows,) = await sql(f"SELECT count(*), count(DISTINCT partition, offset) FROM {table}")
    assert tuple(rows) == (499, 499)


async def test_spark_reads_parsed_values(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, spark: Any
) -> None:
    lake, topic = make_lake("delta", tmp_path), await new_topic(0, 1)
    async with trikafka.open_producer(bootstrap_servers=kafka_broker.bootstrap_servers) as producer:
        for number in range(10):
            await producer.send(
                topic,
                json.dumps({"n": number, "big": 2**64 - 1, "tags": ["x"]}).encode(),
                timestamp=TIME,
            )
    schema = {"n": "int16", "big": "uint64", "tags": ["string"]}
    parsed = {"value_format": "json", "value_schema": json.dumps(schema)}
    options = {**lake.options, **parsed, "spark_above": 0, "partition_by": "topic"}
    result = await trikafka.export(
        topic,
        lake.destination,
        bootstrap_servers=kafka_broker.bootstrap_servers,
        sink_options=options,
        max_records_per_file=4,
    )
    assert (result.rows, len(result.files)) == (10, 3)
    query = (
        "SELECT sum(value.n), max(value.big), first(value.tags[0]), first(topic) FROM "
        f"delta.`{lake.destination}`"
    )
    (row,) = await trio.to_thread.run_sync(lambda: spark.sql(query).collect())
    assert (row[0], int(row[1]), row[2], row[3]) == (45, 2**64 - 1, "x", topic)
