"""The columns of a table's files: the types of the table format, and Iceberg's field ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trikafka import ConfigurationError

from ..columns import SCHEMA
from ..formats.column_type import alike_names
from ..formats.parsing import Parser

_SAME = (
    pa.types.is_boolean,
    pa.types.is_int32,
    pa.types.is_int64,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_date32,
)
#: Types that neither format has, and the next wider type of both.
_WIDER: list[tuple[Any, pa.DataType]] = [
    (lambda type: pa.types.is_integer(type) and type.bit_width < 32, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_uint64, pa.decimal128(20, 0)),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_date64, pa.date32()),
    (
        lambda type: (
            pa.types.is_string(type)
            or pa.types.is_large_string(type)
            or pa.types.is_string_view(type)
        ),
        pa.string(),
    ),
    (
        lambda type: (
            pa.types.is_binary(type)
            or pa.types.is_large_binary(type)
            or pa.types.is_binary_view(type)
        ),
        pa.binary(),
    ),
]
_MOST_DIGITS = 38


def table_schema(format: Mapping[str, Any], topics: Iterable[str]) -> pa.Schema:
    """Return the columns of the files, the same for all topics.

    Raises:
        ConfigurationError: A table cannot have these columns.
    """
    found: dict[str, pa.Schema] = {}
    for topic in topics:
        found[topic] = _of_topic(format, topic)
    if not found:
        found[""] = _base(format["name"], SCHEMA)
    (first, schema), *others = found.items()
    for topic, other in others:
        if not other.equals(schema):
            raise ConfigurationError(
                f"the keys or values of {first!r} and {topic!r} have different schemas, and a "
                "table has one: export each topic into a table of its own, or give one "
                "value_schema for all"
            )
    return schema


def _of_topic(format: Mapping[str, Any], topic: str) -> pa.Schema:
    parser = _parser(format, topic)
    schema = SCHEMA
    for name, type in parser.types.items() if parser is not None else ():
        schema = schema.set(schema.get_field_index(name), pa.field(name, type))
    return _base(format["name"], schema)


def _parser(format: Mapping[str, Any], topic: str) -> Parser | None:
    """Return the parser without a registry: only its pinned types are needed."""
    return Parser.of(
        {name: value for name, value in format.items() if not name.endswith("_framing")}, topic
    )


def _base(kind: str, schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [pa.field(each.name, table_type(each.type, kind, each.name)) for each in schema]
    )


def table_type(type: pa.DataType, kind: str, where: str) -> pa.DataType:
    """Return the table format's type for such values.

    Raises:
        ConfigurationError: The format has none. The message names ``where``.
    """
    if pa.types.is_struct(type) and type.num_fields:
        if kind == "delta" and (names := alike_names(type)) is not None:
            raise ConfigurationError(
                f"{where} has fields that differ only in case, {names[0]!r} and {names[1]!r}, "
                "which a Delta table cannot have: give a schema with one of them, or export to "
                "Parquet files or an Iceberg table"
            )
        return pa.struct(
            [
                pa.field(each.name, table_type(each.type, kind, f"{where}.{each.name}"))
                for each in type
            ]
        )
    if pa.types.is_map(type):
        key = table_type(type.key_type, kind, f"{where}.key")
        return pa.map_(key, table_type(type.item_type, kind, f"{where}.value"))
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        return pa.list_(pa.field("element", table_type(type.value_type, kind, f"{where}.element")))
    return _simple(type, kind, where)


def _simple(type: pa.DataType, kind: str, where: str) -> pa.DataType:
    if any(same(type) for same in _SAME):
        return type
    for test, wider in _WIDER:
        if test(type):
            return wider
    if pa.types.is_timestamp(type):
        return pa.timestamp("us", tz="UTC" if type.tz else None)
    if (
        pa.types.is_decimal(type)
        and type.precision <= _MOST_DIGITS
        and 0 <= type.scale <= type.precision
    ):
        return pa.decimal128(type.precision, type.scale)
    if pa.types.is_time(type) and kind == "iceberg":
        return pa.time64("us")
    if pa.types.is_fixed_size_binary(type):
        return type if kind == "iceberg" else pa.binary()
    raise ConfigurationError(
        f"{where} is of type {type}, for which {kind} has no column: give a schema with another "
        "type for it, or without it"
    )


class TableColumns:
    """The conversion of one topic's rows to the table's types."""

    def __init__(self, format: Mapping[str, Any], parser: Parser | None) -> None:
        self._fields: Mapping[str, int] = format.get("fields", {})
        self._types: dict[str, pa.DataType] = {}
        for name, type in parser.types.items() if parser is not None else ():
            wanted = table_type(type, format["name"], name)
            if not wanted.equals(type):
                self._types[name] = wanted

    @staticmethod
    def of(format: Mapping[str, Any], parser: Parser | None) -> TableColumns | None:
        """Return the conversion for a plan's format; ``None`` if it writes no table."""
        return TableColumns(format, parser) if format.get("name") in ("delta", "iceberg") else None

    def fit(self, table: pa.Table) -> tuple[pa.Table, dict[int, str]]:
        """Return the converted rows, and the offsets of rows that do not fit with the reasons."""
        if not self._types or not table.num_rows:
            return self._cast(table), {}
        try:
            return self._cast(table), {}
        except pa.ArrowInvalid as error:
            if table.num_rows == 1:
                return self._cast(table.slice(0, 0)), {table["offset"][0].as_py(): str(error)}
        half = table.num_rows // 2
        first, wrong = self.fit(table.slice(0, half))
        second, also = self.fit(table.slice(half))
        return pa.concat_tables([first, second]), wrong | also

    def _cast(self, table: pa.Table) -> pa.Table:
        for name, type in self._types.items():
            options = pc.CastOptions(target_type=type, allow_time_truncate=True)
            index = table.schema.get_field_index(name)
            table = table.set_column(
                index, pa.field(name, type), table.column(index).cast(options=options)
            )
        return table

    def numbered(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema with Iceberg's field ids."""
        return (
            pa.schema([_numbered(each, each.name, self._fields) for each in schema])
            if self._fields
            else schema
        )


def _numbered(field: pa.Field, path: str, ids: Mapping[str, int]) -> pa.Field:
    type = field.type
    if pa.types.is_struct(type):
        type = pa.struct([_numbered(each, f"{path}.{each.name}", ids) for each in type])
    elif pa.types.is_map(type):
        key = _numbered(type.key_field, f"{path}.key", ids)
        item = _numbered(type.item_field, f"{path}.value", ids)
        type = pa.map_(key, item)
    elif pa.types.is_list(type):
        type = pa.list_(_numbered(type.value_field, f"{path}.element", ids))
    known = ids.get(path)
    return pa.field(
        field.name,
        type,
        field.nullable,
        {"PARQUET:field_id": str(known)} if known is not None else None,
    )
