"""Streams by the data source ``trikafka`` in a real Spark: checkpoints, limits, restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from known_topics import TIME, add_records, known_with, make_anew
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import trikafka
from trikafka import TopicPartition


class Batches:
    """A sink that stores each batch by its number, so that a repeated batch counts once.

    ``fail_at``: the numbers of batches that raise.
    """

    def __init__(self, *fail_at: int) -> None:
        self.rows: dict[int, list[tuple[int, int]]] = {}
        self.fail_at = set(fail_at)

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = [
            (row.partition, row.offset) for row in frame.select("partition", "offset").collect()
        ]
        if number in self.fail_at:
            self.fail_at.discard(number)
            raise RuntimeError("the sink fails")
        self.rows[number] = rows

    @property
    def sizes(self) -> list[int]:
        return [len(rows) for _, rows in sorted(self.rows.items())]

    def check(self, records: int, partitions: int, first: int = 0) -> None:
        """Check that all records from the number ``first`` on are there, each once."""
        found = sorted(row for rows in self.rows.values() for row in rows)
        assert found == sorted(
            (number % partitions, number // partitions) for number in range(first, records)
        )


def run(
    spark: SparkSession,
    broker: Any,
    batches: Batches,
    checkpoint: Path,
    source: str = "trikafka",
    *,
    once: bool = False,
    **options: str,
) -> Any:
    """Read the existing records into ``batches``; return the query, which has ended.

    Raises the error of the query.
    """
    reader = (
        spark.readStream.format(source)
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .options(**options)
    )
    writer = (
        reader.load()
        .writeStream.foreachBatch(batches)
        .option("checkpointLocation", str(checkpoint))
    )
    query = (writer.trigger(once=True) if once else writer.trigger(availableNow=True)).start()
    query.awaitTermination()
    return query


async def blocking(function: Any, *args: Any) -> Any:
    return await trio.to_thread.run_sync(function, *args)


@pytest.mark.usefixtures("sparks_connector")
async def test_checkpoint_works_with_both_sources(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """A checkpoint continues with the other source, the connector or ours, in both directions."""
    topic = await new_topic(40, partitions=2)
    batches, sources = Batches(), ["kafka", "trikafka", "kafka", "trikafka"]
    for number, source in enumerate(sources, 1):
        options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "24"}
        await blocking(
            lambda source=source, options=options: run(
                spark, kafka_broker, batches, tmp_path, source, **options
            )
        )
        batches.check(number * 40, 2)
        await add_records(kafka_broker.bootstrap_servers, topic, number * 40, 40, 2)
    offsets = [
        json.loads(path.read_text().splitlines()[-1])
        for path in (tmp_path / "offsets").glob("[0-9]*")
    ]
    async with trikafka.open_consumer(bootstrap_servers=kafka_broker.bootstrap_servers) as consumer:
        topic_id = (await consumer.topic_ids([topic]))[topic]
    ours = {topic: {"0": 80, "1": 80}, f"{topic}={topic_id}": {}}
    assert ours in offsets, "written by trikafka, in the connector's form"
    assert all(size <= 24 for size in batches.sizes)


async def test_group_has_the_offsets_of_the_last_batch(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """A batch is shared in proportion, and the group has the offsets of the last batch."""
    topic = await new_topic(60, partitions=2)
    # Partition 0 has 90, partition 1 has 30.
    await add_records(kafka_broker.bootstrap_servers, topic, 0, 60, 1)
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "40",
        "groupId": f"g-{topic}",
    }
    batches = Batches()
    query = await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, **options))
    assert batches.sizes == [40, 40, 40]
    assert [
        sum(partition == 0 for partition, _ in batches.rows[number]) for number in range(3)
    ] == [30, 30, 30]
    progress = json.loads(query.recentProgress[0].json)["sources"][0]
    assert progress["latestOffset"] == {topic: {"0": 90, "1": 30}}
    async with trikafka.open_admin(bootstrap_servers=kafka_broker.bootstrap_servers) as admin:
        committed = await admin.list_group_offsets(f"g-{topic}")
        assert {tp: at.offset for tp, at in committed.items()} == {
            TopicPartition(topic, 0): 90,
            TopicPartition(topic, 1): 30,
        }
        await admin.create_partitions({topic: 3})
        await known_with(admin, topic, 3)
    await add_records(kafka_broker.bootstrap_servers, topic, 2, 1, 3)
    await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, **options))
    assert batches.rows[3] == [(2, 0)], "a partition that came is read from its beginning"


async def test_failing_query_loses_and_doubles_nothing(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    topic = await new_topic(50, partitions=2)
    batches = Batches(*range(4))
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
    for _ in range(4):
        with pytest.raises(Exception, match="the sink fails"):
            await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, **options))
    await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, **options))
    batches.check(50, 2)


async def test_failed_first_batch_loses_nothing(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """A first batch from the latest offsets that fails loses no record."""
    topic = await new_topic(10, partitions=2)
    batches = Batches(0)
    with pytest.raises(Exception, match="the sink fails"):
        await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, subscribe=topic))
    await add_records(kafka_broker.bootstrap_servers, topic, 10, 20, 2)
    await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, subscribe=topic))
    batches.check(30, 2, first=10)


async def test_refused_option_is_reported_by_a_stream(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """An option that streams refuse is reported, and not hidden by an error of Spark's.

    The same holds for a query that has a checkpoint.
    """
    topic = await new_topic(4, partitions=1)
    for checkpoint in ("new", "old"):
        if checkpoint == "old":
            await blocking(
                lambda: run(spark, kafka_broker, Batches(), tmp_path / "old", subscribe=topic)
            )
        with pytest.raises(
            StreamingQueryException, match="endingOffsets is not valid in a streaming query"
        ) as caught:
            await blocking(
                lambda at=checkpoint: run(
                    spark,
                    kafka_broker,
                    Batches(),
                    tmp_path / at,
                    subscribe=topic,
                    endingOffsets="latest",
                )
            )
        assert "UnboundLocalError" not in str(caught.value)


async def test_trigger_once_from_a_time_reads_all(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """A stream from a time reads the existing records.

    This holds if a partition has no record that young, and if the first run does not finish.
    """
    topic = await new_topic(6, partitions=2)
    await add_records(kafka_broker.bootstrap_servers, topic, 7, 1, 1)  # to partition 0
    options = {
        "subscribe": topic,
        "startingOffsetsByTimestampStrategy": "latest",
        "startingTimestamp": str(TIME + 6),
    }
    batches = Batches(0)
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, once=True, **options))
    await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, once=True, **options))
    assert batches.rows == {0: [(0, 3)]}


async def test_recreated_topic_fails_the_next_run(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """A topic that was recreated between two runs is an error, or read if loss is allowed."""
    topic = await new_topic(30, partitions=1)
    batches, options = Batches(), {"subscribe": topic, "startingOffsets": "earliest"}
    await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, **options))
    await make_anew(kafka_broker.bootstrap_servers, topic, 5)
    with pytest.raises(
        Exception,
        match=f"{topic}-0 ended at offset 5, but it was read up to offset 30 before",
    ):
        await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, **options))
    await blocking(
        lambda: run(spark, kafka_broker, batches, tmp_path, failOnDataLoss="false", **options)
    )
    await add_records(kafka_broker.bootstrap_servers, topic, 5, 3, 1)
    await blocking(
        lambda: run(spark, kafka_broker, batches, tmp_path, failOnDataLoss="false", **options)
    )
    assert sorted(batches.rows)[-1] >= 2
    assert [row for number, rows in batches.rows.items() if number for row in rows] == [
        (0, 5),
        (0, 6),
        (0, 7),
    ]
