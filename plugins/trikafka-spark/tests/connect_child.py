"""A user's Trio program with Spark Connect: reads, writes, a stream, a query that is cancelled.

It prints its results as JSON. Arguments: the server's address, Kafka's servers, a topic, two target
topics, a folder for checkpoints.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import trikafka_spark
import trio
from pyspark.sql import SparkSession

import trikafka


class Job:
    """The program's use of Spark. The methods block."""

    def __init__(
        self, remote: str, servers: str, topic: str, written: str, streamed: str, checkpoints: str
    ) -> None:
        self.spark = SparkSession.builder.remote(remote).getOrCreate()
        self.options = {"kafka.bootstrap.servers": servers}
        self.frame = (
            self.spark.read.format("trikafka").options(subscribe=topic, **self.options).load()
        )
        self.servers = servers
        self.topic = topic
        self.written = written
        self.streamed = streamed
        self.checkpoints = checkpoints

    def reads(self) -> dict[str, Any]:
        before = self.frame.count()
        trio.run(add_one, self.servers, self.topic)
        self.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        reader = self.spark.read.format("trikafka").options(subscribe=self.topic, **self.options)
        chosen = (
            reader.schema("partition INT, offset BIGINT")
            .load()
            .where("partition = 0 AND offset >= 10")
        )
        found = {"count": before, "chosen": chosen.count(), "columns": chosen.columns}
        self.spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
        return found

    def write(self) -> None:
        """Write the rows of the frame, which was created before the last record was added."""
        writer = (
            self.frame.select("key", "value")
            .write.format("trikafka")
            .options(topic=self.written, **self.options)
        )
        writer.options(exactlyOnce="true", transactionalId="connect").mode("append").save()

    def start(self) -> Any:
        reader = self.spark.readStream.format("trikafka").options(**self.options)
        frame = reader.options(
            subscribe=self.topic, startingOffsets="earliest", maxOffsetsPerTrigger="60"
        ).load()
        writer = frame.select("value").writeStream.format("trikafka").options(**self.options)
        writer = writer.options(
            topic=self.streamed, exactlyOnce="true", checkpointLocation=self.checkpoints
        )
        return writer.trigger(availableNow=True).start()

    def endless(self) -> int:
        return self.spark.sql(
            "SELECT count(*) FROM range(0, 1000000000000000, 1, 2) WHERE hash(id) = 7"
        ).collect()[0][0]


async def add_one(servers: str, topic: str) -> None:
    async with trikafka.open_producer(bootstrap_servers=servers) as producer:
        await producer.send(topic, b"one", partition=0)


async def cancelled(job: Job) -> float:
    """Return the seconds that it takes to cancel a running query."""
    running, token = trio.Event(), trio.lowlevel.current_trio_token()

    def progress(*, inflight_tasks: int, **_: Any) -> None:
        if inflight_tasks:
            token.run_sync_soon(running.set)

    job.spark.registerProgressHandler(progress)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trikafka_spark.in_thread, job.spark, job.endless)
        await running.wait()
        begun = time.monotonic()
        nursery.cancel_scope.cancel()
    job.spark.removeProgressHandler(progress)
    return time.monotonic() - begun


async def main(*arguments: str) -> None:
    job = await trio.to_thread.run_sync(Job, *arguments)
    found = await trio.to_thread.run_sync(job.reads)
    await trikafka_spark.in_thread(job.spark, job.write)
    query = await trikafka_spark.run_query(job.spark, job.start)
    batches = await trikafka_spark.in_thread(
        job.spark, lambda: [each.batchId for each in query.recentProgress]
    )
    print(
        json.dumps({**found, "batches": len(batches), "cancelled": await cancelled(job)}),
        flush=True,
    )
    await trio.to_thread.run_sync(job.spark.stop)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
