"""Delta Lake: a plan is one commit, known by Delta's transaction id (``txnAppId``, ``txnVersion``), so it stands once.

A commit of that id and a version that the table has already is left out by Delta, and of two at the same time one fails, whatever
process they come from. What a plan's commit is of, Delta keeps with it (``userMetadata``), and its history tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from trikafka import ExportError
from trikafka.interfaces import ExportPlan

from .commits import Commit
from .options import TableOptions
from .rows import appender, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = "_delta_log"
#: The build of Delta for each line of PySpark, none for another line: a build for a neighbour commits and then fails.
_BUILDS = {"4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"}
_EXTENSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
#: What the build asks for, and Spark has.
_BROUGHT = (
    "org.apache.hadoop:* org.apache.parquet:* org.apache.logging.log4j:* org.slf4j:* org.scala-lang:* org.xerial.snappy:*"
    " org.roaringbitmap:* org.locationtech.jts:* com.fasterxml.jackson.core:* com.fasterxml.jackson.datatype:* com.github.luben:*"
    " com.google.code.findbugs:* io.airlift:* commons-pool:* javax.annotation:*"
).replace(" ", ",")
#: So many commits of the history are looked at first; the table may have others than ours, and each look reads as many files.
_FIRST_LOOK = 20


class DeltaTable:
    """A Delta table in a folder."""

    exactly_once = True

    def __init__(self, root: Path, options: TableOptions) -> None:
        self._root, self._options = root, options
        self._path = f"file://{root}"

    def conf(self) -> Mapping[str, str]:
        """Delta's classes: by ``spark.jars`` and the like where they are given, else from Maven Central."""
        given = self._options.conf
        if any(name in given for name in ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")):
            return {**_EXTENSION, **given}
        return {**_EXTENSION, "spark.jars.packages": self._build(), "spark.jars.excludes": _BROUGHT, **given}

    @staticmethod
    def _build() -> str:
        version = metadata.version("pyspark")
        line = ".".join(version.split(".")[:2])
        if line not in _BUILDS:
            raise ExportError(
                f"no build of Delta Lake is known for PySpark {version}, only for {', '.join(_BUILDS)};"
                f" install a PySpark of that line (pip install 'pyspark=={next(iter(_BUILDS))}.*'),"
                " or name a build that fits by the option spark.jars.packages"
            )
        return _BUILDS[line]

    def advice(self) -> str:
        """What a Spark that runs already lacks."""
        settings = " and ".join(f"{name}={value}" for name, value in _EXTENSION.items())
        return f"Spark has no Delta Lake: start it with spark.jars.packages={next(iter(_BUILDS.values()))}, {settings}"

    def check(self) -> None:
        """Parquet files without a log of Delta's are no table; readers of the folder would lose or mix them."""
        if self._has_log():
            return
        stranger = next((path for path in self._root.rglob("*.parquet")), None)
        if stranger is not None:
            name = stranger.relative_to(self._root)
            raise ExportError(f"{self._root} holds Parquet files (such as {name}) and is no Delta table; choose an empty directory")

    def _has_log(self) -> bool:
        return next((self._root / _LOG).glob("*.json"), None) is not None

    def found(self, spark: SparkSession, plan: ExportPlan) -> Commit | None:
        """Look for it in the table's history, the newest first; each plan of an export has one commit, in their order."""
        if "DeltaSparkSessionExtension" not in (spark.conf.get("spark.sql.extensions", "") or ""):
            raise ExportError(self.advice())
        app_id, limit = plan.format["app_id"], _FIRST_LOOK
        while self._has_log():
            quoted = self._path.replace("`", "``")
            history = spark.sql(f"DESCRIBE HISTORY delta.`{quoted}` LIMIT {limit}").select("version", "userMetadata").collect()
            for version, note in history:
                commit = Commit.from_json(note, version)
                if commit is None:
                    continue
                if commit.app_id != app_id:
                    raise ExportError(
                        f"{self._root} has rows of an export whose plans are gone (version {version} of the table);"
                        " this one would write them again: choose another destination"
                    )
                return commit if commit.number == plan.number else None
            if len(history) < limit:
                return None
            limit *= 10
        return None

    def write(self, rows: DataFrame, commit: Commit, partition_by: Sequence[str]) -> None:
        """One commit, also without rows."""
        writer = appender(rows, "delta", partition_by, self._options.write)
        writer = writer.option("txnAppId", commit.app_id).option("txnVersion", commit.number)
        writer.option("userMetadata", commit.to_json()).save(self._path)

    def keep_out(self, spark: SparkSession, commit: Commit, partition_by: Sequence[str]) -> None:
        """A commit without rows takes the place of the plan's, which fails from now on."""
        self.write(rows_of(spark, (), {}, "", None), commit, partition_by)

    def rows(self, spark: SparkSession) -> DataFrame | None:
        """The newest version."""
        return spark.read.format("delta").load(self._path) if self._has_log() else None
