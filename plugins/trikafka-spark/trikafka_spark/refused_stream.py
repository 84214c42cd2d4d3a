"""The reader of a stream that cannot be made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition


class RefusedStream(DataSourceStreamReader):
    """A reader that raises the error of a stream's options.

    If the error were raised while the reader is made, Spark would show an error of its own.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raise the error. A stream with a checkpoint calls :meth:`latestOffset` first."""
        raise self._error

    def latestOffset(self, *of_later_releases: Any) -> dict[str, Any]:
        """Raise the error. Spark 4.0 and 4.1 pass neither a start nor a limit."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Raise the error."""
        raise self._error
