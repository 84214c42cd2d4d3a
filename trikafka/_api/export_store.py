"""The layout of an export's destination, where it is a directory. The only module that knows it; sinks share it.

::

    <destination>/
      flights-00000-00000000000000000000-00000000000000250000.parquet   data; appears whole, never changes
      _trikafka/                     skipped by readers that glob
        lock                         flock'ed while an export is at work; freed by the kernel if it is killed
        plan-000001.json             stored before the work
        manifest-000001.json         published after it: only now is export 1 done
        partial/                     data being written; removed at the end and by the next run

Files get their final name by ``link``, which never replaces: of two attempts at one file the first stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..errors import ConfigurationError, ExportError
from ..interfaces import ExportManifest, ExportPlan, ExportState
from .export_plan import manifest_to_json, plan_from_json, plan_to_json

_OURS = "_trikafka"
_NUMBERED = re.compile(r"(plan|manifest)-(\d{6,})\.json")
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class DirectoryStore:
    """Plans, manifests and the lock of one destination directory: what a sink needs that writes files into directories.

    Everything here blocks: call it in a thread, one call at a time. A worker elsewhere, who writes a data file, needs only
    :meth:`partial_path` and :meth:`publish_file`.
    """

    @staticmethod
    def directory_of(destination: str) -> Path:
        """The directory that a plain path or a ``file://`` address names. Raises :exc:`ConfigurationError`."""
        if destination.startswith("file:"):
            address = urlsplit(destination)
            if address.netloc not in ("", "localhost") or not address.path:
                raise ConfigurationError(f"{destination!r} does not name a directory of this machine; write file:///path")
            destination = unquote(address.path)
        return Path(destination).absolute()

    @staticmethod
    def partial_path(root: Path) -> Path:
        """A new path to write a data file at, on the same file system as ``root``; no two attempts share one."""
        path = root / _OURS / "partial" / f"{uuid.uuid4()}.partial"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @staticmethod
    def publish_file(partial: Path, final: Path) -> None:
        """Give a finished file its name, durably. If the name is there already that file stays, and ``partial`` goes."""
        _sync(partial)
        _link(partial, final)
        _sync(final.parent)

    def __init__(self, root: Path) -> None:
        self.root = root
        self._own = root / _OURS
        self._lock: int | None = None

    def open(self) -> None:
        """Make the directory where it is missing, check that it can be written, lock it, clear a dead run's leavings."""
        with _explained(f"cannot write to {self.root}"):
            (self._own / "partial").mkdir(parents=True, exist_ok=True)
            self._lock = self._locked(self._own / "lock")
        try:
            with _explained(f"cannot write to {self.root}"):
                probe = self._own / "partial" / f".trikafka-{uuid.uuid4()}.probe"
                probe.touch()
                os.rename(probe, self.root / probe.name)
                (self.root / probe.name).unlink()
                self._clear()
        except BaseException:
            self.close()
            raise

    def _locked(self, path: Path) -> int:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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

    def _clear(self) -> None:
        shutil.rmtree(self._own / "partial", ignore_errors=True)
        for leaving in (*self._own.glob(".*.tmp"), *self.root.glob(".trikafka-*.probe")):
            leaving.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove what is partial and give back the lock. Closing twice is fine."""
        if self._lock is not None:
            self._clear()
            os.close(self._lock)
            self._lock = None

    def load(self) -> ExportState:
        """Read plans and manifests. Raises :exc:`ExportError` if they are damaged or the data is not ours."""
        with _explained(f"cannot read {self._own}"):
            found: dict[str, set[int]] = {"plan": set(), "manifest": set()}
            for entry in self._own.iterdir():
                if match := _NUMBERED.fullmatch(entry.name):
                    found[match[1]].add(int(match[2]))
            plans, manifests = found["plan"], found["manifest"]
            last = max(plans | manifests, default=0)
            if plans != set(range(1, last + 1)) or manifests not in (plans, plans - {last}):
                raise ExportError(f"{self._own} is damaged: plans {sorted(plans)}, manifests {sorted(manifests)}")
            if not last:
                self._refuse_foreign()
                return ExportState()
            done = last if last in manifests else last - 1
            before = self._read("manifest", done) if done else None
            return ExportState(
                last_number=last,
                cluster_id=before.cluster_id if before else None,
                topic_ids=before.topic_ids if before else {},
                positions=before.positions if before else {},
                unfinished=None if done == last else self._read("plan", last),
            )

    def _refuse_foreign(self) -> None:
        stranger = next(self.root.glob("*.parquet"), None)
        if stranger is not None:
            raise ExportError(
                f"{self.root} holds Parquet files that no export's manifest lists (such as {stranger.name}); "
                "readers would mix them with the export: choose an empty directory"
            )

    def _read(self, kind: str, number: int) -> ExportPlan:
        path = self._own / f"{kind}-{number:06d}.json"
        plan = plan_from_json(path.read_bytes(), str(path))
        if plan.number != number:
            raise ExportError(f"{path} is damaged: it says that it is number {plan.number}")
        return plan

    def store_plan(self, plan: ExportPlan) -> None:
        """Store a plan; its number must be free."""
        with _explained(f"cannot store the export's plan in {self._own}"):
            self._store(self._own / f"plan-{plan.number:06d}.json", plan_to_json(plan))

    def publish(self, manifest: ExportManifest) -> None:
        """Publish the manifest, having seen that every file it lists is there."""
        with _explained(f"cannot publish the export's manifest in {self._own}"):
            for file in manifest.files:
                if file.name is not None and (self.root / file.name).stat().st_size != file.bytes:
                    raise ExportError(f"{self.root / file.name} does not have the {file.bytes} bytes that were written")
            _sync(self.root)
            self._store(self._own / f"manifest-{manifest.plan.number:06d}.json", manifest_to_json(manifest))

    def _store(self, path: Path, text: str) -> None:
        aside = path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")
        try:
            with open(aside, "x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if not _link(aside, path):
                raise ExportError(f"{path} is there already: another export wrote to {self.root} at the same time")
            _sync(self._own)
        finally:
            aside.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> bool:
    """Move ``source`` to ``target`` unless that exists; say whether it was moved. Either way ``source`` is gone."""
    try:
        os.link(source, target)
        moved = True
    except FileExistsError:
        moved = False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        moved = not target.exists()  # a file system without hard links; the lock keeps other exports away
        if moved:
            os.rename(source, target)
    source.unlink(missing_ok=True)
    return moved


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExportError(f"{what}: {error.strerror or error}") from error
