"""Fields that differ only in case: files have both, with a warning; Delta tables refuse them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pytest
from lakes import make_lake
from trikafka_export.formats.options import check_schemas, parse_options

from trikafka import ConfigurationError, ExportResult, export
from trikafka.testing import ScriptedCluster

VALUE = b'{"id": 1, "ID": 2}'
GIVEN = {"value_schema": {"id": "int64", "ID": "int64"}}
WARNING = (
    "the schema of the values of t has fields that differ only in case, 'id' and 'ID': Spark reads "
    "such files only with spark.sql.caseSensitive=true"
)


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster(topics={"t": 1, "u": 1}) as made:
        made.append("t", 0, [VALUE])
        yield made


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [each.getMessage() for each in caplog.records if "in case" in each.getMessage()]


async def exported(cluster: ScriptedCluster, root: object, **options: Any) -> ExportResult:
    return await export(
        "t",
        str(root),
        sink_options={"value_format": "json", **options},
        bootstrap_servers=cluster.bootstrap_servers,
        dial=cluster.dial,
    )


@pytest.mark.parametrize("options", [{}, GIVEN])
async def test_files_have_both_fields(
    cluster: ScriptedCluster,
    tmp_path: Path,
    warnings: Callable[[], list[str]],
    options: dict[str, Any],
) -> None:
    """The warning comes once, with the schema; the next export continues."""
    for rows in (1, 1):
        result = await exported(cluster, tmp_path, **options)
        assert result.rows == rows
        (file,) = result.files
        assert pq.read_table(tmp_path / file.name)["value"].to_pylist() == [{"id": 1, "ID": 2}]
        cluster.append("t", 0, [VALUE])
        assert warnings() == [f"{tmp_path}: {WARNING}"]


async def test_iceberg_table_has_both_fields(
    cluster: ScriptedCluster, tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    lake = make_lake("iceberg", tmp_path)
    await exported(cluster, lake.destination, **lake.options)
    assert lake.read()["value"].to_pylist() == [{"id": 1, "ID": 2}]
    assert warnings() == [f"{lake.destination}: {WARNING}"]


@pytest.mark.parametrize("options", [{}, GIVEN])
async def test_delta_table_is_refused(
    cluster: ScriptedCluster,
    tmp_path: Path,
    warnings: Callable[[], list[str]],
    options: dict[str, Any],
) -> None:
    with pytest.raises(ConfigurationError, match="value has fields that differ only in case"):
        await exported(cluster, tmp_path, format="delta", **options)
    assert not deltalake.DeltaTable.is_deltatable(str(tmp_path))
    assert warnings() == []


def test_schemas_of_other_formats_are_accepted() -> None:
    """A continued export checks them on each run, before the destination is known."""
    fields = [{"name": name, "type": "int"} for name in ("id", "ID")]
    record = {"type": "record", "name": "R", "fields": fields}
    check_schemas(parse_options({"value_format": "json", **GIVEN}))
    check_schemas(parse_options({"value_format": "avro", "value_schema": record}))
