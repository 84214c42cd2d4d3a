"""The layout of an export's destination, where it is a directory; sinks share it. How data files come there: :mod:`.export_work`.

::

    <destination>/
      flights-00000-00000000000000000000-00000000000000250000.parquet   data; appears whole, never changes
      _trikafka/                     skipped by readers that glob
        lock                         flock'ed while an export is at work; freed by the kernel if it is killed
        plan-000001.json             stored before the work
        manifest-000001.json         published after it: only now is export 1 done
        work/000001/                 data being written and records of what is decided; removed after the manifest
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..errors import ConfigurationError, ExportError
from ..interfaces import ExportPlan, PlannedRange, RangeResult, WrittenFile
from . import export_files as files
from .export_base import ExportStore
from .export_json import files_from_json
from .export_plan import name_of_topic
from .export_work import OURS, RangeWork, work_folder

CLOSED = ".closed"
#: The descriptors of locks that this process holds. A fork has them, too, and would keep the locks when this process is dead.
_held: set[int] = set()


class DirectoryStore(ExportStore):
    """Plans, manifests and the lock of one destination directory: what a sink needs that writes files into directories.

    Everything here blocks: call it in a thread, one call at a time. A worker elsewhere, who writes data files, needs only
    :class:`RangeWork`.
    """

    @staticmethod
    def directory_of(destination: str) -> Path:
        """The directory that a plain path or a ``file://`` address names. Raises :exc:`ConfigurationError`."""
        if destination.startswith("file:"):
            address = urlsplit(destination)
            if address.netloc not in ("", "localhost") or not address.path:
                raise ConfigurationError(f"{destination!r} does not name a directory of this machine; write file:///path")
            destination = unquote(address.path)
        elif re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", destination):
            raise ConfigurationError(f"{destination!r} is not a directory, to which alone this kind of export is written")
        if not destination.strip():
            raise ConfigurationError("the destination of an export is empty; write '.' for the current folder")
        if re.search("[\0\ud800-\udfff]", destination):
            raise ConfigurationError(f"{destination!r} cannot name a directory: it is no text in UTF-8, or has a zero byte")
        return Path(destination).absolute()

    @staticmethod
    def name_of_topic(topic: str) -> str:
        """How the names of a topic's files begin: so that readers do not skip them, and no file system finds them too long."""
        return name_of_topic(topic)

    def __init__(self, root: Path) -> None:
        self.root = root
        self._own = root / OURS
        self.title, self.own_title = str(root), str(self._own)
        self._work = self._own / "work"
        self._lock: int | None = None
        #: What :meth:`open` has made, the innermost first; nothing where our folder was there before.
        self._made: list[Path] = []

    def open(self) -> None:
        """Make the directory where it is missing, check that it can be written, lock it."""
        self._known = None
        with self.explained(f"cannot write to {self.root}"):
            self._lock = self._made_and_locked()
        _held.add(self._lock)
        try:
            with self.explained(f"cannot write to {self.root}"):
                files.make_own_folder(self._work)
                probe = self._work / f".trikafka-{uuid.uuid4()}.probe"
                files.new_file(probe)
                os.rename(probe, self.root / probe.name)
                (self.root / probe.name).unlink()
        except BaseException:
            self._unlock()
            raise

    def _made_and_locked(self) -> int:
        """Make the folders and lock them; again where an export that was refused takes them back just now."""
        attempts = 5
        while True:
            attempts -= 1
            made = files.make_folder(self.root)
            try:
                self._made = [self._own, *made] if files.make_own_folder(self._own) else []
                return self._locked_file(self._own / "lock")
            except FileNotFoundError:
                if not attempts:
                    raise

    def _locked_file(self, path: Path) -> int:
        lock = files.open_own_file(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not files.is_at(path, lock):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            os.truncate(lock, 0)
            os.pwrite(lock, f"{socket.gethostname()}:{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(lock, 200, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise ExportError(f"another export to {self.root} is at work (process {holder})") from None
        except BaseException:
            os.close(lock)
            raise
        return lock

    def close(self) -> None:
        """Remove what is left of plans that are done, and give back the lock. Closing twice is fine."""
        if self._lock in _held:  # and not in a fork
            try:
                with self.explained(f"cannot tidy up {self._own}"):
                    self._clear()
                    self._take_back()
            finally:
                self._unlock()

    def give_up(self) -> None:
        """Nothing: closing a directory takes no time."""

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None and lock in _held:
            _held.remove(lock)
            os.close(lock)

    def _take_back(self) -> None:
        """Where nothing was planned, remove what :meth:`open` has made: an export that was refused leaves nothing."""
        if self._made and not any(self._numbers()):
            with suppress(OSError):  # somebody has put something there
                self._work.rmdir()
                (self._own / "lock").unlink()  # whoever opened it before finds that out
                for folder in self._made:
                    folder.rmdir()

    def _clear(self) -> None:
        """Remove the work folders of plans that are done.

        In those of others nothing is removed, also what no record names: a worker of Spark that has not heard yet that its job was
        cancelled may be about to decide a piece of it. It goes with the folder, when the plan is done.
        """
        unfinished = self._unfinished()
        for folder in self._work.iterdir() if self._work.exists() else ():
            name = folder.name.removesuffix(CLOSED)
            number = int(name) if name.isdigit() else None
            if number is None or number not in unfinished:
                shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self._own / "partial", ignore_errors=True)  # of the first format
        probes = (*self._work.glob(".trikafka-*.probe"), *self.root.glob(".trikafka-*.probe"))
        for leaving in (*self._own.glob(".*.tmp"), *probes):
            leaving.unlink(missing_ok=True)

    # --- files ---

    def explained(self, what: str) -> AbstractContextManager[None]:
        """Errors of the file system as an :exc:`ExportError`."""
        return files.explained(what)

    def _own_names(self) -> Iterator[str]:
        return (entry.name for entry in self._own.iterdir())

    def _read_own(self, name: str) -> bytes:
        return files.read_file(self._own / name)

    def _write_once(self, name: str, text: str) -> bool:
        return files.write_once(self._own / name, text)

    def data_files(self) -> Iterator[str]:
        """The names of all Parquet files below the directory."""
        return (str(path.relative_to(self.root)) for path in self.root.rglob("*.parquet"))

    @contextmanager
    def open_data(self, name: str) -> Iterator[tuple[Path, int]]:
        """A data file, by its path, and its bytes."""
        path = self.root / name
        yield path, path.stat().st_size

    def gone_of_last(self) -> list[str]:
        """Which data files of the last manifest are gone; those of earlier ones may have been moved, compacted or outlived."""
        if self._known is None or not self._known[1]:
            return []
        with self.explained(f"cannot read {self._own}"):
            listed = files_from_json(*self._text("manifest", self._known[1]))
            return [file.name for file in listed if not os.path.lexists(self.root / file.name)]

    def _check_written(self, written: Sequence[WrittenFile]) -> None:
        for file in written:
            if os.lstat(self.root / file.name).st_size != file.bytes:
                raise ExportError(f"{self.root / file.name} does not have the {file.bytes} bytes that were written")
        files.sync(self.root)

    # --- plans ---

    def store_plan(self, plan: ExportPlan) -> None:
        """Store a plan, and make the folder it is worked on in; its number must be free."""
        with self.explained(f"cannot store the export's plan in {self._own}"):
            self._store_plan(plan)
            files.make_own_folder(work_folder(self.root, plan.number))

    def place(self, plan: ExportPlan) -> None:
        """Nothing but the directory's name."""

    def pieces(self, plan: ExportPlan, planned: PlannedRange) -> RangeWork:
        """What is decided of a range."""
        return RangeWork(self.root, plan.number, planned)

    def _resume(self, plan: ExportPlan) -> bool:
        """The work of an unfinished plan can go on, though a run was killed between closing it and publishing."""
        folder = work_folder(self.root, plan.number)
        files.make_own_folder(self._work)
        closed = folder.with_name(folder.name + CLOSED)
        if closed.exists() and not folder.exists():
            os.rename(closed, folder)
            files.sync(self._work)
        files.make_own_folder(folder)
        return False

    def settle(self, plan: ExportPlan, ranges: Sequence[PlannedRange]) -> list[RangeResult]:
        """How far these ranges of a plan have come. From now on no worker adds to them: the work folder has another name."""
        folder = work_folder(self.root, plan.number)
        closed = folder.with_name(folder.name + CLOSED)
        with self.explained(f"cannot finish the export's work in {folder}"):
            if not closed.exists():
                os.rename(folder, closed)
                files.sync(self._work)
            return [self._closed(plan, planned, closed).result() for planned in ranges]

    def _closed(self, plan: ExportPlan, planned: PlannedRange, folder: Path) -> RangeWork:
        """The work of a range that nobody adds to any more."""
        return RangeWork(self.root, plan.number, planned, folder=folder)


def _after_fork() -> None:
    """In a fork: close its copies, which leaves the locks with the process that has taken them."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_after_fork)
