"""What a newcomer is told of a destination that is not what he thinks: a table, a place of other topics, files that are gone."""

from __future__ import annotations

import logging
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import pytest
from s3_server import s3_server
from spark_kafka import add_records
from test_lake_stumbles import begun
from trikafka_spark.batch_folder import BatchFolder
from trikafka_spark.sink import SparkSink
from trikafka_spark.sink_options import SinkOptions
from trikafka_spark.stores import store_of

import trikafka
from trikafka import ConfigurationError, ExportError

ICEBERG = "the place of an Iceberg table, to which files are not just added; exports go there with format=iceberg"
DELTA = "a Delta table, to which files are not just added; exports go there with format=delta"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


@pytest.fixture
def iceberg(tmp_path: Path) -> Path:
    """What is there of a new table: no row yet, so no Parquet file that is a stranger's."""
    table = tmp_path / "warehouse" / "shop" / "flights"
    (table / "metadata").mkdir(parents=True)
    (table / "metadata" / f"00000-{uuid.uuid4()}.metadata.json").write_text("{}")
    return table


async def test_a_folder_of_a_table_or_in_one_gets_no_files(iceberg: Path, tmp_path: Path) -> None:
    """Before: a plain folder was made in it, which the table's clean-up would have removed."""
    delta = tmp_path / "lake"
    (delta / "_delta_log").mkdir(parents=True)
    for table, says in ((iceberg, ICEBERG), (delta, DELTA)):
        before = sorted(table.rglob("*"))
        for place, lies in ((table, "is"), (table / "data" / "new", f"lies in {table}, which is")):
            for sink in (SparkSink(place), BatchFolder(place, SinkOptions())):
                with pytest.raises(ConfigurationError) as caught:
                    async with sink:
                        pass
                assert str(caught.value).startswith(f"{place} {lies} {says}")
        assert [path for path in sorted(table.rglob("*")) if path.suffix == ".parquet" or path.name == "_trikafka"] == []
        assert set(before) <= set(table.rglob("*"))
    async with SparkSink(iceberg.parent / "beside"):  # what is no table's is free
        pass


async def refused(place: Path | str) -> bool:
    try:
        async with SparkSink.from_options({"destination": str(place)}):
            return False
    except ConfigurationError:
        return True


async def test_where_a_folder_is_counts_and_not_how_its_path_is_written(
    iceberg: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(iceberg)
    assert not await refused("../beside")
    (tmp_path / "link").symlink_to(iceberg / "metadata")
    with pytest.raises(ConfigurationError) as caught:
        async with SparkSink(tmp_path / "link"):
            pass
    assert str(caught.value).startswith(f"{tmp_path / 'link'} lies in {iceberg}, which is {ICEBERG}")


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
async def test_iceberg_is_known_by_its_own_names_alone(name: str, is_table: bool, tmp_path: Path) -> None:
    """Before: whatever somebody noted beside a file, in any folder above, refused all below it."""
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / name).write_text("{}")
    assert await refused(tmp_path / "a" / "b" / "flights") is is_table


async def test_what_was_begun_goes_on_when_a_table_is_made_around_it(tmp_path: Path) -> None:
    place, batches = tmp_path / "lake" / "flights", tmp_path / "lake" / "batches"
    assert not await refused(place)
    async with SparkSink(place) as sink:
        await sink.load()
        await sink.note_visit()
    async with BatchFolder(batches, SinkOptions()):
        pass
    (tmp_path / "lake" / "_delta_log").mkdir()
    assert not await refused(place)
    async with BatchFolder(batches, SinkOptions()):
        pass
    assert await refused(tmp_path / "lake" / "new")
    (place / "_delta_log").mkdir()
    assert await refused(place)


async def test_a_path_object_is_a_folder_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``Path("./shop.flights")`` has no dot in front any more, so what the error advised was of no use."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "sqlite://")
    settings = {"bootstrap_servers": "localhost:1"}
    with pytest.raises(ConfigurationError, match=r"or write '\./shop\.flights' for the folder"):
        async with trikafka.open_exporter("t", "shop.flights", **settings):
            pass
    async with trikafka.open_exporter("t", Path("./shop.flights"), **settings):
        assert (tmp_path / "shop.flights").is_dir()


async def test_a_check_of_a_place_where_no_record_was_found_is_content_with_any_topic(tmp_path: Path) -> None:
    async with SparkSink(tmp_path) as sink:
        await sink.load()
        await sink.note_visit()
    assert (await trikafka.check_export(tmp_path, topics=["flights"])).files == 0


