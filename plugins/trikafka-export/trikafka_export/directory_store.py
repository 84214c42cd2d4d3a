"""A destination that is a directory: its layout, its plans and its lock.

Several sinks share this module. :mod:`.directory_pieces` describes how data files are written.

::

    <destination>/
      flights-00000-<20 digits>-<20 digits>.parquet   data; appears whole, never changes
      _trikafka/            skipped by readers that glob
        lock                flock'ed during an export; the kernel frees it if the export is killed
        plan-000001.json    stored before the work of export 1
        manifest-000001.json    published after the work: only now is export 1 done
        work/000001/        data being written, records of pieces; removed after the manifest
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

from trikafka import ConfigurationError, ExportError
from trikafka.interfaces import ExportPlan, PlannedRange, RangeResult, WrittenFile

from . import durable_files as files
from .directory_pieces import OURS, RangeWork, work_folder
from .plan_json import files_from_json
from .store import ExportStore

CLOSED = ".closed"
#: The descriptors of the locks that this process holds. A fork inherits them, and would keep the
#: locks after this process has ended.
_held: set[int] = set()


class DirectoryStore(ExportStore):
    """Plans, manifests and the lock of one directory, for sinks that write files.

    Every method blocks: call it in a thread, one call at a time. A worker on another machine, which
    writes data files, needs only :class:`RangeWork`.
    """

    @staticmethod
    def directory_of(destination: str) -> Path:
        """Return the directory that a plain path or a ``file://`` address names.

        Args:
            destination: A path or an address.

        Raises:
            ConfigurationError: The destination is not a directory of this machine.
        """
        if destination.startswith("file:"):
            address = urlsplit(destination)
            if address.netloc not in ("", "localhost") or not address.path:
                raise ConfigurationError(
                    f"{destination!r} does not name a directory of this machine; write file:///path"
                )
            if address.query or address.fragment:  # The path would silently lack these parts.
                raise ConfigurationError(
                    f"{destination!r} has a '?' or '#': in an address write %3F and %23, or give "
                    f"the path (earlier versions wrote such exports to {unquote(address.path)})"
                )
            destination = unquote(address.path)
        elif re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", destination):
            raise ConfigurationError(
                f"{destination!r} is not a directory, and this kind of export needs one"
            )
        if not destination.strip():
            raise ConfigurationError(
                "the destination of an export is empty; write '.' for the current folder"
            )
        if re.search("[\0\ud800-\udfff]", destination):
            raise ConfigurationError(
                f"{destination!r} cannot name a directory: it is not text in UTF-8, or has a zero "
                "byte"
            )
        return Path(destination).absolute()

    def __init__(self, root: Path) -> None:
        self.root = root
        self._own = root / OURS
        self.title = str(root)
        self.own_title = str(self._own)
        self._work = self._own / "work"
        self._lock: int | None = None
        #: The folders that :meth:`open` has made, the innermost first; empty if the own folder
        #: existed.
        self._made: list[Path] = []

    def open(self) -> None:
        """Make the directory if it is missing, check that it can be written, and lock it.

        Raises:
            ExportError: The directory cannot be written, or another export has locked it.
        """
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
        """Make the folders and lock them; return the lock's descriptor.

        Another export may be refused meanwhile, and remove the folders that it has made. Then the
        steps are repeated.
        """
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
        """Open and lock the file; return its descriptor.

        Raises:
            FileNotFoundError: Another export has removed the file between opening and locking it.
            ExportError: Another export has locked the file.
        """
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
            raise ExportError(
                f"another export to {self.root} is at work (process {holder}): wait until it ends"
            ) from None
        except BaseException:
            os.close(lock)
            raise
        return lock

    def close(self) -> None:
        """Remove the work folders of finished plans, and release the lock.

        A second call has no effect.
        """
        if self._lock in _held:  # A fork holds no lock.
            try:
                with self.explained(f"cannot tidy up {self._own}"):
                    self._clear()
                    self._remove_unplanned()
            finally:
                self._unlock()

    def give_up(self) -> None:
        """No-op: closing a directory takes no time."""

    def _unlock(self) -> None:
        lock = self._lock
        self._lock = None
        if lock is not None and lock in _held:
            _held.remove(lock)
            os.close(lock)

    def _remove_unplanned(self) -> None:
        """Remove the folders that :meth:`open` has made, if no plan has been stored.

        So an export that was refused leaves nothing behind.
        """
        if self._made and not any(self._numbers()):
            with suppress(OSError):  # Another program has put a file there.
                self._work.rmdir()
                # Another export may wait for this lock: see _locked_file().
                (self._own / "lock").unlink()
                for folder in self._made:
                    folder.rmdir()

    def _clear(self) -> None:
        """Remove the work folders of finished plans.

        The folder of an unfinished plan stays as it is. Even a file that no record names stays: a
        worker whose job has just been cancelled may be about to record it as a piece. Such files
        are removed with the folder when the plan is finished.
        """
        unfinished = self._unfinished()
        for folder in self._work.iterdir() if self._work.exists() else ():
            name = folder.name.removesuffix(CLOSED)
            number = int(name) if name.isdigit() else None
            if number is None or number not in unfinished:
                shutil.rmtree(folder, ignore_errors=True)
        # Earlier versions wrote their data to this folder.
        shutil.rmtree(self._own / "partial", ignore_errors=True)
        probes = (*self._work.glob(".trikafka-*.probe"), *self.root.glob(".trikafka-*.probe"))
        for leftover in (*self._own.glob(".*.tmp"), *probes):
            leftover.unlink(missing_ok=True)

    # --- files ---

    def explained(self, what: str) -> AbstractContextManager[None]:
        """Turn errors of the file system into an :exc:`ExportError`."""
        return files.explained(what)

    def _own_names(self) -> Iterator[str]:
        return (entry.name for entry in self._own.iterdir())

    def _read_own(self, name: str) -> bytes:
        return files.read_file(self._own / name)

    def _write_once(self, name: str, text: str) -> bool:
        return files.write_once(self._own / name, text)

    def data_files(self) -> Iterator[str]:
        """Yield the names of all data files below the directory."""
        names = (str(path.relative_to(self.root)) for path in self.root.rglob(f"*{self.suffix}"))
        return (name for name in names if not name.startswith(f"{self._own.name}/"))

    @contextmanager
    def open_data(self, name: str) -> Iterator[tuple[Path, int]]:
        """Yield the path of a data file, and its size in bytes."""
        path = self.root / name
        yield path, path.stat().st_size

    def gone_of_last(self) -> list[str]:
        """Return the data files that the last manifest lists and that no longer exist.

        Files of earlier manifests are not checked: other programs may move, compact or remove them.
        """
        if self._known is None or not self._known[1]:
            return []
        with self.explained(f"cannot read {self._own}"):
            listed = files_from_json(*self._text("manifest", self._known[1]))
            return [file.name for file in listed if not os.path.lexists(self.root / file.name)]

    def _check_written(self, written: Sequence[WrittenFile]) -> None:
        for file in written:
            try:
                size = os.lstat(self.root / file.name).st_size
            except FileNotFoundError:
                raise ExportError(
                    f"{self.root / file.name} was written and is gone: restore the file"
                ) from None
            if size != file.bytes:
                raise ExportError(
                    f"{self.root / file.name} does not have the {file.bytes} bytes that were "
                    "written"
                )
        files.sync(self.root)

    # --- plans ---

    def store_plan(self, plan: ExportPlan) -> None:
        """Store a plan, and make its work folder; the plan's number must be free."""
        with self.explained(f"cannot store the export's plan in {self._own}"):
            self._store_plan(plan)
            files.make_own_folder(work_folder(self.root, plan.number))

    def place(self, plan: ExportPlan) -> None:
        """Return ``None``: a worker needs nothing but the directory's name."""

    def pieces(self, plan: ExportPlan, planned: PlannedRange) -> RangeWork:
        """Return the log of a range's pieces."""
        return RangeWork(self.root, plan.number, planned)

    def _resume(self, plan: ExportPlan) -> bool:
        """Reopen the work of an unfinished plan.

        The work is closed if the earlier run was killed between closing and publishing it.
        """
        folder = work_folder(self.root, plan.number)
        files.make_own_folder(self._work)
        closed = folder.with_name(folder.name + CLOSED)
        if closed.exists() and not folder.exists():
            os.rename(closed, folder)
            files.sync(self._work)
        files.make_own_folder(folder)
        return False

    def settle(self, plan: ExportPlan, ranges: Sequence[PlannedRange]) -> list[RangeResult]:
        """Close the work of a plan; return how far these ranges have come.

        Closing renames the work folder, so that no worker can add to the ranges any more.
        """
        folder = work_folder(self.root, plan.number)
        closed = folder.with_name(folder.name + CLOSED)
        with self.explained(f"cannot finish the export's work in {folder}"):
            if not closed.exists():
                os.rename(folder, closed)
                files.sync(self._work)
            return [self._closed(plan, planned, closed).result() for planned in ranges]

    def _closed(self, plan: ExportPlan, planned: PlannedRange, folder: Path) -> RangeWork:
        """Return the closed work of a range, to which no worker can add any more."""
        return RangeWork(self.root, plan.number, planned, folder=folder)


def _after_fork() -> None:
    """Close the fork's copies of the locks; the parent process keeps its own."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_after_fork)
