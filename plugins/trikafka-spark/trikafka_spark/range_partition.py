"""The tasks of a query, batch or stream: their making, and their work in a worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from .kafka_settings import by_option
from .python_worker import acknowledge, settle
from .range_planning import Planned, plan_each
from .read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from .query_columns import QueryColumns


class RangeReader:
    """The common part of the readers of batches and of streams."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        from .query_columns import QueryColumns  # imports pyarrow, which is slow

        self._options = options
        self._columns = QueryColumns(schema)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A reader is a part of a task's function. It is unpickled after the function has arrived
        # and before the partition does.
        acknowledge()
        self.__dict__.update(state)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches.

        If there is nothing to read, Spark passes a partition without a range.
        """
        if isinstance(partition.value, Planned):
            yield from read_planned(partition.value, self._options, self._columns)

    def _tasks(self, planned: Sequence[Planned]) -> list[InputPartition]:
        return [InputPartition(one) for one in plan_each(planned, self._options)]


def read_planned(
    planned: Planned, options: ReadOptions, columns: QueryColumns
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a planned range, in the columns of the query."""
    from trikafka_export.reader import kept_reader
    from trikafka_export.reading import read_groups

    with by_option(options.kafka), kept_reader(options.settings) as reader:
        groups = read_groups(
            planned.wanted,
            options.settings,
            fail_on_data_loss=options.fail_on_data_loss,
            loss_option="failOnDataLoss=false",
            stall_limit=options.stall_limit,
            topic_id=planned.topic_id,
            reader=reader,
        )
        with closing(groups):  # Spark may want no more of it
            for group in groups:
                yield from columns.of(group)
    settle()
