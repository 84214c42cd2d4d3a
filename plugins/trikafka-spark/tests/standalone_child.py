"""A user's job on a cluster, which reads, writes and exports, and prints its results as JSON.

Arguments: master, zip for ``--py-files`` or an environment's archive, servers, topic, target topic,
destination of the export. Spark stops when the standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import quick_spark
import trio
from pyspark.sql import SparkSession

import trikafka


def looks(_: Iterable[Any]) -> Iterator[tuple[str, str, int]]:
    """Return the origin of a worker's trikafka, its form, and how often it warns about that."""
    from trikafka._wire import _implementation

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            _implementation.warn_if_missing(1)
    yield (
        trikafka.__file__ or "",
        f"{_implementation.name_in_use}: {_implementation.missing}",
        len(caught),
    )


def main(master: str, archive: str, servers: str, topic: str, target: str, root: str) -> None:
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
    )
    if archive.endswith(".zip"):
        builder = builder.config("spark.submit.pyFiles", archive)
    else:  # with PYSPARK_PYTHON=./environment/bin/python
        builder = builder.config("spark.archives", f"{archive}#environment")
        # Workers find the tests' daemon in this folder, and nothing else. With a zip they could not
        # use it: it would import an installed trikafka before the zip is on the path.
        folder = str(Path(__file__).parent)
        os.environ["PYTHONPATH"] = folder
        builder = builder.config("spark.executorEnv.PYTHONPATH", folder)
        for name, value in quick_spark.WORKERS.items():
            builder = builder.config(name, value)
    for setting in (
        "spark.executor.memory=600m",
        "spark.cores.max=2",
        "spark.scheduler.minRegisteredResourcesRatio=1.0",
    ):
        builder = builder.config(*setting.split("="))
    # Set by quick_spark.py.
    builder = builder.config(
        "spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", "")
    )
    spark = builder.getOrCreate()
    frame = (
        spark.read.format("trikafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .load()
    )
    counted = (
        frame.where("offset < 100").groupBy("partition").count().orderBy("partition").collect()
    )
    writing = frame.where("offset < 100").select("key", "value").write.format("trikafka")
    writing = writing.option("kafka.bootstrap.servers", servers).option("topic", target)
    writing.option("exactlyOnce", "true").option("transactionalId", "cluster").mode("append").save()
    found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(looks).collect()
    sink: dict[str, Any] = {"spark_above": 0}
    export = partial(
        trikafka.export, bootstrap_servers=servers, max_records_per_file=100, sink_options=sink
    )
    result = trio.run(export, topic, root)
    print(
        json.dumps(
            {"counted": [row["count"] for row in counted], "looks": found, "exported": result.rows}
        ),
        flush=True,
    )
    sys.stdin.read()  # the executors stay until a test that gives an input ends it
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
