"""The columns that a job asks for: all, or those of its own ``.schema(...)``, which is pruning by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from trikafka import ConfigurationError, RecordBatch

from .columns import SCHEMA, spark_table

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

_TYPES = {
    "key": "binary", "value": "binary", "topic": "string", "partition": "int", "offset": "bigint", "timestamp": "timestamp",
    "timestampType": "int", "headers": "array<struct<key:string,value:binary>>",
}  # fmt: skip
#: Batches of fewer rows are small.
_FEW_ROWS = 1_024
_ALWAYS = ("topic", "partition", "offset", "timestampType")


class Columns:
    """Which columns are made of a batch, and under which names. Spark compares their Arrow schema exactly."""

    def __init__(self, schema: StructType) -> None:
        names = {name.lower(): name for name in _TYPES}
        self._ours = pa.schema([SCHEMA.field(names.get(field.name.lower()) or _unknown(field)) for field in schema.fields])
        self._theirs = pa.schema(
            [
                pa.field(field.name, ours.type, nullable=_checked(field, ours.name))
                for field, ours in zip(schema.fields, self._ours, strict=True)
            ]
        )

    def of(self, group: Sequence[RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of trikafka's in these columns. Small ones are joined: Spark takes its time over each, whatever its size."""
        table = spark_table([batch.to_arrow() for batch in group], self._ours)
        if not self._theirs.equals(self._ours):
            table = pa.Table.from_arrays(table.columns, schema=self._theirs)
        if len(group) > 1 and table.num_rows < _FEW_ROWS * len(group):
            table = table.combine_chunks()
        yield from table.to_batches()


def _unknown(field: StructField) -> str:
    columns = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
    raise ConfigurationError(f"the schema asks for {field.name!r}, which the data source does not have; it has: {columns}")


def _checked(field: StructField, name: str) -> bool:
    """Whether the field may be null."""
    kind = field.dataType.simpleString()
    if kind != _TYPES[name]:
        raise ConfigurationError(
            f"the schema asks for {field.name} as {kind}, but it is {_TYPES[name]}: leave the type, and cast it in a select"
        )
    if not field.nullable and name not in _ALWAYS:
        raise ConfigurationError(f"the schema asks for {field.name} NOT NULL, but a record may have none: leave NOT NULL out")
    return bool(field.nullable)
