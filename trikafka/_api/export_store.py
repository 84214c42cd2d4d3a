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

import fcntl
import os
import re
import shutil
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..errors import ConfigurationError, ExportError
from ..interfaces import ExportManifest, ExportPlan, ExportState, PlannedRange, RangeResult, WrittenFile
from . import export_files as files
from .export_files import explained
from .export_json import files_from_json, manifest_to_json, plan_from_json, plan_to_json, state_from_json
from .export_work import OURS, RangeWork, work_folder

_NUMBERED = re.compile(r"(plan|manifest)-(\d{6,})\.json")
_CLOSED = ".closed"
#: The descriptors of locks that this process holds. A fork has them, too, and would keep the locks when this process is dead.
_held: set[int] = set()


class DirectoryStore:
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
        if not destination.strip():
            raise ConfigurationError("the destination of an export is empty; write '.' for the current folder")
        return Path(destination).absolute()

    def __init__(self, root: Path) -> None:
        self.root = root
        self._own = root / OURS
        self._work = self._own / "work"
        self._lock: int | None = None

    def open(self) -> None:
        """Make the directory where it is missing, check that it can be written, lock it."""
        with explained(f"cannot write to {self.root}"):
            files.make_folder(self.root)
            files.make_own_folder(self._own)
            self._lock = self._locked_file(self._own / "lock")
        _held.add(self._lock)
        try:
            with explained(f"cannot write to {self.root}"):
                files.make_own_folder(self._work)
                probe = self._work / f".trikafka-{uuid.uuid4()}.probe"
                files.new_file(probe)
                os.rename(probe, self.root / probe.name)
                (self.root / probe.name).unlink()
        except BaseException:
            self._unlock()
            raise

    def _locked_file(self, path: Path) -> int:
        lock = files.open_own_file(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
                with explained(f"cannot tidy up {self._own}"):
                    self._clear()
            finally:
                self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None and lock in _held:
            _held.remove(lock)
            os.close(lock)

    def _clear(self) -> None:
        """Remove the work folders of plans that are done.

        In those of others nothing is removed, also what no record names: a worker of Spark that has not heard yet that its job was
        cancelled may be about to decide a piece of it. It goes with the folder, when the plan is done.
        """
        plans, manifests = self._numbers()
        for folder in self._work.iterdir() if self._work.exists() else ():
            name = folder.name.removesuffix(_CLOSED)
            number = int(name) if name.isdigit() else None
            if number is None or number not in plans - manifests:
                shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self._own / "partial", ignore_errors=True)  # of the first format
        probes = (*self._work.glob(".trikafka-*.probe"), *self.root.glob(".trikafka-*.probe"))
        for leaving in (*self._own.glob(".*.tmp"), *probes):
            leaving.unlink(missing_ok=True)

    # --- plans and manifests ---

    def _numbers(self) -> tuple[set[int], set[int]]:
        found: dict[str, set[int]] = {"plan": set(), "manifest": set()}
        for entry in self._own.iterdir():
            if match := _NUMBERED.fullmatch(entry.name):
                found[match[1]].add(int(match[2]))
        return found["plan"], found["manifest"]

    def load(self) -> ExportState:
        """Read plans and manifests. Raises :exc:`ExportError` if they are damaged or the data is not ours."""
        with explained(f"cannot read {self._own}"):
            plans, manifests = self._numbers()
            last = max(plans | manifests, default=0)
            if plans != set(range(1, last + 1)) or manifests not in (plans, plans - {last}):
                raise ExportError(f"{self._own} is damaged: plans {sorted(plans)}, manifests {sorted(manifests)}")
            if not last:
                self._refuse_foreign()
                return ExportState()
            done = last if last in manifests else last - 1
            state = state_from_json(*self._text("manifest", done)) if done else ExportState()
            if done == last:
                return self._checked(state, done)
            plan = plan_from_json(*self._text("plan", last))
            if plan.number != last:
                raise ExportError(f"{self._path('plan', last)} is damaged: it says that it is number {plan.number}")
            self._reopen(last)
            return self._with_unfinished(self._checked(state, done), plan)

    def _checked(self, state: ExportState, number: int) -> ExportState:
        if state.last_number != number:
            raise ExportError(f"{self._path('manifest', number)} is damaged: it says that it is number {state.last_number}")
        return state

    @staticmethod
    def _with_unfinished(before: ExportState, plan: ExportPlan) -> ExportState:
        return ExportState(
            last_number=plan.number,
            cluster_id=before.cluster_id,
            topic_ids=before.topic_ids,
            positions=before.positions,
            unfinished=plan,
            carried=before.carried,
            isolation_level=plan.isolation_level,
            format=plan.format or None,
        )

    def _refuse_foreign(self) -> None:
        stranger = next(self.root.rglob("*.parquet"), None)
        if stranger is not None:
            raise ExportError(
                f"{self.root} holds Parquet files that no export's manifest lists (such as {stranger.relative_to(self.root)}); "
                "readers would mix them with the export: choose an empty directory"
            )

    def _path(self, kind: str, number: int) -> Path:
        return self._own / f"{kind}-{number:06d}.json"

    def _text(self, kind: str, number: int) -> tuple[bytes, str]:
        path = self._path(kind, number)
        return files.read_file(path), str(path)

    def listed(self) -> list[WrittenFile]:
        """All data files that the manifests list, in their order."""
        with explained(f"cannot read {self._own}"):
            _, manifests = self._numbers()
            return [file for number in sorted(manifests) for file in files_from_json(*self._text("manifest", number))]

    def being_written(self) -> set[str]:
        """The files of pieces that are decided, of a plan that has no manifest yet."""
        with explained(f"cannot read {self._own}"):
            plans, manifests = self._numbers()
            names: set[str] = set()
            for number in plans - manifests:
                plan = plan_from_json(*self._text("plan", number))
                for planned in plan.ranges:
                    names |= {planned.name, *(file.name for file in RangeWork(self.root, number, planned).result().files)}
            return names

    def store_plan(self, plan: ExportPlan) -> None:
        """Store a plan, and make the folder it is worked on in; its number must be free."""
        with explained(f"cannot store the export's plan in {self._own}"):
            self._store(self._path("plan", plan.number), plan_to_json(plan))
            files.make_own_folder(work_folder(self.root, plan.number))

    def _reopen(self, number: int) -> None:
        """The work of an unfinished plan can go on, though a run was killed between closing it and publishing."""
        folder = work_folder(self.root, number)
        files.make_own_folder(self._work)
        closed = folder.with_name(folder.name + _CLOSED)
        if closed.exists() and not folder.exists():
            os.rename(closed, folder)
            files.sync(self._work)
        files.make_own_folder(folder)

    def settle(self, plan: ExportPlan, ranges: Sequence[PlannedRange]) -> list[RangeResult]:
        """How far these ranges of a plan have come. From now on no worker adds to them: the work folder has another name."""
        folder = work_folder(self.root, plan.number)
        closed = folder.with_name(folder.name + _CLOSED)
        with explained(f"cannot finish the export's work in {folder}"):
            if not closed.exists():
                os.rename(folder, closed)
                files.sync(self._work)
            return [RangeWork(self.root, plan.number, planned, folder=closed).result() for planned in ranges]

    def publish(self, manifest: ExportManifest) -> None:
        """Publish the manifest, having seen that every file it lists is there."""
        with explained(f"cannot publish the export's manifest in {self._own}"):
            self._check_written(manifest.files)
            self._store(self._path("manifest", manifest.plan.number), manifest_to_json(manifest))
            self._clear()

    def _check_written(self, written: Sequence[WrittenFile]) -> None:
        for file in written:
            if os.lstat(self.root / file.name).st_size != file.bytes:
                raise ExportError(f"{self.root / file.name} does not have the {file.bytes} bytes that were written")
        files.sync(self.root)

    def _store(self, path: Path, text: str) -> None:
        if not files.write_once(path, text):
            raise ExportError(f"{path} is there already: another export wrote to {self.root} at the same time")


def _after_fork() -> None:
    """In a fork: close its copies, which leaves the locks with the process that has taken them."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_after_fork)
