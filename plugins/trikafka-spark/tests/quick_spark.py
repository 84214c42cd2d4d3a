"""Fast starts of Spark's JVMs in tests: two dozen of them, each for some seconds of work.

The JVMs use an archive of their classes, and no compiler that only pays off after minutes. That
saves two thirds of the processor time of a session with three small jobs (5 s instead of 17 s).

The archive is kept in the environment of its PySpark. The first process writes it; others that
start meanwhile do without it. ``make test`` runs this module before the tests: it writes the
archive, and downloads the jars of the session that the tests share.
"""

from __future__ import annotations

import contextlib
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
#: Settings by which Python workers are forked with their imports made (quick_daemon.py). Spark has
#: to find that module in `PYTHONPATH`.
WORKERS = {"spark.python.daemon.module": "quick_daemon"}
#: The work of most tests: a session, an aggregation, Parquet written and read.
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
    """Set the environment for the Sparks that this process and its children will start."""
    home, java = Path(pyspark.__file__).parent, find_java()
    logger, *_ = (home / "jars").glob("slf4j-api-*.jar")  # first on the path, as in spark-class
    jars = archive.Jars(home / "jars", f"{home}/conf:{logger}:{home}/jars/*", Path(sys.prefix))
    file = archive.prepare(java, jars, _write, lambda: None)
    os.environ[_VARIABLE] = " ".join([*_COMPILER, *archive.using_options(file, [])])


def child_environment() -> dict[str, str]:
    """Return variables by which a program that starts a Spark of its own has these workers.

    Without them each new worker makes its imports. On a slow machine that is most of the time of a
    stream's first batch.
    """
    settings = [f"--conf {name}={value}" for name, value in WORKERS.items()]
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {
        "PYSPARK_SUBMIT_ARGS": " ".join([*settings, "pyspark-shell"]),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def _write(file: Path) -> None:
    options = " ".join([*_COMPILER, *archive.writing_options(file)])
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _WORK, f"{folder}/parquet"]
        try:
            subprocess.run(
                command,
                env=os.environ | {_VARIABLE: options},
                capture_output=True,
                timeout=1_800,  # a busy machine needs ten minutes
                check=True,
            )
        except subprocess.SubprocessError as error:
            raise BrokerError(f"Spark's archive was not written: {error}") from error


def main() -> None:
    """Do once what the first test with Spark would otherwise do while others wait."""
    root = Path(__file__).parents[3]
    sys.path[:0] = [str(root), str(root / "plugins" / "trikafka-export" / "tests")]
    import spark_delta

    from benchmarks import parquet

    prepare()
    spark_delta.delta_jars()
    with contextlib.suppress(parquet.NotMeasured):  # the tests that need the jars report that
        parquet.connector_jars(lambda line: None)


if __name__ == "__main__":
    main()
