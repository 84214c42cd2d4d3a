"""Batch reads by the data source ``trikafka`` in a real Spark: topics, snapshots, requests."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trikafka_spark
import trio
from known_topics import TIME, make_anew
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

import trikafka

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def load(spark: SparkSession, broker: Any, schema: str | None = None, **options: str) -> DataFrame:
    reader = (
        spark.read.format("trikafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .options(**options)
    )
    return (reader if schema is None else reader.schema(schema)).load()


async def blocking(function: Any, *args: Any) -> Any:
    return await trio.to_thread.run_sync(function, *args)


@contextmanager
def pushing(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    try:
        yield
    finally:
        spark.conf.unset(PUSHDOWN)


async def test_program_of_the_moving_page_runs(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    """The program of docs/from-spark-connector.md, in the tests' session."""
    page = (Path(__file__).parents[3] / "docs/from-spark-connector.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"<!-- run: after -->\n```python\n(.*?)```", page, re.DOTALL)
    topic = await new_topic(17, partitions=2)
    program = program.replace("localhost:9092", kafka_broker.bootstrap_servers)
    printed: list[int] = []

    def run() -> None:
        exec(program.replace("greetings", topic), {"print": printed.append})

    await trikafka_spark.in_thread(spark, run)
    assert printed == [17]


async def test_views_work_with_timestamp_ntz(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    """Times are instants, also where the plain name TIMESTAMP means a type without a zone."""
    topic = await new_topic(3, partitions=1)
    server = f"'kafka.bootstrap.servers' '{kafka_broker.bootstrap_servers}'"

    def run() -> list[int]:
        for name, option in (("the_reads", "subscribe"), ("the_writes (value BINARY)", "topic")):
            spark.sql(
                f"CREATE TEMPORARY VIEW {name} USING trikafka OPTIONS ({server}, {option} '{topic}')"
            )
        spark.sql("INSERT INTO the_writes VALUES (CAST('from SQL' AS BINARY))").collect()
        read = "SELECT unix_millis(timestamp) AS time FROM the_reads WHERE value <> 'from SQL'"
        found = [row.time for row in spark.sql(read).collect()]
        (written,) = spark.sql("SELECT count(*) AS n FROM the_reads WHERE offset = 3").collect()
        assert written.n == 1
        return sorted(found)

    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert await blocking(run) == [TIME, TIME + 1, TIME + 2]
    finally:
        spark.conf.unset("spark.sql.timestampType")
        for name in ("the_reads", "the_writes"):
            spark.catalog.dropTempView(name)


async def test_pattern_finds_topics(spark: SparkSession, kafka_broker: Any, new_topic: Any) -> None:
    names = [await new_topic(5, partitions=1) for _ in range(2)]
    wanted = "|".join(rf"{re.escape(name[1:])}$" for name in names)
    frame = await blocking(
        lambda: load(spark, kafka_broker, subscribePattern=rf"[a-z](?:{wanted})")
    )
    assert {row.topic for row in await blocking(frame.collect)} == set(names)


async def test_schema_of_the_user_selects_columns(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    """A schema of the user selects columns; unknown columns and wrong types are refused."""
    topic = await new_topic(40, partitions=2)
    schema = (
        "offset BIGINT NOT NULL, VALUE BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    frame = await blocking(lambda: load(spark, kafka_broker, schema, subscribe=topic))
    assert frame.columns == ["offset", "VALUE", "headers"]
    found = await blocking(frame.collect)
    assert len(found) == 40
    assert sum(row.headers is not None for row in found) == 4
    for wrong, message in [
        ("value STRING", "asks for value as string, but it is binary"),
        (
            "val BINARY",
            "asks for 'val', which the data source does not have; it has: key binary, value binary",
        ),
        ("value BINARY NOT NULL", "asks for value NOT NULL"),
        ("value BINARY, value BINARY", "asks for 'value' twice"),
    ]:
        with pytest.raises(AnalysisException, match=message):
            await blocking(
                lambda wrong=wrong: load(spark, kafka_broker, wrong, subscribe=topic).count()
            )


async def test_one_action_reads_one_snapshot(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    """All reads of a data frame in one action have the same end."""
    topic = await new_topic(100, partitions=2)
    view = f"v{uuid.uuid4().hex}"

    async def feed() -> None:
        async with trikafka.open_producer(
            bootstrap_servers=kafka_broker.bootstrap_servers
        ) as producer:
            while True:
                await producer.send(topic, b"x")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        for _ in range(2):
            await blocking(
                lambda: load(spark, kafka_broker, subscribe=topic).createOrReplaceTempView(view)
            )
            both = (
                f"SELECT * FROM (SELECT count(*) FROM {view}) JOIN (SELECT count(*) FROM {view} "
                "WHERE offset >= 0)"
            )
            first, second = (await blocking(spark.sql(both).collect))[0]
            assert first == second >= 100
        nursery.cancel_scope.cancel()
    await blocking(spark.catalog.dropTempView, view)


async def test_filters_do_not_leak_into_other_queries(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    """A filter of one query does not remove records of another query of the frame."""
    topic = await new_topic(400, partitions=4)
    with pushing(spark):
        frame = await blocking(lambda: load(spark, kafka_broker, subscribe=topic))
        halves = frame.filter("partition = 0").union(frame.filter("partition = 1"))
        assert await blocking(halves.count) == 200
        assert await blocking(frame.count) == 400


async def test_read_committed_hides_undecided_records(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    """Undecided and aborted records are only hidden with read_committed."""
    topic = await new_topic(10, partitions=1)
    servers = kafka_broker.bootstrap_servers
    async with trikafka.open_producer(
        bootstrap_servers=servers,
        transactional_id=f"{topic}-1",
        transaction_timeout_ms=600_000,  # Spark reads twice during the last one
    ) as producer:
        async with producer.transaction():
            await producer.send(topic, b"committed")
        async with producer.transaction() as txn:
            await producer.send(topic, b"aborted")
            await txn.abort()
        async with producer.transaction():
            await producer.send(topic, b"undecided")
            options = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
            found = await blocking(lambda: load(spark, kafka_broker, **options).collect())
            assert [bytes(row.value or b"") for row in found][10:] == [b"committed"]
            unasked = await blocking(lambda: load(spark, kafka_broker, subscribe=topic).collect())
            assert [bytes(row.value or b"") for row in unasked][10:] == [
                b"committed",
                b"aborted",
                b"undecided",
            ]


async def test_recreated_topic_is_explained(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    topic = await new_topic(50, partitions=1)
    frame = await blocking(lambda: load(spark, kafka_broker, subscribe=topic))
    lossy = await blocking(
        lambda: load(spark, kafka_broker, subscribe=topic, failOnDataLoss="false")
    )
    for each in (frame, lossy):
        assert await blocking(each.rdd.getNumPartitions) == 1
    await make_anew(kafka_broker.bootstrap_servers, topic, 80)
    with pytest.raises(
        PySparkException,
        match=f"topic '{topic}' was deleted and created again after the read of {topic}-0",
    ):
        await blocking(frame.collect)
    assert await blocking(lossy.collect) == []


async def test_impossible_offsets_are_refused(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    """Offsets and times that the topic does not have are refused when the frame is read."""
    topic = await new_topic(10, partitions=1)
    for options, message in [
        (
            {"startingOffsets": f'{{"{topic}": {{"0": 1, "7": 1}}}}'},
            f"startingOffsets must .*: unknown or not read: {topic}-7",
        ),
        (
            {"startingOffsetsByTimestamp": '{"x": {"0": 1}}'},
            f"unknown or not read: x-0; missing: {topic}-0",
        ),
        (
            {"startingOffsets": f'{{"{topic}": {{"0": 8}}}}', "endingTimestamp": str(TIME + 2)},
            "start at offset 8, after its end 2",
        ),
        (
            {"startingTimestamp": str(TIME + 10_000)},
            "no record is at or after the starting timestamp .*Strategy to latest",
        ),
        ({"startingOffsets": "latest"}, "startingOffsets must not be 'latest'"),
    ]:
        with pytest.raises(AnalysisException, match=message):
            await blocking(
                lambda options=options: load(
                    spark, kafka_broker, subscribe=topic, **options
                ).count()
            )
    late = {"startingTimestamp": str(TIME + 10_000), "startingOffsetsByTimestampStrategy": "Latest"}
    assert await blocking(lambda: load(spark, kafka_broker, subscribe=topic, **late).count()) == 0
