"""Kafka to Parquet, measured: ``trikafka.export``, and Spark's writer fed by our data source and by Spark's own connector.

All in one Spark session of one process (``python -m benchmarks.parquet JOB``), one after the other in every round, after a round
that is not counted. Owns that process, and the connector's jars in the cache.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONNECTOR, TOKEN_PROVIDER = "4.2.0", "4.1.0-preview1"
_LIMIT = 240.0

# The connector asks for a token provider of its own version, which is not to be had; an older one serves. What else is
# excluded Spark brings along.
_MODULE = f"""\
<ivy-module version="2.0">
  <info organisation="trikafka" module="spark-kafka"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.spark" name="spark-sql-kafka-0-10_2.13" rev="{CONNECTOR}" conf="default->master,runtime">
      <exclude org="org.apache.spark" module="spark-token-provider-kafka-0-10_2.13"/>
      <exclude org="org.apache.spark" module="spark-tags_2.13"/>
      <exclude org="org.apache.hadoop"/><exclude org="org.slf4j"/><exclude org="com.google.code.findbugs"/>
    </dependency>
    <dependency org="org.apache.spark" name="spark-token-provider-kafka-0-10_2.13" rev="{TOKEN_PROVIDER}"
                conf="default->master" transitive="false"/>
  </dependencies>
</ivy-module>
"""
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


class NotMeasured(Exception):
    """Why not, in a sentence."""


def measure(bootstrap: str, topic: str, records: int, rounds: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Run the rounds in a process of their own. Raises :exc:`NotMeasured`."""
    jars = connector_jars(tell)
    job = json.dumps({"bootstrap": bootstrap, "topic": topic, "records": records, "rounds": rounds, "jars": jars})
    tell("Kafka to Parquet: Spark starts")
    command = [sys.executable, "-m", "benchmarks.parquet", job]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            said, words = child.communicate(timeout=_LIMIT)
        except BaseException as error:
            child.kill()  # the JVM ends when this end of its pipe is gone
            if isinstance(error, subprocess.TimeoutExpired):
                raise NotMeasured(f"no result after {_LIMIT:.0f} s") from error
            raise
    if child.returncode:
        raise NotMeasured((words.strip().splitlines() or ["it said nothing"])[-1])
    lines: list[dict[str, Any]] = json.loads(said.strip().splitlines()[-1])
    return lines


def connector_jars(tell: Callable[[str], None]) -> list[str]:
    """The jars of Spark's Kafka connector, downloaded once into the cache. Raises :exc:`NotMeasured`."""
    from trikafka_broker.jars import cache_directory, find_ivy
    from trikafka_broker.java import find_java

    folder = cache_directory() / f"spark-kafka-{CONNECTOR}"
    if not folder.is_dir():
        tell(f"downloading Spark's Kafka connector {CONNECTOR} into {folder}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".spark-kafka-", dir=folder.parent))
        try:
            (aside / "ivy.xml").write_text(_MODULE)
            (aside / "settings.xml").write_text(_SETTINGS)
            command = [str(find_java()), "-jar", str(find_ivy()), "-settings", f"{aside}/settings.xml", "-ivy", f"{aside}/ivy.xml"]
            command += ["-cache", str(folder.parent / "ivy"), "-types", "jar", "bundle"]
            command += ["-retrieve", f"{aside}/jars/[artifact]-[revision].[ext]"]
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode or not list(aside.glob("jars/spark-sql-kafka-*.jar")):
                words = [line.strip() for line in done.stdout.splitlines() if "not found" in line or "FAILED" in line]
                raise NotMeasured(f"Spark's Kafka connector could not be downloaded: {'; '.join(words[-3:]) or done.returncode}")
            (aside / "jars").rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return sorted(map(str, folder.glob("*.jar")))


# --- in the process that is measured ---


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    logging = Path(_folder_of("trikafka_spark"), "quiet-log4j2.properties").as_uri()
    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging}")
        .config("spark.jars", ",".join(job["jars"]))
        .getOrCreate()
    )
    ways = list(_ways(spark, job))
    rates: dict[str, list[float]] = {name: [] for name, _, _ in ways}
    with tempfile.TemporaryDirectory(prefix="trikafka-bench-") as folder:
        for number in range(job["rounds"] + 1):
            for name, _, write in ways[number % len(ways) :] + ways[: number % len(ways)]:
                target = f"{folder}/{number}-{len(name)}"
                began = time.perf_counter()
                write(target)
                seconds = time.perf_counter() - began
                if (rows := _rows(target)) != job["records"]:
                    raise RuntimeError(f"{name} wrote {rows} of {job['records']} records")
                shutil.rmtree(target)
                if number:
                    rates[name].append(job["records"] / seconds)
    calls = {name: call for name, call, _ in ways}
    lines = [
        {"what": "parquet", "who": name, "call": calls[name], "records": job["records"], "rates": each}
        for name, each in rates.items()
    ]
    print(json.dumps(lines))
    spark.stop()


def _ways(spark: Any, job: dict[str, Any]) -> Iterator[tuple[str, str, Callable[[str], None]]]:
    import trio

    import trikafka

    def by_export(**options: object) -> Callable[[str], None]:
        async def run(target: str) -> None:
            await trikafka.export(job["topic"], target, bootstrap_servers=job["bootstrap"], sink_options=options)

        return lambda target: trio.run(run, target)

    def by_spark(source: str) -> Callable[[str], None]:
        def write(target: str) -> None:
            options = {"kafka.bootstrap.servers": job["bootstrap"], "subscribe": job["topic"], "includeHeaders": "true"}
            spark.read.format(source).options(**options).load().write.parquet(target)

        return write

    yield "trikafka", "export() by Spark", by_export(spark_above=0, compression="snappy")
    yield "trikafka without Spark", "export() in threads", by_export(spark_above="never", compression="snappy")
    yield "trikafka's data source", 'format("trikafka")', by_spark("trikafka")
    yield "Spark's connector", 'format("kafka")', by_spark("kafka")


def _rows(target: str) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in Path(target).glob("*.parquet"))


def _folder_of(package: str) -> str:
    spec = importlib.util.find_spec(package)
    return next(iter((spec.submodule_search_locations if spec else None) or ["."]))


if __name__ == "__main__":
    main()
