"""The jars of Delta Lake, downloaded once into the cache by Ivy.

With `spark.jars.packages` each start would do that.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from known_topics import value_of
from trikafka_broker import DownloadError

from benchmarks.spark_jars import spark_jars

VERSION = "4.4.0"
#: Dependencies of Delta Lake that Spark already has.
_BROUGHT = (
    "org.apache.hadoop org.apache.parquet org.apache.logging.log4j org.slf4j org.scala-lang "
    "org.xerial.snappy org.roaringbitmap"
    " org.locationtech.jts com.fasterxml.jackson.core com.fasterxml.jackson.datatype "
    "com.github.luben com.google.code.findbugs"
    " io.airlift commons-pool javax.annotation"
)
_MODULE = f"""\
<ivy-module version="2.0">
  <info organisation="trikafka" module="spark-delta"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="io.delta" name="delta-spark_4.2_2.13" rev="{VERSION}" conf="default->master,runtime">
      {"".join(f'<exclude org="{name}"/>' for name in _BROUGHT.split())}
    </dependency>
  </dependencies>
</ivy-module>
"""


def delta_jars() -> list[str]:
    """Return the jars; none if they cannot be downloaded."""
    try:
        return spark_jars("delta", VERSION, _MODULE, "delta-spark*.jar")
    except DownloadError as error:
        # Pytest shows it beside the tests that fail.
        print(f"Delta Lake could not be downloaded: {error}", file=sys.stderr)
        return []


def conf(jars: list[str]) -> dict[str, str]:
    """Return the settings for a Spark with these jars."""
    if not jars:
        return {}
    return {
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    }


@contextmanager
def few_partitions(spark: Any) -> Iterator[None]:
    """Set a small number of shuffle partitions: 200 tasks for a handful of files take a minute."""
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def check_delta(spark: Any, root: Path, records: int, partitions: int = 4) -> None:
    """Check that every record is in the table once, unchanged."""
    rows = (
        spark.read.format("delta").load(str(root)).select("partition", "offset", "value").collect()
    )
    found = Counter((row.partition, row.offset) for row in rows)
    assert set(found) == {(number % partitions, number // partitions) for number in range(records)}
    assert max(found.values(), default=1) == 1, "no row twice"
    for row in rows:
        assert row.value == value_of(row.offset * partitions + row.partition)
