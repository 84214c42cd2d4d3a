"""The directory of a destination: its lock, its atomic steps, what is removed, and what is refused."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_plan import plan_of
from trikafka_export.directory_pieces import RangeWork, work_folder
from trikafka_export.directory_store import DirectoryStore
from trikafka_export.piece_log import ExportPiece, StagedFile
from trikafka_export.plan import complete

from trikafka import ConfigurationError, ExportError
from trikafka.interfaces import ExportPlan, RangeResult


def written(root: Path, plan: ExportPlan) -> list[RangeResult]:
    for planned in plan.ranges:
        work = RangeWork(root, plan.number, planned)
        staged = work.stage()
        staged.write_bytes(b"data")
        work.decide(
            ExportPiece(planned.start, planned.end, (StagedFile(staged.name, planned.name, 1, 4),))
        )
    return [RangeWork(root, plan.number, planned).result() for planned in plan.ranges]


def opened(root: Path) -> DirectoryStore:
    store = DirectoryStore(root)
    store.open()
    return store


def test_plan_without_its_manifest_is_unfinished(tmp_path: Path) -> None:
    store, plan = opened(tmp_path / "a" / "b"), plan_of(0, 25)
    assert store.load().last_number == 0
    store.store_plan(plan)
    assert store.load().unfinished == plan
    assert store.load().positions == {}, "nothing counts before the manifest"
    store.publish(complete(plan, written(store.root, plan)))
    state = store.load()
    assert (state.unfinished, state.last_number, state.positions) == (None, 1, plan.positions)
    store.close()


def test_plan_is_never_replaced(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.store_plan(plan_of(0, 5))
    with pytest.raises(ExportError, match="is there already"):
        store.store_plan(plan_of(0, 9))
    assert store.load().unfinished is not None
    assert store.load().unfinished.ranges == plan_of(0, 5).ranges  # type: ignore[union-attr]
    store.close()


def test_manifest_needs_its_complete_files(tmp_path: Path) -> None:
    store, plan = opened(tmp_path), plan_of(0, 5)
    store.store_plan(plan)
    files = written(tmp_path, plan)
    (tmp_path / plan.ranges[0].name).write_bytes(b"da")
    with pytest.raises(ExportError, match="does not have the 4 bytes"):
        store.publish(complete(plan, files))
    (tmp_path / plan.ranges[0].name).unlink()
    with pytest.raises(ExportError, match=f"{plan.ranges[0].name} was written and is gone"):
        store.publish(complete(plan, files))
    assert store.load().unfinished is not None
    store.close()


def test_one_worker_decides_a_piece(tmp_path: Path) -> None:
    """The other worker goes on after it."""
    store, plan = opened(tmp_path), plan_of(0, 10)
    store.store_plan(plan)
    (planned,) = plan.ranges
    pieces = []
    for text, end in (("first", 6), ("second", 8)):
        work = RangeWork(tmp_path, 1, planned)
        staged = work.stage()
        staged.write_text(text)
        pieces.append(
            work.decide(ExportPiece(0, end, (StagedFile(staged.name, planned.name, 1, len(text)),)))
        )
    assert pieces[0] == pieces[1]
    assert (tmp_path / planned.name).read_text() == "first"
    assert RangeWork(tmp_path, 1, planned).result().reached == 6
    assert list((tmp_path / "_trikafka" / "work" / "000001").glob("*.partial")) == []
    store.close()


def test_decided_piece_is_published_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plan = opened(tmp_path), plan_of(0, 10)
    store.store_plan(plan)
    (planned,) = plan.ranges
    work = RangeWork(tmp_path, 1, planned)
    names = [planned.name, "date=2024-01-01/x.parquet"]
    staged = [work.stage() for _ in names]
    # Stands for a kill between the two steps.
    monkeypatch.setattr(RangeWork, "_publish", lambda self, piece: None)
    work.decide(
        ExportPiece(
            0,
            7,
            tuple(
                StagedFile(path.name, name, 0, 0) for path, name in zip(staged, names, strict=True)
            ),
        )
    )
    monkeypatch.undo()
    store.close()
    assert list(tmp_path.rglob("*.parquet")) == []
    again = opened(tmp_path)
    assert again.load().unfinished == plan
    result = RangeWork(tmp_path, 1, planned).result()
    assert (result.reached, [file.name for file in result.files]) == (7, names)
    assert sorted(
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")
    ) == sorted(names)
    again.close()


def test_worker_that_outlives_its_plan_is_stopped(tmp_path: Path) -> None:
    """Such a worker can neither decide nor publish."""
    store, plan = opened(tmp_path), plan_of(0, 20)
    store.store_plan(plan)
    late = RangeWork(tmp_path, 1, plan.ranges[1])
    staged = late.stage()
    piece = ExportPiece(10, 20, (StagedFile(staged.name, plan.ranges[1].name, 0, 0),))
    results = store.settle(plan, plan.ranges)
    assert [result.reached for result in results] == [0, 10]
    with pytest.raises(FileNotFoundError):
        late.decide(piece)
    with pytest.raises(FileNotFoundError):
        late.stage()
    store.publish(complete(plan, results))
    with pytest.raises(FileNotFoundError):
        late.decide(piece)
    assert list(tmp_path.glob("*.parquet")) == []
    assert [(left.start, left.end) for left in store.load().carried] == [(0, 10), (10, 20)]
    store.close()


def test_late_worker_may_decide_its_staged_file(tmp_path: Path) -> None:
    """An export that leaves does not remove the staged file of a worker.

    A record without its file could never be published.
    """
    store, plan = opened(tmp_path), plan_of(0, 10)
    store.store_plan(plan)
    (planned,) = plan.ranges
    late = RangeWork(tmp_path, 1, planned)
    staged = late.stage()
    store.close()
    opened(tmp_path).close()
    late.decide(ExportPiece(0, 10, (StagedFile(staged.name, planned.name, 0, 0),)))
    again = opened(tmp_path)
    assert again.load().unfinished == plan
    results = again.settle(plan, plan.ranges)
    assert [(result.done, len(result.files)) for result in results] == [(True, 1)]
    again.publish(complete(plan, results))
    again.close()
    assert not list((tmp_path / "_trikafka" / "work").iterdir())


def test_settled_plan_is_published_after_a_kill(tmp_path: Path) -> None:
    store, plan = opened(tmp_path), plan_of(0, 20)
    store.store_plan(plan)
    written(tmp_path, plan)
    store.settle(plan, plan.ranges)
    store.close()
    again = opened(tmp_path)
    assert again.load().unfinished == plan
    assert all(result.done for result in again.settle(plan, plan.ranges))
    again.close()


def test_remains_of_a_dead_run_are_removed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    os.close(store._lock)  # type: ignore[arg-type]  # as the kernel does when a process is killed
    (tmp_path / "_trikafka" / "work" / "000009").mkdir()
    (tmp_path / "_trikafka" / "work" / "000009" / "x.partial").write_text("half")
    (tmp_path / "_trikafka" / ".plan-000001.json.x.tmp").write_text("half")
    again = opened(tmp_path)
    assert again.load().last_number == 0
    again.close()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [
        "_trikafka/lock"
    ]


# --- what others may have planted ---


def test_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Its target stays untouched."""
    victim, root = tmp_path / "victim", tmp_path / "out"
    victim.write_text("precious")
    (root / "_trikafka").mkdir(parents=True)
    (root / "_trikafka" / "lock").symlink_to(victim)
    with pytest.raises(ExportError, match="_trikafka/lock is a symbolic link"):
        opened(root)
    (root / "_trikafka" / "lock").unlink()
    os.link(victim, root / "_trikafka" / "lock")
    with pytest.raises(ExportError, match="not a plain file of this user with one name"):
        opened(root)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["_trikafka", "_trikafka/work"])
