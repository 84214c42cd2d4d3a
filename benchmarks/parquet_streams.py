"""A run of a Spark stream: its rows, and its rate while it ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True)
class Moved:
    """The rows that were moved, and the rate of a running stream.

    ``rows`` is None if the Parquet files must be counted. ``steady`` is the rate (records per
    second) of a stream with several micro-batches, from the start of the second to the end of the
    last. That leaves out the start of the query, but includes all costs of each micro-batch.
    """

    rows: int | None = None
    steady: float | None = None


def run_stream(
    spark: Any, source: str, options: dict[str, str], target: str, *, parquet: bool
) -> Moved:
    """Move all present records to Parquet files, or to Spark's ``noop`` format."""
    writer = (
        spark.readStream.format(source)
        .options(**options)
        .load()
        .writeStream.trigger(availableNow=True)
    )
    writer = writer.option("checkpointLocation", f"{target}-checkpoint")
    query = writer.format("parquet").start(target) if parquet else writer.format("noop").start()
    query.awaitTermination()
    reports = [progress for progress in query.recentProgress if progress["numInputRows"]]
    return Moved(sum(progress["numInputRows"] for progress in reports), _steady(reports))


def _steady(reports: Iterable[Any]) -> float | None:
    """Return the rate from the second micro-batch on; ``None`` if there is only one."""
    _, *later = reports
    if not later:
        return None
    took = timedelta(milliseconds=later[-1]["durationMs"]["triggerExecution"])
    seconds = (_started(later[-1]) + took - _started(later[0])).total_seconds()
    return float(sum(progress["numInputRows"] for progress in later) / seconds)


def _started(progress: Any) -> datetime:
    return datetime.fromisoformat(progress["timestamp"])
