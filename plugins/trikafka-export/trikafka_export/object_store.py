"""An export's destination in an object store.

The layout and the guarantees are those of a directory, without rename and flock::

    s3://bucket/prefix/
      flights-00000-....parquet            data; appears whole, never changes
      _trikafka/                           skipped by readers that glob
        lock                               see :mod:`.lease`
        plan-000001.json, manifest-000001.json
        work/000001-<id of the plan>/      staged files and ledgers, and ``closed`` when the plan
                                           ends; removed after the manifest
"""

# Why this is correct even without the lock
# -----------------------------------------
#
# Another export may take the lock over while its owner sleeps, and then both work. Three rules
# keep rows from being lost or doubled all the same:
#
# * One plan for each number. Plans are written by ``put_new``, so of all exports that store plan n
#   one succeeds. Its ledgers were created before, in a folder with the plan's own id, and are never
#   created again.
# * One piece for each offset. A piece is decided by a swap of its range's ledger, so pieces neither
#   overlap nor leave gaps; see ``object_pieces``.
# * One result for each plan. Its end begins with the object ``closed``, after which no export
#   resumes it. Then each ledger is closed and never changes again. All who read the ledgers from
#   then on read the same, so any of them may publish manifest n.
#
# Only the work folders of plans that have their manifest are removed. A folder without one may
# belong to an export that is still preparing its plan.

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import unquote

from trikafka import ConfigurationError, ExportError
from trikafka.interfaces import ExportPlan, PlannedRange, RangeResult, WrittenFile

from .lease import Lease
from .object_address import ObjectAddress
from .object_pieces import OURS, WORK, ObjectPieces, ObjectPlace, work_folder
from .objects import A, B, ObjectReader, objects_at, together
from .store import ExportStore
from .table_places import refuse_found

_FOLDER = re.compile(r"(\d{6,})-[0-9a-f]+")
PROBE = "probe-"
#: An older probe was left behind by a killed process.
_OLD = timedelta(hours=1)


