"""Kafka to Parquet, measured: Spark's connector and its jars, and the process in which Spark runs.

All in one Spark session of one process (``python -m benchmarks.parquet_ways JOB``), one after the other in every round, after a
round that is not counted. Owns that process, and the connector's jars in the cache. What is measured is in :mod:`.parquet_ways`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONNECTOR, TOKEN_PROVIDER = "4.2.0", "4.1.0-preview1"
_LIMIT = 240.0
#: What a quick look measures; the others are for ``python -m benchmarks.spark``.
MAIN_WAYS = ("export", "threads", "source", "connector")

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


def measure(
    bootstrap: str,
    topic: str,
    records: int,
    rounds: int,
    tell: Callable[[str], None],
    ways: Sequence[str] = MAIN_WAYS,
    limit: float = _LIMIT,
) -> list[dict[str, Any]]:
    """Run the rounds in a process of their own. Raises :exc:`NotMeasured`."""
    jars = connector_jars(tell)
    job = json.dumps(
        {"bootstrap": bootstrap, "topic": topic, "records": records, "rounds": rounds, "jars": jars, "ways": list(ways)}
    )
    tell("Kafka to Parquet: Spark starts")
    command = [sys.executable, "-m", "benchmarks.parquet_ways", job]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # Spark's workers import our feeds
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
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
