"""Kafka to Parquet, measured: Spark's connector and its jars, and the process in which Spark runs.

All in one Spark session of one process (``python -m benchmarks.parquet_ways JOB``), one after the other in every round, after a
round that is not counted. Owns that process, and the connector's jars in the cache. What is measured is in :mod:`.parquet_ways`.
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
#: What a quick look measures; the others are for ``python -m benchmarks.spark``.
MAIN_WAYS = ("export", "threads", "source", "connector")
#: So many has a stream, all of the same size.
MICRO_BATCHES = 5

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


class NotMeasured(Exception):
    """Why not, in a sentence."""


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
    """Run the rounds in a process of their own. Raises :exc:`NotMeasured`."""
    jars = connector_jars(tell)
    what = {"bootstrap": bootstrap, "topic": topic, "records": records, "micro_batches": micro_batches}
    job = json.dumps({**what, "rounds": rounds, "jars": jars, "ways": list(ways)})
    tell("Kafka to Parquet: Spark starts")
    command = [sys.executable, "-m", "benchmarks.parquet_ways", job]
    with tempfile.TemporaryDirectory(prefix="trikafka-bench-") as compiled:
        said = _said(command, compiled, limit)
    lines: list[dict[str, Any]] = json.loads(said.strip().splitlines()[-1])
    return lines


def _said(command: list[str], compiled: str, limit: float) -> str:
    """What the process wrote. ``compiled``: a folder for Python's bytecode, which what is installed has: else each of Spark's
    processes would compile the modules of this tree anew where nothing may be written into it. Raises :exc:`NotMeasured`."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # Spark's workers import our feeds
    given = {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
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
            child.kill()  # the JVM ends when this end of its pipe is gone
            if isinstance(error, subprocess.TimeoutExpired):
                raise NotMeasured(f"no result after {limit:.0f} s") from error
            raise
    if child.returncode:
        raise NotMeasured((words.strip().splitlines() or ["it said nothing"])[-1])
    return said


def connector_jars(tell: Callable[[str], None]) -> list[str]:
    """The jars of Spark's Kafka connector, downloaded once into the cache. Raises :exc:`NotMeasured`."""
    try:
        return spark_jars("kafka", CONNECTOR, _MODULE, "spark-sql-kafka-*.jar", tell)
    except DownloadError as error:
        raise NotMeasured(f"Spark's Kafka connector could not be downloaded: {error}") from error
