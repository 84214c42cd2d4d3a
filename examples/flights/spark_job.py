"""The Spark job of the demo, a program of its own.

Usage: ``spark_job.py PARQUET EXPECTED TEMPORARY``. It reads the exported Parquet files as any
reader would, compares them with the file of the written records, and prints the result as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

#: The fields to read of a flight; Spark's parser skips the others.
_FIELDS = "carrier STRING, hour INT, dep_delay INT, arr_delay INT"


def main() -> None:
    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # A short job ends before the second compiler would save any time.
        .config(
            "spark.driver.extraJavaOptions",
            f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={sys.argv[3]}",
        )
        .config("spark.local.dir", sys.argv[3])
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    print("Spark has started", file=sys.stderr, flush=True)
    exported = spark.read.parquet(sys.argv[1])
    expected = spark.read.parquet(sys.argv[2])
    found = compare(exported, expected)
    print("Spark has compared the records", file=sys.stderr, flush=True)
    print(json.dumps({**found, "delays": delays(exported)}))
    spark.stop()


def compare(exported: DataFrame, expected: DataFrame) -> dict[str, Any]:
    """Compare the rows by partition and offset; count missing, unexpected and different ones."""
    time = f.unix_millis("timestamp").alias("timestamp")
    there = exported.select("partition", "offset", f.struct("key", "value", time).alias("found"))
    wanted = expected.select(
        "partition", "offset", f.struct("key", "value", "timestamp").alias("wanted")
    )
    both = there.join(wanted.hint("shuffle_hash"), ["partition", "offset"], "full_outer")
    row = both.agg(
        f.count("*").alias("rows"),
        f.count_distinct("partition", "offset").alias("places"),
        f.count_if(f.col("found").isNull()).alias("missing"),
        f.count_if(f.col("wanted").isNull()).alias("unexpected"),
        f.count_if(f.col("found") != f.col("wanted")).alias("different"),
    ).first()
    assert row is not None
    return row.asDict()


def delays(exported: DataFrame) -> list[list[Any]]:
    """Return flights, departures and the sums of delays, by carrier and hour."""
    flights = exported.select(
        f.from_json(f.col("value").cast("string"), _FIELDS).alias("flight")
    ).select("flight.*")
    table = flights.groupBy("carrier", "hour").agg(
        f.count("*").alias("flights"),
        f.count("dep_delay").alias("departed"),
        f.sum("dep_delay").alias("dep_delay"),
        f.sum("arr_delay").alias("arr_delay"),
    )
    return [list(row) for row in table.orderBy("carrier", "hour").collect()]


if __name__ == "__main__":
    main()
