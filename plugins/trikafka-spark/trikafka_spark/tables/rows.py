"""The rows of planned ranges as a data frame: one Spark task a range, read by the one reader that the data source has, too.

Not ``format("trikafka")`` itself: its options are texts, among them one range a partition; an export's settings may be objects and
secrets, which belong in no query plan, and what earlier plans have left makes several ranges a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trikafka import OffsetRange

from ..columns import spark_table
from ..ddl import DDL, HEADERS_DDL
from ..reader import kept_reader
from ..reading import read_groups
from ..session import ignore_pandas
from ..task import marked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession

SCHEMA_DDL = f"{DDL}, {HEADERS_DDL}"
#: Days since 1970 of the first and the last date with a year of four digits.
_FIRST_DAY, _LAST_DAY, _DAY_US = -719_162, 2_932_896, 86_400_000_000


@dataclass(frozen=True, slots=True)
class RangeToRead:
    """What one task reads. Pickled by Spark. ``name`` is that of the planned range, by which its errors are known."""

    name: str
    wanted: OffsetRange
    topic_id: str | None


def rows_of(
    spark: SparkSession, reads: Sequence[RangeToRead], settings: Mapping[str, Any], secret: str, counter: Any
) -> DataFrame:
    """The rows of the ranges; ``counter`` (an accumulator) counts those that have been read, for the progress.

    An error in a task can be found by :func:`trikafka_spark.task.error_of` with the ``secret``.
    """
    if not reads:
        return spark.createDataFrame([], SCHEMA_DDL)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from _read(reads[index], settings, secret, counter)

    ignore_pandas()
    return spark.range(0, len(reads), 1, len(reads)).mapInArrow(read, SCHEMA_DDL)


def _read(read: RangeToRead, settings: Mapping[str, Any], secret: str, counter: Any) -> Iterator[pa.RecordBatch]:
    try:
        with (
            kept_reader(settings) as reader,
            closing(read_groups(read.wanted, settings, topic_id=read.topic_id, reader=reader)) as groups,
        ):
            for group in groups:
                for rows in spark_table([batch.to_arrow() for batch in group]).to_batches():
                    counter.add(len(rows))
                    yield rows
    except Exception as failed:
        raise RuntimeError(f"{read.name}: {type(failed).__name__}: {failed} {marked(read.name, failed, secret)}") from failed


def appender(rows: DataFrame, format: str, partition_by: Sequence[str], options: Mapping[str, str]) -> DataFrameWriter:
    """Spark's writer that appends the rows to a table; ``date`` is a column of it where it is partitioned by that."""
    shaped = _with_date(rows) if "date" in partition_by else rows
    writer = shaped.write.format(format).mode("append").options(**options)
    return writer.partitionBy(*partition_by) if partition_by else writer


def _with_date(frame: DataFrame) -> DataFrame:
    """With the date of the record, in UTC; null where its year does not have four digits."""
    from pyspark.sql import functions as f

    days: Column = f.floor(f.unix_micros("timestamp") / f.lit(_DAY_US))
    date = f.when(days.between(_FIRST_DAY, _LAST_DAY), f.date_from_unix_date(days.cast("int")))
    return frame.withColumn("date", date)
