"""The folder that consumers write batches to: what comes again is not there twice, and whose folder it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from spark_kafka import data_files
from trikafka_spark.batch_folder import BatchFolder
from trikafka_spark.columns import SCHEMA
from trikafka_spark.sink import SparkSink
from trikafka_spark.sink_options import SinkOptions, sink_options
from trikafka_spark.tables.named import NamedTable
from trikafka_spark.tables.options import table_options

from trikafka import ConfigurationError, ExportError, RecordBatch, TableStore
from trikafka._api.export import find_sink
from trikafka.interfaces import BatchSink, SinkBatch


def batch_of(start: int, end: int, *, partition: int = 0, topic: str = "t", offsets: list[int] | None = None) -> SinkBatch:
    """As a consumer makes it; all records but each third have headers."""
    offsets = list(range(start, end)) if offsets is None else offsets
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": 1_700_000_000_000 + offset,
            "timestamp_type": 0,
            "key": None,
            "value": b"%d" % offset,
            "headers": [{"key": "h", "value": b"%d" % offset}] if offset % 3 else [],
        }
        for offset in offsets
    ]
    return SinkBatch(topic, partition, offsets[0], end, pa.Table.from_pylist(rows, RecordBatch.empty().to_arrow().schema))


def rows_of(root: Path) -> list[tuple[str, int, int, bytes]]:
    tables = [pq.read_table(path) for path in data_files(root)]
    for table in tables:
        assert table.schema.equals(SCHEMA)
    found = [row for table in tables for row in table.to_pylist()]
    for row in found:
        assert row["value"] == b"%d" % row["offset"]
        assert row["headers"] == ([{"key": "h", "value": row["value"]}] if row["offset"] % 3 else None)
    return sorted((row["topic"], row["partition"], row["offset"], row["value"]) for row in found)


def offsets_of(root: Path) -> list[int]:
    return [offset for _, _, offset, _ in rows_of(root)]


async def test_what_comes_again_is_not_there_twice(tmp_path: Path) -> None:
    root = tmp_path / "new" / "out"
    async with BatchFolder(root, SinkOptions()) as folder:
        await folder.write(batch_of(0, 100))
        await folder.write(batch_of(100, 140))
    async with BatchFolder(root, SinkOptions(compression="snappy")) as folder:
        await folder.write(batch_of(0, 30))  # as it was, cut otherwise
        await folder.write(batch_of(30, 120))
        assert len(data_files(root)) == 2
        await folder.write(batch_of(120, 200))  # and some that is new
        await folder.write(batch_of(0, 10, partition=1))
        await folder.write(batch_of(0, 10, topic="t-00000"))
    assert rows_of(root) == sorted(
        [("t", 0, at, b"%d" % at) for at in range(200)]
        + [(topic, part, at, b"%d" % at) for topic, part in (("t", 1), ("t-00000", 0)) for at in range(10)]
    )
    assert [path.name for path in data_files(root)][-1] == "t-00001-00000000000000000000.parquet"
    assert list((root / "_trikafka_batches").iterdir()) == []


async def test_a_topic_that_was_created_anew_is_not_taken_for_what_comes_again(tmp_path: Path) -> None:
    """Its records have the offsets of the old one's: left out, they would be lost, and their offsets committed."""
    async with BatchFolder(tmp_path, SinkOptions()) as folder:
        await folder.write(batch_of(0, 50, offsets=[0, 1, 5]))
        later = batch_of(1, 60, offsets=[1, 7, 52])
        times = pa.array([1_800_000_000_000] * 3, later.table["timestamp"].type)
        table = later.table.set_column(later.table.schema.get_field_index("timestamp"), "timestamp", times)
        with pytest.raises(ExportError, match=r"\.parquet has other records at the offsets of t-0.*: the topic was created"):
            await folder.write(SinkBatch("t", 0, 1, 60, table))
        await folder.write(batch_of(2, 60, offsets=[3, 5, 52]))  # what was compacted in between is no sign of that
    assert offsets_of(tmp_path) == [0, 1, 5, 52]


