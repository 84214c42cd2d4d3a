"""Entries of data files in Iceberg's manifests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile as ManifestFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, StringType

from .footers import DataFile

if TYPE_CHECKING:
    from pyiceberg.table import Table

#: The longest text in the bounds, in characters, as in the format's own writers.
_MOST_TEXT = 16


def data_file(table: Table, each: DataFile, fields: Mapping[str, int]) -> ManifestFile:
    """Return the manifest entry of one file."""
    lows, highs, nulls = _bounds(each, fields)
    return ManifestFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location().rstrip('/')}/{each.file.name}",
        file_format=FileFormat.PARQUET,
        partition=_partition(table, each),
        file_size_in_bytes=each.file.bytes,
        record_count=each.file.rows,
        value_counts=dict.fromkeys(nulls, each.file.rows),
        null_value_counts=nulls,
        lower_bounds=lows,
        upper_bounds=highs,
        split_offsets=list(each.splits),
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        spec_id=table.metadata.default_spec_id,
    )


def _partition(table: Table, each: DataFile) -> Record:
    return Record(
        *(
            each.topic if isinstance(field.transform, IdentityTransform) else each.day
            for field in table.spec().fields
        )
    )


def _bounds(
    each: DataFile, fields: Mapping[str, int]
) -> tuple[dict[int, bytes], dict[int, bytes], dict[int, int]]:
    partition = to_bytes(IntegerType(), each.partition)
    lows: dict[int, Any] = {fields["partition"]: partition}
    highs = dict(lows)
    nulls = {fields["topic"]: 0, fields["partition"]: 0}
    if len(each.topic) <= _MOST_TEXT:
        lows[fields["topic"]] = highs[fields["topic"]] = to_bytes(StringType(), each.topic)
    for name, bounds in (("offset", each.offsets), ("timestamp", each.times)):
        if bounds is not None:
            lows[fields[name]] = to_bytes(LongType(), bounds.low)
            highs[fields[name]] = to_bytes(LongType(), bounds.high)
            nulls[fields[name]] = bounds.nulls
    return lows, highs, nulls
