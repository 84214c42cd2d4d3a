"""A stream whose driver and JVM are killed while the driver commits a micro-batch.

After the next run librdkafka finds each row once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import quick_spark
import trio
from known_topics import committed
from pyspark.sql import SparkSession
from trikafka_spark import run_query

from benchmarks.soak import killed_at_the_end

RECORDS = 90
CHILD = Path(__file__).with_name("standing_child.py")


#: One moment with Spark's own processes; test_write_commits_live.py has all of them without.
async def test_killed_commit_is_finished_by_the_next(
    spark: SparkSession, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    servers, checkpoint = kafka_broker.bootstrap_servers, tmp_path / "checkpoint"
    source, target = await new_topic(RECORDS, partitions=3), await new_topic(0, partitions=2)
    environment = os.environ | quick_spark.child_environment()
    environment |= {"TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    command = [
        sys.executable,
        str(CHILD),
        servers,
        source,
        target,
        str(checkpoint),
    ]
    log = tmp_path / "log"
    with trio.fail_after(900), killed_at_the_end(command, log, environment) as process:
        while (
            not (standing := tmp_path / "checkpoint.standing").exists() or not standing.read_text()
        ):
            assert process.poll() is None, log.read_text()[-3_000:]
            await trio.sleep(0.05)
        assert standing.read_text() == str(RECORDS)
        assert sum((await committed(servers, target)).values()) <= RECORDS // 3

    def start() -> Any:
        options = {"kafka.bootstrap.servers": servers}
        reader = spark.readStream.format("trikafka").options(
            subscribe=source, startingOffsets="earliest", **options
        )
        writer = (
            reader.load()
            .selectExpr("concat(partition, '-', offset) AS value")
            .writeStream.format("trikafka")
        )
        writer = writer.options(
            topic=target, exactlyOnce="true", checkpointLocation=str(checkpoint), **options
        )
        return writer.trigger(availableNow=True).start()

    with trio.fail_after(900):
        await run_query(spark, start)
    assert await committed(servers, target) == {
        b"%d-%d" % (n % 3, n // 3): 1 for n in range(RECORDS)
    }
