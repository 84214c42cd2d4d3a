"""The rows of planned ranges as a data frame: one Spark task per range.

The reader is that of the data source, but ``format("trikafka")`` itself is not used. Its options
are texts, among them one range per partition. An export's settings may be objects and secrets,
which must not appear in a query plan, and ranges carried over from earlier plans may make several
ranges per partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from trikafka_export.columns import spark_table
from trikafka_export.reader import kept_reader
from trikafka_export.reading import read_groups

from trikafka import OffsetRange

from ..ddl import DDL, HEADERS_DDL
from ..range_units import marked
from ..session import ignore_pandas

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession

SCHEMA_DDL = f"{DDL}, {HEADERS_DDL}"
#: Days since 1970 of the first and the last date with a year of four digits.
_FIRST_DAY, _LAST_DAY, _DAY_US = -719_162, 2_932_896, 86_400_000_000


@dataclass(frozen=True, slots=True)
class RangeToRead:
    """The range of one task.

    Pickled by Spark. ``name`` is that of the planned range and identifies its errors.
    """

    name: str
    wanted: OffsetRange
    topic_id: str | None


def rows_of(
    spark: SparkSession,
    reads: Sequence[RangeToRead],
    settings: Mapping[str, Any],
    secret: str,
    counter: Any,
) -> DataFrame:
    """Return the rows of the ranges.

    ``counter`` is an accumulator of the rows read, for the progress. An error in a task is found by
    :func:`trikafka_spark.range_units.error_of` with the ``secret``.
    """
    if not reads:
        return spark.createDataFrame([], SCHEMA_DDL)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from _read(reads[index], settings, secret, counter)

    ignore_pandas()
    return spark.range(0, len(reads), 1, len(reads)).mapInArrow(read, SCHEMA_DDL)


def _read(
    read: RangeToRead, settings: Mapping[str, Any], secret: str, counter: Any
) -> Iterator[pa.RecordBatch]:
    try:
        with (
            kept_reader(settings) as reader,
            closing(
                read_groups(read.wanted, settings, topic_id=read.topic_id, reader=reader)
            ) as groups,
        ):
            for group in groups:
                for rows in spark_table([batch.to_arrow() for batch in group]).to_batches():
                    counter.add(len(rows))
                    yield rows
    except Exception as failed:
        raise RuntimeError(
            f"{read.name}: {type(failed).__name__}: {failed} {marked(read.name, failed, secret)}"
        ) from failed


def appender(
    rows: DataFrame, format: str, partition_by: Sequence[str], options: Mapping[str, str]
) -> DataFrameWriter:
    """Return Spark's writer that appends the rows to a table.

    The rows get a column ``date`` if the table is partitioned by it.
    """
    shaped = _with_date(rows) if "date" in partition_by else rows
    writer = shaped.write.format(format).mode("append").options(**options)
    return writer.partitionBy(*partition_by) if partition_by else writer


def _with_date(frame: DataFrame) -> DataFrame:
    """Return the rows with their date in UTC; null where the year does not have four digits."""
    from pyspark.sql import functions as f

    days: Column = f.floor(f.unix_micros("timestamp") / f.lit(_DAY_US))
    date = f.when(days.between(_FIRST_DAY, _LAST_DAY), f.date_from_unix_date(days.cast("int")))
    return frame.withColumn("date", date)
