"""The pieces that a planned range is written in, and the log of them: what is decided, and what that makes of the range.

How a piece is decided once, whatever worker is killed or runs twice, is the store's: :mod:`.export_work` for a directory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import ExportError
from ..interfaces import LostRange, PlannedRange, RangeResult, WrittenFile
from .export_plan import file_name

#: What stands for the staged file of one that a run of the first format has put in its place already.
ADOPTED = "none"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of a piece: where it is staged (a name in the work folder), its name below the destination, its size."""

    staged: str
    name: str
    rows: int
    bytes: int
    data: bool = True


@dataclass(frozen=True, slots=True)
class ExportPiece:
    """The part ``start <= offset < end`` of a range, and its files; ``lost`` are gaps (from, to, reason) in it."""

    start: int
    end: int
    files: tuple[StagedFile, ...] = ()
    lost: tuple[tuple[int, int, str], ...] = ()
    dead_letters: int = 0

    def to_json(self) -> dict[str, Any]:
        """The piece as it is kept."""
        return {
            "from": self.start,
            "to": self.end,
            "files": [[f.staged, f.name, f.rows, f.bytes, f.data] for f in self.files],
            "lost": self.lost,
            "dead_letters": self.dead_letters,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any], where: str) -> ExportPiece:
        """Read it. Raises :exc:`ExportError`, naming ``where``, if it leads out of the destination, and what damage raises:
        ValueError, KeyError, TypeError.
        """
        piece = cls(
            start=int(body["from"]),
            end=int(body["to"]),
            files=tuple(StagedFile(str(s), str(n), int(r), int(b), bool(d)) for s, n, r, b, d in body["files"]),
            lost=tuple((int(low), int(high), str(why)) for low, high, why in body["lost"]),
            dead_letters=int(body["dead_letters"]),
        )
        for file in piece.files:
            _check_inside(file.name, where)
            _check_inside(file.staged, where)
        return piece


class PieceLog(ABC):
    """The pieces of one range of a plan, one after the other. Everything blocks."""

    def __init__(self, planned: PlannedRange) -> None:
        self._planned = planned

    @abstractmethod
    def pieces(self) -> list[ExportPiece]:
        """What is decided, from the range's beginning on, each piece's files in their places."""

    @abstractmethod
    def stage(self) -> Path:
        """A new local file to write at; no two workers share one. :meth:`decide` takes it, by its name."""

    @abstractmethod
    def decide(self, piece: ExportPiece) -> ExportPiece:
        """Make it the piece at its beginning, and publish its files; return the one that another worker decided before, if so."""

    @abstractmethod
    def drop(self, piece: ExportPiece) -> None:
        """Remove what was staged for a piece that is not to be."""

    def name_of(self, start: int) -> str:
        """The name of the file of the piece that begins there."""
        planned = self._planned
        return planned.name if start == planned.start else file_name(planned.topic, planned.partition, start, planned.end)

    def check_place(self, piece: ExportPiece, start: int, where: str) -> None:
        """Raise :exc:`ExportError`, naming ``where``, unless the piece begins at ``start`` and ends within the range."""
        if piece.start != start or not start < piece.end <= self._planned.end:
            raise ExportError(f"{where} is damaged: it says [{piece.start}, {piece.end}) of {self._planned}")

    def result(self, error: Exception | None = None) -> RangeResult:
        """What the decided pieces make of the range."""
        planned, pieces = self._planned, self.pieces()
        written, at = [], planned.start
        for piece in pieces:
            at = piece.end
            written += [WrittenFile(planned, f.name, piece.start, piece.end, f.rows, f.bytes) for f in piece.files if f.data]
        lost = tuple(LostRange(planned.topic, planned.partition, *gap) for piece in pieces for gap in piece.lost)
        return RangeResult(planned, at, tuple(written), lost, sum(piece.dead_letters for piece in pieces), error)


def _check_inside(name: str, where: str) -> None:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or any(part in ("..", ".") for part in parts) or "\0" in name:
        raise ExportError(f"{where} is damaged: {name!r} is not the name of a file in the destination")
