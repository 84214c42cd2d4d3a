"""The data source ``format("trikafka")``: Kafka as data frames and streams.

Columns and options are those of Spark's own connector. Spark makes these objects in one Python
process and pickles them to others, so they hold options and offset ranges only.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyspark
import trio
from pyspark.sql.types import StructType

from trikafka import ConfigurationError, TrikafkaError

from .ddl import DDL, HEADERS_DDL
from .filters import Limits, limits_of
from .options import ReadOptions, read_options
from .releases import DATA_SOURCE, FILTERS, STREAM_READS, STREAM_WRITES, needed_by
from .worker import Acknowledging

with needed_by(DATA_SOURCE):
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceWriter,
        InputPartition,
    )

    from .partition import RangePartition, read_planned

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter  # since 4.1

_log = logging.getLogger("trikafka.spark")
_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


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
            options = read_options(self.options, tell=False)
        except ConfigurationError as error:
            try:
                options = read_options(self.options, streaming=True, tell=False)
            except ConfigurationError:
                raise error from None
        return f"{DDL}, {HEADERS_DDL}" if options.include_headers else DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of one batch query."""
        options = read_options(self.options)
        if options.push_filters:
            _warn_without_filters()
        kind = FilteringReader if options.push_filters and _is_pushing() else TrikafkaReader
        return kind(options, schema, self._token)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of one streaming query."""
        from .refused_stream import RefusedStream

        try:
            with needed_by(STREAM_READS):
                from .stream import TrikafkaStreamReader
            return TrikafkaStreamReader(read_options(self.options, streaming=True), schema)
        except ConfigurationError as error:
            return RefusedStream(error)

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


def _warn_without_filters() -> None:
    """Log that ``pushFilters`` has no effect if this Spark has no filters for data sources."""
    try:
        from pyspark.sql.datasource import Filter  # noqa: F401
    except ImportError:
        name, least = FILTERS
        _log.warning(
            "%s has no effect: it needs Spark %s or newer, and this is Spark %s; all records are "
            "read, and filtered in Spark",
            name,
            least,
            pyspark.__version__,
        )


def _is_pushing() -> bool:
    """Return whether this process is Spark's program that passes filters to a reader.

    If Spark's setting forbids filters, Spark refuses each reader that could take them. A data
    source cannot see the setting, but Spark then plans in another program.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(main, "name", None) == _PUSHING


class TrikafkaReader(Acknowledging, DataSourceReader):
    """The reader of a batch query, which plans the offset ranges once for a data frame."""

    def __init__(self, options: ReadOptions, schema: StructType, token: str) -> None:
        from .pruning import Columns

        self._options = options
        self._token = token
        self._columns = Columns(schema)
        self._limits = Limits()

    def partitions(self) -> list[InputPartition]:
        """Bind the offset ranges, and return the tasks.

        All actions of a data frame, and all branches of one action, see the same records.
        """
        from .ranges import bind_ranges, limit_ranges, plan_each
        from .snapshots import shared

        planned = shared(self._token, lambda: trio.run(bind_ranges, self._options))
        if self._limits != Limits():
            planned = trio.run(limit_ranges, self._options, planned, self._limits)
        return [RangePartition(one) for one in plan_each(planned, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches.

        If there is nothing to read, Spark passes a partition without a range.
        """
        if isinstance(partition, RangePartition):
            yield from read_planned(partition.planned, self._options, self._columns)


class FilteringReader(TrikafkaReader):
    """The reader of a query whose filters choose what is fetched."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the limits that the filters set, and return all filters: Spark applies them as well.

        Spark (4.2, 4.3) keeps the ranges of the last filters for all uses of a data frame. Another
        branch or query would lack records.

        Raises:
            TrikafkaError: The data frame was planned with other filters before.
        """
        from .snapshots import first_use

        self._limits = limits_of(filters)
        if not first_use(self._token, str(self._limits)):
            raise TrikafkaError(
                "with pushFilters a data frame is for one query, and this one has been planned "
                "with other filters:"
                " load() it anew for each, or leave pushFilters out"
            )
        return filters
