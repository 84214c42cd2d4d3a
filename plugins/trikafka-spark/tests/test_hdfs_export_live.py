"""Exports from a real Kafka to a real HDFS, by threads and by Spark, read by Spark."""

from __future__ import annotations

import json
from typing import Any

import trio
from hdfs_server import HdfsServer
from known_topics import add_records, make_topic
from test_stores import seen

import trikafka


async def test_spark_writes_to_hdfs(kafka_broker: Any, hdfs: HdfsServer, spark: Any) -> None:
    """Spark continues an export of threads; a record that is no JSON becomes a dead letter."""
    servers, folder = kafka_broker.bootstrap_servers, hdfs.folder()
    topic = await make_topic(servers, f"hdfs{folder.replace('/', '-')}", 400, 2)
    destination = f"hdfs://{hdfs.address}{folder}"
    options = {"partition_by": "date,topic", "value_format": "json"}

    async def export(above: int | str) -> trikafka.ExportResult:
        return await trikafka.export(
            topic,
            destination,
            bootstrap_servers=servers,
            max_records_per_file=100,
            sink_options={**options, "spark_above": above},
        )

    assert (await export("never")).rows == 400
    await add_records(servers, topic, 400, 200, 2)
    async with trikafka.open_producer(bootstrap_servers=servers) as producer:
        await (await producer.enqueue(topic, b"no json", partition=0)).wait()
    result = await export(0)
    assert (result.rows, result.dead_letters) == (200, 1)
    assert all(file.name.startswith(f"topic={topic}/date=") for file in result.files)
    names = await trio.to_thread.run_sync(hdfs.files, folder)
    (letter,) = [name for name in names if name.startswith("_dead_letters/")]
    assert json.loads(hdfs.read(f"{folder}/{letter}"))["offset"] == 300
    assert not [name for name in names if "/work/" in name], "nothing is left of the work"
    check = await trikafka.check_export(destination, deep=True)
    assert (check.rows, check.files, check.problems, check.unhashed) == (
        600,
        len(list(filter(seen, names))),
        (),
        0,
    )
    rows = await trio.to_thread.run_sync(
        lambda: spark.read.parquet(destination).select("partition", "offset").collect()
    )
    assert sorted(map(tuple, rows)) == sorted((number % 2, number // 2) for number in range(600))
