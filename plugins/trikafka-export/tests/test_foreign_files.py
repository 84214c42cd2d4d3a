"""Foreign files in a destination, and remains of a process that was killed between two steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from test_plan import TP, plan_of
from trikafka_export import durable_files
from trikafka_export.directory_pieces import RangeWork
from trikafka_export.directory_store import DirectoryStore
from trikafka_export.piece_log import ExportPiece, StagedFile
from trikafka_export.plan import complete

import trikafka
from trikafka import ConfigurationError, ExportError, open_exporter
from trikafka.interfaces import ExportPlan


def opened(root: Path) -> DirectoryStore:
    store = DirectoryStore(root)
    store.open()
    return store


def staged(root: Path, plan: ExportPlan, name: str) -> tuple[RangeWork, ExportPiece]:
    (planned,) = plan.ranges
    work = RangeWork(root, plan.number, planned)
    path = work.stage()
    path.write_bytes(b"ours")
    return work, ExportPiece(planned.start, planned.end, (StagedFile(path.name, name, 1, 4),))


def test_foreign_file_does_not_replace_ours(tmp_path: Path) -> None:
    """A foreign file of the same size under a planned name is not taken for ours.

    Otherwise rows would be lost.
    """
    store, plan = opened(tmp_path), plan_of(0, 10)
    store.store_plan(plan)
    name = plan.ranges[0].name
    (tmp_path / name).write_bytes(b"them")
    work, piece = staged(tmp_path, plan, name)
    with pytest.raises(ExportError, match="was not written by this export"):
        work.decide(piece)
    with pytest.raises(ExportError, match="was not written by this export"):
        store.settle(plan, plan.ranges)
    (tmp_path / name).unlink()
    store.publish(complete(plan, store.settle(plan, plan.ranges)))
    assert (tmp_path / name).read_bytes() == b"ours"
    store.close()


def test_foreign_file_at_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign file that appears just before the link does not cost ours."""
    source, target = tmp_path / "staged", tmp_path / "final"
    source.write_bytes(b"ours")
    link = os.link

    def late(*args: Any, **more: Any) -> None:
        target.write_bytes(b"them")
        link(*args, **more)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(ExportError, match="was not written by this export"):
        durable_files.move_once(source, target)
    assert (source.read_bytes(), target.read_bytes()) == (b"ours", b"them")


def test_file_of_a_killed_worker_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker was killed between the link and the sync. The next worker syncs in its stead."""
    store, plan = opened(tmp_path), plan_of(0, 10)
    store.store_plan(plan)
    work, piece = staged(tmp_path, plan, "date=2026-01-01/a.parquet")

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            durable_files, "move_once", lambda source, target: (os.link(source, target), killed())
        )
        with pytest.raises(KeyboardInterrupt):
            work.decide(piece)
    synced: list[Path] = []
    plain = durable_files.sync
    monkeypatch.setattr(durable_files, "sync", lambda path: (synced.append(path), plain(path)))
    store.settle(plan, plan.ranges)
    assert {tmp_path / "date=2026-01-01"} <= set(synced)
    assert (tmp_path / "date=2026-01-01" / "a.parquet").read_bytes() == b"ours"
    store.close()


def test_piece_without_its_file_is_not_decided(tmp_path: Path) -> None:
    """Its record could never be published, and would end every later export."""
    store, plan = opened(tmp_path), plan_of(0, 10)
    store.store_plan(plan)
    work, piece = staged(tmp_path, plan, plan.ranges[0].name)
    work.drop(piece)
    with pytest.raises(FileNotFoundError):
        work.decide(piece)
    assert [result.reached for result in store.settle(plan, plan.ranges)] == [0]
    store.close()


def test_foreign_files_in_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "date=2026-01-01").mkdir()
    (tmp_path / "date=2026-01-01" / "theirs.parquet").write_bytes(b"")
    store = opened(tmp_path)
    with pytest.raises(ExportError, match=r"date=2026-01-01/theirs\.parquet"):
        store.load()
    store.close()


async def test_check_of_foreign_files_advises_no_export(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"not ours")
    with pytest.raises(ExportError, match=r"such as a\.parquet\); an export needs a dir") as caught:
        await trikafka.check_export(tmp_path)
    assert "choose" not in str(caught.value)


def test_probe_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    probe = tmp_path / "_trikafka" / "work" / ".trikafka-x.probe"
    probe.parent.mkdir(parents=True)
    probe.touch()
    opened(tmp_path).close()
    assert not probe.exists()


@pytest.mark.parametrize("start", [{TP: -2}, {TP: "0"}, {TP: True}, {TP: 2**63}, 2**63, -1, True])
async def test_start_that_is_no_offset_is_refused(start: object, tmp_path: Path) -> None:
    """-2, which means the beginning elsewhere, does not count as 0."""
    with pytest.raises(ConfigurationError, match="start must"):
        async with open_exporter("t", tmp_path, start=start):  # type: ignore[arg-type]
            pass
