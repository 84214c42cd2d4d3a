"""Hostile or meaningless records, options and neighbours.

An export or a query succeeds, or fails with an error of one sentence.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from trikafka_export import scratch
from trikafka_export.columns import _cast
from trikafka_export.destination import find_sink
from trikafka_export.directory_pieces import RangeWork
from trikafka_export.formats.json_format import JsonDecoder, infer
from trikafka_export.formats.parsing import Parser
from trikafka_export.local import LocalJob
from trikafka_export.pieces import PieceWriter, Shape
from trikafka_export.sink import FileSink
from trikafka_export.task import WriteTask
from trikafka_spark import snapshots
from trikafka_spark.range_planning import Planned
from trikafka_spark.read_options import read_options

from trikafka import ConfigurationError, ExportError, OffsetRange
from trikafka.interfaces import ExportPlan, ExportState, PlannedRange

US = pa.timestamp("us", tz="UTC")
PLANNED = PlannedRange("t", 0, 0, 1_000, "t.parquet")


def table(values: list[bytes | None], times: list[int | None] | None = None) -> pa.Table:
    count = len(values)
    return pa.table(
        {
            "topic": ["t"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": list(range(count)),
            "timestamp": pa.array(times or [0] * count, US),
            "key": pa.array([None] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": [None] * count,
        }
    )


@pytest.mark.parametrize(
    ("values", "good"),
    [
        ([b'{"n":1}{"n":2}', b"", b'{"n":3}'], {2: 3}),
        ([b'{"n":1', b"}", b'{"n":2}{"n":3}', b'{"n":4}'], {3: 4}),
        ([b'{"n":1}{"n":2}', b'{"s":"{}', b'{"}', b'{"n":3}'], {3: 3}),
        ([b' {"n":1}\n', b'{"n":2}\r\n', None], {0: 1, 1: 2}),
    ],
)
def test_two_objects_leave_other_records_alone(
    values: list[bytes | None], good: dict[int, int]
) -> None:
    """A value of two JSON objects is refused, and the values of other records stay theirs."""
    parsed, refused = Parser({"value": JsonDecoder({"n": "int64"})}).parse(table(values))
    rows = zip(parsed["offset"].to_pylist(), parsed["value"].to_pylist(), strict=True)
    assert {offset: value["n"] for offset, value in rows if value is not None} == good
    assert {row["offset"] for row, _ in refused} == {
        i for i, value in enumerate(values) if value is not None
    } - set(good)


def test_deeply_nested_value_is_a_dead_letter() -> None:
    deep = b"[" * 100_000
    parsed, refused = Parser({"value": JsonDecoder({"n": "int64"})}).parse(
        table([b'{"n":1}', deep, b'{"n":2}'])
    )
    assert parsed["offset"].to_pylist() == [0, 2]
    assert [row["offset"] for row, _ in refused] == [1]
    assert infer([deep, b'{"n":1}'], "t") == {"n": "int64"}


def test_time_beyond_microseconds_is_null() -> None:
    times = [2**63 - 1, -(2**63), 2**63 // 1000 + 1, 1, None]
    assert _cast(pa.array(times, pa.timestamp("ms", tz="UTC")), US).cast(
        pa.int64()
    ).to_pylist() == [None, None, None, 1_000, None]


def folders_of(root: Path, times: list[int | None]) -> list[str]:
    (root / "work").mkdir()
    work = RangeWork(root, 1, PLANNED, folder=root / "work")
    writer = PieceWriter(work, PLANNED, 0, Shape(), {"partition_by": ["date"]})
    rows = writer._write(table([b"x"] * len(times), times))
    piece, _ = writer.finish(1_000)
    assert rows == sum(file.rows for file in piece.files) == len(times)
    return [str(Path(file.name).parent) for file in piece.files]


def test_year_of_five_digits_is_no_date(tmp_path: Path) -> None:
    """A time with a year of more than four digits is no date.

    With microseconds for milliseconds the folder was date=-9696-11-08.
    """
    times = [1_700_000_000_000_000_000, 253_402_300_799_999_999, None]
    assert sorted(folders_of(tmp_path, times)) == [
        "date=9999-12-31",
        "date=__HIVE_DEFAULT_PARTITION__",
    ]


def test_piece_opens_few_folders_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece does not keep the files of all its folders open.

    Previously records of a thousand days were a thousand open files. If the system allows fewer,
    every run failed.
    """
    most = 0
    stage = RangeWork.stage

    def counted(work: RangeWork) -> Path:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")))
        return stage(work)

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(RangeWork, "stage", counted)
    assert len(folders_of(tmp_path, [day * 86_400_000_000 for day in range(200)])) == 200
    assert most - before < 80


