"""Options, columns, days and ids of an export into a table, and secrets of catalogs.

No Kafka, no table.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from trikafka_export.columns import SCHEMA
from trikafka_export.folders import Folders, day_of
from trikafka_export.lake import library_errors
from trikafka_export.lake.columns import TableColumns, table_schema, table_type
from trikafka_export.lake.options import lake_options
from trikafka_export.lake.table_fit import check_fit
from trikafka_export.plugin import trikafka_sink

import trikafka
from trikafka import ConfigurationError, ExportError

MARK = "MARK-88-secret"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"format": "delta", "catalog": "c"}, "catalog is an option of format=iceberg"),
        ({"format": "delta", "catalog.uri": "c"}, r"catalog\.uri is an option of format=iceberg"),
        (
            {"format": "delta", "write.mergeSchema": "x"},
            r"write\.mergeSchema is for a writer of Spark's",
        ),
        (
            {"format": "iceberg", "partition_by": "hour"},
            "partition_by must name some of date, topic",
        ),
        ({"format": "iceberg", "catalogue": "c"}, "unknown option 'catalogue'"),
    ],
)
def test_impossible_options_are_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        trikafka_sink("file", {"destination": "a.b", **given}, ())


def test_options_are_sorted_by_their_owner() -> None:
    """Options of stores and catalogs reach their owners; secrets are hidden."""
    given = {
        "catalog": "c",
        "catalog.uri": MARK,
        "store.region": "r",
        "location": "s3://b/x",
    }
    found = lake_options({"destination": "a.b", "format": "Iceberg", **given})
    assert (found.format, found.destination, found.catalog, found.location) == (
        "iceberg",
        "a.b",
        "c",
        "s3://b/x",
    )
    assert (found.properties["uri"], dict(found.store)) == (MARK, {"store.region": "r"})
    assert MARK not in repr(found) + repr(found.properties)


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_missing_library_is_named_with_its_extra(
    format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_errors, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=rf"pip install 'trikafka-export\[{format}\]'"):
        trikafka_sink("file", {"destination": "a.b", "format": format}, ())


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "rest", "uri": f"http://me:{MARK}@127.0.0.1:9/", "token": MARK},
        {"type": "sql", "uri": f"sqlite:////nowhere/{MARK}:x@y", "password": MARK},
        {"type": MARK, "auth": MARK},
    ],
)
async def test_unusable_catalog_shows_no_secret(
    properties: dict[str, str],
) -> None:
    """The error of a catalog that cannot be opened gives the reason and no secret."""
    options = {
        "format": "iceberg",
        "catalog": "lake",
        **{f"catalog.{name}": value for name, value in properties.items()},
    }
    with trio.fail_after(240), pytest.raises(ExportError, match="catalog 'lake'") as caught:
        await trikafka.check_export("a.table", sink_options=options)
    assert MARK not in "".join(traceback.format_exception(caught.value))


async def test_iceberg_needs_the_name_of_a_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"such as lake\.flights, not '/data/flights'"):
        await trikafka.check_export("/data/flights", sink_options={"format": "iceberg"})
    options = {
        "format": "iceberg",
        "catalog": "c",
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{tmp_path}/c.db",
    }
    with pytest.raises(ExportError, match=r"a\.b holds no export"):
        await trikafka.check_export("a.b", sink_options=options)


@pytest.mark.parametrize(
    ("type", "delta", "iceberg"),
    [
        (pa.uint32(), pa.int64(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0), pa.decimal128(20, 0)),
        (pa.int8(), pa.int32(), pa.int32()),
        (
            pa.timestamp("ns", tz="Europe/Berlin"),
            pa.timestamp("us", tz="UTC"),
            pa.timestamp("us", tz="UTC"),
        ),
        (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.time32("ms"), None, pa.time64("us")),
        (pa.binary(4), pa.binary(), pa.binary(4)),
        (pa.decimal256(50, 2), None, None),
        (pa.duration("s"), None, None),
        (
            pa.map_(pa.string(), pa.list_(pa.uint8())),
            *[pa.map_(pa.string(), pa.list_(pa.field("element", pa.int32())))] * 2,
        ),
    ],
)
def test_types_become_the_tables_types(
    type: pa.DataType, delta: pa.DataType | None, iceberg: pa.DataType | None
) -> None:
    for kind, wanted in (("delta", delta), ("iceberg", iceberg)):
        if wanted is None:
            with pytest.raises(
                ConfigurationError, match=rf"value\.x is of type .* for which {kind} has no column"
            ):
                table_type(pa.struct([pa.field("x", type)]), kind, "value")
        else:
            assert table_type(type, kind, "value").equals(wanted)


def test_unfitting_columns_are_refused() -> None:
    """Columns of a table that are too narrow, or that must have a value, are refused."""
    wanted = pa.schema([pa.field("topic", pa.string()), pa.field("n", pa.int32())])
    check_fit(
        "t",
        wanted,
        pa.schema([pa.field("topic", pa.large_string(), False), pa.field("n", pa.int32())]),
        "delta",
    )
    with pytest.raises(
        ConfigurationError, match="the column n of the table t is of type int16, not int32"
    ):
        check_fit(
            "t",
            wanted,
            pa.schema([pa.field("topic", pa.string()), pa.field("n", pa.int16())]),
            "delta",
        )
    with pytest.raises(
        ConfigurationError, match="the column other of the table t must have a value"
    ):
        check_fit("t", wanted, wanted.append(pa.field("other", pa.string(), False)), "delta")


def test_nested_fields_have_icebergs_ids() -> None:
    fields = {
        "key": 1,
        "headers": 8,
        "headers.element": 9,
        "headers.element.key": 10,
        "headers.element.value": 11,
    }
    columns = TableColumns.of({"name": "iceberg", "fields": fields}, None)
    assert columns is not None
    headers = columns.numbered(SCHEMA).field("headers")
    entry = headers.type.value_field
    ids = [
        each.metadata[b"PARQUET:field_id"]
        for each in (headers, entry, entry.type.field(0), entry.type.field(1))
    ]
    assert ids == [b"8", b"9", b"10", b"11"]
    assert columns.numbered(SCHEMA).equals(SCHEMA), "but for the ids"
    assert table_schema({"name": "iceberg"}, []).equals(SCHEMA)


@pytest.mark.parametrize(
    ("time", "day"),
    [
        (0, "1970-01-01"),
        (-1, "1969-12-31"),
        (-86_400_000_000, "1969-12-31"),
        (-62_135_596_800_000_000, "0001-01-01"),
        (-62_135_596_800_000_001, None),
        (253_402_300_799_999_999, "9999-12-31"),
        (253_402_300_800_000_000, None),
        (2**63 - 1, None),
        (-(2**63) + 1, None),
    ],
)
def test_day_is_the_partition(time: int, day: str | None) -> None:
    table = pa.table(
        {
            "timestamp": pa.array([time], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "topic": ["t"],
        }
    )
    ((folder, rows),) = Folders(
        {"partition_by": ["topic", "date"], "name": "iceberg", "folder": "data"}, "t"
    ).split(table)
    assert (folder, rows.column_names) == (
        f"data/topic=t/date={day or '__HIVE_DEFAULT_PARTITION__'}",
        ["timestamp", "topic"],
    )
    assert day_of(f"{folder}/x.parquet") == (None if day is None else time // 86_400_000_000)
    ((folder, rows),) = Folders({"partition_by": ["topic"], "name": "delta"}, "t").split(table)
    assert (folder, rows.column_names) == ("topic=t", ["timestamp"])


def test_librarys_tree_of_causes_is_one_line() -> None:
    said = "Generic S3 error\n   \x1b[31m↳\x1b[0m after 10 retries, max_retries\n    \x1b[31m↳\x1b[0m 10"
    with pytest.raises(ExportError) as caught, library_errors.explained("cannot read t"):
        raise OSError(said)
    assert str(caught.value) == (
        "cannot read t: Generic S3 error: after 10 retries, max_retries: 10"
    )
    assert caught.value.__cause__ is not None
