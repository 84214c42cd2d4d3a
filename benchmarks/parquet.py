"""Kafka to Parquet: Spark's connector with its jars, and the process in which Spark is measured.

All ways run in one Spark session of one process (``python -m benchmarks.parquet_ways JOB``), in
turns in every round, after a round that is not counted. This module owns that process, and the
connector's jars in the cache. The ways are in :mod:`.parquet_ways`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trikafka_broker import DownloadError

from benchmarks.spark_jars import spark_jars

ROOT = Path(__file__).resolve().parent.parent
CONNECTOR, TOKEN_PROVIDER = "4.2.0", "4.1.0-preview1"
_LIMIT = 240.0
#: The ways of a quick run. ``python -m benchmarks.spark`` measures the others as well.
MAIN_WAYS = ("export", "threads", "source", "connector")
#: The micro-batches of a stream, all of the same size.
MICRO_BATCHES = 5

# The connector requires a token provider of its own version, which is not published. An older one
# works. Spark itself has the other excluded jars.
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


class NotMeasured(Exception):
    """The reason why something was not measured, as a sentence."""


def measure(
    bootstrap: str,
    topic: str,
    records: int,
    rounds: int,
    tell: Callable[[str], None],
    ways: Sequence[str] = MAIN_WAYS,
    limit: float = _LIMIT,
    micro_batches: int = MICRO_BATCHES,
) -> list[dict[str, Any]]:
    """Run the rounds in a separate process.

    Raises:
        NotMeasured: The jars are missing, or the process failed or took too long.
    """
    jars = connector_jars(tell)
    what = {
        "bootstrap": bootstrap,
        "topic": topic,
        "records": records,
        "micro_batches": micro_batches,
    }
    job = json.dumps({**what, "rounds": rounds, "jars": jars, "ways": list(ways)})
    tell("Kafka to Parquet: Spark starts")
    command = [sys.executable, "-m", "benchmarks.parquet_ways", job]
    with tempfile.TemporaryDirectory(prefix="trikafka-bench-") as compiled:
        said = _said(command, compiled, limit)
    lines: list[dict[str, Any]] = json.loads(said.strip().splitlines()[-1])
    return lines


def _said(command: list[str], compiled: str, limit: float) -> str:
    """Run the process and return its output.

    ``compiled`` is a folder for Python's bytecode. An installed package has its bytecode. Without
    the folder each of Spark's processes would compile this tree's modules again where the tree is
    read-only.

    Raises:
        NotMeasured: The process failed or took too long.
    """
    # Spark's workers import modules of the benchmarks.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    given = {
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPYCACHEPREFIX": compiled,
        "PYTHONDONTWRITEBYTECODE": "",
    }
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **given},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            said, words = child.communicate(timeout=limit)
        except BaseException as error:
            child.kill()  # the JVM ends when its pipe to the child is closed
            if isinstance(error, subprocess.TimeoutExpired):
                raise NotMeasured(f"no result after {limit:.0f} s") from error
            raise
    if child.returncode:
        raise NotMeasured((words.strip().splitlines() or ["it said nothing"])[-1])
    return said


def connector_jars(tell: Callable[[str], None]) -> list[str]:
    """Return the jars of Spark's Kafka connector, downloaded once into the cache.

    Raises:
        NotMeasured: The jars could not be downloaded.
    """
    try:
        return spark_jars("kafka", CONNECTOR, _MODULE, "spark-sql-kafka-*.jar", tell)
    except DownloadError as error:
        raise NotMeasured(f"Spark's Kafka connector could not be downloaded: {error}") from error
