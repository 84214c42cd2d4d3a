"""The pieces of one planned range in an object store."""

# How files reach their names exactly once
# ----------------------------------------
#
# Workers may be killed at any point, and two attempts at one range may run at the same time. A
# store has no rename and no lock that would order them. What it has is a conditional write.
#
# Each range of a plan has a ledger: one small object that lists the decided pieces in order. The
# ledger exists before the plan is stored. It is only changed by compare-and-swap on the version
# that was read, so pieces follow each other without gap or overlap, whichever attempt writes them.
#
# 1. A worker uploads the files of a piece into the plan's work folder. Readers do not see them.
# 2. The worker appends the piece to the ledger. From here on the piece is decided. An attempt that
#    finds another piece at the same offset drops its own files and goes on after that piece.
# 3. The store copies the files to their names. A copy appears whole. Any attempt that reads the
#    ledger repeats the copy if its author was killed before it.
#
# At the end of a plan its ledgers are closed, and later removed. No swap succeeds after either: a
# closed ledger takes no piece, and a removed one has no version. That is why ``begin`` is only
# called before the plan is stored: a ledger that was recreated would take pieces again.

from __future__ import annotations

import hashlib
import json
import os
import threading
import uuid
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from trikafka import ExportError
from trikafka.errors.peer_text import peer_text
from trikafka.interfaces import ExportPlan, PlannedRange

from . import scratch
from .object_address import ObjectAddress
from .objects import Objects, objects_at, together
from .piece_log import ExportPiece, PieceLog, StagedFile

#: The folder of the export's own objects in a destination, and that of files before their copy.
OURS = "_trikafka"
WORK = f"{OURS}/work"
#: Held while the process's directory is created, so that threads create one.
_making = threading.Lock()


