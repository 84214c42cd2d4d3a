"""A stream that stops while its driver commits, to be killed.

Arguments: servers, source, target, checkpoint.

It stops when one transaction is committed, and creates a file beside the checkpoint.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from trikafka_spark.source import TrikafkaDataSource


def main(servers: str, source: str, target: str, checkpoint: str) -> None:
    # The classes are local, so they are pickled by value: Spark's processes cannot import this
    # program.
    from trikafka_spark.stream_writing import TrikafkaStreamWriter

    class StandingWriter(TrikafkaStreamWriter):
        def commit(self, messages: list[Any], batchId: int) -> None:
            super().commit(messages[:1], batchId)
            Path(f"{checkpoint}.standing").write_text(
                str(sum(message.rows for message in messages))
            )
            time.sleep(600)

    class Standing(TrikafkaDataSource):
        @classmethod
        def name(cls) -> str:
            return "standing"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            writer = super().streamWriter(schema, overwrite)
            writer.__class__ = StandingWriter
            return writer

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
    )
    spark = builder.getOrCreate()
    spark.dataSource.register(Standing)
    reader = (
        spark.readStream.format("trikafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
    )
    frame = (
        reader.option("startingOffsets", "earliest")
        .load()
        .selectExpr("concat(partition, '-', offset) AS value")
    )
    writer = (
        frame.writeStream.format("standing")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
    )
    writer = writer.option("exactlyOnce", "true").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
