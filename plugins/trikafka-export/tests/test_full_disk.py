"""A full disk, and a destination that vanishes: the export reports it, and leaves no staged files.

The limit is the kernel's own, for the size of files of this process. A write beyond it fails as on
a full disk.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from made_batches import batch
from trikafka_export import local
from trikafka_export.directory_pieces import RangeWork
from trikafka_export.directory_store import DirectoryStore
from trikafka_export.local import LocalJob
from trikafka_export.piece_log import ExportPiece, StagedFile
from trikafka_export.pieces import PieceWriter, Shape
from trikafka_export.plan import ExportWork, SourceView, new_plan
from trikafka_export.sink import FileSink
from trikafka_export.task import WriteTask

from trikafka import ExportError, TopicPartition
from trikafka.interfaces import ExportPlan, ExportState, PlannedRange

TP = TopicPartition("t", 0)


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DirectoryStore]:
    made = DirectoryStore(tmp_path / "out")
    made.open()
    yield made
    made.close()


def plan_of(store: DirectoryStore) -> ExportPlan:
    view = SourceView("c", {"t": "id"}, {TP: 0}, {TP: 100})
    plan = new_plan(
        ExportState(),
        view,
        ExportWork({TP: 0}),
        max_records_per_file=100,
        isolation_level="read_committed",
        format={},
    )
    assert plan is not None
    store.store_plan(plan)
    return plan


def staged(store: DirectoryStore) -> list[str]:
    return [path.name for path in (store.root / "_trikafka" / "work" / "000001").iterdir()]


@pytest.mark.parametrize("limit", [0, 10, 50_000, 150_000])
def test_unwritable_piece_leaves_no_file(store: DirectoryStore, limit: int) -> None:
    """A piece that cannot be written leaves no file, although its footer cannot be written either.

    Previously each range and attempt left a staged file of the full size.
    """
    (planned,) = plan_of(store).ranges
    writer = PieceWriter(
        RangeWork(store.root, 1, planned), planned, 0, Shape("none", row_group_rows=10), {}
    )

    def write() -> None:
        for at in range(0, 100, 10):
            writer.add(batch(at, [os.urandom(2_000)] * 10))
        writer.finish(100)

    with no_file_above(limit):
        with pytest.raises(OSError, match="File too large"):
            write()
        writer.drop()
    assert staged(store) == []


def test_undecided_piece_leaves_no_file(store: DirectoryStore) -> None:
    """A piece leaves no file if all of it is on the disk, except for the record that decides it."""
    plan = plan_of(store)
    work = RangeWork(store.root, 1, plan.ranges[0])
    path = work.stage()
    path.write_bytes(b"x" * 1_000)
    piece = ExportPiece(0, 100, (StagedFile(path.name, plan.ranges[0].name, 1, 1_000),))
    with no_file_above(10), pytest.raises(OSError, match="File too large"):
        work.decide(piece)
    assert staged(store) == []
    assert work.pieces() == []


def test_plan_that_is_not_stored_does_not_exist(store: DirectoryStore) -> None:
    with (
        no_file_above(10),
        pytest.raises(ExportError, match=r"cannot store the export's plan in .*: File too large"),
    ):
        plan_of(store)
    assert store.load() == ExportState()
    assert sorted(path.name for path in (store.root / "_trikafka").iterdir()) == ["lock", "work"]


async def test_full_disk_has_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk gives the same message from each range, so that repeated exports log it once."""

    def full(task: WriteTask, *_: object) -> None:
        raise OSError(errno.ENOSPC, f"Error writing bytes of {task.planned}")

    monkeypatch.setattr(local, "write_range", full)
    said = set()
    for number in range(3):
        planned = PlannedRange("t", number, 0, 10, f"t-{number}.parquet")
        with pytest.raises(ExportError) as caught:
            await LocalJob([WriteTask("/data", 1, planned, None, {}, True, {}, Shape())], 1).run(
                lambda done, rows: None
            )
        said.add(str(caught.value))
        assert isinstance(caught.value.__cause__, OSError)
    assert said == {"cannot write to /data: No space left on device"}


async def test_vanished_destination_keeps_first_error(
    tmp_path: Path,
) -> None:
    """The error that ended the export is raised, and not that of the failed clean-up."""

    async def leave(root: Path, error: type[Exception] | None) -> None:
        async with FileSink(root):
            shutil.rmtree(root)
            if error is not None:
                raise error

    with pytest.raises(ZeroDivisionError):
        await leave(tmp_path / "a", ZeroDivisionError)
    with pytest.raises(ExportError, match="cannot tidy up"):
        await leave(tmp_path / "b", None)
