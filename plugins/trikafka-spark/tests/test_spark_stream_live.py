"""Streams by the data source ``trikafka`` in a real Spark: checkpoints, limits, restarts, and what becomes of topics meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from spark_kafka import add_records, make_anew

import trikafka
from trikafka import TopicPartition


class Batches:
    """A sink that takes each batch by its number, so that one that comes twice counts once. ``fail_at``: raise at these."""

    def __init__(self, *fail_at: int) -> None:
        self.rows: dict[int, list[tuple[int, int]]] = {}
        self.fail_at = set(fail_at)

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = [(row.partition, row.offset) for row in frame.select("partition", "offset").collect()]
        if number in self.fail_at:
            self.fail_at.discard(number)
            raise RuntimeError("the sink fails")
        self.rows[number] = rows

    @property
    def sizes(self) -> list[int]:
        return [len(rows) for _, rows in sorted(self.rows.items())]

    def check(self, records: int, partitions: int, first: int = 0) -> None:
        """All records from the number ``first`` on are there, each once."""
        found = sorted(row for rows in self.rows.values() for row in rows)
        assert found == sorted((number % partitions, number // partitions) for number in range(first, records))


def run(spark: SparkSession, broker: Any, batches: Batches, checkpoint: Path, source: str = "trikafka", **options: str) -> Any:
    """Read what is there into ``batches``; return the query, which has ended. Raises what it raised."""
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", broker.bootstrap_servers).options(**options)
    writer = reader.load().writeStream.foreachBatch(batches).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


async def blocking(function: Any, *args: Any) -> Any:
    return await trio.to_thread.run_sync(function, *args)


@pytest.mark.usefixtures("sparks_connector")
async def test_one_word_changes_the_source_of_a_checkpoint_both_ways(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    topic = await new_topic(40, partitions=2)
    batches, sources = Batches(), ["kafka", "trikafka", "kafka", "trikafka"]
    for number, source in enumerate(sources, 1):
        options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "24"}
        await blocking(lambda source=source, options=options: run(spark, kafka_broker, batches, tmp_path, source, **options))
        batches.check(number * 40, 2)
        await add_records(kafka_broker.bootstrap_servers, topic, number * 40, 40, 2)
    offsets = [json.loads(path.read_text().splitlines()[-1]) for path in (tmp_path / "offsets").glob("[0-9]*")]
    assert {topic: {"0": 80, "1": 80}} in offsets, "written by trikafka, in the connector's form"
    assert all(size <= 24 for size in batches.sizes)


async def test_a_batch_is_shared_in_proportion_and_the_group_sees_the_last_one(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    topic = await new_topic(60, partitions=2)
    await add_records(kafka_broker.bootstrap_servers, topic, 0, 60, 1)  # partition 0 has 90, partition 1 has 30
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40", "groupId": f"g-{topic}"}
    batches = Batches()
    query = await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, **options))
    assert batches.sizes == [40, 40, 40]
    assert [sum(partition == 0 for partition, _ in batches.rows[number]) for number in range(3)] == [30, 30, 30]
    progress = json.loads(query.recentProgress[0].json)["sources"][0]
    assert progress["latestOffset"] == {topic: {"0": 90, "1": 30}}
    async with trikafka.open_admin(bootstrap_servers=kafka_broker.bootstrap_servers) as admin:
        committed = await admin.list_group_offsets(f"g-{topic}")
        assert {tp: at.offset for tp, at in committed.items()} == {TopicPartition(topic, 0): 90, TopicPartition(topic, 1): 30}
        await admin.create_partitions({topic: 3})
    await add_records(kafka_broker.bootstrap_servers, topic, 2, 1, 3)
    await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, **options))
    assert batches.rows[3] == [(2, 0)], "a partition that came is read from its beginning"


async def test_a_query_that_fails_again_and_again_loses_and_doubles_nothing(
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


async def test_a_first_batch_from_the_latest_offsets_that_fails_loses_nothing(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    topic = await new_topic(10, partitions=2)
    batches = Batches(0)
    with pytest.raises(Exception, match="the sink fails"):
        await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, subscribe=topic))
    await add_records(kafka_broker.bootstrap_servers, topic, 10, 20, 2)
    await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, subscribe=topic))
    batches.check(30, 2, first=10)


async def test_what_is_refused_in_a_stream_is_not_hidden_by_an_error_of_sparks(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """Also in a query that has a checkpoint."""
    topic = await new_topic(4, partitions=1)
    for checkpoint in ("new", "old"):
        if checkpoint == "old":
            await blocking(lambda: run(spark, kafka_broker, Batches(), tmp_path / "old", subscribe=topic))
        with pytest.raises(StreamingQueryException, match="endingOffsets is not valid in a streaming query") as caught:
            await blocking(
                lambda at=checkpoint: run(
                    spark, kafka_broker, Batches(), tmp_path / at, subscribe=topic, endingOffsets="latest"
                )
            )
        assert "UnboundLocalError" not in str(caught.value)


async def test_a_topic_made_anew_between_two_runs(spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path) -> None:
    topic = await new_topic(30, partitions=1)
    batches, options = Batches(), {"subscribe": topic, "startingOffsets": "earliest"}
    await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, **options))
    await make_anew(kafka_broker.bootstrap_servers, topic, 5)
    with pytest.raises(Exception, match=f"{topic}-0 ended at offset 5, before the offset 30 up to which it had been read"):
        await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, **options))
    await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, failOnDataLoss="false", **options))
    await add_records(kafka_broker.bootstrap_servers, topic, 5, 3, 1)
    await blocking(lambda: run(spark, kafka_broker, batches, tmp_path, failOnDataLoss="false", **options))
    assert sorted(batches.rows)[-1] >= 2
    assert [row for number, rows in batches.rows.items() if number for row in rows] == [(0, 5), (0, 6), (0, 7)]
