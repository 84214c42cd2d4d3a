"""Limits of a stream in a real Spark, beside Spark's own connector: sizes and waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from known_topics import add_records, make_topic
from pyspark.sql import SparkSession
from test_spark_stream_live import Batches, blocking, run


@contextmanager
def running(
    spark: SparkSession, broker: Any, batches: Batches, checkpoint: Path, **options: str
) -> Iterator[Any]:
    """Run a query until the end of the block."""
    reader = (
        spark.readStream.format("trikafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .options(**options)
    )
    writer = (
        reader.load()
        .writeStream.foreachBatch(batches)
        .option("checkpointLocation", str(checkpoint))
    )
    query = writer.trigger(processingTime="50 milliseconds").start()
    try:
        yield query
    finally:
        query.stop()


async def until(query: Any, batches: Batches, rows: int) -> None:
    with trio.fail_after(900):
        while sum(batches.sizes) < rows:
            assert await blocking(lambda: query.isActive), await blocking(query.exception)
            await trio.sleep(0.05)


async def test_batch_waits_for_a_minimum_or_a_delay(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """A batch waits for a minimum of records, for a limited time.

    The connector, tried by hand, does the same.
    """
    topic = await new_topic(10, partitions=2)
    servers = kafka_broker.bootstrap_servers
    batches = Batches()
    options = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": "15"}
    with running(spark, kafka_broker, batches, tmp_path, **options, maxTriggerDelay="10m") as query:
        await until(query, batches, 10)
        await add_records(servers, topic, 10, 8, 2)
        await trio.sleep(1.5)  # not a wait for a condition: no batch may come in this time
        assert batches.sizes == [10]
        # Exactly the minimum, so the batch cannot begin with less.
        await add_records(servers, topic, 18, 7, 2)
        await until(query, batches, 25)
    assert batches.sizes == [10, 15]
    with running(spark, kafka_broker, batches, tmp_path, **options, maxTriggerDelay="1s") as query:
        await add_records(servers, topic, 25, 3, 2)
        await until(query, batches, 28)
        await add_records(servers, topic, 28, 3, 2)
        await until(query, batches, 31)
    batches.check(31, 2)


@pytest.mark.usefixtures("sparks_connector")
async def test_batches_are_cut_as_by_the_connector(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    topic = await new_topic(60, partitions=3)
    await add_records(kafka_broker.bootstrap_servers, topic, 0, 25, 1)  # partition 0 has more
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "37"}
    found = []
    for source in ("kafka", "trikafka"):
        batches = Batches()
        place = tmp_path / source
        await blocking(lambda: run(spark, kafka_broker, batches, place, source, **options))  # noqa: B023
        found.append([sorted(rows) for _, rows in sorted(batches.rows.items())])
    assert found[0] == found[1]
    assert len(found[0]) == 3


async def test_new_topic_is_read_from_its_beginning(
    spark: SparkSession, kafka_broker: Any, tmp_path: Path
) -> None:
    servers, batches = kafka_broker.bootstrap_servers, Batches()
    await make_topic(servers, "comes-1", 10, 1)
    options = {"subscribePattern": r"comes-\d", "startingOffsets": "earliest"}
    await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, **options))
    assert batches.sizes == [10]
    await make_topic(servers, "comes-2", 7, 1)
    await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, **options))
    assert sum(batches.sizes) == 17