def test_folder_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    """Nothing in it is removed."""
    victim, root = tmp_path / "victim", tmp_path / "out"
    (victim / "partial").mkdir(parents=True)
    (victim / "partial" / "x").write_text("precious")
    (root / name).parent.mkdir(parents=True)
    (root / name).symlink_to(victim)
    with pytest.raises(ExportError, match=f"{name} is a symbolic link"):
        opened(root)
    assert (victim / "partial" / "x").read_text() == "precious"


def test_work_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    victim, root = tmp_path / "victim", tmp_path / "out"
    victim.mkdir()
    (victim / "x.partial").write_text("precious")
    store = opened(root)
    (root / "_trikafka" / "work" / "000001").symlink_to(victim)
    with pytest.raises(ExportError, match="work/000001 is a symbolic link"):
        store.store_plan(plan_of(0, 5))
    store.close()
    assert (victim / "x.partial").read_text() == "precious"


def test_partition_folder_link_is_not_written_to(tmp_path: Path) -> None:
    victim, root, plan = tmp_path / "victim", tmp_path / "out", plan_of(0, 5)
    victim.mkdir()
    store = opened(root)
    store.store_plan(plan)
    (root / "date=1").symlink_to(victim)
    work = RangeWork(root, 1, plan.ranges[0])
    staged = work.stage()
    with pytest.raises(ExportError, match="date=1 is a symbolic link"):
        work.decide(ExportPiece(0, 5, (StagedFile(staged.name, "date=1/x.parquet", 0, 0),)))
    assert list(victim.iterdir()) == []
    store.close()


