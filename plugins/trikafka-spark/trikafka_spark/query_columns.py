"""The columns of a query: all, or those of the job's own ``.schema(...)``.

Spark passes no list of used columns to a Python source, so a schema is the only way to prune them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType
from trikafka_export.columns import SCHEMA, spark_table

from trikafka import ConfigurationError, RecordBatch

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
#: Batches with fewer rows are joined.
_FEW_ROWS = 1_024
_ALWAYS = ("topic", "partition", "offset", "timestampType")


class QueryColumns:
    """The columns to make of a batch, and their names.

    Spark compares their Arrow schema exactly.
    """

    def __init__(self, schema: StructType) -> None:
        names = {name.lower(): name for name in _TYPES}
        fields = [field.name for field in schema.fields]
        if twice := next((name for name in fields if fields.count(name) > 1), None):
            # Spark's JVM cannot load such Arrow batches, and its error does not say why.
            raise ConfigurationError(
                f"the schema asks for {twice!r} twice: repeat the column in a select"
            )
        self._ours = pa.schema(
            [
                SCHEMA.field(names.get(field.name.lower()) or _unknown(field))
                for field in schema.fields
            ]
        )
        self._theirs = pa.schema(
            [
                pa.field(field.name, ours.type, nullable=_checked(field, ours.name))
                for field, ours in zip(schema.fields, self._ours, strict=True)
            ]
        )

    def of(self, group: Sequence[RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches in these columns.

        Small batches are joined, since Spark's cost for each does not depend on its size.
        """
        table = spark_table([batch.to_arrow() for batch in group], self._ours)
        if not self._theirs.equals(self._ours):
            table = pa.Table.from_arrays(table.columns, schema=self._theirs)
        if len(group) > 1 and table.num_rows < _FEW_ROWS * len(group):
            table = table.combine_chunks()
        yield from table.to_batches()


def _unknown(field: StructField) -> str:
    columns = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
    raise ConfigurationError(
        f"the schema asks for {field.name!r}, which the data source does not have; it has: "
        f"{columns}"
    )


def _checked(field: StructField, name: str) -> bool:
    """Return whether the field may be null; raise if its type is not the column's."""
    kind = field.dataType.simpleString()
    if kind != _TYPES[name]:
        # With spark.sql.timestampType=TIMESTAMP_NTZ, TIMESTAMP is another type than the column's.
        what = "declare it TIMESTAMP_LTZ" if name == "timestamp" else "leave the type"
        raise ConfigurationError(
            f"the schema asks for {field.name} as {kind}, but it is {_TYPES[name]}: {what}, and "
            "cast it in a select"
        )
    if not field.nullable and name not in _ALWAYS:
        raise ConfigurationError(
            f"the schema asks for {field.name} NOT NULL, but a record may have none: leave NOT "
            "NULL out"
        )
    return bool(field.nullable)
