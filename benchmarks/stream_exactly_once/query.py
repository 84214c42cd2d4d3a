"""The query, which copies a topic exactly once.

Arguments: servers, source, target, checkpoint, offsets per batch, ``on`` or ``rest``.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(servers: str, source: str, target: str, checkpoint: str, most: str, how: str) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    # A run is short, so a quick start matters more than the best machine code.
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    reader = (
        spark.readStream.format("trikafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
    )
    frame = (
        reader.option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", most)
        .load()
        .select("value", "partition")
    )
    writer = (
        frame.writeStream.format("trikafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
    )
    writer = writer.option("exactlyOnce", "true").option("checkpointLocation", checkpoint)
    writer = (
        writer.trigger(availableNow=True)
        if how == "rest"
        else writer.trigger(processingTime="0 seconds")
    )
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
