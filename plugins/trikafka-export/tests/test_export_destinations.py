"""Errors about unexpected destinations: a table, a place of other topics, missing files."""

from __future__ import annotations

import logging
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import pytest
from known_topics import add_records
from s3_server import S3Server
from test_lake_setup import begun
from trikafka_export.destination import find_sink, store_of
from trikafka_export.sink import FileSink

import trikafka
from trikafka import ConfigurationError, ExportError

ICEBERG = (
    "the place of an Iceberg table, in which plain files are not part of the table; exports go "
    "there with format=iceberg"
)
DELTA = "a Delta table, in which plain files are not part of the table; exports go there with format=delta"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


@pytest.fixture
def iceberg(tmp_path: Path) -> Path:
    """Make the folder of a new Iceberg table, which has no rows and so no Parquet files."""
    table = tmp_path / "warehouse" / "shop" / "flights"
    (table / "metadata").mkdir(parents=True)
    (table / "metadata" / f"00000-{uuid.uuid4()}.metadata.json").write_text("{}")
    return table


async def test_folder_in_a_table_is_refused(iceberg: Path, tmp_path: Path) -> None:
    """An export into a table's folder, or a folder in it, is refused.

    Previously a plain folder was made there, which the table's clean-up would have removed.
    """
    delta = tmp_path / "lake"
    (delta / "_delta_log").mkdir(parents=True)
    for table, says in ((iceberg, ICEBERG), (delta, DELTA)):
        before = sorted(table.rglob("*"))
        for place, lies in ((table, "is"), (table / "data" / "new", f"lies in {table}, which is")):
            with pytest.raises(ConfigurationError) as caught:
                async with FileSink(place):
                    pass
            assert str(caught.value).startswith(f"{place} {lies} {says}")
        assert [
            path
            for path in sorted(table.rglob("*"))
            if path.suffix == ".parquet" or path.name == "_trikafka"
        ] == []
        assert set(before) <= set(table.rglob("*"))
    async with FileSink(iceberg.parent / "beside"):  # a folder that is no table's is accepted
        pass


async def refused(place: Path | str) -> bool:
    try:
        async with FileSink.from_options({"destination": str(place)}):
            return False
    except ConfigurationError:
        return True


async def test_table_is_found_behind_links_and_dots(
    iceberg: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder counts by where it is, not by how its path is written."""
    monkeypatch.chdir(iceberg)
    assert not await refused("../beside")
    (tmp_path / "link").symlink_to(iceberg / "metadata")
    with pytest.raises(ConfigurationError) as caught:
        async with FileSink(tmp_path / "link"):
            pass
    assert str(caught.value).startswith(
        f"{tmp_path / 'link'} lies in {iceberg}, which is {ICEBERG}"
    )


@pytest.mark.parametrize(
    ("name", "is_table"),
    [
        (f"00012-{uuid.UUID(int=7)}.metadata.json", True),
        (f"00012-{uuid.UUID(int=7)}.gz.metadata.json", True),
        (f"00012-{uuid.UUID(int=7)}.metadata.json.gz", True),
        ("v3.metadata.json", True),
        ("v3.gz.metadata.json", True),
        ("report.pdf.metadata.json", False),
        ("2026-11.metadata.json", False),
        ("version-hint.text", False),
    ],
)
async def test_metadata_names_make_an_iceberg_table(
    name: str, is_table: bool, tmp_path: Path
) -> None:
    """Only names of Iceberg's own metadata files make a folder a table.

    Previously any note beside a file, in any folder above, refused all folders below.
    """
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / name).write_text("{}")
    assert await refused(tmp_path / "a" / "b" / "flights") is is_table


async def test_begun_export_survives_a_table_around_it(tmp_path: Path) -> None:
    """An export continues when a table is made around its folder; new ones there are refused."""
    place = tmp_path / "lake" / "flights"
    assert not await refused(place)
    async with FileSink(place) as sink:
        await sink.load()
        await sink.note_visit()
    (tmp_path / "lake" / "_delta_log").mkdir()
    assert not await refused(place)
    assert await refused(tmp_path / "lake" / "new")
    (place / "_delta_log").mkdir()
    assert await refused(place)


async def test_path_object_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path object is always a folder, never the name of a table.

    ``Path("./shop.flights")`` loses its leading dot, so the error's advice did not help.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "sqlite://")
    settings = {"bootstrap_servers": "localhost:1"}
    with pytest.raises(ConfigurationError, match=r"or write '\./shop\.flights' for the folder"):
        async with trikafka.open_exporter("t", "shop.flights", **settings):
            pass
    async with trikafka.open_exporter("t", Path("./shop.flights"), **settings):
        assert (tmp_path / "shop.flights").is_dir()


async def test_check_without_records_accepts_any_topic(
    tmp_path: Path,
) -> None:
    async with FileSink(tmp_path) as sink:
        await sink.load()
        await sink.note_visit()
    assert (await trikafka.check_export(tmp_path, topics=["flights"])).files == 0


def test_prefix_of_a_table_gets_no_objects(s3: S3Server) -> None:
    iceberg = f"metadata/00000-{uuid.uuid4()}.metadata.json"
    for marker, says in (("_delta_log/00000000000000000000.json", DELTA), (iceberg, ICEBERG)):
        bucket = s3.bucket()
        store: Any = store_of(f"s3://{bucket}/lake", s3.options)[0]
        obstore.put(store._objects._store, marker, b"{}")
        store.open()
        with pytest.raises(ConfigurationError) as caught:
            store.load()
        assert str(caught.value).startswith(f"s3://{bucket}/lake is {says}")
        store.close()


def test_long_delta_log_takes_one_request(s3: S3Server) -> None:
    """One request finds that a folder has a log of Delta's.

    Previously each commit of the table was listed, with a request for each thousand.
    """
    bucket = s3.bucket()
    store: Any = store_of(f"s3://{bucket}/lake", s3.options)[0]
    with ThreadPoolExecutor(8) as threads:
        list(
            threads.map(
                lambda n: obstore.put(store._objects._store, f"_delta_log/{n:020}.json", b"{}"),
                range(1_010),
            )
        )
    s3.allow(bucket, -1)
    assert store._objects.first_names("_delta_log") == [f"{n:020}.json" for n in range(1_000)]
    assert s3.allow(bucket, -1) == 1


async def test_iceberg_plan_in_a_folder_asks_for_a_name(tmp_path: Path) -> None:
    """The error about a plan of Iceberg's in a folder asks for the name of the table."""
    begun(tmp_path, "iceberg")
    (tmp_path / "data").mkdir()
    with pytest.raises(
        ConfigurationError,
        match=r"give that \(--format iceberg\), with the table's name, such as lake\.flights",
    ):
        async with FileSink(tmp_path) as sink:
            await sink.load()


@pytest.mark.parametrize("by", ["file", "variable"])
async def test_possible_table_name_makes_no_folder(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dotted name is refused as a folder where catalogs are configured, unless it exists."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PYICEBERG_HOME", raising=False)
    for name in [name for name in os.environ if name.startswith("PYICEBERG_CATALOG__")]:
        monkeypatch.delenv(name)
    async with FileSink.from_options({"destination": "shop.before"}):
        pass  # no catalog is configured here
    if by == "file":
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / ".pyiceberg.yaml").touch()
    else:
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "sqlite://")
    with pytest.raises(ConfigurationError) as caught:
        async with FileSink.from_options({"destination": "shop.flights"}):
            pass
    assert str(caught.value) == (
        "'shop.flights' may be the name of an Iceberg table (pyiceberg knows catalogs here) or a "
        "new folder:"
        " give format=iceberg (--format iceberg), or write './shop.flights' for the folder"
    )
    assert not (tmp_path / "shop.flights").exists()
    (tmp_path / "shop.there").mkdir()
    for meant in ("./shop.flights", "shop.there", "flights"):
        async with FileSink.from_options({"destination": meant}):
            pass


