"""A stream of Spark's, run once: how much it moved, and how quick it was when it ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True)
class Moved:
    """``rows``: how many; ``None``: the Parquet files tell. ``steady``: of a stream with several micro-batches, records a second
    from the start of the second to the end of the last: the start of the query is left out, all that comes with each is in."""

    rows: int | None = None
    steady: float | None = None


def run_stream(spark: Any, source: str, options: dict[str, str], target: str, *, parquet: bool) -> Moved:
    """All that is there now, to Parquet files or to nowhere."""
    writer = spark.readStream.format(source).options(**options).load().writeStream.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{target}-checkpoint")
    query = writer.format("parquet").start(target) if parquet else writer.format("noop").start()
    query.awaitTermination()
    told = [progress for progress in query.recentProgress if progress["numInputRows"]]
    return Moved(sum(progress["numInputRows"] for progress in told), _steady(told))


def _steady(told: Iterable[Any]) -> float | None:
    _, *later = told
    if not later:
        return None
    took = timedelta(milliseconds=later[-1]["durationMs"]["triggerExecution"])
    seconds = (_started(later[-1]) + took - _started(later[0])).total_seconds()
    return float(sum(progress["numInputRows"] for progress in later) / seconds)


def _started(progress: Any) -> datetime:
    return datetime.fromisoformat(progress["timestamp"])
