"""The data source ``format("trikafka")``: Kafka as a data frame, with the columns and options of Spark's own connector.

Spark makes these objects in one Python process and pickles them to others; they hold options and offset ranges only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import trio
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from trikafka import OffsetRange

from .options import ReadOptions, read_options

if TYPE_CHECKING:
    import pyarrow as pa


class TrikafkaDataSource(DataSource):
    """Batch reads of Kafka topics. Known to Spark as ``trikafka`` wherever this package is installed."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return "trikafka"

    def schema(self) -> str:
        """The columns; ``headers`` only with ``includeHeaders``. Checks the options."""
        from .columns import DDL, HEADERS_DDL

        return f"{DDL}, {HEADERS_DDL}" if read_options(self.options).include_headers else DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one query."""
        return TrikafkaReader(read_options(self.options))


class RangePartition(InputPartition):
    """One task: an offset range."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(tuple(wanted))
        self.wanted = wanted


class TrikafkaReader(DataSourceReader):
    """Plans a query's offset ranges, once, and reads them."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Bind the offset ranges. Spark keeps them for the data frame: all its actions see the same records."""
        from .ranges import bind_ranges

        return [RangePartition(wanted) for wanted in trio.run(bind_ranges, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches; Spark passes a partition without a range when there is nothing to read."""
        from .columns import SCHEMA, SCHEMA_WITHOUT_HEADERS, spark_columns
        from .reading import read_range

        if isinstance(partition, RangePartition):
            options = self._options
            schema = SCHEMA if options.include_headers else SCHEMA_WITHOUT_HEADERS
            batches = read_range(
                partition.wanted,
                options.settings,
                fail_on_data_loss=options.fail_on_data_loss,
                stall_limit=options.stall_limit,
            )
            for batch in batches:
                yield spark_columns(batch.to_arrow(), schema)