def test_a_prefix_of_a_table_gets_no_objects() -> None:
    with s3_server() as server:
        iceberg = f"metadata/00000-{uuid.uuid4()}.metadata.json"
        for marker, says in (("_delta_log/00000000000000000000.json", DELTA), (iceberg, ICEBERG)):
            bucket = server.bucket()
            store: Any = store_of(f"s3://{bucket}/lake", server.options)[0]
            obstore.put(store._objects._store, marker, b"{}")
            store.open()
            with pytest.raises(ConfigurationError) as caught:
                store.load()
            assert str(caught.value).startswith(f"s3://{bucket}/lake is {says}")
            store.close()


def test_a_long_log_of_a_table_is_asked_for_once() -> None:
    """Before: each commit that the table ever had was listed, a request for each thousand."""
    with s3_server() as server:
        bucket = server.bucket()
        store: Any = store_of(f"s3://{bucket}/lake", server.options)[0]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: obstore.put(store._objects._store, f"_delta_log/{n:020}.json", b"{}"), range(1_010)))
        server.allow(bucket, -1)
        assert store._objects.first_names("_delta_log") == [f"{n:020}.json" for n in range(1_000)]
        assert server.allow(bucket, -1) == 1


async def test_a_plan_of_iceberg_says_that_tables_go_by_their_names(tmp_path: Path) -> None:
    begun(tmp_path, "iceberg")
    (tmp_path / "data").mkdir()
    with pytest.raises(ConfigurationError, match=r"give that \(--format iceberg\), with the table's name, such as lake\.flights"):
        async with SparkSink(tmp_path) as sink:
            await sink.load()


@pytest.mark.parametrize("by", ["file", "variable"])
async def test_what_may_be_a_table_s_name_makes_no_folder_where_there_are_catalogs(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PYICEBERG_HOME", raising=False)
    for name in [name for name in os.environ if name.startswith("PYICEBERG_CATALOG__")]:
        monkeypatch.delenv(name)
    async with SparkSink.from_options({"destination": "shop.before"}):
        pass  # nobody has a catalog here
    if by == "file":
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / ".pyiceberg.yaml").touch()
    else:
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "sqlite://")
    with pytest.raises(ConfigurationError) as caught:
        async with SparkSink.from_options({"destination": "shop.flights"}):
            pass
    assert str(caught.value) == (
        "'shop.flights' may be the name of an Iceberg table (pyiceberg knows catalogs here) or a new folder:"
        " give format=iceberg (--format iceberg), or write './shop.flights' for the folder"
    )
    assert not (tmp_path / "shop.flights").exists()
    (tmp_path / "shop.there").mkdir()
    for meant in ("./shop.flights", "shop.there", "flights"):
        async with SparkSink.from_options({"destination": meant}):
            pass


@pytest.mark.parametrize("name", ["catalog", "catalog.uri", "location"])
def test_an_option_of_iceberg_alone_says_which_format_it_is_of(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SparkSink.from_options({"destination": "shop.flights", name: "lake"})
    assert str(caught.value) == (
        f"unknown option {name!r} of an export to Parquet: it is one of format=iceberg, so give that, too (--format iceberg)"
    )


async def test_topics_of_a_place_and_files_that_are_gone(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    servers, first, second, root = kafka_broker.bootstrap_servers, await new_topic(100), await new_topic(100), tmp_path / "out"

    async def export(*topics: str) -> int:
        return (await trikafka.export(topics, root, bootstrap_servers=servers)).rows

    assert await export(first) == 100
    assert told(caplog) == []

    # A check that names another topic: before, it was satisfied with what is there.
    with pytest.raises(ExportError) as caught:
        await trikafka.check_export(root, topics=second)
    assert str(caught.value) == f"{root} holds no export of {second}: it is one of {first}"
    assert (await trikafka.check_export(root, topics=[first])).topics == (first,)

    # Another topic comes beside it: once there is a word.
    assert await export(second) == 100
    [line] = told(caplog)
    assert line == f"{root} holds an export of {first}, and gets {second} beside it: who reads all of it gets both (column topic)"
    assert (await trikafka.check_export(root, topics=[second, first])).rows == 200
    await add_records(servers, second, 100, 50, 4)
    assert await export(first, second) == 50
    assert told(caplog) == []

    # Files are removed, in the hope that they are written anew.
    for file in root.glob("*.parquet"):
        file.unlink()
    async with trikafka.open_exporter(first, root, bootstrap_servers=servers) as exporter:
        for _ in range(2):
            assert (await exporter.run()).rows == 0
    [line] = told(caplog)
    assert line.startswith(f"{root} lacks what was exported to it: {second}-")
    assert " more. An export writes nothing again: --check tells all that is lost; a new destination gets all records" in line
