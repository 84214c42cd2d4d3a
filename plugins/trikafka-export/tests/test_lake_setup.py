"""First attempts at tables: names nearly right, relative folders, incomplete catalogs.

No Kafka, no Spark.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import deltalake
import pytest
from lakes import IcebergLake, make_lake
from pyiceberg.catalog import load_catalog
from test_lake_commits import columns, log_of
from trikafka_export.lake.columns import table_schema
from trikafka_export.lake.delta import DeltaLog
from trikafka_export.lake.iceberg import IcebergLog
from trikafka_export.lake.library_errors import advised
from trikafka_export.lake.options import lake_options
from trikafka_export.lake.table_store import TableStore
from trikafka_export.plugin import trikafka_sink
from trikafka_export.sink import FileSink

import trikafka
from trikafka import ConfigurationError
from trikafka.interfaces import ExportPlan, PlannedRange
from trikafka.testing import ScriptedCluster

PAGE = (Path(__file__).parents[3] / "docs" / "export-tables.md").read_text()


def begun(root: Path, format: str) -> None:
    """Return a plan that was stored, and for which nothing else was done."""
    store = TableStore(root)
    store.open()
    planned = PlannedRange("t", 0, 0, 10, "t-0.parquet")
    store.store_plan(
        ExportPlan(
            1,
            "id",
            "",
            None,
            {"t": None},
            "read_committed",
            (planned,),
            {planned.tp: 10},
            {"name": format},
        )
    )
    store.close()


def iceberg(destination: str = "shop.flights", **options: str) -> IcebergLog:
    dotted = {name.replace("__", "."): value for name, value in options.items()}
    return IcebergLog(
        lake_options(
            {"destination": destination, "format": "iceberg", "catalog": "stumbles", **dotted}
        )
    )


# --- formats ---


@pytest.mark.parametrize("scheme", ["file", "s3"])
@pytest.mark.parametrize(
    ("typed", "meant"),
    [("parket", "parquet"), ("Parqet", "parquet"), ("icberg", "iceberg"), ("detla", "delta")],
)
def test_misspelt_format_is_refused_with_a_hint(scheme: str, typed: str, meant: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"unknown format '{typed}'; did you mean '{meant}'"
    ):
        trikafka_sink(
            scheme,
            {"destination": f"{scheme}://bucket/x" if scheme == "s3" else "x", "format": typed},
            (),
        )


async def test_unpublished_export_may_change_its_format(tmp_path: Path) -> None:
    """The error about another format says what to remove, if nothing was published."""
    root = tmp_path / "pk"
    begun(root, "parket")
    with pytest.raises(
        ConfigurationError,
        match=r"and published nothing: remove .*/pk/_trikafka to begin again",
    ) as caught:
        async with FileSink(root) as sink:
            await sink.load()
    remedy = re.search(r"remove (\S+)", str(caught.value))
    assert remedy is not None
    assert Path(remedy[1]) == root / "_trikafka"
    (root / "part-0.orc").write_bytes(b"")  # rows that readers may have used
    with pytest.raises(
        ConfigurationError,
        match=r"was exported with format=parket and keeps it: give that \(--format parket\)",
    ):
        async with FileSink(root) as sink:
            await sink.load()


async def test_check_names_the_missing_format(tmp_path: Path) -> None:
    make_lake("delta", tmp_path / "lake").create(columns(make_lake("delta", tmp_path / "lake")))
    with pytest.raises(ConfigurationError, match="--format delta, also with --check"):
        await trikafka.check_export(make_lake("delta", tmp_path / "lake").destination)


# --- options ---


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("catalogue", "catalog"),
        ("catalog_uri", "catalog.uri"),
        ("warehouse", "catalog.warehouse"),
        ("locaton", "location"),
    ],
)
def test_misspelt_option_gets_a_hint(given: str, meant: str) -> None:
    message = f"unknown option '{given}' of an export with format=iceberg; did you mean '{meant}'"
    with pytest.raises(ConfigurationError, match=message):
        trikafka_sink("file", {"destination": "a.b", "format": "iceberg", given: "x"}, ())


@pytest.mark.parametrize(
    "name", ["format", "value_format", "key_schema", "catalog", "partition_by"]
)
async def test_sink_option_as_a_setting_is_explained(name: str, tmp_path: Path) -> None:
    """The error about an option of the sink that is given as a setting names sink_options."""
    given: dict[str, Any] = {name: "delta"}
    with pytest.raises(
        ConfigurationError,
        match=rf"{name} is an option of the sink: give sink_options=\{{'{name}': ",
    ):
        await trikafka.export("t", tmp_path, bootstrap_servers="localhost:1", **given)


# --- catalogs ---


@pytest.mark.parametrize("option", ["location", "catalog__warehouse"])
def test_relative_folder_is_made_absolute(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative location or warehouse is the same folder from any working directory."""
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


@pytest.mark.parametrize(("name", "sign"), [("a%20b", "%20"), ("a\\b", "\\")])
def test_path_that_deltalake_misreads_is_refused(name: str, sign: str, tmp_path: Path) -> None:
    """The table would be in another folder."""
    folder = tmp_path / name
    with pytest.raises(ConfigurationError, match=re.escape(f"must have no {sign!r} in its path")):
        DeltaLog(lake_options({"destination": str(folder), "format": "delta"}))
    DeltaLog(lake_options({"destination": str(tmp_path / "a 100% ü"), "format": "delta"}))


