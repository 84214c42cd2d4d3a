"""An export's destination in an object store: the same layout and the same promises as in a directory, without rename and flock.

::

    s3://bucket/prefix/
      flights-00000-....parquet            data; appears whole, never changes
      _trikafka/                           skipped by readers that glob
        lock                               see :mod:`.lease`
        plan-000001.json, manifest-000001.json
        work/000001-<id of the plan>/      staged files, ledgers, and ``closed`` when the plan ends; removed after the manifest

Why it is right without the lock, which may be lost to another export while this one sleeps:

* Of all who store plan n, one does. Its ledgers were made before, in a folder of its own, and are never made again.
* A piece is decided by a swap of its range's ledger, so pieces neither overlap nor leave gaps; see :mod:`.object_pieces`.
* A plan's end begins with ``closed``, after which nobody takes its work up again; then each ledger is closed, for good. What the
  ledgers say from then on is the same for everybody, so whoever publishes manifest n first publishes what is true.
* Only folders of plans that have their manifest are removed, and what is removed is never made again.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

from trikafka import ConfigurationError, ExportError, ExportStore
from trikafka.interfaces import ExportPlan, PlannedRange, RangeResult, WrittenFile

from .in_tables import refuse_found
from .lease import Lease
from .object_address import ObjectAddress
from .object_pieces import OURS, WORK, ObjectPieces, ObjectPlace, work_folder
from .objects import A, B, ObjectReader, objects_at, together

_FOLDER = re.compile(r"(\d{6,})-[0-9a-f]+")
PROBE = "probe-"
#: A probe that is older was left by a process that was killed.
_OLD = timedelta(hours=1)
#: What a store says, in capitals or not, that knows the headers of a conditional write and does not do what they say.
_UNKNOWN = re.compile("not.?implemented|not.?supported", re.IGNORECASE)


class ObjectStore(ExportStore):
    """Plans, manifests and the lock of one destination in an object store."""

    remote = True

    def __init__(self, address: ObjectAddress) -> None:
        self.title, self.own_title = address.url, f"{address.url}/{OURS}"
        self._address = address
        self._objects = objects_at(address)
        self._lease = Lease(self._objects, address.lease)
        self._now: datetime | None = None

    def open(self) -> None:
        """Check that the store keeps the promises that all hangs on, and take the lock.

        Raises :exc:`ConfigurationError` for a store without conditional writes.
        """
        self._known = None
        with self.explained(f"cannot write to {self.title}"):
            self._lease.acquire(self._probed())

    def _probed(self) -> datetime:
        """Try conditional writes out; return the time by the store's clock."""
        name = f"{OURS}/{PROBE}{uuid.uuid4()}"
        put_new, swap = self._objects.put_new, self._objects.swap
        try:
            first = put_new(name, b"1")
            second = None if put_new(name, b"2") or not first else swap(name, b"3", first)
            if second and swap(name, b"4", first) is None and self._objects.read(name)[0] == b"3":
                self._now = self._objects.look(name).modified
                return self._now
        except OSError as error:
            if not _UNKNOWN.search(str(error)):
                raise
        finally:
            with suppress(OSError):
                self._objects.remove([name])
        raise ConfigurationError(
            f"{self.title}: this store does not honour conditional writes (If-None-Match, If-Match), without which two"
            " workers could write the same rows; see docs/export.md for stores that do"
        )

    def close(self) -> None:
        """Remove what is left of plans that are done, and give back the lock."""
        if self._lease.held:
            try:
                with self.explained(f"cannot tidy up {self.own_title}"):
                    self._clear()
                    self._clear_probes()
            finally:
                self._lease.release()

    def give_up(self) -> None:
        """Let the lock end by itself."""
        self._lease.give_up()

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Errors of the object store as an :exc:`ExportError`."""
        try:
            yield
        except OSError as error:
            raise ExportError(f"{what}: {error}") from error

    # --- objects ---

    def _own_names(self) -> Iterable[str]:
        return self._objects.folder(OURS)[0]

    def _read_own(self, name: str) -> bytes:
        return self._objects.read(f"{OURS}/{name}")[0]

    def _write_once(self, name: str, text: str) -> bool:
        self._lease.check()
        return self._objects.put_new(f"{OURS}/{name}", text.encode()) is not None

    def data_files(self) -> Iterator[str]:
        """The names of all Parquet files below the prefix."""
        return (name for name, _ in self._objects.names() if name.endswith(".parquet"))

    def each(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        """Several at a time: a check asks for some things of each export that there ever was."""
        return together(function, items)

    @contextmanager
    def open_data(self, name: str) -> Iterator[tuple[Any, int]]:
        """A data file, of which only what is asked for is read, and its bytes."""
        with ObjectReader(self._objects, name) as reader:
            yield reader, reader.length

    def _check_written(self, files: Sequence[WrittenFile]) -> None:
        for file, found in zip(files, together(self._objects.look, [file.name for file in files]), strict=True):
            if found.size != file.bytes:
                raise ExportError(f"{self.title}/{file.name} does not have the {file.bytes} bytes that were written")

    def _clear(self) -> None:
        """Remove the work folders of plans that have their manifest. Of others nothing: another export may be preparing them."""
        self._unfinished()
        done = self._known[1] if self._known is not None else 0
        for folder in self._objects.folder(WORK)[1]:
            match = _FOLDER.fullmatch(folder)
            if match is not None and int(match[1]) <= done:
                self._objects.remove([name for name, _ in self._objects.names(f"{WORK}/{folder}")])

    def _clear_probes(self) -> None:
        probes = [name for name in self._own_names() if name.startswith(PROBE)]
        old = [f"{OURS}/{name}" for name in probes if self._is_old(f"{OURS}/{name}")]
        self._objects.remove(old)

    def _is_old(self, name: str) -> bool:
        try:
            return self._now is not None and self._objects.look(name).modified < self._now - _OLD
        except FileNotFoundError:
            return False

    def _refuse_foreign(self) -> None:
        is_delta = bool(self._objects.first_names("_delta_log"))
        refuse_found(f"{self.title} is", is_delta, self._objects.first_names("metadata"))
        super()._refuse_foreign()

    # --- plans ---

    def store_plan(self, plan: ExportPlan) -> None:
        """Make the ledgers of a plan, then store it; its number must be free."""
        with self.explained(f"cannot store the export's plan in {self.own_title}"):
            together(ObjectPieces.begin, [self.pieces(plan, planned) for planned in plan.ranges])
            self._store_plan(plan)

    def place(self, plan: ExportPlan) -> ObjectPlace:
        """Where it is worked on."""
        return ObjectPlace(self._address, work_folder(plan))

    def pieces(self, plan: ExportPlan, planned: PlannedRange) -> ObjectPieces:
        """What is decided of a range."""
        return ObjectPieces(self._objects, work_folder(plan), planned)

    def _resume(self, plan: ExportPlan) -> bool:
        """Whether somebody has begun to close the plan: then nobody can know any more that no other one publishes it."""
        return "closed" in self._objects.folder(work_folder(plan))[0]

    def settle(self, plan: ExportPlan, ranges: Sequence[PlannedRange]) -> list[RangeResult]:
        """How far these ranges have come, now that their ledgers are closed."""
        with self.explained(f"cannot finish the export's work in {self.own_title}"):
            self._lease.check()
            self._objects.put_new(f"{work_folder(plan)}/closed", str(uuid.uuid4()).encode())
            return together(_settled, [self.pieces(plan, planned) for planned in ranges])


def _settled(pieces: ObjectPieces) -> RangeResult:
    pieces.close()
    return pieces.result()
