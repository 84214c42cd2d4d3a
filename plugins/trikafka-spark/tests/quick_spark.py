"""Spark's JVMs in tests: two dozen of them, each for some seconds of work. An archive of their classes, and no compiler that
pays for itself in minutes only, spare two thirds of the processor time of a session and three small jobs (17 s and 5 s).

The archive is kept in the environment whose PySpark it is of. The first process that comes makes it, the others begin without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
from trikafka_broker import BrokerError, archive
from trikafka_broker.java import find_java

_VARIABLE = "SPARK_SUBMIT_OPTS"
_COMPILER = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
#: What most tests do: a session, an aggregation, Parquet that is written and read.
_WORK = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(1000).selectExpr("id", "id % 7 AS k").groupBy("k").count().collect()
spark.range(1000).selectExpr("id", "CAST(id AS STRING) AS v").write.parquet(sys.argv[1])
assert spark.read.parquet(sys.argv[1]).where("id > 5").count() == 994
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()  # what a JVM of PySpark ends on
sys.exit(jvm.wait())
"""


def prepare() -> None:
    """Set the environment for the Sparks that this process, and what it starts, will start."""
    home, java = Path(pyspark.__file__).parent, find_java()
    logger, *_ = (home / "jars").glob("slf4j-api-*.jar")  # spark-class has it first
    jars = archive.Jars(home / "jars", f"{home}/conf:{logger}:{home}/jars/*", Path(sys.prefix))
    file = archive.prepare(java, jars, _write, lambda: None)
    os.environ[_VARIABLE] = " ".join([*_COMPILER, *archive.using_options(file, [])])


def _write(file: Path) -> None:
    options = " ".join([*_COMPILER, *archive.writing_options(file)])
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _WORK, f"{folder}/parquet"]
        try:
            subprocess.run(command, env=os.environ | {_VARIABLE: options}, capture_output=True, timeout=120, check=True)
        except subprocess.SubprocessError as error:
            raise BrokerError(f"Spark's archive was not written: {error}") from error
