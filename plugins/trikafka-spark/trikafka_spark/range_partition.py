"""One task of a query, batch or stream: its pickled form, and its work in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from .kafka_settings import by_option
from .python_worker import settle
from .range_planning import Planned
from .read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from .query_columns import QueryColumns


class RangePartition(InputPartition):
    """One task: an offset range, and the id of the topic that it was planned for."""

    def __init__(self, planned: Planned) -> None:
        super().__init__(tuple(planned.wanted))
        self.planned = planned


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
