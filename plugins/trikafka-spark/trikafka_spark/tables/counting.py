"""The number of a table's rows in offset ranges, by one Spark query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from trikafka import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Count(NamedTuple):
    """The number of rows, and the number of their different offsets."""

    rows: int
    offsets: int


def count_rows(
    table: DataFrame, ranges: Sequence[OffsetRange], *, distinct: bool = False
) -> list[Count]:
    """Count the rows of each range. Blocks.

    The ranges must not overlap. Without ``distinct``, different offsets are not counted.
    """
    from pyspark.sql import functions as f

    if not ranges:
        return []
    spans = table.sparkSession.createDataFrame(
        [(index, *each) for index, each in enumerate(ranges)],
        "span INT, of_topic STRING, of_partition INT, low BIGINT, high BIGINT",
    )
    offset = f.col("offset")
    found = (
        table.select("topic", "partition", "offset")
        .where(
            reduce(lambda one, other: one | other, _hulls(ranges))
        )  # a condition that the table's statistics can use
        .join(
            f.broadcast(spans),
            (f.col("topic") == f.col("of_topic"))
            & (f.col("partition") == f.col("of_partition"))
            & (offset >= f.col("low"))
            & (offset < f.col("high")),
        )
        .groupBy("span")
        .agg(f.count("*"), f.count_distinct(offset) if distinct else f.count("*"))
        .collect()
    )
    counts = {span: Count(rows, offsets) for span, rows, offsets in found}
    return [counts.get(index, Count(0, 0)) for index in range(len(ranges))]


def _hulls(ranges: Iterable[OffsetRange]) -> Iterable[Column]:
    """Yield for each partition a condition that all its ranges fulfil, and few other rows."""
    from pyspark.sql import functions as f

    spans: dict[TopicPartition, tuple[int, int]] = {}
    for each in ranges:
        tp = TopicPartition(each.topic, each.partition)
        low, high = spans.get(tp, (each.start, each.end))
        spans[tp] = min(low, each.start), max(high, each.end)
    for tp, (low, high) in spans.items():
        here = (f.col("topic") == tp.topic) & (f.col("partition") == tp.partition)
        yield here & (f.col("offset") >= low) & (f.col("offset") < high)
