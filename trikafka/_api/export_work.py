"""How the files of one planned range come to stand in the destination, by workers that may be killed or run twice.

A range is written in *pieces*, one after the other, each a few whole files. A worker stages the files of a piece in the plan's
work folder, then decides the piece by a *record*: a small file that says where the piece ends and which staged file becomes
which data file. Its name is the piece's beginning, and it is linked, which never replaces, so of two workers at one piece one
decides, and the other goes on from there. Then the staged files are linked to their names, by the worker that decided, or by
whoever comes next. So a row is never in two files, and a reader that globs never sees a file that is not whole.

When a plan ends, its work folder is renamed: a worker that has outlived it cannot decide or publish anything any more.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from pathlib import Path

from ..errors import ExportError
from ..interfaces import PlannedRange
from . import export_files as files
from .export_pieces import ADOPTED, ExportPiece, PieceLog

OURS = "_trikafka"


def work_folder(root: Path, number: int) -> Path:
    """Where the plan of that number is worked on."""
    return root / OURS / "work" / f"{number:06d}"


class RangeWork(PieceLog):
    """The pieces of one range of a plan in a directory. Everything blocks."""

    def __init__(self, root: Path, number: int, planned: PlannedRange, *, folder: Path | None = None) -> None:
        super().__init__(planned)
        self._root = root
        self._folder = folder or work_folder(root, number)
        self._key = hashlib.sha256(f"{planned.topic}-{planned.partition}".encode()).hexdigest()[:16]

    def pieces(self) -> list[ExportPiece]:
        """What is decided, from the range's beginning on, each piece's files in their places."""
        found: list[ExportPiece] = []
        at = self._planned.start
        while at < self._planned.end and (piece := self._decided(at)) is not None:
            self._publish(piece)
            found.append(piece)
            at = piece.end
        return found

    def stage(self) -> Path:
        """A new file to write at, on the file system of the destination; no two workers share one."""
        path = self._folder / f"{uuid.uuid4()}.partial"
        files.new_file(path)
        return path

    def decide(self, piece: ExportPiece) -> ExportPiece:
        """Make it the piece at its beginning, and publish its files; return the one that another worker decided before, if so."""
        path = self._record(piece.start)
        try:
            self._sync(piece)
            first = files.write_once(path, json.dumps(piece.to_json()))
        except OSError:
            if not os.path.lexists(path):  # such as for a full disk, which is to have room again
                self.drop(piece)
            raise
        if not first:
            self.drop(piece)
            other = self._decided(piece.start)
            if other is None:
                raise ExportError(f"{path} was there and is gone: somebody else clears this export's work folder")
            piece = other
        self._publish(piece)
        return piece

    def drop(self, piece: ExportPiece) -> None:
        """Remove what was staged for a piece that is not to be."""
        for file in piece.files:
            (self._folder / file.staged).unlink(missing_ok=True)

    def _sync(self, piece: ExportPiece) -> None:
        """Staged files, then their folder, before the record that names them."""
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
            raise ExportError(f"{path} is not the record of a piece: {type(error).__name__}: {error}") from error
        self.check_place(piece, start, str(path))
        return piece

    def _publish(self, piece: ExportPiece) -> None:
        """Give the files of a decided piece their names, those that have them not yet; durably."""
        folders: set[Path] = set()
        for file in piece.files:
            final, staged = self._root / file.name, self._folder / file.staged
            # Also where it is published already: who did that may have been killed before these were synced.
            folders |= {self._root / parent for parent in Path(file.name).parents[:-1]} or {self._root}
            self._make_folders(file.name)
            try:
                files.move_once(staged, final)
            except FileNotFoundError:
                if not os.path.lexists(final):  # or another worker was quicker
                    self._gone(final)
        for folder in folders:
            files.sync(folder)

    def _gone(self, final: Path) -> None:
        raise ExportError(
            f"{final} was written and is gone; the export cannot tell what became of its rows: put it back"
            " (where it is of a table, --abandon gives its plan up, too)"
        ) from None

    def _make_folders(self, name: str) -> None:
        folder = self._root
        for part in Path(name).parts[:-1]:
            folder /= part
            files.make_own_folder(folder)
