"""The formats ``delta`` and ``iceberg``: Parquet files, and one commit a plan in a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from trikafka.interfaces import TableLog

from ..parquet_files import ParquetFiles
from .library_errors import check_library
from .options import LakeOptions, lake_options


class TableFormat:
    """A table whose Parquet files trikafka writes."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: A table of Delta has only its folder.
        self.option_names = (
            ("catalog", "location", "catalog.type", "catalog.uri", "catalog.warehouse", "catalog.")
            if name == "iceberg"
            else ()
        )

    def files(self, options: Mapping[str, Any]) -> ParquetFiles:
        """Return Parquet files."""
        return ParquetFiles()

    def table(self, options: Mapping[str, Any]) -> Callable[[], TableLog]:
        """Return the function that opens the table.

        Raises:
            ConfigurationError: An option is not valid, or the library is missing.
        """
        checked = lake_options({**options, "format": self.name})
        check_library(self.name)
        return partial(open_table, checked)


def open_table(options: LakeOptions) -> TableLog:
    """Return the log of the table. Imports slow libraries."""
    if options.format == "delta":
        from .delta import DeltaLog

        return DeltaLog(options)
    from .iceberg import IcebergLog

    return IcebergLog(options)
