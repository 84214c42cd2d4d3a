"""A query that reads only a part of a range: its workers close their connections at once."""

from __future__ import annotations

import subprocess
from typing import Any

import trio
from pyspark.sql import SparkSession
from trikafka_export.reader import KEPT_FOR


def connections(port: int) -> list[str]:
    """Return the connections of clients to that port."""
    lines = subprocess.run(
        ["ss", "-tnH"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [line for line in lines if line.split()[4].endswith(f":{port}")]


async def test_limit_closes_its_connections(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    topic = await new_topic(20_000, partitions=2)
    port = int(kafka_broker.bootstrap_servers.rpartition(":")[2])
    before = len(connections(port))  # a worker of an earlier test may keep one for its next task
    reader = spark.read.format("trikafka").option(
        "kafka.bootstrap.servers", kafka_broker.bootstrap_servers
    )
    frame = reader.option("subscribe", topic).option("maxRecordsPerPartition", "10000").load()
    rows = await trio.to_thread.run_sync(lambda: frame.limit(3).collect())
    assert len(rows) == 3
    with trio.fail_after(KEPT_FOR - 2):
        while len(connections(port)) > before:  # noqa: ASYNC110
            await trio.sleep(0.05)
