"""Parquet files, the format of exports unless another one is chosen.

The module imports pyarrow in its functions only: a sink is made in the Trio thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trikafka.interfaces import FileShape, PlannedRange, TableLog

from .plan import DEFAULT_SUFFIX

if TYPE_CHECKING:
    import pyarrow as pa

FOOTER_KEY = "trikafka.range"
#: Bytes of a page. Snappy and LZ4 look back 64 KiB, so small pages compress as well. Their bytes
#: are still in the processor's cache when they are compressed, which saves a twentieth of a task's
#: time. Zstandard looks back further, and compresses large pages better.
_PAGE_BYTES = {"snappy": 131_072, "lz4": 131_072}
_LARGE_PAGE_BYTES = 1 << 20


def footer_of(planned: PlannedRange) -> str:
    """Return the text by which a data file names its range."""
    return json.dumps([planned.topic, planned.partition, planned.start, planned.end])


class _Writer:
    """A Parquet file that is being written, in groups of rows."""

    def __init__(self, writer: Any, group_rows: int) -> None:
        self._writer = writer
        self._group_rows = group_rows

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=self._group_rows)

    def close(self) -> None:
        self._writer.close()


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """Parquet files with checksums of their pages."""

    title = "Parquet"
    suffix = DEFAULT_SUFFIX

    def open(
        self, stream: Any, schema: pa.Schema, planned: PlannedRange, shape: FileShape
    ) -> _Writer:
        """Begin a file whose footer names the range."""
        import pyarrow.parquet as pq

        writer = pq.ParquetWriter(
            stream,
            schema,
            compression=shape.compression,
            data_page_size=_PAGE_BYTES.get(shape.compression, _LARGE_PAGE_BYTES),
            use_dictionary=[
                name
                for name in ("topic", "partition", "timestampType", "key")
                if name in schema.names
            ],
            write_statistics=["partition", "offset", "timestamp"],
            write_page_checksum=True,
        )
        writer.add_key_value_metadata({FOOTER_KEY: footer_of(planned)})
        return _Writer(writer, shape.row_group_rows)

    def count(self, file: Any) -> int:
        """Return the number of rows by the footer."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            rows: int = pq.read_metadata(file).num_rows
        except pa.ArrowException as error:
            raise ValueError(str(error)) from error
        return rows

    def decode(self, file: Any, check_wanted: Callable[[], None]) -> None:
        """Decode all of a file whose manifest has no checksum, as older releases wrote them.

        If its pages have checksums of their own, they are compared.

        Args:
            file: A binary file that can be read and sought.
            check_wanted: Called between groups of rows; may raise to end the check.

        Raises:
            ValueError: The file is not whole.
            OSError: The file cannot be read.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
                for group in range(parquet.num_row_groups):
                    parquet.read_row_group(group, use_threads=False)
                    check_wanted()
        except pa.ArrowException as error:
            raise ValueError(str(error)) from error


class ParquetFormat:
    """Parquet files alone, without a table."""

    name = "parquet"
    option_names = ()

    def files(self, options: Mapping[str, Any]) -> ParquetFiles:
        """Return Parquet files."""
        return ParquetFiles()

    def table(self, options: Mapping[str, Any]) -> Callable[[], TableLog] | None:
        """Return ``None``: a file counts once a manifest lists it."""
