"""A query that reads only a part of a range: its workers close their connections at once."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import trio
from pyspark.sql import SparkSession
from trikafka_export.reader import KEPT_FOR


def is_ours(pid: int) -> bool:
    """Return whether a process is a descendant of this one: others use the same broker."""
    while pid not in (0, 1, os.getpid()):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:  # it has ended meanwhile
            return False
        pid = int(stat.rpartition(")")[2].split()[1])
    return pid == os.getpid()


def connections(port: int) -> set[str]:
    """Return the connections of Python's workers to that port, by their own addresses."""
    lines = subprocess.run(
        ["ss", "-tnpH"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return {
        line.split()[3]
        for line in lines
        if line.split()[4].endswith(f":{port}")
        and '"python' in line
        and f"pid={os.getpid()}," not in line
        and any(is_ours(int(pid)) for pid in re.findall(r"\bpid=(\d+)", line))
    }


async def test_limit_closes_its_connections(
    spark: SparkSession, kafka_broker: Any, new_topic: Any
) -> None:
    topic = await new_topic(20_000, partitions=2)
    port = int(kafka_broker.bootstrap_servers.rpartition(":")[2])
    before = connections(port)  # a worker of an earlier test may keep one for its next task
    reader = spark.read.format("trikafka").option(
        "kafka.bootstrap.servers", kafka_broker.bootstrap_servers
    )
    frame = reader.option("subscribe", topic).option("maxRecordsPerPartition", "10000").load()
    rows = await trio.to_thread.run_sync(lambda: frame.limit(3).collect())
    assert len(rows) == 3
    with trio.fail_after(KEPT_FOR - 2):
        while connections(port) - before:  # noqa: ASYNC110
            await trio.sleep(0.05)
