"""A user's job on a cluster. Arguments: master, zip (or an environment's archive), servers, topic, target topic. Prints JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import SparkSession


def looks(_: Iterable[Any]) -> Iterator[tuple[str, str, int]]:
    """Where a worker has trikafka from, in what form, and how often it warns of that."""
    import warnings

    import trikafka
    from trikafka._wire import _implementation

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            _implementation.warn_if_missing(1)
    yield trikafka.__file__ or "", f"{_implementation.name_in_use}: {_implementation.missing}", len(told)


def main(master: str, archive: str, servers: str, topic: str, target: str) -> None:
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    if archive.endswith(".zip"):
        builder = builder.config("spark.submit.pyFiles", archive)
    else:  # with PYSPARK_PYTHON=./environment/bin/python
        builder = builder.config("spark.archives", f"{archive}#environment")
    for setting in ("spark.executor.memory=600m", "spark.cores.max=2", "spark.scheduler.minRegisteredResourcesRatio=1.0"):
        builder = builder.config(*setting.split("="))
    spark = builder.getOrCreate()
    frame = spark.read.format("trikafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic).load()
    counted = frame.groupBy("partition").count().orderBy("partition").collect()
    writing = frame.select("key", "value").write.format("trikafka").option("kafka.bootstrap.servers", servers)
    writing.option("topic", target).option("exactlyOnce", "true").option("transactionalId", "cluster").mode("append").save()
    found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(looks).collect()
    print(json.dumps({"counted": [row["count"] for row in counted], "looks": found}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
