"""How the files of one planned range come to stand in an object store, by workers that may be killed or run twice.

Each range of a plan has a *ledger*: one small object that lists the pieces that are decided, in their order. It is there before
the plan is, and is only ever changed by a conditional write upon the version that was read (compare and swap): so pieces follow
each other without gap or overlap, whoever writes them. A worker uploads the files of a piece into the plan's work folder, appends
the piece to the ledger, and only then has the store copy them to their names. A copy appears whole, and anyone can make it who
finds the piece in the ledger. When a plan ends, its ledgers are closed, and then removed: no swap succeeds any more, either way.
"""

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

from trikafka import ExportError, ExportPiece, PieceLog, StagedFile
from trikafka.interfaces import ExportPlan, PlannedRange

from . import scratch
from .object_address import ObjectAddress
from .objects import Objects, objects_at, together

OURS = "_trikafka"
WORK = f"{OURS}/work"
_making = threading.Lock()


def work_folder(plan: ExportPlan) -> str:
    """Where a plan is worked on: by its number, and by its id, for two exports may prepare the same number."""
    return f"{WORK}/{plan.number:06d}-{hashlib.sha256(plan.plan_id.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """Where a plan is worked on, as Spark's workers are told."""

    address: ObjectAddress
    folder: str

    def pieces(self, planned: PlannedRange) -> ObjectPieces:
        """What is decided of a range."""
        return ObjectPieces(objects_at(self.address), self.folder, planned)


@dataclass(frozen=True, slots=True)
class _Ledger:
    """A ledger as it was read."""

    pieces: tuple[ExportPiece, ...]
    closed: bool
    version: Any

    def end(self, planned: PlannedRange) -> int:
        """How far the range is decided."""
        return self.pieces[-1].end if self.pieces else planned.start


class ObjectPieces(PieceLog):
    """The pieces of one range of a plan in an object store. Everything blocks."""

    def __init__(self, objects: Objects, folder: str, planned: PlannedRange) -> None:
        super().__init__(planned)
        self._objects, self._folder = objects, folder
        key = hashlib.sha256(f"{planned.topic}-{planned.partition}".encode()).hexdigest()[:16]
        self._ledger = f"{folder}/{key}-{planned.start:020d}.json"

    def begin(self) -> None:
        """Make the ledger. Only before the plan is stored: one that is removed must never come back."""
        self._objects.put_new(self._ledger, self._body((), closed=False))

    def close(self) -> None:
        """From now on no piece is added."""
        while not (ledger := self._read()).closed:
            if self._objects.swap(self._ledger, self._body(ledger.pieces, closed=True), ledger.version) is not None:
                return

    def pieces(self) -> list[ExportPiece]:
        """What is decided, from the range's beginning on, each piece's files in their places."""
        found = self._read().pieces
        for piece in found:
            self._publish(piece)
        return list(found)

    def stage(self) -> Path:
        """A new file of this machine; it is uploaded when the piece is decided."""
        path = _scratch() / f"{uuid.uuid4()}.partial"
        path.touch(0o600, exist_ok=False)
        return path

    def decide(self, piece: ExportPiece) -> ExportPiece:
        """Make it the next piece, and publish its files; return the one that another worker decided before, if so."""
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
        """Remove what was staged for a piece that is not to be."""
        for file in piece.files:
            (_scratch() / file.staged).unlink(missing_ok=True)

    def _upload(self, file: StagedFile) -> None:
        self._objects.upload(self._staged(file), _scratch() / file.staged, file.staged)

    def _staged(self, file: StagedFile) -> str:
        return f"{self._folder}/{file.staged}"

    # --- the ledger ---

    def _appended(self, piece: ExportPiece) -> ExportPiece:
        """The piece that stands at the beginning of this one: this one, if none does yet."""
        while True:
            ledger = self._read()
            decided = next((each for each in ledger.pieces if each.start == piece.start), None)
            if decided is not None:
                return piece if decided == piece else decided
            if ledger.closed:
                raise ExportError(f"the export that {self._planned} was read for has been ended, here or by another one")
            if ledger.end(self._planned) != piece.start:
                raise ExportError(f"{self._where} is damaged: it does not lead to offset {piece.start}")
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
            text, found = self._objects.read(self._ledger)
        except FileNotFoundError:
            raise ExportError(f"{self._where} is gone: the export that {self._planned} was read for has been ended") from None
        planned = self._planned
        try:
            body = json.loads(text)
            if body["version"] != 1 or body["range"] != [planned.topic, planned.partition, planned.start, planned.end]:
                raise ValueError(f"it is of another range or format ({str(body['range'])[:200]})")
            pieces = tuple(ExportPiece.from_json(each, self._where) for each in body["pieces"])
            closed = bool(body["closed"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ExportError(f"{self._where} is not the ledger of a range: {type(error).__name__}: {error}") from error
        at = planned.start
        for piece in pieces:
            self.check_place(piece, at, self._where)
            at = piece.end
        return _Ledger(pieces, closed, found.version)

    # --- what readers see ---

    def _publish(self, piece: ExportPiece) -> None:
        """Give the files of a decided piece their names, those that have them not yet."""
        together(self._publish_file, piece.files)

    def _publish_file(self, file: StagedFile) -> None:
        if self._stands(file):
            return
        try:
            self._objects.copy(self._staged(file), file.name)
        except FileNotFoundError:
            if not self._stands(file):  # or another worker was quicker
                title = f"{self._objects.title}/{file.name}"
                raise ExportError(f"{title} was written and is gone; the export cannot tell what became of its rows") from None

    def _stands(self, file: StagedFile) -> bool:
        try:
            found = self._objects.look(file.name)
        except FileNotFoundError:
            return False
        if (found.mark, found.size) != (file.staged, file.bytes):
            raise ExportError(
                f"{self._objects.title}/{file.name} is there and was not written by this export; "
                "move it away, the export goes on then"
            )
        return True


def _scratch() -> Path:
    """Where this process writes files before they are uploaded."""
    with _making:
        return _scratch_of(os.getpid())


@lru_cache(maxsize=1)
def _scratch_of(pid: int) -> Path:
    directory = scratch.make()
    scratch.remove_at_exit(directory, lambda: None)
    return directory