class ObjectStore(ExportStore):
    """Plans, manifests and the lock of one destination in an object store."""

    remote = True

    def __init__(self, address: ObjectAddress) -> None:
        self.title = address.url
        self.own_title = f"{address.url}/{OURS}"
        self._address = address
        self._objects = objects_at(address)
        self._lease = Lease(self._objects, address.lease)
        self._now: datetime | None = None

    def open(self) -> None:
        """Check that the store has conditional writes, and take the lock.

        Raises:
            ConfigurationError: The store does not honour conditional writes.
            ExportError: Another export holds the lock, or the store fails.
        """
        self._known = None
        with self.explained(f"cannot write to {self.title}"):
            self._lease.acquire(self._probed())

    def _probed(self) -> datetime:
        """Try conditional writes, and return the time by the store's clock."""
        self._now = self._objects.probe(f"{OURS}/{PROBE}{uuid.uuid4()}")
        if self._now is None:
            raise ConfigurationError(
                f"{self.title}: this store does not honour conditional writes (If-None-Match, "
                "If-Match), without which two workers could write the same rows; see "
                "docs/export-stores.md for stores that do"
            )
        return self._now

    def close(self) -> None:
        """Remove the work folders of finished plans and old probes, and release the lock."""
        if self._lease.held:
            try:
                with self.explained(f"cannot tidy up {self.own_title}"):
                    self._clear()
                    self._clear_probes()
            finally:
                self._lease.release()

    def give_up(self) -> None:
        """Stop renewing the lock, so that it expires."""
        self._lease.give_up()

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Raise errors of the object store as :exc:`ExportError`."""
        try:
            yield
        except OSError as error:
            raise ExportError(f"{what}: {error}") from error

    # --- objects ---

    def _own_names(self) -> Iterable[str]:
        return self._objects.folder(OURS)[0]

    def _read_own(self, name: str) -> bytes:
        return self._objects.read(f"{OURS}/{name}")

    def _write_once(self, name: str, text: str) -> bool:
        self._lease.check()
        return self._objects.put_new(f"{OURS}/{name}", text.encode())

    def data_files(self) -> Iterator[str]:
        """Return the names of all data files below the prefix."""
        return (
            name
            for name in self._objects.names()
            if name.endswith(self.suffix) and not name.startswith(f"{OURS}/")
        )

    def each(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        """Call ``function`` for each item, several at a time.

        A check makes requests for every file of every export so far: one at a time would take too
        long.
        """
        return together(function, items)

    @contextmanager
    def open_data(self, name: str) -> Iterator[tuple[Any, int]]:
        """Open a data file for reading; yield it and its size in bytes.

        Only the parts that are read are requested.
        """
        with ObjectReader(self._objects, name) as reader:
            yield reader, reader.length

    def read_data(self, name: str) -> bytes:
        """Return the bytes of an object, by one request."""
        return self._objects.read(name)

    def _check_written(self, files: Sequence[WrittenFile]) -> None:
        for file, found in zip(
            files, together(self._objects.look, [file.name for file in files]), strict=True
        ):
            if found.size != file.bytes:
                raise ExportError(
                    f"{self.title}/{file.name} does not have the {file.bytes} bytes that were "
                    "written"
                )

    def _clear(self) -> None:
        """Remove the work folders of plans that have their manifest.

        Other folders stay: another export may be preparing them.
        """
        self._unfinished()
        done = self._known[1] if self._known is not None else 0
        for folder in self._objects.folder(WORK)[1]:
            match = _FOLDER.fullmatch(folder)
            if match is not None and int(match[1]) <= done:
                self._objects.remove_folder(f"{WORK}/{folder}")

    def _clear_probes(self) -> None:
        files, folders = self._objects.folder(OURS)
        probes = [f"{OURS}/{name}" for name in files if name.startswith(PROBE)]
        self._objects.remove([name for name in probes if self._is_old(name)])
        for name in folders:  # in HDFS, what changes is made aside as a folder
            if name.startswith(PROBE) and self._is_old(f"{OURS}/{name}"):
                self._objects.remove_folder(f"{OURS}/{name}")

    def _is_old(self, name: str) -> bool:
        try:
            return self._now is not None and self._objects.look(name).modified < self._now - _OLD
        except FileNotFoundError:
            return False

    def _refuse_foreign(self) -> None:
        self._refuse_moved()
        is_delta = bool(self._objects.first_names("_delta_log"))
        refuse_found(f"{self.title} is", is_delta, self._objects.first_names("metadata"))
        super()._refuse_foreign()

    def _refuse_moved(self) -> None:
        """Raise :exc:`ExportError` if an earlier version exported to this address elsewhere.

        It read the quoted signs of an address twice.
        """
        former = unquote(self._address.url)
        if former == self._address.url:
            return
        objects = objects_at(replace(self._address, url=former))
        if "plan-000001.json" in objects.folder(OURS)[0]:
            place = unquote(re.split("[?#]", former)[0])
            raise ExportError(
                f"{self.title} has no export, but {place!r} has one, and earlier versions took the "
                "first for the second: move its objects, or choose another destination"
            )

    # --- plans ---

    def store_plan(self, plan: ExportPlan) -> None:
        """Create the ledgers of a plan, then store the plan. Its number must be free."""
        with self.explained(f"cannot store the export's plan in {self.own_title}"):
            together(ObjectPieces.begin, [self.pieces(plan, planned) for planned in plan.ranges])
            self._store_plan(plan)

    def place(self, plan: ExportPlan) -> ObjectPlace:
        """Return the store and the work folder of a plan, for its workers."""
        return ObjectPlace(self._address, work_folder(plan))

    def pieces(self, plan: ExportPlan, planned: PlannedRange) -> ObjectPieces:
        """Return the pieces of a range."""
        return ObjectPieces(self._objects, work_folder(plan), planned)

    def _resume(self, plan: ExportPlan) -> bool:
        """Return whether an export has begun to close the plan.

        From then on another export may publish the plan's manifest at any time.
        """
        return "closed" in self._objects.folder(work_folder(plan))[0]

    def settle(self, plan: ExportPlan, ranges: Sequence[PlannedRange]) -> list[RangeResult]:
        """Close the ledgers of these ranges, and return how far each range is decided."""
        with self.explained(f"cannot finish the export's work in {self.own_title}"):
            self._lease.check()
            self._objects.put_new(f"{work_folder(plan)}/closed", str(uuid.uuid4()).encode())
            return together(_settled, [self.pieces(plan, planned) for planned in ranges])


def _settled(pieces: ObjectPieces) -> RangeResult:
    pieces.close()
    return pieces.result()
