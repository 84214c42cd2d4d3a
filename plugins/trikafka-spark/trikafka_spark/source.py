"""The data source ``format("trikafka")``: Kafka as data frames and streams, with the columns and options of Spark's own connector.

Spark makes these objects in one Python process and pickles them to others; they hold options and offset ranges only.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import trio
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from trikafka import ConfigurationError, TrikafkaError

from .ddl import DDL, HEADERS_DDL
from .filters import Limits, limits_of
from .options import ReadOptions, read_options
from .partition import RangePartition, read_planned
from .worker import Acknowledging

if TYPE_CHECKING:
    import pyarrow as pa

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


class TrikafkaDataSource(DataSource):
    """Reads and writes of Kafka topics. Known to Spark as ``trikafka`` wherever this package is installed.

    Spark makes one for each ``load()``; its copies in other processes share the token, and by it one state of the topics.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._token = uuid.uuid4().hex

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return "trikafka"

    def schema(self) -> str:
        """The columns; ``headers`` only with ``includeHeaders``. Checks the options, as far as they mean the same for batches
        and for streams: Spark does not say yet which it is."""
        try:
            options = read_options(self.options, tell=False)
        except ConfigurationError as error:
            try:
                options = read_options(self.options, streaming=True, tell=False)
            except ConfigurationError:
                raise error from None
        return f"{DDL}, {HEADERS_DDL}" if options.include_headers else DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one query."""
        options = read_options(self.options)
        kind = FilteringReader if options.push_filters and _is_pushing() else TrikafkaReader
        return kind(options, schema, self._token)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of one streaming query."""
        from .stream import RefusedStream, TrikafkaStreamReader

        try:
            return TrikafkaStreamReader(read_options(self.options, streaming=True), schema)
        except ConfigurationError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of one batch."""
        from .write_options import write_options
        from .writing import TrikafkaWriter

        return TrikafkaWriter(write_options(self.options, schema, overwrite=overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """The writer of a stream's micro-batches."""
        from .write_options import write_options
        from .writing import TrikafkaStreamWriter

        return TrikafkaStreamWriter(write_options(self.options, schema, overwrite=overwrite, streaming=True))


def _is_pushing() -> bool:
    """Whether this process hands filters over. Where Spark's setting forbids that, it refuses any reader that could take them, and
    a data source cannot see the setting; but the work is done by another program then."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(main, "name", None) == _PUSHING


class TrikafkaReader(Acknowledging, DataSourceReader):
    """Plans a query's offset ranges, once for a data frame, and reads them."""

    def __init__(self, options: ReadOptions, schema: StructType, token: str) -> None:
        from .pruning import Columns

        self._options, self._token = options, token
        self._columns = Columns(schema)
        self._limits = Limits()

    def partitions(self) -> list[InputPartition]:
        """Bind the offset ranges. All actions of a data frame, and all branches of one action, see the same records."""
        from .ranges import bind_ranges, limit_ranges, plan_each
        from .snapshots import shared

        planned = shared(self._token, lambda: trio.run(bind_ranges, self._options))
        if self._limits != Limits():
            planned = trio.run(limit_ranges, self._options, planned, self._limits)
        return [RangePartition(one) for one in plan_each(planned, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches; Spark passes a partition without a range when there is nothing to read."""
        if isinstance(partition, RangePartition):
            yield from read_planned(partition.planned, self._options, self._columns)


class FilteringReader(TrikafkaReader):
    """As its base, for a query whose filters reach the broker."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the limits that the filters set; all of them stay in Spark.

        Spark (4.2, 4.3) keeps the ranges of the last filters for all uses of a data frame, so that it would lack records in another
        branch or query: raises :exc:`trikafka.TrikafkaError` for the second set of filters.
        """
        from .snapshots import first_use

        self._limits = limits_of(filters)
        if not first_use(self._token, str(self._limits)):
            raise TrikafkaError(
                "with pushFilters a data frame is for one query, and this one has been planned with other filters:"
                " load() it anew for each, or leave pushFilters out"
            )
        return filters
