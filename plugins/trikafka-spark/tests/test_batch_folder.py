"""The folder that consumers write batches to: repeated batches, and the owner of a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from known_topics import data_files
from trikafka_export.batch_folder import BatchFolder
from trikafka_export.columns import SCHEMA
from trikafka_export.sink import ParquetSink
from trikafka_export.sink_options import SinkOptions, sink_options

from trikafka import ConfigurationError, ExportError, RecordBatch
from trikafka._api.sinks import find_sink
from trikafka.interfaces import BatchSink, SinkBatch


def batch_of(
    start: int, end: int, *, partition: int = 0, topic: str = "t", offsets: list[int] | None = None
) -> SinkBatch:
    """Return a batch as a consumer makes it; every third record has no headers."""
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
    return SinkBatch(
        topic,
        partition,
        offsets[0],
        end,
        pa.Table.from_pylist(rows, RecordBatch.empty().to_arrow().schema),
    )


def rows_of(root: Path) -> list[tuple[str, int, int, bytes]]:
    tables = [pq.read_table(path) for path in data_files(root)]
    for table in tables:
        assert table.schema.equals(SCHEMA)
    found = [row for table in tables for row in table.to_pylist()]
    for row in found:
        assert row["value"] == b"%d" % row["offset"]
        assert row["headers"] == (
            [{"key": "h", "value": row["value"]}] if row["offset"] % 3 else None
        )
    return sorted((row["topic"], row["partition"], row["offset"], row["value"]) for row in found)


def offsets_of(root: Path) -> list[int]:
    return [offset for _, _, offset, _ in rows_of(root)]


async def test_repeated_batches_are_written_once(tmp_path: Path) -> None:
    root = tmp_path / "new" / "out"
    async with BatchFolder(root, SinkOptions()) as folder:
        await folder.write(batch_of(0, 100))
        await folder.write(batch_of(100, 140))
    async with BatchFolder(root, SinkOptions(compression="snappy")) as folder:
        await folder.write(batch_of(0, 30))  # the same records in other batches
        await folder.write(batch_of(30, 120))
        assert len(data_files(root)) == 2
        await folder.write(batch_of(120, 200))  # and some new records
        await folder.write(batch_of(0, 10, partition=1))
        await folder.write(batch_of(0, 10, topic="t-00000"))
    assert rows_of(root) == sorted(
        [("t", 0, at, b"%d" % at) for at in range(200)]
        + [
            (topic, part, at, b"%d" % at)
            for topic, part in (("t", 1), ("t-00000", 0))
            for at in range(10)
        ]
    )
    assert [path.name for path in data_files(root)][-1] == "t-00001-00000000000000000000.parquet"
    assert list((root / "_trikafka_batches").iterdir()) == []


async def test_recreated_topic_is_not_taken_for_repeats(
    tmp_path: Path,
) -> None:
    """Records of a recreated topic are not skipped as duplicates, although they have known offsets.

    Skipped records would be lost, with their offsets committed.
    """
    async with BatchFolder(tmp_path, SinkOptions()) as folder:
        await folder.write(batch_of(0, 50, offsets=[0, 1, 5]))
        later = batch_of(1, 60, offsets=[1, 7, 52])
        times = pa.array([1_800_000_000_000] * 3, later.table["timestamp"].type)
        table = later.table.set_column(
            later.table.schema.get_field_index("timestamp"), "timestamp", times
        )
        with pytest.raises(
            ExportError,
            match=r"\.parquet has other records at the offsets of t-0.*: the topic was created",
        ):
            await folder.write(SinkBatch("t", 0, 1, 60, table))
        await folder.write(
            batch_of(2, 60, offsets=[3, 5, 52])
        )  # what was compacted in between is no sign of that
    assert offsets_of(tmp_path) == [0, 1, 5, 52]


async def test_batch_covers_offsets_up_to_its_end(tmp_path: Path) -> None:
    """A batch covers the offsets up to its end, also those without a record.

    They belong to markers of transactions, or to compacted records.
    """
    async with BatchFolder(tmp_path, SinkOptions()) as folder:
        await folder.write(batch_of(0, 50, offsets=[0, 1, 5]))
        await folder.write(batch_of(5, 60, offsets=[5, 52]))
    assert offsets_of(tmp_path) == [0, 1, 5, 52]


async def test_two_workers_write_each_row_once(tmp_path: Path) -> None:
    """Two workers of one partition write each row once, with different batches at the same time.

    One worker has lost the partition and does not know that yet.
    """
    async with (
        BatchFolder(tmp_path, SinkOptions()) as one,
        BatchFolder(tmp_path, SinkOptions()) as other,
    ):

        async def work(folder: BatchFolder, step: int) -> None:
            for start in range(0, 300, step):
                await folder.write(batch_of(start, start + step))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, one, 30)
            nursery.start_soon(work, other, 50)
    assert offsets_of(tmp_path) == list(range(300))


async def test_folder_has_one_kind_of_writer(tmp_path: Path) -> None:
    """Exports and consumers refuse each other's folders, and a link for a folder."""
    exported, ours = tmp_path / "exported", tmp_path / "ours"
    exported.mkdir()
    async with ParquetSink(exported):
        with pytest.raises(ExportError, match="belongs to an export"):
            async with BatchFolder(exported, SinkOptions()):
                pass
    async with BatchFolder(ours, SinkOptions()):
        pass
    with pytest.raises(ExportError, match="written by consumers"):
        async with ParquetSink(ours):
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


async def test_foreign_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "t-00000-00000000000000000000.parquet")
    async with BatchFolder(tmp_path, SinkOptions()) as folder:
        with pytest.raises(ExportError, match="was not written by sink_batches"):
            await folder.write(batch_of(0, 10))


@pytest.mark.parametrize(
    "options", [{"partition_by": "date"}, {"value_format": "json"}, {"key_format": "json"}]
)
def test_parsing_and_partitions_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="are for exports"):
        BatchFolder(tmp_path, sink_options(options))


@pytest.mark.parametrize("topic", ["_hidden", ".hidden", "x" * 249])
async def test_any_topic_has_a_readable_file_name(tmp_path: Path, topic: str) -> None:
    """Files of any topic have names that readers find and file systems accept."""
    async with BatchFolder(tmp_path, SinkOptions()) as folder:
        await folder.write(batch_of(0, 3, topic=topic))
        await folder.write(batch_of(0, 3, topic=topic))
    (file,) = data_files(tmp_path)
    assert file.name[0] not in "_."
    assert pq.read_table(tmp_path)["topic"].to_pylist() == [topic] * 3


async def test_delta_table_gets_no_plain_files(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    for sink in (BatchFolder(tmp_path, SinkOptions()), ParquetSink(tmp_path)):
        with pytest.raises(
            ConfigurationError, match="is a Delta table, to which files are not just added"
        ):
            async with sink:
                pass
    assert os.listdir(tmp_path) == ["_delta_log"]


async def test_tables_and_consumers_are_kept_apart(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "options", [{"dead_letter_topic": "x"}, {"schema_registry": "http://host"}]
)
def test_registry_and_dead_letters_are_refused(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="are for exports"):
        BatchFolder(tmp_path, sink_options(options))
