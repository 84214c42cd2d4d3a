"""Writes by the data source ``trikafka`` in a real Spark and a real Kafka.

Plain writes behave as the connector's; others are exactly once.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from known_topics import committed, settled
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from trikafka_spark import active, run_query

import trikafka
from benchmarks.librdkafka import read_topic
from trikafka import Record, TopicPartition


async def blocking(function: Any, *args: Any) -> Any:
    return await trio.to_thread.run_sync(function, *args)


async def records(broker: Any, topic: str) -> list[Record]:
    """Return the committed records of a topic, by partition and offset.

    Transactions that are just ending end first.
    """
    await settled(broker.bootstrap_servers)
    settings = {
        "bootstrap_servers": broker.bootstrap_servers,
        "isolation_level": "read_committed",
        "auto_offset_reset": "earliest",
    }
    async with trikafka.open_consumer(**settings) as consumer:
        tps = [
            TopicPartition(topic, info.partition) for info in await consumer.partitions_for(topic)
        ]
        consumer.assign(tps)
        ends = await consumer.end_offsets(tps)
        return sorted(
            [record async for batch in consumer.batches(until=ends) for record in batch],
            key=lambda record: record[:3],
        )


def save(frame: DataFrame, broker: Any, **options: str) -> None:
    with active(frame.sparkSession):
        writer = frame.write.format("trikafka").option(
            "kafka.bootstrap.servers", broker.bootstrap_servers
        )
        writer.options(**options).mode("append").save()


async def test_frame_becomes_records(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    one, two = await new_topic(0, partitions=3), await new_topic(0, partitions=1)
    frame = spark.sql(
        f"""SELECT IF(id = 3, NULL, concat('k', id)) AS key, IF(id = 5, NULL, concat('v', id)) AS value,
        IF(id % 2 = 0, '{one}', '{two}') AS topic, IF(id % 2 = 0, CAST(id % 3 AS INT), NULL) AS partition,
        timestamp_millis(1700000000000 + id) AS timestamp, 'ignored' AS more,
        IF(id = 4, array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))), NULL) AS headers FROM range(0, 100, 1, 2)"""
    )
    await blocking(lambda: save(frame, kafka_broker))
    found = await records(kafka_broker, one)
    assert {(r.key, r.value, r.partition, r.timestamp) for r in found} == {
        (b"k%d" % n, b"v%d" % n, n % 3, 1_700_000_000_000 + n) for n in range(0, 100, 2)
    }
    assert [r.headers for r in found if r.key == b"k4"] == [(("h", b"x"),)]
    values = Counter((r.key, r.value) for r in await records(kafka_broker, two))
    assert values == Counter(
        (None if n == 3 else b"k%d" % n, None if n == 5 else b"v%d" % n) for n in range(1, 100, 2)
    )


async def test_missing_topic_is_named(spark: SparkSession, kafka_broker: Any) -> None:
    with pytest.raises(PySparkException, match="no topic: set the option 'topic'"):
        await blocking(lambda: save(spark.range(1).selectExpr("'x' AS value"), kafka_broker))
    with pytest.raises(PySparkException, match="a row has no topic"):
        await blocking(
            lambda: save(
                spark.sql("SELECT 'x' AS value, CAST(NULL AS STRING) AS topic"), kafka_broker
            )
        )


async def test_failed_save_commits_nothing(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    """A save with a failed task commits nothing, and the next attempt commits all rows."""
    topic = await new_topic(0, partitions=2)
    options = {
        "topic": topic,
        "exactlyOnce": "true",
        "transactionalId": f"job-{topic}",
        "exactlyOnceVersion": "7",
    }
    frame = spark.range(0, 80, 1, 4).selectExpr("CAST(id AS STRING) AS value")
    bad = "IF(id = 79, CAST(raise_error('bad row') AS STRING), CAST(id AS STRING)) AS value"
    failing = spark.range(0, 80, 1, 4).selectExpr(bad)
    with pytest.raises(PySparkException, match="bad row"):
        await blocking(lambda: save(failing, kafka_broker, **options))
    # rows are there, of tasks that have succeeded; none of them is committed
    assert await committed(kafka_broker.bootstrap_servers, topic) == {}
    assert (
        len(await blocking(read_topic, kafka_broker.bootstrap_servers, topic, "read_uncommitted"))
        >= 20
    )
    await blocking(lambda: save(frame, kafka_broker, **options))
    assert await committed(kafka_broker.bootstrap_servers, topic) == dict.fromkeys(
        (b"%d" % n for n in range(80)), 1
    )


async def test_version_of_a_batch_is_written_once(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    topic = await new_topic(0, partitions=2)
    frame = spark.range(0, 50, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    for version in ("1", "1", "2"):
        options = {
            "topic": topic,
            "exactlyOnce": "true",
            "transactionalId": f"job-{topic}",
            "exactlyOnceVersion": version,
        }
        await blocking(lambda options=options: save(frame, kafka_broker, **options))
    counts = Counter(record.value for record in await records(kafka_broker, topic))
    assert counts == dict.fromkeys((b"%d" % n for n in range(50)), 2)


async def test_repeated_version_is_written_once(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    """A version that runs again with other tasks is written once.

    All rows are there already. The number of tasks differs in a larger cluster, or by adaptive
    execution.
    """
    topic = await new_topic(0, partitions=2)
    options = {
        "topic": topic,
        "exactlyOnce": "true",
        "transactionalId": f"job-{topic}",
        "exactlyOnceVersion": "1",
    }

    async def write(frame: DataFrame) -> None:
        await blocking(
            lambda: save(frame.selectExpr("CAST(id AS STRING) AS value"), kafka_broker, **options)
        )

    adaptive = "spark.sql.adaptive.enabled"
    before = spark.conf.get(adaptive)
    try:
        await write(spark.range(0, 80, 1, 4))
        await write(spark.range(0, 80, 1, 6))
        for each in ("false", "true"):
            spark.conf.set(adaptive, each)
            await write(
                spark.range(80).repartition("id")
                if each == "true"
                else spark.range(80).repartition(3, "id")
            )
    finally:
        spark.conf.set(adaptive, before)
    with pytest.raises(
        PySparkException,
        match=r"nothing of this run of version 1 of 'job-.*an earlier run had 4 tasks",
    ):
        await write(spark.range(0, 81, 1, 3))
    assert await committed(kafka_broker.bootstrap_servers, topic) == dict.fromkeys(
        (b"%d" % n for n in range(80)), 1
    )


async def test_repeated_stream_batch_is_written_once(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """A stream that repeats a batch writes it once, also with another number of tasks."""
    source, target = await new_topic(100, partitions=2), await new_topic(0, partitions=2)

    def start(**more: str) -> Any:
        options = {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers}
        reader = spark.readStream.format("trikafka").options(
            subscribe=source, startingOffsets="earliest", **options, **more
        )
        writer = (
            reader.load()
            .selectExpr("concat(partition, '-', offset) AS value")
            .writeStream.format("trikafka")
        )
        writer = writer.options(
            topic=target, exactlyOnce="true", checkpointLocation=str(tmp_path), **options
        )
        return writer.trigger(availableNow=True).start()

    await run_query(spark, start)
    for more in ({}, {"minPartitions": "5"}):
        (last,) = sorted((tmp_path / "commits").glob("[0-9]*"))
        last.unlink()  # as if Spark had been killed just before it recorded the end of the batch
        (tmp_path / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
        await run_query(spark, partial(start, **more))
    found = await records(kafka_broker, target)
    assert json.loads((tmp_path / "commits" / last.name).read_text().splitlines()[-1]) is not None
    assert Counter(record.value for record in found) == dict.fromkeys(
        (b"%d-%d" % (n % 2, n // 2) for n in range(100)), 1
    )
