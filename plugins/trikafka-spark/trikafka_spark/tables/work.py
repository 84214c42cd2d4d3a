"""The work on a table by Spark, in threads: write a plan, determine its results, count rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from trikafka import ConfigurationError, ExportError, KafkaTimeoutError, OffsetRange, TrikafkaError
from trikafka.interfaces import ExportPlan, PlannedRange, RangeResult

from ..range_units import error_of
from ..session import causes_of, text_of
from ..spark_work import SparkWork
from .commits import Commit
from .counting import count_rows
from .gaps import Reads
from .named import NamedTable
from .rows import RangeToRead, rows_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
Errors = dict[PlannedRange, Exception]
#: Texts of Spark's errors about an unknown format.
_UNKNOWN = ("DATA_SOURCE_NOT_FOUND", "Failed to find data source")


class TableWork(SparkWork[T]):
    """Runs ``action(work)`` in a thread, with a Spark session."""

    def __init__(
        self,
        context: SparkContext,
        limiter: trio.CapacityLimiter,
        table: NamedTable,
        action: Callable[[TableWork[T]], T],
    ) -> None:
        super().__init__(context, limiter)
        self.table = table
        self._action = action

    def _act(self) -> T:
        return self._action(self)

    @property
    def session(self) -> SparkSession:
        """The session of the context."""
        from pyspark.sql import SparkSession

        return SparkSession(self._context)

    def check_wanted(self) -> None:
        """Raise :exc:`ExportError` if the export was cancelled, so that nothing new begins."""
        if self._call.cancelled:
            raise ExportError("the export was cancelled")

    def rows(self, reads: Sequence[RangeToRead], settings: Mapping[str, Any]) -> Any:
        """Return the rows of ranges. :meth:`blamed` finds the origin of an error in them."""
        return rows_of(self.session, reads, settings, self._secret, self._rows)

    def check_known(self) -> None:
        """Let Spark look up the format; raise Spark's error if there is none."""
        conf = self.session._jsparkSession.sessionState().conf()
        jvm: Any = self.session._jvm
        jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(
            self.table.format, conf
        )

    def blamed(self, error: Exception) -> tuple[str, Exception] | None:
        """Return the range that a Spark error came from, and the original error."""
        return error_of(text_of(error), self._secret)

    def _explained(self, error: Exception) -> tuple[ExportError, Exception]:
        causes = causes_of(error)
        if any(sign in "\n".join(causes) for sign in _UNKNOWN):
            return ExportError(self.table.advice()), error
        failure, cause = super()._explained(error)
        if cause is error and (last := causes[-1].strip().partition("\n")[0]) not in str(failure):
            failure = ExportError(f"{failure}: {last}")
        return failure, cause


def write_plan(
    work: TableWork[Errors], plan: ExportPlan, reads: Reads, settings: Mapping[str, Any]
) -> Errors:
    """Write the ranges in one commit, unless the table has it already.

    A range that Kafka does not deliver is left out, and the others are written without it.

    Returns:
        The errors of the ranges left out.
    """
    found = work.table.found(plan)
    if found is not None:
        return {
            planned: KafkaTimeoutError(f"an earlier attempt at {planned}", 0.0)
            for planned in reads
            if not found.has(planned)
        }
    left: Errors = {}
    partition_by = list(plan.format.get("partition_by", ()))
    while len(left) < len(reads):
        work.check_wanted()
        kept = {planned: lost for planned, (_, lost) in reads.items() if planned not in left}
        wanted = [
            RangeToRead(str(planned), there, plan.topic_ids.get(planned.topic))
            for planned, (there, _) in reads.items()
            if there is not None and planned not in left
        ]
        try:
            work.table.write(work.rows(wanted, settings), Commit.of(plan, kept), partition_by)
            break
        except Exception as error:
            planned, cause = _from_kafka(work, error, reads)
            left[planned] = cause
    return left


def _from_kafka(
    work: TableWork[Errors], error: Exception, reads: Reads
) -> tuple[PlannedRange, Exception]:
    """Return the range whose Kafka error ended a write; raise any other error again."""
    where, cause = work.blamed(error) or ("", error)
    planned = next((each for each in reads if str(each) == where), None)
    if (
        planned is None
        or isinstance(cause, ExportError | ConfigurationError)
        or not isinstance(cause, TrikafkaError)
    ):
        raise error
    return planned, cause


def settle_plan(
    work: TableWork[list[RangeResult]], plan: ExportPlan, ranges: Sequence[PlannedRange]
) -> list[RangeResult]:
    """Return the results of the plan in the table, as far as its format reports them."""
    found = work.table.found(plan) or Commit.empty(plan)
    written = [planned for planned in ranges if found.has(planned)]
    return found.results(ranges, _rows_of(work, written))


def _rows_of(
    work: TableWork[list[RangeResult]], written: Sequence[PlannedRange]
) -> dict[PlannedRange, int]:
    table = work.table.rows(work.session)
    if table is None or not written:
        return {}
    counts = count_rows(table, [OffsetRange(p.topic, p.partition, p.start, p.end) for p in written])
    return {planned: count.rows for planned, count in zip(written, counts, strict=True)}
