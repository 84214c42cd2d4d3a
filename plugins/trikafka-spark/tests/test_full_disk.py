"""A disk that is full, or a file that may not grow: the export says so, and leaves nothing that would keep the disk full.

The limit is the kernel's own for the size of files of this process; what is written past it fails as on a full disk.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_spark_groups import batch
from trikafka_spark.pieces import PieceWriter, Shape

from trikafka import DirectoryStore, ExportError, ExportPiece, RangeWork, StagedFile, TopicPartition
from trikafka._api.export_plan import SourceView, Work, new_plan
from trikafka.interfaces import ExportPlan, ExportState

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
        ExportState(), view, Work({TP: 0}), max_records_per_file=100, isolation_level="read_committed", format={}
    )
    assert plan is not None
    store.store_plan(plan)
    return plan


def staged(store: DirectoryStore) -> list[str]:
    return [path.name for path in (store.root / "_trikafka" / "work" / "000001").iterdir()]


@pytest.mark.parametrize("limit", [0, 10, 50_000, 150_000])
def test_a_piece_that_cannot_be_written_leaves_no_file(store: DirectoryStore, limit: int) -> None:
    """Neither can its footer be: what was staged stayed, as much as a file may have, for each range and attempt."""
    (planned,) = plan_of(store).ranges
    writer = PieceWriter(RangeWork(store.root, 1, planned), planned, 0, Shape("none", row_group_rows=10), {})

    def write() -> None:
        for at in range(0, 100, 10):
            writer.add(batch(at, [os.urandom(2_000)] * 10))
        writer.finish(100)

    with no_file_above(limit):
        with pytest.raises(OSError, match="File too large"):
            write()
        writer.drop()
    assert staged(store) == []


def test_a_piece_that_cannot_be_decided_leaves_no_file(store: DirectoryStore) -> None:
    """All of it is on the disk, but for the record that says so."""
    plan = plan_of(store)
    work = RangeWork(store.root, 1, plan.ranges[0])
    path = work.stage()
    path.write_bytes(b"x" * 1_000)
    piece = ExportPiece(0, 100, (StagedFile(path.name, plan.ranges[0].name, 1, 1_000),))
    with no_file_above(10), pytest.raises(OSError, match="File too large"):
        work.decide(piece)
    assert staged(store) == []
    assert work.pieces() == []


def test_a_plan_that_cannot_be_stored_is_no_plan(store: DirectoryStore) -> None:
    with no_file_above(10), pytest.raises(ExportError, match=r"cannot store the export's plan in .*: File too large"):
        plan_of(store)
    assert store.load() == ExportState()
    assert sorted(path.name for path in (store.root / "_trikafka").iterdir()) == ["lock", "work"]