def work_folder(plan: ExportPlan) -> str:
    """Return the folder in which a plan's files are staged.

    Its name has the id of the plan beside the number: two exports may prepare the same number.
    """
    return f"{WORK}/{plan.number:06d}-{hashlib.sha256(plan.plan_id.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """The store and the work folder of a plan, as pickled for Spark's workers."""

    address: ObjectAddress
    folder: str

    def pieces(self, planned: PlannedRange) -> ObjectPieces:
        """Return the pieces of a range."""
        return ObjectPieces(objects_at(self.address), self.folder, planned)


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The content of a ledger, and the version that was read."""

    pieces: tuple[ExportPiece, ...]
    closed: bool
    version: Any

    def end(self, planned: PlannedRange) -> int:
        """Return the offset up to which the range is decided."""
        return self.pieces[-1].end if self.pieces else planned.start


class ObjectPieces(PieceLog):
    """The pieces of one range of a plan in an object store. All methods block."""

    def __init__(self, objects: Objects, folder: str, planned: PlannedRange) -> None:
        super().__init__(planned)
        self._objects = objects
        self._folder = folder
        key = hashlib.sha256(f"{planned.topic}-{planned.partition}".encode()).hexdigest()[:16]
        self._ledger = f"{folder}/{key}-{planned.start:020d}.json"

    def begin(self) -> None:
        """Create the ledger.

        Call this only before the plan is stored: a ledger that was removed must never exist again.
        """
        self._objects.begin(self._ledger, self._body((), closed=False))

    def close(self) -> None:
        """Close the ledger, so that no piece is added any more."""
        while not (ledger := self._read()).closed:
            if (
                self._objects.swap(
                    self._ledger, self._body(ledger.pieces, closed=True), ledger.version
                )
                is not None
            ):
                return

    def pieces(self) -> list[ExportPiece]:
        """Return the decided pieces from the start of the range, after publishing their files."""
        found = self._read().pieces
        for piece in found:
            self._publish(piece)
        return list(found)

    def stage(self) -> Path:
        """Return a new local file, which is uploaded when its piece is decided."""
        path = _scratch() / f"{uuid.uuid4()}.partial"
        path.touch(0o600, exist_ok=False)
        return path

    def decide(self, piece: ExportPiece) -> ExportPiece:
        """Make ``piece`` the next piece of the range and publish its files.

        Returns the piece that stands at this offset: ``piece``, or the one that another attempt
        decided before.
        """
        try:
            together(self._upload, piece.files)
        finally:
            for file in piece.files:
                (_scratch() / file.staged).unlink(missing_ok=True)
        standing = self._appended(piece)
        if standing is not piece:
            self._objects.remove(self._staged(file) for file in piece.files)
        self._publish(standing)
        return standing

    def drop(self, piece: ExportPiece) -> None:
        """Remove the local files of a piece that is not decided."""
        for file in piece.files:
            (_scratch() / file.staged).unlink(missing_ok=True)

    def _upload(self, file: StagedFile) -> None:
        self._objects.upload(self._staged(file), _scratch() / file.staged)

    def _staged(self, file: StagedFile) -> str:
        return f"{self._folder}/{file.staged}"

    # --- the ledger ---

    def _appended(self, piece: ExportPiece) -> ExportPiece:
        """Append the piece; return it, or the piece that already begins at its offset."""
        while True:
            ledger = self._read()
            decided = next((each for each in ledger.pieces if each.start == piece.start), None)
            if decided is not None:
                return piece if decided == piece else decided
            if ledger.closed:
                raise ExportError(
                    f"the export of {self._planned} has ended, here or in another process"
                )
            if ledger.end(self._planned) != piece.start:
                raise ExportError(
                    f"{self._where} is damaged: it does not lead to offset {piece.start}"
                )
            body = self._body((*ledger.pieces, piece), closed=False)
            if self._objects.swap(self._ledger, body, ledger.version) is not None:
                return piece

    @property
    def _where(self) -> str:
        return f"{self._objects.title}/{self._ledger}"

    def _body(self, pieces: tuple[ExportPiece, ...], *, closed: bool) -> bytes:
        planned = self._planned
        body = {
            "version": 1,
            "range": [planned.topic, planned.partition, planned.start, planned.end],
            "closed": closed,
            "pieces": [piece.to_json() for piece in pieces],
        }
        return json.dumps(body).encode()

    def _read(self) -> _Ledger:
        try:
            text, found = self._objects.current(self._ledger)
        except FileNotFoundError:
            raise ExportError(
                f"{self._where} no longer exists: the export of {self._planned} has ended"
            ) from None
        planned = self._planned
        try:
            body = json.loads(text)
            if body["version"] != 1 or body["range"] != [
                planned.topic,
                planned.partition,
                planned.start,
                planned.end,
            ]:
                raise ValueError(f"it is of another range or format ({str(body['range'])[:200]})")
            pieces = tuple(ExportPiece.from_json(each, self._where) for each in body["pieces"])
            closed = bool(body["closed"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ExportError(
                f"{self._where} is not the ledger of a range: {type(error).__name__}: "
                f"{peer_text(error)}"
            ) from error
        at = planned.start
        for piece in pieces:
            self.check_place(piece, at, self._where)
            at = piece.end
        return _Ledger(pieces, closed, found.version)

    # --- what readers see ---

    def _publish(self, piece: ExportPiece) -> None:
        """Copy the files of a decided piece to their names, as far as that was not done before."""
        together(self._publish_file, piece.files)

    def _publish_file(self, file: StagedFile) -> None:
        title = f"{self._objects.title}/{file.name}"
        try:
            self._objects.publish(self._staged(file), file.name, file.bytes)
        except FileNotFoundError:
            raise ExportError(
                f"{title} was written and no longer exists; the state of its rows is unknown"
            ) from None
        except FileExistsError:
            raise ExportError(
                f"{title} exists and was not written by this export: move it away, and export again"
            ) from None


def _scratch() -> Path:
    """Return the directory of this process for files before their upload."""
    with _making:
        return _scratch_of(os.getpid())


@lru_cache(maxsize=1)
def _scratch_of(pid: int) -> Path:
    directory = scratch.make()
    scratch.remove_at_exit(directory, lambda: None)
    return directory
