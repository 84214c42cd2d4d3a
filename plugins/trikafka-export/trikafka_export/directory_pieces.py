"""The files of one planned range, written by workers that may be killed or run twice."""

# How a row is never in two files
# -------------------------------
#
# A range is written in *pieces*, one after the other, each a few whole files. A worker stages the
# files of a piece in the plan's work folder. Then it decides the piece by a *record*: a small file
# that says where the piece ends, and which staged file becomes which data file. The record's name
# is the piece's beginning. The record is created by a link, which never replaces a file. So of two
# workers at the same piece one decides, and the other drops its files and goes on behind that
# piece. After that the staged files are linked to their final names, by the worker that decided or
# by the next one that reads the record. A reader that globs never sees a file that is not whole.
#
# The order of syncs: The staged files and their folder are synced before the record that names
# them. Otherwise a record could outlive its files in a power loss. The folders of the published
# files are synced before the manifest.
#
# When a plan ends, its work folder is renamed. A worker may outlive the plan, if its job was
# cancelled. It can then neither decide nor publish anything, because all of its paths are gone.

from __future__ import annotations

import hashlib
import json
import os
import uuid
from pathlib import Path

from trikafka import ExportError
from trikafka.interfaces import PlannedRange

from . import durable_files as files
from .piece_log import ADOPTED, ExportPiece, PieceLog

OURS = "_trikafka"


def work_folder(root: Path, number: int) -> Path:
    """Return the work folder of the plan with that number."""
    return root / OURS / "work" / f"{number:06d}"


class RangeWork(PieceLog):
    """The pieces of one range of a plan in a directory. Every method blocks."""

    def __init__(
        self, root: Path, number: int, planned: PlannedRange, *, folder: Path | None = None
    ) -> None:
        super().__init__(planned)
        self._root = root
        self._folder = folder or work_folder(root, number)
        self._key = hashlib.sha256(f"{planned.topic}-{planned.partition}".encode()).hexdigest()[:16]

    def pieces(self) -> list[ExportPiece]:
        """Return the decided pieces from the range's beginning on; publish their files."""
        found: list[ExportPiece] = []
        at = self._planned.start
        while at < self._planned.end and (piece := self._decided(at)) is not None:
            self._publish(piece)
            found.append(piece)
            at = piece.end
        return found

    def stage(self) -> Path:
        """Return a new file to write to, on the destination's file system.

        No two workers share one.
        """
        path = self._folder / f"{uuid.uuid4()}.partial"
        files.new_file(path)
        return path

    def decide(self, piece: ExportPiece) -> ExportPiece:
        """Decide the piece and publish its files.

        Returns:
            The decided piece. If another worker was first, this is that worker's piece.

        Raises:
            ExportError: Another program has removed or damaged files of the export.
        """
        path = self._record(piece.start)
        try:
            self._sync(piece)
            first = files.write_once(path, json.dumps(piece.to_json()))
        except OSError:
            if not os.path.lexists(path):  # For example, the disk is full: make room again.
                self.drop(piece)
            raise
        if not first:
            self.drop(piece)
            other = self._decided(piece.start)
            if other is None:
                raise ExportError(
                    f"{path} has disappeared: another program removes files from this export's "
                    "work folder"
                )
            piece = other
        self._publish(piece)
        return piece

    def drop(self, piece: ExportPiece) -> None:
        """Remove the staged files of a piece that was not decided."""
        for file in piece.files:
            (self._folder / file.staged).unlink(missing_ok=True)

    def _sync(self, piece: ExportPiece) -> None:
        """Sync the staged files, then their folder, before the record that names them."""
        for file in piece.files:
            if file.staged != ADOPTED:
                files.sync(self._folder / file.staged)
        files.sync(self._folder)

    def _record(self, start: int) -> Path:
        return self._folder / f"{self._key}-{start:020d}.json"

    def _decided(self, start: int) -> ExportPiece | None:
        path = self._record(start)
        try:
            piece = ExportPiece.from_json(json.loads(files.read_file(path)), str(path))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ExportError(
                f"{path} is not the record of a piece: {type(error).__name__}: {error}"
            ) from error
        self.check_place(piece, start, str(path))
        return piece

    def _publish(self, piece: ExportPiece) -> None:
        """Move the files of a decided piece to their names, durably, unless that is done."""
        folders: set[Path] = set()
        for file in piece.files:
            final = self._root / file.name
            staged = self._folder / file.staged
            # Sync the folders even of a file that is published already: the worker that published
            # it may have been killed before its sync.
            folders |= {self._root / parent for parent in Path(file.name).parents[:-1]} or {
                self._root
            }
            self._make_folders(file.name)
            try:
                files.move_once(staged, final)
            except FileNotFoundError:
                if not os.path.lexists(final):  # otherwise another worker was quicker
                    self._gone(final)
        for folder in folders:
            files.sync(folder)

    def _gone(self, final: Path) -> None:
        raise ExportError(
            f"{final} was written and is gone; its rows may be lost: restore the file (if it "
            "belongs to a table, --abandon also ends its plan)"
        ) from None

    def _make_folders(self, name: str) -> None:
        folder = self._root
        for part in Path(name).parts[:-1]:
            folder /= part
            files.make_own_folder(folder)