async def test_a_batch_counts_as_far_as_its_end(tmp_path: Path) -> None:
    """What lies between the last record and the end holds no record: a marker of a transaction, or what was compacted."""
    async with BatchFolder(tmp_path, SinkOptions()) as folder:
        await folder.write(batch_of(0, 50, offsets=[0, 1, 5]))
        await folder.write(batch_of(5, 60, offsets=[5, 52]))
    assert offsets_of(tmp_path) == [0, 1, 5, 52]


async def test_of_two_workers_at_one_partition_each_row_is_written_once(tmp_path: Path) -> None:
    """One has lost it and does not know yet; they cut it in different pieces, at the same time."""
    async with BatchFolder(tmp_path, SinkOptions()) as one, BatchFolder(tmp_path, SinkOptions()) as other:

        async def work(folder: BatchFolder, step: int) -> None:
            for start in range(0, 300, step):
                await folder.write(batch_of(start, start + step))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, one, 30)
            nursery.start_soon(work, other, 50)
    assert offsets_of(tmp_path) == list(range(300))


async def test_whose_folder_it_is(tmp_path: Path) -> None:
    exported, ours = tmp_path / "exported", tmp_path / "ours"
    exported.mkdir()
    async with SparkSink(exported):
        with pytest.raises(ExportError, match="belongs to an export"):
            async with BatchFolder(exported, SinkOptions()):
                pass
    async with BatchFolder(ours, SinkOptions()):
        pass
    with pytest.raises(ExportError, match="written by consumers"):
        async with SparkSink(ours):
            pass
    (ours / "_trikafka_batches").rmdir()
    (ours / "_trikafka_batches").symlink_to(exported)
    with pytest.raises(ExportError, match="not a folder of this user"):
        async with BatchFolder(ours, SinkOptions()):
            pass
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match="cannot write to"):
        async with BatchFolder(tmp_path / "file", SinkOptions()):
            pass


async def test_a_file_of_somebody_elses_is_not_taken_for_ours(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "t-00000-00000000000000000000.parquet")
    async with BatchFolder(tmp_path, SinkOptions()) as folder:
        with pytest.raises(ExportError, match="was not written by sink_batches"):
            await folder.write(batch_of(0, 10))


@pytest.mark.parametrize("options", [{"partition_by": "date"}, {"value_format": "json"}, {"key_format": "json"}])
def test_what_is_for_exports(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="are for exports"):
        BatchFolder(tmp_path, sink_options(options))


@pytest.mark.parametrize("topic", ["_hidden", ".hidden", "x" * 249])
async def test_files_of_any_topic_have_names_that_readers_find_and_file_systems_take(tmp_path: Path, topic: str) -> None:
    async with BatchFolder(tmp_path, SinkOptions()) as folder:
        await folder.write(batch_of(0, 3, topic=topic))
        await folder.write(batch_of(0, 3, topic=topic))
    (file,) = data_files(tmp_path)
    assert file.name[0] not in "_."
    assert pq.read_table(tmp_path)["topic"].to_pylist() == [topic] * 3


async def test_a_delta_table_gets_no_files_that_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    orc = table_options({"format": "orc"})
    for sink in (BatchFolder(tmp_path, SinkOptions()), SparkSink(tmp_path)):
        with pytest.raises(ConfigurationError, match="is a Delta table, to which files are not just added"):
            async with sink:
                pass
    assert os.listdir(tmp_path) == ["_delta_log"]
    with pytest.raises(ConfigurationError, match="is a Delta table"):
        NamedTable(TableStore(tmp_path), orc).check()


async def test_consumers_and_tables_keep_apart(tmp_path: Path) -> None:
    async with BatchFolder(tmp_path, SinkOptions()):
        pass
    delta = find_sink(str(tmp_path), {"format": "delta"})
    with pytest.raises(ExportError, match="is written by consumers"):
        async with delta:
            pass
    async with BatchFolder(tmp_path, SinkOptions()):  # not made an export's folder by that
        pass
    with pytest.raises(ConfigurationError, match="nothing with format=delta"):
        find_sink(str(tmp_path), {"format": "delta"}, shape=BatchSink).open_batches()


@pytest.mark.parametrize("options", [{"dead_letter_topic": "x"}, {"schema_registry": "http://host"}])
def test_what_is_about_reading_values_is_refused_and_not_passed_over(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="are for exports"):
        BatchFolder(tmp_path, sink_options(options))
