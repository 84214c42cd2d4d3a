"""The writer of a stream's micro-batches, for Spark 4.1 and newer."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from trikafka import TrikafkaError

from . import commit_protocol
from .write_options import WriteOptions
from .write_parts import Part
from .writing import this_task, write_task

if TYPE_CHECKING:
    import pyarrow as pa


class TrikafkaStreamWriter(DataSourceStreamArrowWriter):
    """The writer of one stream."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._run = uuid.uuid4().hex  # another one in each start of the query, at the least

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task of a micro-batch."""
        return write_task(
            self._options, iterator, self._part() if self._options.exactly_once else None
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the transactions of the micro-batch's tasks, which have all succeeded."""
        if self._options.exactly_once:
            commit_protocol.commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the open transactions, after a task or the commit has failed.

        The next run of the batch finds the marks of the parts that were committed.
        """
        if self._options.exactly_once:
            commit_protocol.abort(self._options, messages)

    def _part(self) -> Part:
        # The query's id stays the same over all its starts, and Spark repeats an unfinished batch
        # under its number. So the two name the batch in every run, and its transactional ids need
        # no option.
        task = this_task()
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if not query or batch is None:
            raise TrikafkaError(
                "this Spark task has no micro-batch number, so its rows cannot be written exactly "
                "once"
            )
        whole = self._options.transactional_id or f"spark-{query}"
        return Part(f"{whole}-{task.partitionId()}", query, int(batch), self._run, whole)
