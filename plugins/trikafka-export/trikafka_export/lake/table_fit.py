"""Checks that an existing table can receive an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from trikafka import ConfigurationError, ExportError

from .columns import table_type

#: The columns that every record has.
_NEVER_NULL = ("topic", "partition", "offset")
_KNOWN = ("topic", "date")


def check_fit(title: str, wanted: pa.Schema, found: pa.Schema, kind: str) -> None:
    """Check that the table has these columns, and that all its other columns are nullable.

    Raises:
        ConfigurationError: The table does not fit.
    """
    for field in wanted:
        index = found.get_field_index(field.name)
        if index < 0:
            raise ConfigurationError(
                f"the table {title} has no column {field.name} ({field.type}): choose another table"
            )
        type = found.field(index).type
        if _is_narrow(type) or not table_type(type, kind, field.name).equals(field.type):
            raise ConfigurationError(
                f"the column {field.name} of the table {title} is of type {type}, not {field.type}"
            )
    if (name := _required(found)) is not None:
        raise ConfigurationError(
            f"the column {name} of the table {title} must have a value, which not every record has"
        )


def check_nullable(title: str, found: pa.Schema) -> None:
    """Check that records without a key or value still fit. Neither library checks that.

    Raises:
        ExportError: A column must have a value now.
    """
    if (name := _required(found)) is not None:
        raise ExportError(
            _changed(title, name, "must have a value now, which not every record has")
        )


def _required(found: pa.Schema) -> str | None:
    """Return the first required column that some records lack; ``None`` if there is none."""
    names = (field.name for field in found if not field.nullable)
    return next((name for name in names if name not in _NEVER_NULL), None)


def check_still(title: str, wanted: pa.Schema, found: pa.Schema, kind: str) -> None:
    """Check that the table still has these columns with these types.

    Raises:
        ExportError: A column has changed.
    """
    for field in wanted:
        index = found.get_field_index(field.name)
        if index < 0 or not table_type(found.field(index).type, kind, field.name).equals(
            field.type
        ):
            now = f"is of type {found.field(index).type} now" if index >= 0 else "is gone"
            raise ExportError(
                _changed(
                    title, field.name, f"{now}, and the files that were written have {field.type}"
                )
            )


def check_ids(title: str, wanted: Mapping[str, int], found: Mapping[str, int]) -> None:
    """Check that the columns still have their field ids.

    Under another id, readers would find null in all files written before.

    Raises:
        ExportError: A name now belongs to another column.
    """
    for name, known in wanted.items():
        if found.get(name, known) != known:
            raise ExportError(
                _changed(title, name, "is no longer the one that the export began with")
            )


def _changed(title: str, name: str, how: str) -> str:
    return (
        f"the column {name} of the table {title} {how}; nothing was committed: change it back and "
        "export again, or export to another table"
    )


def _is_narrow(type: pa.DataType) -> bool:
    """Return whether the type contains one that files written here do not have."""
    if pa.types.is_struct(type):
        return any(_is_narrow(each.type) for each in type)
    if pa.types.is_map(type):
        return _is_narrow(type.key_type) or _is_narrow(type.item_type)
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return _is_narrow(type.value_type)
    return bool(pa.types.is_integer(type) and type.bit_width < 32)


def check_partitions(title: str, found: Sequence[str], asked: Sequence[str] | None) -> None:
    """Check that the table is partitioned as exports can do, and as requested.

    Raises:
        ConfigurationError: The table is partitioned in another way.
    """
    if any(name not in _KNOWN for name in found):
        raise ConfigurationError(
            f"the table {title} is partitioned by {', '.join(found)}; exports know topic and date"
        )
    if asked is not None and list(asked) != list(found):
        raise ConfigurationError(
            f"the table {title} is partitioned by {list(found)}, not by {list(asked)}: leave "
            "partition_by out"
        )
