"""The check that a type can be a column of a file, before a plan pins the type permanently."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from .errors import SchemaError
from .rows import reason


def check_column(type: pa.DataType, where: str) -> None:
    """Write and read a file with the column, without rows.

    Raises:
        SchemaError: The type cannot be a column. ``where`` begins the message.
    """
    try:
        pq.write_table(pa.schema([pa.field("value", type)]).empty_table(), file := io.BytesIO())
        pq.read_schema(io.BytesIO(file.getvalue()))
    except (pa.ArrowException, OSError) as error:
        raise SchemaError(
            f"{where} cannot be a column of a Parquet file: {reason(error)}"
        ) from error


def alike_names(type: pa.DataType) -> tuple[str, str] | None:
    """Return two names of one object, at any depth, that differ only in case; else ``None``."""
    seen: dict[str, str] = {}
    for number in range(type.num_fields):
        field = type.field(number)
        if pa.types.is_struct(type):
            before = seen.setdefault(field.name.lower(), field.name)
            if before != field.name:
                return before, field.name
        if (inner := alike_names(field.type)) is not None:
            return inner
    return None
