"""A newcomer's first tries at tables: names nearly right, folders that are relative, a catalog half told. No Kafka, no Spark."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from lakes import IcebergLake, make_lake
from pyiceberg.catalog import load_catalog
from test_lake_hostile import columns, log_of
from trikafka_spark.lake.explaining import advised
from trikafka_spark.lake.iceberg import IcebergLog
from trikafka_spark.lake.options import lake_options
from trikafka_spark.plugin import trikafka_sink
from trikafka_spark.sink import SparkSink
from trikafka_spark.tables.options import table_options

import trikafka
from trikafka import ConfigurationError, TableStore
from trikafka.interfaces import ExportPlan, PlannedRange

PAGE = (Path(__file__).parents[3] / "docs" / "export.md").read_text()


def begun(root: Path, format: str) -> None:
    """A plan that was stored and has nothing else."""
    store = TableStore(root)
    store.open()
    planned = PlannedRange("t", 0, 0, 10, "t-0.parquet")
    store.store_plan(ExportPlan(1, "id", "", None, {"t": None}, "read_committed", (planned,), {planned.tp: 10}, {"name": format}))
    store.close()


def iceberg(destination: str = "shop.flights", **options: str) -> IcebergLog:
    dotted = {name.replace("__", "."): value for name, value in options.items()}
    return IcebergLog(lake_options({"destination": destination, "format": "iceberg", "catalog": "stumbles", **dotted}))


# --- formats ---


@pytest.mark.parametrize("scheme", ["file", "s3"])
@pytest.mark.parametrize(
    ("typed", "meant"), [("parket", "parquet"), ("Parqet", "parquet"), ("icberg", "iceberg"), ("detla", "delta")]
)
def test_a_format_that_is_nearly_right_is_refused_before_anything_is_asked_for(scheme: str, typed: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown format '{typed}'; did you mean '{meant}'"):
        trikafka_sink(scheme, {"destination": f"{scheme}://bucket/x" if scheme == "s3" else "x", "format": typed})


@pytest.mark.parametrize("name", ["orc", "json", "avro", "hudi", "lance", "paimon", "org.example.Orcs"])
def test_formats_of_sparks_and_of_packages_are_taken(name: str) -> None:
    assert table_options({"format": name}).format == name


async def test_what_was_only_begun_in_another_format_tells_the_way_out(tmp_path: Path) -> None:
    root = tmp_path / "pk"
    begun(root, "parket")
    with pytest.raises(ConfigurationError, match=r"nothing of it was ever published: remove .*/pk/_trikafka to begin anew") as told:
        async with SparkSink(root) as sink:
            await sink.load()
    remedy = re.search(r"remove (\S+)", str(told.value))
    assert remedy is not None
    assert Path(remedy[1]) == root / "_trikafka"
    (root / "part-0.orc").write_bytes(b"")  # rows that a reader may have seen
    with pytest.raises(ConfigurationError, match=r"was exported with format=parket and keeps it: give that \(--format parket\)"):
        async with SparkSink(root) as sink:
            await sink.load()


async def test_a_check_without_the_format_of_a_delta_table_names_it(tmp_path: Path) -> None:
    make_lake("delta", tmp_path / "lake").create(columns(make_lake("delta", tmp_path / "lake")))
    with pytest.raises(ConfigurationError, match="--format delta, also with --check"):
        await trikafka.check_export(make_lake("delta", tmp_path / "lake").destination)


# --- options ---


@pytest.mark.parametrize(
    ("given", "meant"),
    [("catalogue", "catalog"), ("catalog_uri", "catalog.uri"), ("warehouse", "catalog.warehouse"), ("locaton", "location")],
)
def test_an_option_of_a_catalog_that_is_nearly_right_is_suggested(given: str, meant: str) -> None:
    message = f"unknown option '{given}' of an export with format=iceberg; did you mean '{meant}'"
    with pytest.raises(ConfigurationError, match=message):
        lake_options({"destination": "a.b", "format": "iceberg", given: "x"})


@pytest.mark.parametrize("name", ["format", "value_format", "key_schema", "catalog", "partition_by"])
async def test_an_option_of_the_sink_that_is_given_as_a_setting_says_where_it_goes(name: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {name: "delta"}
    with pytest.raises(ConfigurationError, match=rf"{name} is an option of what writes: give sink_options=\{{'{name}': "):
        await trikafka.export("t", tmp_path, bootstrap_servers="localhost:1", **given)


# --- catalogs ---


@pytest.mark.parametrize("option", ["location", "catalog__warehouse"])
def test_a_relative_folder_is_the_same_one_from_anywhere(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    uri = f"sqlite:///{tmp_path}/lake.db"
    log = iceberg(catalog__type="sql", catalog__uri=uri, **{option: "./lake"})
    log.pin({"name": "iceberg"}, columns(make_lake("iceberg", tmp_path / "x")), None)
    monkeypatch.chdir(there)
    table = load_catalog("stumbles", type="sql", uri=uri).load_table("shop.flights")
    assert table.location().startswith(f"{here}/lake")
    assert table.scan().to_arrow().num_rows == 0
    assert log.place() is not None


def test_the_format_knows_where_the_table_is(tmp_path: Path) -> None:
    lake = make_lake("iceberg", tmp_path / "lake")
    lake.root.mkdir(parents=True, exist_ok=True)
    assert isinstance(lake, IcebergLake)
    found = log_of(lake).pin({"name": "iceberg"}, columns(lake), None)
    assert found["location"] == lake.table.location()


def test_a_catalog_that_nobody_knows_is_asked_for_by_our_options() -> None:
    with pytest.raises(ConfigurationError, match=r"give catalog\.uri, such as .* \(and catalog\.type: sql, rest"):
        iceberg()


def test_a_table_without_a_place_is_asked_for_by_our_options(tmp_path: Path) -> None:
    log = iceberg(catalog__type="sql", catalog__uri=f"sqlite:///{tmp_path}/lake.db")
    with pytest.raises(ConfigurationError, match=r"give location, the table's folder or URL, or catalog\.warehouse"):
        log.pin({"name": "iceberg"}, columns(make_lake("iceberg", tmp_path / "x")), None)


def test_sqlalchemy_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"needs SQLAlchemy: pip install 'trikafka-spark\[iceberg-sql\]'"), advised():
        raise ImportError("SQLAlchemy support not installed: pip install 'pyiceberg[sql-postgres]'")


def test_the_sql_catalog_of_the_page_works_as_it_stands(tmp_path: Path) -> None:
    (block,) = [each for each in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if "sqlite:" in each]
    line = next(each for each in block.replace("\\\n", " ").splitlines() if "sqlite:" in each).replace("/data/", f"{tmp_path}/")
    words = shlex.split(line)
    given = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--option")
    log = IcebergLog(lake_options({"destination": words[3], "format": "iceberg", **given}))
    found = log.pin({"name": "iceberg"}, columns(make_lake("iceberg", tmp_path / "x")), None)
    assert found["location"].startswith(f"{tmp_path}/lake/")
