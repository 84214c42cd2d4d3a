"""The guarantees of an export's store, of each kind.

Stores are killed at every step, shared by two, and taken over. A directory and HDFS are killed by
calls that raise, the object store by requests that are refused from some moment on. To the outside
both are a process that is killed there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import obstore
import pytest
from hdfs_native import Client
from hdfs_server import HdfsServer
from s3_server import S3Server
from trikafka_export.destination import store_of
from trikafka_export.directory_store import DirectoryStore
from trikafka_export.piece_log import ExportPiece, PieceLog, StagedFile
from trikafka_export.plan import ExportWork, SourceView, complete, new_plan
from trikafka_export.store import ExportStore

from trikafka import ExportError, TopicPartition
from trikafka.interfaces import ExportPlan, PlannedRange

TP = TopicPartition("t", 0)


class Killed(BaseException):
    """The end of a process that is killed."""


class Place:
    """A destination of any kind, with the operations of a test."""

    #: The exceptions that end a killed process here.
    death: tuple[type[BaseException], ...] = (Killed,)

    def store(self) -> ExportStore:
        raise NotImplementedError

    def killed_after(self, steps: int) -> Any:
        """Kill a process after ``steps`` steps of the block.

        Yields a function that returns the number of steps so far.
        """
        raise NotImplementedError

    def die(self, store: ExportStore) -> None:
        """Release what the kernel releases when a process is killed."""
        raise NotImplementedError

    def read(self) -> list[int]:
        """Return the offsets that a reader with a glob finds."""
        raise NotImplementedError

    def put(self, name: str, text: str) -> None:
        """Write a file of another program there."""
        raise NotImplementedError


class Directory(Place):
    def __init__(self, root: Path) -> None:
        self.root = root

    def store(self) -> DirectoryStore:
        return DirectoryStore(self.root)

    @contextmanager
    def killed_after(self, steps: int) -> Iterator[Callable[[], int]]:
        with killed_in_calls(
            os, ("link", "rename", "fsync", "mkdir", "unlink", "truncate"), steps
        ) as count:
            yield count

    def die(self, store: ExportStore) -> None:
        store._unlock()  # type: ignore[attr-defined]

    def read(self) -> list[int]:
        return [
            int(line) for path in self.root.rglob("*.parquet") for line in path.read_text().split()
        ]

    def put(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Bucket(Place):
    death = (ExportError, OSError)

    def __init__(self, server: S3Server, bucket: str) -> None:
        self.server = server
        self.bucket = bucket

    def store(self, lease: str = "30") -> ExportStore:
        return store_of(
            f"s3://{self.bucket}/lake/t", {**self.server.options, "store.lease": lease}
        )[0]

    @contextmanager
    def killed_after(self, steps: int) -> Iterator[Callable[[], int]]:
        self.server.allow(self.bucket, steps)
        ended: list[int] = []
        try:
            yield lambda: ended[0]
        finally:
            ended.append(self.server.allow(self.bucket, -1))

    def die(self, store: ExportStore) -> None:
        """Make its lock one of a process that has ended."""
        store._lease._ended.set()  # type: ignore[attr-defined]
        bucket, name = self.server.store(self.bucket), "lake/t/_trikafka/lock"
        with suppress(FileNotFoundError):  # it was killed before it had one
            body = bytes(obstore.get(bucket, name).bytes())
            obstore.put(bucket, name, body.replace(f'"{os.getpid()}"'.encode(), b'"999999999"'))

    def read(self) -> list[int]:
        return [
            int(line)
            for name, body in self.server.objects(self.bucket).items()
            if seen(name)
            for line in body.split()
        ]

    def put(self, name: str, text: str) -> None:
        obstore.put(self.server.store(self.bucket), f"lake/t/{name}", text.encode())


class Hdfs(Place):
    def __init__(self, server: HdfsServer) -> None:
        self.server = server
        self.folder = server.folder()

    def store(self, lease: str = "30") -> ExportStore:
        return store_of(f"hdfs://{self.server.address}{self.folder}", {"store.lease": lease})[0]

    @contextmanager
    def killed_after(self, steps: int) -> Iterator[Callable[[], int]]:
        with killed_in_calls(Client, ("create", "rename", "mkdirs", "delete"), steps) as count:
            yield count

    def die(self, store: ExportStore) -> None:
        """Make its lock one of a process that has ended."""
        store._lease._ended.set()  # type: ignore[attr-defined]
        lock = f"{self.folder}/_trikafka/lock.cell"
        for name in self.server.files(lock):
            body = self.server.read(f"{lock}/{name}")
            self.server.write(
                f"{lock}/{name}", body.replace(f'"{os.getpid()}"'.encode(), b'"999999999"')
            )

    def read(self) -> list[int]:
        names = filter(seen, self.server.files(self.folder))
        return [
            int(line)
            for name in names
            for line in self.server.read(f"{self.folder}/{name}").split()
        ]

    def put(self, name: str, text: str) -> None:
        self.server.write(f"{self.folder}/{name}", text.encode())


@contextmanager
def killed_in_calls(place: Any, names: tuple[str, ...], steps: int) -> Iterator[Callable[[], int]]:
    """Make these functions raise after ``steps`` calls; yield a counter of the calls."""
    seen = 0

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            nonlocal seen
            if 0 <= steps <= seen:
                raise Killed
            seen += 1
            return call(*args, **more)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(place, name, counting(getattr(place, name)))
        yield lambda: seen


def seen(name: str) -> bool:
    """Return whether readers with a glob (Spark, pyarrow, DuckDB) take a name for data."""
    return name.endswith(".parquet") and not any(part[0] in "_." for part in name.split("/"))


@pytest.fixture(params=["directory", "s3", "hdfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "directory":
        return Directory(tmp_path / "lake")
    if request.param == "hdfs":
        return Hdfs(request.getfixturevalue("hdfs"))
    server: S3Server = request.getfixturevalue("s3")
    return Bucket(server, server.bucket())


def planned(
    store: ExportStore, end: int, most: int = 6, format: Mapping[str, Any] | None = None
) -> ExportPlan | None:
    state = store.load()
    assert state.unfinished is None
    view = SourceView("c", {"t": "id"}, {TP: 0}, {TP: end})
    work = ExportWork({TP: state.positions.get(TP, 0)}, state.carried)
    return new_plan(
        state,
        view,
        work,
        max_records_per_file=most,
        isolation_level="read_committed",
        format=format or {},
    )


def piece_of(pieces: PieceLog, start: int, end: int) -> ExportPiece:
    """Return a staged piece of two files in folders."""
    files = []
    for low, high, folder in ((start, start + 1, "date=1"), (start + 1, end, "date=2")):
        if low < high:
            staged = pieces.stage()
            staged.write_text("".join(f"{offset}\n" for offset in range(low, high)))
            files.append(
                StagedFile(
                    staged.name,
                    f"{folder}/{pieces.name_of(start)}",
                    high - low,
                    staged.stat().st_size,
                )
            )
    return ExportPiece(start, end, tuple(files))


def write(pieces: PieceLog, whole: PlannedRange, step: int = 4) -> None:
    decided = pieces.pieces()
    at = decided[-1].end if decided else whole.start
    while at < whole.end:
        at = pieces.decide(piece_of(pieces, at, min(at + step, whole.end))).end


def finish(store: ExportStore, plan: ExportPlan) -> None:
    store.publish(complete(plan, store.settle(plan, plan.ranges)))


def export(store: ExportStore, end: int) -> None:
    """Do the work of an export of one partition that ends at ``end``."""
    state = store.load()
    if (left := state.unfinished) is not None:
        if not state.settled:
            for each in left.ranges:
                write(store.pieces(left, each), each)
        finish(store, left)
    if (plan := planned(store, end)) is not None:
        store.store_plan(plan)
        for each in plan.ranges:
            write(store.pieces(plan, each), each)
        finish(store, plan)


def whole_export(place: Place, end: int) -> None:
    store = place.store()
    store.open()
    try:
        export(store, end)
    finally:
        store.close()


def test_store_survives_a_kill_at_every_step(place: Place, tmp_path: Path) -> None:
    """After a kill at any step no offset is seen twice, and the next export finishes."""
    steps, killed = 0, True
    found: list[int] = []
    while killed:
        here = place
        if isinstance(place, Directory):
            here = Directory(tmp_path / f"lake-{steps}")
        elif isinstance(place, Bucket):
            here = Bucket(place.server, place.server.bucket())
        elif isinstance(place, Hdfs):
            here = Hdfs(place.server)
        store = here.store()
        with here.killed_after(steps) as count:
            try:
                store.open()
                export(store, 8)
                store.close()
            except here.death:
                pass
        here.die(store)
        killed = count() > steps if isinstance(here, Bucket) else count() == steps
        read = here.read()
        assert len(read) == len(set(read)), f"killed after {steps} steps"
        assert set(found) <= set(read), "what one step has published, the next does not take back"
        found = read
        whole_export(here, 8)
        assert sorted(here.read()) == list(range(8)), f"killed after {steps} steps, and finished"
        steps += 1 if steps < 4 else 7 if isinstance(place, Hdfs) else 2
    assert steps > 20
    assert sorted(found) == list(range(8))


def test_two_workers_write_each_offset_once(place: Place) -> None:
    store = place.store()
    store.open()
    plan = planned(store, 60, most=60)
    assert plan is not None
    store.store_plan(plan)
    (whole,) = plan.ranges
    errors: list[BaseException] = []

    def work(step: int) -> None:
        try:
            write(store.pieces(plan, whole), whole, step)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(step,)) for step in (5, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    finish(store, plan)
    store.close()
    assert sorted(place.read()) == list(range(60))


def test_late_worker_changes_nothing(place: Place) -> None:
    """A worker that outlives its plan cannot add a piece."""
    store = place.store()
    store.open()
    plan = planned(store, 12)
    assert plan is not None
    store.store_plan(plan)
    late = store.pieces(plan, plan.ranges[1])
    first, second = piece_of(late, 6, 9), piece_of(late, 6, 9)
    write(store.pieces(plan, plan.ranges[0]), plan.ranges[0])
    results = store.settle(plan, plan.ranges)
    assert [result.reached for result in results] == [6, 6]
    with pytest.raises((OSError, ExportError)):
        late.decide(first)  # closed
    store.publish(complete(plan, results))
    with pytest.raises((OSError, ExportError)):
        late.decide(second)  # gone
    assert sorted(place.read()) == list(range(6))
    assert [(each.start, each.end) for each in store.load().carried] == [(6, 12)]
    export(store, 12)
    store.close()
    assert sorted(place.read()) == list(range(12))


def test_two_exports_exclude_each_other(
    place: Place,
) -> None:
    """A second export is refused until the first has closed its store."""
    first, second = place.store(), place.store()
    first.open()
    with pytest.raises(
        ExportError, match=rf"another export to .* is at work \(process .*:{os.getpid()}\)"
    ):
        second.open()
    first.close()
    first.close()
    second.open()
    second.close()


def test_foreign_file_under_a_planned_name_fails(place: Place) -> None:
    store = place.store()
    store.open()
    plan = planned(store, 6)
    assert plan is not None
    store.store_plan(plan)
    (whole,) = plan.ranges
    pieces = store.pieces(plan, whole)
    staged = pieces.stage()
    staged.write_text("0\n1\n2\n3\n4\n5\n")
    place.put(whole.name, "9\n9\n9\n9\n9\n9\n")
    with pytest.raises(ExportError, match="was not written by this export"):
        pieces.decide(ExportPiece(0, 6, (StagedFile(staged.name, whole.name, 6, 12),)))
    store.close()


def test_foreign_parquet_files_are_refused(place: Place) -> None:
    store = place.store()
    store.open()
    place.put("sub/mine.parquet", "x")
    with pytest.raises(
        ExportError, match=r"no export's manifest lists \(such as sub/mine.parquet\)"
    ):
        store.load()
    store.close()


def test_lock_of_a_killed_process_is_taken_over(place: Place) -> None:
    program = (
        "import sys, json; from trikafka_export.destination import store_of\n"
        "store_of(sys.argv[1], json.loads(sys.argv[2]))[0].open(); print('locked', flush=True); "
        "sys.stdin.read()"
    )
    where, options = at(place)
    command = [sys.executable, "-W", "ignore", "-c", program, where, json.dumps(options)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(ExportError, match=rf"another export .*:{holder.pid}\)"):
            place.store().open()
        holder.kill()
        deadline = time.monotonic() + 240
        while True:  # the kernel frees the lock when the process has ended, after the signal
            try:
                store = place.store()
                store.open()
                break
            except ExportError:
                assert time.monotonic() < deadline, "the lock of a dead process stays"
                time.sleep(0.02)
    store.close()


def at(place: Place) -> tuple[str, dict[str, str]]:
    """Return the destination and options with which another process finds the place."""
    if isinstance(place, Bucket):
        return f"s3://{place.bucket}/lake/t", place.server.options
    if isinstance(place, Hdfs):
        return f"hdfs://{place.server.address}{place.folder}", {}
    assert isinstance(place, Directory)
    return str(place.root), {}
