"""What an export asks of a table format. All methods block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from trikafka.interfaces import ExportPlan

from .commits import Commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Table(Protocol):
    """One table, in the folder of an export."""

    @property
    def exactly_once(self) -> bool:
        """Whether :meth:`write` of one plan adds its rows once, however often it is killed and called again."""

    def conf(self) -> Mapping[str, str]:
        """What Spark needs to know the format, where it is started for this export. Raises :exc:`trikafka.ExportError`."""

    def advice(self) -> str:
        """What to do where Spark does not know the format."""

    def check(self) -> None:
        """Look at a folder that was not exported to yet. Raises :exc:`trikafka.ExportError` if its data is not a table's."""

    def found(self, spark: SparkSession, plan: ExportPlan) -> Commit | None:
        """The write of the plan that the table has."""

    def write(self, rows: DataFrame, commit: Commit, partition_by: Sequence[str]) -> None:
        """Add the rows, at once. An error does not mean that they were not added: ask :meth:`found`."""

    def keep_out(self, spark: SparkSession, commit: Commit, partition_by: Sequence[str]) -> None:
        """Where the plan's write is not in the table, see to it that it cannot come any more, if the format can do that."""

    def rows(self, spark: SparkSession) -> DataFrame | None:
        """All rows of the table; ``None`` where there is none yet."""
