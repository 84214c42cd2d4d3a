"""Records from memory instead of Kafka, in Spark's workers.

The remaining time is that of Spark, and of trikafka's work after reading. A worker reads the
beginning of its partition once, in the round that is not counted, and then repeats it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from trikafka_export import task
from trikafka_export.reading import read_range
from trikafka_spark import range_units
from trikafka_spark.query_columns import QueryColumns
from trikafka_spark.source import DDL, HEADERS_DDL

from trikafka import OffsetRange, RecordBatch

#: Bytes of a partition that are kept.
_KEPT = 32 << 20
_kept: dict[tuple[str, int], list[RecordBatch]] = {}


def from_memory(
    wanted: OffsetRange, settings: Mapping[str, Any], **more: Any
) -> Generator[RecordBatch, None, None]:
    """Yield as many records as the range has offsets; a stand-in for ``read_range``."""
    key = (wanted.topic, wanted.partition)
    if key not in _kept:
        _kept[key] = list(_beginning(read_range(wanted, settings, **more)))
    left = wanted.end - wanted.start
    for batch in itertools.cycle(_kept[key]):
        if left <= len(batch):
            break
        yield batch
        left -= len(batch)
    yield batch[:left]


def _beginning(batches: Generator[RecordBatch, None, None]) -> Iterator[RecordBatch]:
    size = 0
    for batch in batches:
        yield batch
        size += batch.nbytes
        if size >= _KEPT:
            break
    batches.close()


def run_unit(
    unit: range_units.Unit, secret: str, tell: Callable[[int], None], done: Callable[[int], None]
) -> list[str | None]:
    """Run a unit with records from memory; a stand-in for the function of the same name."""
    with patch.object(task, "read_range", from_memory):
        return range_units.run_unit(unit, secret, tell, done)


class MemorySource(DataSource):
    """``format("trikafka")`` without the reading.

    Options: ``bootstrap``, ``topic``, ``each`` (records of each partition), ``partitions``.
    """

    @classmethod
    def name(cls) -> str:
        return "memory"

    def schema(self) -> str:
        return f"{DDL}, {HEADERS_DDL}"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _MemoryReader(self.options, schema)


class _MemoryReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._settings = {"bootstrap_servers": options["bootstrap"]}
        self._topic = options["topic"]
        self._each = int(options["each"])
        self._partitions = int(options["partitions"])
        self._columns = QueryColumns(schema)

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        wanted = OffsetRange(self._topic, partition.value, 0, self._each)
        for batch in from_memory(wanted, self._settings):
            yield from self._columns.of([batch])
