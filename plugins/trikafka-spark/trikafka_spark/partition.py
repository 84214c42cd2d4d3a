"""One task of a query, batch or stream: what Spark carries to a worker, and what the worker does with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from .options import ReadOptions
from .ranges import Planned
from .worker import settle

if TYPE_CHECKING:
    import pyarrow as pa

    from .pruning import Columns


class RangePartition(InputPartition):
    """One task: an offset range, and the topic it was planned for."""

    def __init__(self, planned: Planned) -> None:
        super().__init__(tuple(planned.wanted))
        self.planned = planned


def read_planned(planned: Planned, options: ReadOptions, columns: Columns) -> Iterator[pa.RecordBatch]:
    """The records of a planned range, in the columns that are wanted."""
    from .reader import kept_reader
    from .reading import read_groups

    with kept_reader(options.settings) as reader:
        groups = read_groups(
            planned.wanted,
            options.settings,
            fail_on_data_loss=options.fail_on_data_loss,
            stall_limit=options.stall_limit,
            topic_id=planned.topic_id,
            reader=reader,
        )
        with closing(groups):  # Spark may want no more of it
            for group in groups:
                yield from columns.of(group)
    settle()