def test_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path).close()
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(ExportError, match="belongs to another user"):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", "."])
def test_path_outside_the_destination_is_refused(tmp_path: Path, name: str) -> None:
    store, plan = opened(tmp_path / "out"), plan_of(0, 5)
    store.store_plan(plan)
    work = RangeWork(store.root, 1, plan.ranges[0])
    record = work._record(0)
    record.write_text(
        json.dumps(
            {"from": 0, "to": 5, "files": [["s", name, 1, 1, True]], "lost": [], "dead_letters": 0}
        )
    )
    with pytest.raises(ExportError, match="is not the name of a file in the destination"):
        work.pieces()
    store.close()


# --- what survives ---


def test_data_is_synced_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each folder is synced in its parent."""
    done: list[str] = []
    fsync, link = os.fsync, os.link

    def noted(descriptor: int) -> None:
        done.append("sync " + os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        fsync(descriptor)

    def linked(source: Path, target: Path, **more: bool) -> None:
        done.append("link " + os.path.relpath(target, tmp_path))
        link(source, target, **more)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "link", linked)
    store, plan = opened(tmp_path / "a" / "b"), plan_of(0, 5)
    assert done[:4] == ["sync .", "sync a", "sync a/b", "sync a/b/_trikafka"]
    del done[:]
    store.store_plan(plan)
    assert done[1:] == [
        "link a/b/_trikafka/plan-000001.json",
        "sync a/b/_trikafka",
        "sync a/b/_trikafka/work",
    ]
    del done[:]
    work = RangeWork(store.root, 1, plan.ranges[0])
    staged = work.stage()
    work.decide(ExportPiece(0, 5, (StagedFile(staged.name, "date=1/x.parquet", 0, 0),)))
    folder = "a/b/_trikafka/work/000001"
    assert [each for each in done if ".tmp" not in each] == [
        f"sync {folder}/{staged.name}",
        f"sync {folder}",
        f"link {folder}/{work._record(0).name}",
        f"sync {folder}",
        "sync a/b",
        "link a/b/date=1/x.parquet",
        "sync a/b/date=1",
    ]
    del done[:]
    store.publish(complete(plan, store.settle(plan, plan.ranges)))
    assert [each for each in done if ".tmp" not in each] == [
        "sync a/b/_trikafka/work",
        "sync a/b/date=1",  # synced again: the worker may have been killed before that
        "sync a/b",
        "link a/b/_trikafka/manifest-000001.json",
        "sync a/b/_trikafka",
    ]
    store.close()


def test_fork_does_not_keep_a_dead_processs_lock(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from trikafka_export.directory_store import "
        "DirectoryStore as D\n"
        "D(Path(sys.argv[1])).open()\n"
        "child = os.fork()\n"
        "if child == 0: print('forked', flush=True); sys.stdin.read(); os._exit(0)\n"
        "import time; time.sleep(60)"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "forked\n"
        holder.kill()
        assert holder.wait() == -9
        opened(tmp_path).close()
        holder.stdin.close()


def test_lock_excludes_another_process(tmp_path: Path) -> None:
    """The lock ends with its holder."""
    script = (
        "import sys; from pathlib import Path; from trikafka_export.directory_store import "
        "DirectoryStore as D\n"
        "D(Path(sys.argv[1])).open(); print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(ExportError, match=rf"another export .*:{holder.pid}\)"):
            opened(tmp_path)
        holder.kill()
    opened(tmp_path).close()


def test_foreign_parquet_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.parquet").write_text("x")
    store = opened(tmp_path)
    with pytest.raises(ExportError, match=r"no export's manifest lists \(such as mine.parquet\)"):
        store.load()
    store.close()


def test_missing_plan_is_damage(tmp_path: Path) -> None:
    store, plan = opened(tmp_path), plan_of(0, 5)
    store.store_plan(plan)
    store.publish(complete(plan, written(tmp_path, plan)))
    (tmp_path / "_trikafka" / "plan-000001.json").unlink()
    with pytest.raises(ExportError, match="is damaged"):
        store.load()
    store.close()


@pytest.mark.parametrize(
    "text",
    [b"\xff\xfe\x00", b"[" * 100_000, b"", b"{}"],
    ids=["not UTF-8", "deep", "empty", "bare"],
)
def test_damaged_plan_is_one_sentence(tmp_path: Path, text: bytes) -> None:
    store = opened(tmp_path)
    (tmp_path / "_trikafka" / "plan-000001.json").write_bytes(text)
    with pytest.raises(
        ExportError, match=r"_trikafka/plan-000001\.json is not an export plan or manifest"
    ):
        store.load()
    store.close()


def test_plan_under_anothers_number_is_damage(tmp_path: Path) -> None:
    store, plan = opened(tmp_path), plan_of(0, 5)
    store.store_plan(plan)
    store.publish(complete(plan, written(tmp_path, plan)))
    own = tmp_path / "_trikafka"
    (own / "plan-000002.json").write_bytes((own / "plan-000001.json").read_bytes())
    with pytest.raises(
        ExportError, match=r"plan-000002\.json is damaged: it says that it is number 1"
    ):
        store.load()
    store.close()


@pytest.mark.parametrize("where", ["file", "file/deeper", "/proc/nowhere"])
def test_unwritable_place_is_one_sentence(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ExportError, match=r"cannot write to .*: ") as caught:
        opened(tmp_path / where)
    assert isinstance(caught.value.__cause__, OSError)


def test_addresses_of_directories() -> None:
    assert DirectoryStore.directory_of("file:///data/with%20space") == Path("/data/with space")
    assert DirectoryStore.directory_of("some/where") == Path.cwd() / "some/where"
    for empty in ("", "  "):
        with pytest.raises(ConfigurationError, match="destination of an export is empty"):
            DirectoryStore.directory_of(empty)
    # Names with these characters would fail each range later, in Python itself.
    for wrong in (
        "/data/\udcff",
        "/data/a\0b",
        "file:///data/a%00b",
    ):
        with pytest.raises(ConfigurationError, match="cannot name a directory"):
            DirectoryStore.directory_of(wrong)
    for cut, to in (("file:///data/a%20b#1", "/data/a b"), ("file:///data/what?x", "/data/what")):
        with pytest.raises(ConfigurationError, match=f"%3F and %23, or give .* exports to {to}\\)"):
            DirectoryStore.directory_of(cut)
    for wrong in ("file://elsewhere/data", "file://"):
        with pytest.raises(ConfigurationError, match="does not name a directory of this machine"):
            DirectoryStore.directory_of(wrong)
    # Previously this made a folder named ``s3:``.
    with pytest.raises(ConfigurationError, match="'s3://bucket/data' is not a directory"):
        DirectoryStore.directory_of("s3://bucket/data")


def test_empty_run_leaves_nothing(tmp_path: Path) -> None:
    """The export removes the folders that it made, unless they have another file.

    Folders that existed stay.
    """
    opened(tmp_path / "a" / "b").close()
    assert list(tmp_path.iterdir()) == []
    root = tmp_path / "mine"
    root.mkdir()
    opened(root).close()
    assert list(root.iterdir()) == []
    store = opened(root)
    (root / "_trikafka" / "note").write_text("keep")
    store.close()
    assert [path.name for path in (root / "_trikafka").iterdir()] == ["note"]
    opened(root).close()
    assert (root / "_trikafka" / "lock").exists(), "the folder was there before"


def test_lock_file_that_was_removed_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the file and locking it, another export ended and removed it with its folder."""
    first, times = opened(tmp_path / "out"), 0
    flock = fcntl.flock

    def late(file: int, how: int) -> None:
        nonlocal times
        times += 1
        if times == 1:
            first.close()
            assert not (tmp_path / "out").exists()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    second = opened(tmp_path / "out")
    assert times == 2
    with pytest.raises(ExportError, match=r"another export to .* is at work"):
        DirectoryStore(tmp_path / "out").open()
    second.close()


