"""The writer of a stream's micro-batches, for Spark 4.1 and newer."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from trikafka import TrikafkaError

from .write_parts import Part
from .writing import PartWriter, this_task


class TrikafkaStreamWriter(PartWriter, DataSourceStreamArrowWriter):
    """The writer of one stream."""

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