def test_starting_spark_keeps_bound_snapshots(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The start of Spark removes no snapshot that a data frame has bound."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = [Planned(OffsetRange("t", 0, 0, 1), None)]
    assert snapshots.shared("token", lambda: first) == first
    for folder in tmp_path.iterdir():
        os.utime(folder, (time.time() - 1_000,) * 2)
    scratch._sweep()
    assert snapshots.shared("token", list) == first


@pytest.mark.parametrize("room", [1_000, 7])
def test_snapshot_in_part_is_never_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, room: int
) -> None:
    """A write may take a part of the bytes. A full disk takes no more, and the next call binds."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pwrite = os.pwrite

    def write_three(descriptor: int, data: bytes, at: int) -> int:
        if at >= room:
            raise OSError(errno.ENOSPC, "the disk is full")
        return pwrite(descriptor, data[:3], at)

    first = [Planned(OffsetRange("t", 0, 0, 1), None)]
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write_three)
        with pytest.raises(OSError, match="full") if room == 7 else nullcontext():
            assert snapshots.shared("token", lambda: first) == first
    if room == 7:
        assert snapshots.shared("token", lambda: first) == first
    assert snapshots.shared("token", list) == first


async def test_error_of_a_thread_is_an_export_error(tmp_path: Path) -> None:
    """An error that ends a thread of an export is an ExportError.

    An example is a full disk; in this test there is no folder to write to.
    """
    task = WriteTask(
        str(tmp_path / "none"),
        1,
        PLANNED,
        None,
        {},
        True,
        {"value": "json", "schemas": {}},
        Shape(),
    )
    with pytest.raises(ExportError, match=r"exporting t-0 \[0, 1000\) failed") as caught:
        await LocalJob([task], 1).run(lambda done, rows: None)
    assert caught.value.__cause__ is not None


async def test_tls_context_for_workers_is_refused(
    tmp_path: Path,
) -> None:
    """A TLS context, which cannot be sent to workers, is refused before Spark starts."""
    settings = {"bootstrap_servers": "localhost:1", "ssl_context": ssl.create_default_context()}
    async with find_sink(str(tmp_path / "d"), {"spark_above": 0}) as sink:
        plan = ExportPlan(1, "p", "now", None, {"t": None}, "read_committed", (PLANNED,), {})
        with pytest.raises(
            ConfigurationError, match="ssl_context= cannot be sent to Spark's workers"
        ):
            await sink.write(plan, [PLANNED], settings, lambda stage, done, rows: None)


async def test_cancelled_inference_of_a_schema_ends(tmp_path: Path) -> None:
    """A cancelled inference of a schema ends at once.

    Previously it waited for a silent broker for up to two minutes.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = {
            "bootstrap_servers": f"127.0.0.1:{silent.getsockname()[1]}",
            "isolation_level": "read_committed",
        }
        async with FileSink.from_options(
            {"destination": str(tmp_path / "d"), "value_format": "json"}
        ) as sink:
            began = time.monotonic()
            with trio.move_on_after(0.3) as scope:
                await sink.pin(ExportState(), [OffsetRange("t", 0, 0, 10)], settings)
            assert scope.cancelled_caught
            assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    "option",
    [
        {"minPartitions": "9" * 5_000},
        {"startingTimestamp": "9" * 30},
        {"startingOffsets": '{"t":{"0":%s}}' % ("9" * 30)},
        {"startingOffsets": "[" * 100_000},
        {"maxTriggerDelay": "9" * 400 + "d"},
    ],
)
def test_huge_numbers_are_refused_by_option(
    option: dict[str, Any],
) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(option))):
        read_options({"kafka.bootstrap.servers": "x:1", "subscribe": "t", **option})
