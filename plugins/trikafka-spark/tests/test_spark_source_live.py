"""The data source ``trikafka`` in a real Spark, over a real Kafka."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from known_topics import TIME, add_records
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession


async def read(spark: SparkSession, broker: Any, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("trikafka").option(
        "kafka.bootstrap.servers", broker.bootstrap_servers
    )
    return await trio.to_thread.run_sync(reader.options(subscribe=topic, **options).load)


async def rows(frame: DataFrame) -> list[Any]:
    return await trio.to_thread.run_sync(frame.collect)


async def test_topic_has_the_connectors_columns(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    """A topic is a data frame with the columns of Spark's connector."""
    topic = await new_topic(1_000)
    frame = await read(spark, kafka_broker, topic, includeHeaders="true", minPartitions="8")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    found = await rows(frame.selectExpr("*", "unix_millis(timestamp) AS ms"))
    assert {(row.partition, row.offset) for row in found} == {(n % 4, n // 4) for n in range(1_000)}
    assert len(found) == 1_000
    for row in found:
        number = row.offset * 4 + row.partition
        assert (row.topic, row.timestampType, row.ms) == (topic, 0, TIME + number)
        assert bytes(row.key) == b"k%d" % (number % 7)
        assert (row.value is None) is (number % 50 == 3)
        assert (row.headers is not None) is (number % 10 == 0)
    assert await trio.to_thread.run_sync(lambda: frame.rdd.getNumPartitions()) == 8


async def test_offset_ranges_are_bound_once(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    topic = await new_topic(400)
    frame = await read(spark, kafka_broker, topic)
    first = await trio.to_thread.run_sync(frame.count)
    await add_records(kafka_broker.bootstrap_servers, topic, 400, 100, 4)
    second = await trio.to_thread.run_sync(frame.filter("partition >= 0").count)
    assert (first, second) == (400, 400)
    fresh = await read(spark, kafka_broker, topic)
    assert await trio.to_thread.run_sync(fresh.count) == 500


async def test_offsets_and_times_limit_a_read(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    topic = await new_topic(400, partitions=2)
    offsets = {
        "startingOffsets": f'{{"{topic}": {{"0": 10, "1": -2}}}}',
        "endingOffsets": f'{{"{topic}": {{"0": 15, "1": 3}}}}',
    }
    found = await rows(
        (await read(spark, kafka_broker, topic, **offsets)).select("partition", "offset")
    )
    assert sorted(map(tuple, found)) == [(0, n) for n in range(10, 15)] + [(1, n) for n in range(3)]
    times = {"startingTimestamp": str(TIME + 100), "endingTimestamp": str(TIME + 110)}
    found = await rows(
        (await read(spark, kafka_broker, topic, **times)).select("partition", "offset")
    )
    assert sorted(offset * 2 + partition for partition, offset in found) == list(range(100, 110))


async def test_empty_topic_has_no_rows(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    frame = await read(spark, kafka_broker, await new_topic(0))
    assert await rows(frame) == []


async def test_error_names_the_mistake(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    with pytest.raises(
        AnalysisException,
        match=r"ConfigurationError: unknown option 'subscrib'.* did you mean 'subscribe'",
    ):
        await read(spark, kafka_broker, "t", subscrib="t")
    frame = await read(spark, kafka_broker, "nowhere")
    with pytest.raises(AnalysisException, match="topic 'nowhere' does not exist"):
        await rows(frame)
    topic = await new_topic(10, partitions=1)
    frame = await read(spark, kafka_broker, topic, startingOffsets=f'{{"{topic}": {{"0": 50}}}}')
    with pytest.raises(
        AnalysisException, match=r"holds the offsets \[0, 10\), but \[50, 10\) were to be read"
    ):
        await rows(frame)