class Counted(DirectoryStore):
    """A store that counts its listings.

    A listing is a request for each thousand files in an object store.
    """

    looks = 0

    def _own_names(self) -> Iterator[str]:
        self.looks += 1
        return super()._own_names()


def test_export_lists_its_place_once(tmp_path: Path) -> None:
    for number in range(1, 4):
        store = Counted(tmp_path)
        store.open()
        before = store.load()
        assert before.last_number == number - 1
        plan = replace(plan_of((number - 1) * 10, number * 10), number=number)
        store.store_plan(plan)
        store.publish(complete(plan, written(store.root, plan)))
        if number > 1:
            assert store.looks == 1
        assert store.load().last_number == number, "the next run of --every looks again"
        store.close()
        if number > 1:
            assert store.looks == 2


def test_reopening_sees_what_another_export_did(tmp_path: Path) -> None:
    """The work folder of another export's plan is not the remains of a killed one."""
    first, second = DirectoryStore(tmp_path), DirectoryStore(tmp_path)
    first.open()
    first.load()
    first.close()
    second.open()
    plan = plan_of(0, 10)
    second.store_plan(plan)
    second.close()
    first.open()
    first.close()
    assert work_folder(tmp_path, plan.number).is_dir()
    first.open()
    assert first.load().unfinished == plan
    first.close()
