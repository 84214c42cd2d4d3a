"""Spark's calls in threads that did not make its session.

They have the active session, and are cancelled with their scope.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trikafka_spark
import trio
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter
from test_spark_write_live import records

from trikafka import TopicPartition

T = TypeVar("T")
UNKNOWN = (Py4JJavaError, PySparkException)


async def in_a_new_thread(function: Callable[[], T]) -> T:
    """Run the function in a new thread, whose session was never set: Trio reuses its threads."""
    results: list[T | BaseException] = []
    ended = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            results.append(error)
        token.run_sync_soon(ended.set)

    thread = threading.Thread(target=run)
    thread.start()
    with trio.fail_after(900):
        await ended.wait()
    thread.join()
    (result,) = results
    if isinstance(result, BaseException):
        raise result
    return result


async def test_write_in_another_thread_works(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await new_topic(0, partitions=1)
    frame = await trio.to_thread.run_sync(
        lambda: spark.range(5).selectExpr("CAST(id AS STRING) AS value")
    )

    def write() -> None:
        writer = frame.write.format("trikafka").option(
            "kafka.bootstrap.servers", kafka_broker.bootstrap_servers
        )
        writer.option("topic", topic).mode("append").save()

    def both() -> tuple[Any, Any, Any]:
        before = SparkSession.getActiveSession()
        with trikafka_spark.active(spark):
            within = SparkSession.getActiveSession()
            write()
        return before, within, SparkSession.getActiveSession()

    with monkeypatch.context() as patched:  # as in a program without a call of register()
        patched.setattr(DataFrameWriter, "save", DataFrameWriter.save.__wrapped__)  # type: ignore[attr-defined]
        with pytest.raises(UNKNOWN, match="DATA_SOURCE_NOT_FOUND"):
            await in_a_new_thread(write)
        trikafka_spark.register(spark)
        await in_a_new_thread(write)
    before, within, after = await in_a_new_thread(both)
    assert (before, after) == (None, None)
    assert within._jsparkSession.equals(spark._jsparkSession)
    await trikafka_spark.in_thread(spark, write)
    assert sorted(record.value or b"" for record in await records(kafka_broker, topic)) == sorted(
        [b"%d" % n for n in range(5)] * 3
    )


async def test_read_in_another_thread_works(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    topic = await new_topic(7, partitions=2)

    def count(format: str) -> int:
        reader = spark.read.format(format).option(
            "kafka.bootstrap.servers", kafka_broker.bootstrap_servers
        )
        return reader.option("subscribe", topic).load().count()

    assert await in_a_new_thread(lambda: count("trikafka")) == 7, "a read needs no active session"
    assert await trikafka_spark.in_thread(spark, count, "trikafka") == 7
    with pytest.raises(UNKNOWN, match="DATA_SOURCE_NOT_FOUND"):
        await trikafka_spark.in_thread(spark, count, "trikafkaa")


async def test_stream_in_another_thread_works(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    source, target = await new_topic(20, partitions=2), await new_topic(0, partitions=1)

    def start() -> Any:
        options = {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers}
        frame = (
            spark.readStream.format("trikafka")
            .options(subscribe=source, startingOffsets="earliest", **options)
            .load()
        )
        writer = (
            frame.select("value")
            .writeStream.format("trikafka")
            .option("topic", target)
            .options(**options)
        )
        return writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()

    query = await in_a_new_thread(start)  # register() was called when the session was made
    await trio.to_thread.run_sync(query.awaitTermination)
    assert not (await trikafka_spark.run_query(spark, start)).isActive
    assert len(await records(kafka_broker, target)) == 20
    assert trikafka_spark.stream_lag(query) == {
        TopicPartition(source, 0): 0,
        TopicPartition(source, 1): 0,
    }


async def test_cancelled_scope_cancels_the_jobs(spark: SparkSession) -> None:
    context, begun = spark.sparkContext, time.monotonic()

    def work() -> None:
        context.setJobGroup("long", "a long job")
        try:
            context.parallelize(range(2), 2).foreach(lambda _: time.sleep(120))
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]

    def running() -> bool:
        tracker = context.statusTracker()
        return any(
            getattr(tracker.getJobInfo(job), "status", "") == "RUNNING"
            for job in tracker.getJobIdsForGroup("long")
        )

    with trio.fail_after(900):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trikafka_spark.in_thread, spark, work)
            while not await trio.to_thread.run_sync(running):  # noqa: ASYNC110  (Spark has no event for it)
                await trio.sleep(0.02)
            begun = time.monotonic()
            nursery.cancel_scope.cancel()
        assert time.monotonic() - begun < 100
        while await trio.to_thread.run_sync(running):  # noqa: ASYNC110
            await trio.sleep(0.02)
    assert await trikafka_spark.in_thread(spark, spark.range(3).count) == 3


async def test_cancelled_scope_stops_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    queries: list[Any] = []

    def start() -> Any:
        writer = spark.readStream.format("rate").load().writeStream.format("noop")
        queries.append(writer.option("checkpointLocation", str(tmp_path)).start())
        return queries[0]

    with trio.fail_after(900):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trikafka_spark.run_query, spark, start)
            while not queries:  # noqa: ASYNC110  (a thread appends)
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
        while await trio.to_thread.run_sync(lambda: queries[0].isActive):  # noqa: ASYNC110
            await trio.sleep(0.02)


async def test_stream_cancelled_at_its_start_is_stopped(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream that is cancelled while it starts is stopped, though no task waits for it."""
    monkeypatch.setattr("trikafka_spark.cancellable_call._CANCEL_LIMIT", 0.2)
    starting, go_on = trio.Event(), threading.Event()
    queries: list[Any] = []

    def start() -> Any:
        trio.from_thread.run_sync(starting.set)
        assert go_on.wait(240)
        writer = spark.readStream.format("rate").load().writeStream.format("noop")
        queries.append(writer.option("checkpointLocation", str(tmp_path)).start())
        return queries[0]

    with trio.fail_after(900), caplog.at_level(logging.WARNING):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trikafka_spark.run_query, spark, start)
            await starting.wait()
            nursery.cancel_scope.cancel()
        assert "its thread continues in the background" in caplog.text
        go_on.set()
        while not queries or await trio.to_thread.run_sync(lambda: queries[0].isActive):  # noqa: ASYNC110
            await trio.sleep(0.02)
