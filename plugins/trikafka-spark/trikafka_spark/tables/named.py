"""A format by its name for Spark: at least once, for what it wrote it cannot be asked.

A note beside the table says that a plan's rows are in it. What is killed between the end of Spark's write and the note is written
again, and stands twice; so may a part of a write that was killed while Spark gave its files their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trikafka import ExportError, TableStore
from trikafka.interfaces import ExportPlan

from ..in_tables import refuse_tables
from .commits import Commit
from .options import TableOptions
from .rows import SCHEMA_DDL, appender

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class NamedTable:
    """A folder that Spark writes by the name of a format."""

    def __init__(self, store: TableStore, options: TableOptions) -> None:
        self._store, self._options = store, options
        self._path = f"file://{store.root}"

    @property
    def format(self) -> str:
        """Its name for Spark."""
        return self._options.format

    def conf(self) -> Mapping[str, str]:
        """What is given."""
        return self._options.conf

    def advice(self) -> str:
        """The user knows where it comes from."""
        return f"Spark does not know the format {self._options.format!r}: name its package by the option spark.jars.packages"

    def check(self) -> None:
        """Nothing but what begins with an underscore may be there: readers would mix it with the export."""
        refuse_tables(self._store.root)
        strangers = (path.name for path in self._store.root.iterdir() if not path.name.startswith(("_", ".")))
        if (stranger := next(strangers, None)) is not None:
            raise ExportError(f"{self._store.root} is not empty (such as {stranger}): choose an empty directory")

    def found(self, plan: ExportPlan) -> Commit | None:
        """By the note."""
        return Commit.from_json(self._store.committed(plan.number))

    def write(self, rows: DataFrame, commit: Commit, partition_by: Sequence[str]) -> None:
        """Append, then note it."""
        appender(rows, self._options.format, partition_by, self._options.write).save(self._path)
        self._store.note_committed(commit.number, commit.to_json())

    def rows(self, spark: SparkSession) -> DataFrame | None:
        """What a reader of the folder finds."""
        if all(path.name.startswith(("_", ".")) for path in self._store.root.iterdir()):
            return None
        return spark.read.format(self._options.format).schema(SCHEMA_DDL).load(self._path)
