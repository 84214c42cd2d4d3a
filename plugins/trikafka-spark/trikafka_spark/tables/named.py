"""A table in a format that Spark knows by name: at least once.

Past writes cannot be identified in such a table. A note beside it says that a plan's rows are in
it. If an export is killed between the end of Spark's write and the note, the rows are written again
and exist twice. The same may happen to a part of a write that was killed while Spark renamed its
files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trikafka_export.in_tables import refuse_tables

from trikafka import ExportError, TableStore
from trikafka.interfaces import ExportPlan

from .commits import Commit
from .options import TableOptions
from .rows import SCHEMA_DDL, appender

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class NamedTable:
    """A folder that Spark writes in a format given by name."""

    def __init__(self, store: TableStore, options: TableOptions) -> None:
        self._store = store
        self._options = options
        self._path = f"file://{store.root}"

    @property
    def format(self) -> str:
        """The format's name in Spark."""
        return self._options.format

    def conf(self) -> Mapping[str, str]:
        """Return the user's settings for Spark."""
        return self._options.conf

    def advice(self) -> str:
        """Return advice for a format that Spark does not know."""
        return (
            f"Spark does not know the format {self._options.format!r}: name its package by the "
            "option spark.jars.packages"
        )

    def check(self) -> None:
        """Check that the folder has only entries that begin with an underscore or a dot.

        Readers would mix anything else with the export.

        Raises:
            ExportError: There is another entry.
        """
        refuse_tables(self._store.root)
        strangers = (
            path.name for path in self._store.root.iterdir() if not path.name.startswith(("_", "."))
        )
        if (stranger := next(strangers, None)) is not None:
            raise ExportError(
                f"{self._store.root} is not empty (such as {stranger}): choose an empty directory"
            )

    def found(self, plan: ExportPlan) -> Commit | None:
        """Return the write of a plan according to its note."""
        return Commit.from_json(self._store.committed(plan.number))

    def write(self, rows: DataFrame, commit: Commit, partition_by: Sequence[str]) -> None:
        """Append the rows, then write the note."""
        appender(rows, self._options.format, partition_by, self._options.write).save(self._path)
        self._store.note_committed(commit.number, commit.to_json())

    def rows(self, spark: SparkSession) -> DataFrame | None:
        """Return the rows of the folder; ``None`` if there are none."""
        if all(path.name.startswith(("_", ".")) for path in self._store.root.iterdir()):
            return None
        return spark.read.format(self._options.format).schema(SCHEMA_DDL).load(self._path)
