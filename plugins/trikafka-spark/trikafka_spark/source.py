"""The data source ``format("trikafka")``: Kafka as data frames and streams.

Columns and options are those of Spark's own connector. Spark makes these objects in one Python
process and pickles them to others, so they hold options and offset ranges only.
"""

from __future__ import annotations

import uuid
from typing import Any

import trio
from pyspark.sql.types import StructType

from trikafka import ConfigurationError

from .kafka_settings import by_option
from .read_options import ReadOptions, read_options
from .releases import DATA_SOURCE, STREAM_READS, STREAM_WRITES, needed_by

with needed_by(DATA_SOURCE):
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceWriter,
        InputPartition,
    )

    from .range_partition import RangeReader


#: The columns of Spark's Kafka connector, in Spark's terms. The plain name TIMESTAMP would mean
#: another type in a session with ``spark.sql.timestampType=TIMESTAMP_NTZ``.
DDL = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, "
    "timestamp TIMESTAMP_LTZ, timestampType INT"
)
HEADERS_DDL = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


class TrikafkaDataSource(DataSource):
    """The data source that reads and writes Kafka topics.

    Spark finds it as ``trikafka`` wherever this package is installed. Where it is not found by
    itself, ``spark.dataSource.register(TrikafkaDataSource)`` registers it.

    Spark makes one object for each ``load()``. Copies in other processes have the same token, so
    they share one snapshot of the topics.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._token = uuid.uuid4().hex

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "trikafka"

    def schema(self) -> str:
        """Return the columns as DDL; ``headers`` only with ``includeHeaders``.

        The options are checked as far as they mean the same for batches and for streams: Spark does
        not yet say which of the two it plans.

        Raises:
            ConfigurationError: An option is not valid.
        """
        try:
            options = read_options(self.options, warn=False)
        except ConfigurationError as error:
            try:
                options = read_options(self.options, streaming=True, warn=False)
            except ConfigurationError:
                raise error from None
        return f"{DDL}, {HEADERS_DDL}" if options.include_headers else DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of one batch query."""
        return TrikafkaReader(read_options(self.options), schema, self._token)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of one streaming query."""
        try:
            with needed_by(STREAM_READS):
                from .stream_reader import TrikafkaStreamReader
            return TrikafkaStreamReader(read_options(self.options, streaming=True), schema)
        except ConfigurationError as error:
            return _RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of one batch."""
        from .write_options import write_options
        from .writing import TrikafkaWriter

        return TrikafkaWriter(
            write_options(self.options, schema, overwrite=overwrite, streaming=False)
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a stream's micro-batches."""
        from .write_options import write_options

        with needed_by(STREAM_WRITES):
            from .stream_writing import TrikafkaStreamWriter
        return TrikafkaStreamWriter(
            write_options(self.options, schema, overwrite=overwrite, streaming=True)
        )


class TrikafkaReader(RangeReader, DataSourceReader):
    """The reader of a batch query, which plans the offset ranges once for a data frame."""

    def __init__(self, options: ReadOptions, schema: StructType, token: str) -> None:
        super().__init__(options, schema)
        self._token = token

    def partitions(self) -> list[InputPartition]:
        """Bind the offset ranges, and return the tasks.

        All actions of a data frame, and all branches of one action, see the same records.
        """
        from .range_planning import bind_ranges
        from .snapshots import shared

        with by_option(self._options.kafka):
            planned = shared(self._token, lambda: trio.run(bind_ranges, self._options))
        return self._tasks(planned)


class _RefusedStream(DataSourceStreamReader):
    """A reader that raises the error of a stream's options.

    If the error were raised while the reader is made, Spark would show an error of its own.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _refuse(self, *arguments: Any) -> Any:
        raise self._error

    # A stream with a checkpoint calls another one first than a new stream.
    initialOffset: Any = _refuse
    latestOffset: Any = _refuse
    partitions: Any = _refuse
    read: Any = _refuse
