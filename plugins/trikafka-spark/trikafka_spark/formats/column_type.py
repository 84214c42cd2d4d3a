"""Whether a type can be a column of files that others read: seen before a plan pins it, for a destination keeps what is pinned."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from .errors import SchemaError
from .rows import reason


def check_column(type: pa.DataType, where: str) -> None:
    """Write it, without rows, and read it again. Raises :exc:`SchemaError`, which ``where`` begins."""
    try:
        pq.write_table(pa.schema([pa.field("value", type)]).empty_table(), file := io.BytesIO())
        pq.read_schema(io.BytesIO(file.getvalue()))
    except (pa.ArrowException, OSError) as error:
        raise SchemaError(f"{where} cannot be a column of a Parquet file: {reason(error)}") from error