async def test_format_before_a_path_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "delta:there").mkdir()
    for name in ("iceberg", "delta", "parquet"):
        with pytest.raises(ConfigurationError, match=f"format={name} .--format {name}."):
            async with FileSink.from_options({"destination": f"{name}:x"}):
                pass
    for format in ("delta", "iceberg"):
        sink = find_sink(f"{format}:./x", {"format": format})
        with pytest.raises(ConfigurationError, match="begins with a format, which is an option"):
            async with sink:
                pass
    assert os.listdir(tmp_path) == ["delta:there"]
    for meant in ("./iceberg:x", "delta:there", "iceberg"):
        async with FileSink.from_options({"destination": meant}):
            pass


async def test_impossible_folder_is_an_export_error(tmp_path: Path) -> None:
    """A folder that cannot be looked at is an error of the export, not of the operating system."""
    where = tmp_path / ("n" * 300)
    with pytest.raises(ExportError, match=r"cannot write to .*n: File name too long"):
        await trikafka.export("t", where, bootstrap_servers="nowhere:1")


@pytest.mark.parametrize("name", ["catalog", "catalog.uri", "location"])
def test_iceberg_option_names_its_format(name: str) -> None:
    """An option of format=iceberg that is given without the format names the format."""
    with pytest.raises(ConfigurationError) as caught:
        FileSink.from_options({"destination": "shop.flights", name: "lake"})
    assert str(caught.value) == (
        f"unknown option {name!r} of an export to Parquet: it belongs to format=iceberg, so give "
        "that, too (--format iceberg)"
    )


async def test_other_topics_and_lost_files_are_reported(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The check and the log report other topics of a destination and lost files."""
    servers = kafka_broker.bootstrap_servers
    first = await new_topic(100)
    second = await new_topic(100)
    root = tmp_path / "out"

    async def export(*topics: str) -> int:
        return (await trikafka.export(topics, root, bootstrap_servers=servers)).rows

    assert await export(first) == 100
    assert warnings(caplog) == []

    # A check that names another topic. Previously it passed.
    with pytest.raises(ExportError) as caught:
        await trikafka.check_export(root, topics=second)
    assert str(caught.value) == f"{root} holds no export of {second}: it is one of {first}"
    assert (await trikafka.check_export(root, topics=[first])).topics == (first,)

    # Another topic is exported beside the first: that is logged once.
    assert await export(second) == 100
    [line] = warnings(caplog)
    assert line == (
        f"{root} holds an export of {first}, and gets {second} beside it: its readers see both "
        "(column topic)"
    )
    assert (await trikafka.check_export(root, topics=[second, first])).rows == 200
    await add_records(servers, second, 100, 50, 4)
    assert await export(first, second) == 50
    assert warnings(caplog) == []

    # Files are removed, in the hope that the export writes them again.
    for file in root.glob("*.parquet"):
        file.unlink()
    async with trikafka.open_exporter(first, root, bootstrap_servers=servers) as exporter:
        for _ in range(2):
            assert (await exporter.run()).rows == 0
    [line] = warnings(caplog)
    assert line.startswith(f"{root} lacks files that were exported to it: {second}-")
    assert (
        " more. An export does not write them again; --check lists what is missing, and an "
        "export to a new destination writes all records"
    ) in line