@pytest.mark.parametrize("name", ["a#1", "what?"])
async def test_table_may_move_to_and_from_an_odd_path(name: str, tmp_path: Path) -> None:
    """Deltalake itself finds no history of a table with such a path."""
    odd, good = tmp_path / name, tmp_path / "good"

    async def exported(root: Path) -> int:
        options: dict[str, Any] = {
            "sink_options": {"format": "delta"},
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
        }
        rows = (await trikafka.export("t", str(root), **options)).rows
        found = await trikafka.check_export(str(root), sink_options={"format": "delta"})
        assert found.problems == ()
        return rows

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"first"])
        assert await exported(odd) == 1
        for at, to in ((odd, good), (good, odd)):
            at.rename(to)
            cluster.append("t", 0, [b"more"])
            assert await exported(to) == 1
        assert deltalake.DeltaTable(str(odd)).to_pyarrow_table().num_rows == 3


def test_misread_path_of_a_table_is_refused(tmp_path: Path) -> None:
    """Deltalake would make a second table elsewhere."""
    (tmp_path / "a%20b" / "_delta_log").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="must have no '%20' in its path"):
        DeltaLog(lake_options({"destination": str(tmp_path / "a%20b"), "format": "delta"}))


def test_prefix_that_deltalake_misreads_is_refused() -> None:
    given = {"format": "delta", "destination": "s3://bucket/a%2520b"}
    with pytest.raises(ConfigurationError, match="the prefix of a Delta table must have no"):
        DeltaLog(lake_options(given))
    DeltaLog(lake_options({**given, "destination": "s3://bucket/a%20b%25"}))


@pytest.mark.parametrize("option", ["catalog__warehouse", "location"])
def test_address_that_pyiceberg_cuts_is_refused(option: str, tmp_path: Path) -> None:
    given = {"catalog__type": "sql", "catalog__uri": f"sqlite:///{tmp_path}/c.db"}
    given |= {"catalog__warehouse": str(tmp_path), option: f"file://{tmp_path}/a#b"}
    with pytest.raises(ConfigurationError, match="must not have a '\\?' or '#'"):
        iceberg(**given).pin({}, table_schema({"name": "iceberg"}, []), None)
    catalog = load_catalog("x", type="sql", uri=given["catalog__uri"])
    assert not catalog.table_exists("shop.flights")
    given[option] = f"{tmp_path}/a#b"
    iceberg(**given).pin({}, table_schema({"name": "iceberg"}, []), None)


def test_unused_warehouse_is_not_judged(tmp_path: Path) -> None:
    """The location is an option's, or that of an existing table."""
    schema = table_schema({"name": "iceberg"}, [])
    given = {"catalog__type": "sql", "catalog__uri": f"sqlite:///{tmp_path}/c.db"}
    given["catalog__warehouse"] = f"file://{tmp_path}/a#b"
    iceberg(location=f"file://{tmp_path}/c", **given).pin({}, schema, None)
    again = iceberg(**given)
    assert again.pin({}, schema, None)["location"] == f"file://{tmp_path}/c"
    assert again.place() is not None


def test_plan_has_the_tables_location(tmp_path: Path) -> None:
    lake = make_lake("iceberg", tmp_path / "lake")
    lake.root.mkdir(parents=True, exist_ok=True)
    assert isinstance(lake, IcebergLake)
    found = log_of(lake).pin({"name": "iceberg"}, columns(lake), None)
    assert found["location"] == lake.table.location()


def test_unknown_catalog_asks_for_its_options() -> None:
    with pytest.raises(
        ConfigurationError, match=r"give catalog\.uri, such as .* \(and catalog\.type: sql, rest"
    ):
        iceberg()


def test_table_without_location_asks_for_one(tmp_path: Path) -> None:
    log = iceberg(catalog__type="sql", catalog__uri=f"sqlite:///{tmp_path}/lake.db")
    with pytest.raises(
        ConfigurationError, match=r"give location, the table's folder or URL, or catalog\.warehouse"
    ):
        log.pin({"name": "iceberg"}, columns(make_lake("iceberg", tmp_path / "x")), None)


def test_missing_sqlalchemy_is_named() -> None:
    with (
        pytest.raises(
            ConfigurationError,
            match=r"needs SQLAlchemy: pip install 'trikafka-export\[iceberg-sql\]'",
        ),
        advised(),
    ):
        raise ImportError("SQLAlchemy support not installed: pip install 'pyiceberg[sql-postgres]'")


def test_sql_catalog_of_the_page_works(tmp_path: Path) -> None:
    (block,) = [
        each
        for each in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
        if "sqlite:" in each
    ]
    line = next(
        each for each in block.replace("\\\n", " ").splitlines() if "sqlite:" in each
    ).replace("/data/", f"{tmp_path}/")
    words = shlex.split(line)
    given = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--option")
    log = IcebergLog(lake_options({"destination": words[3], "format": "iceberg", **given}))
    found = log.pin({"name": "iceberg"}, columns(make_lake("iceberg", tmp_path / "x")), None)
    assert found["location"].startswith(f"{tmp_path}/lake/")
