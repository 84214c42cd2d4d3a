"""The pieces in which a planned range is written, and the log of the decided ones.

The store decides each piece just once, even if workers are killed or run twice. For a directory,
:mod:`.directory_pieces` does that.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trikafka import ExportError
from trikafka.interfaces import LostRange, PlannedRange, RangeResult, WrittenFile

from .plan import file_name, suffix_of

#: Stands for a staged file that a run of the first format has already published.
ADOPTED = "none"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of a piece.

    Attributes:
        staged: Its name in the work folder.
        name: Its name below the destination.
        rows: The number of rows.
        bytes: The size.
        data: False for a file that is not data, such as dead letters.
        crc32c: The checksum, in hexadecimal digits.
    """

    staged: str
    name: str
    rows: int
    bytes: int
    data: bool = True
    crc32c: str | None = None


@dataclass(frozen=True, slots=True)
class ExportPiece:
    """The part ``start <= offset < end`` of a range, with its files.

    Attributes:
        start: The first offset.
        end: The offset after the last.
        files: The files of the piece.
        lost: Gaps: from, to, reason.
        dead_letters: The number of records that could not be parsed.
    """

    start: int
    end: int
    files: tuple[StagedFile, ...] = ()
    lost: tuple[tuple[int, int, str], ...] = ()
    dead_letters: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the piece as its record holds it."""
        return {
            "from": self.start,
            "to": self.end,
            "files": [[f.staged, f.name, f.rows, f.bytes, f.data] for f in self.files],
            "crc32c": {f.staged: f.crc32c for f in self.files if f.crc32c is not None},
            "lost": self.lost,
            "dead_letters": self.dead_letters,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any], where: str) -> ExportPiece:
        """Read a piece from its record.

        Args:
            body: The parsed record.
            where: The record's name, for errors.

        Raises:
            ExportError: The name of a file leads out of the destination.
            ValueError: The record is damaged.
            KeyError: The record is damaged.
            TypeError: The record is damaged.
        """
        try:
            piece = cls._parsed(body)
        except (AttributeError, OverflowError) as error:
            raise ValueError(str(error)) from error
        for file in piece.files:
            check_inside(file.name, where)
            check_inside(file.staged, where)
        return piece

    @classmethod
    def _parsed(cls, body: Mapping[str, Any]) -> ExportPiece:
        sums = body.get("crc32c", {})  # a work folder of an older release has none
        return cls(
            start=int(body["from"]),
            end=int(body["to"]),
            files=tuple(
                StagedFile(str(s), str(n), int(r), int(b), bool(d), checked_sum(sums.get(s)))
                for s, n, r, b, d in body["files"]
            ),
            lost=tuple((int(low), int(high), str(why)) for low, high, why in body["lost"]),
            dead_letters=int(body["dead_letters"]),
        )


class PieceLog(ABC):
    """The pieces of one range of a plan, in order. Every method blocks."""

    def __init__(self, planned: PlannedRange) -> None:
        self._planned = planned

    @abstractmethod
    def pieces(self) -> list[ExportPiece]:
        """Return the decided pieces from the range's beginning on; their files are published."""

    @abstractmethod
    def stage(self) -> Path:
        """Return a new local file to write to; no two workers share one.

        :meth:`decide` takes the file by its name.
        """

    @abstractmethod
    def decide(self, piece: ExportPiece) -> ExportPiece:
        """Decide the piece and publish its files.

        Returns the decided piece, which is another worker's if that worker was first.

        Args:
            piece: A piece whose files are staged.
        """

    @abstractmethod
    def drop(self, piece: ExportPiece) -> None:
        """Remove the staged files of a piece that was not decided.

        Args:
            piece: A piece whose files are staged.
        """

    def name_of(self, start: int) -> str:
        """Return the name of the file of the piece at ``start``.

        Args:
            start: The first offset of the piece.
        """
        planned = self._planned
        return (
            planned.name
            if start == planned.start
            else file_name(
                planned.topic, planned.partition, start, planned.end, suffix_of(planned.name)
            )
        )

    def check_place(self, piece: ExportPiece, start: int, where: str) -> None:
        """Raise :exc:`ExportError` unless the piece begins at ``start`` and ends in the range.

        Args:
            piece: A decided piece.
            start: The offset at which it must begin.
            where: The record's name, for the error.
        """
        if piece.start != start or not start < piece.end <= self._planned.end:
            raise ExportError(
                f"{where} is damaged: its offsets are [{piece.start}, {piece.end}), not from "
                f"{start} within {self._planned}"
            )

    def result(self, error: Exception | None = None) -> RangeResult:
        """Return the range's result by its decided pieces.

        Args:
            error: Why the range is not done, if it is not.
        """
        planned = self._planned
        pieces = self.pieces()
        written: list[WrittenFile] = []
        letters: list[WrittenFile] = []
        at = planned.start
        for piece in pieces:
            at = piece.end
            for f in piece.files:
                file = WrittenFile(
                    planned, f.name, piece.start, piece.end, f.rows, f.bytes, crc32c=f.crc32c
                )
                (written if f.data else letters).append(file)
        lost = tuple(
            LostRange(planned.topic, planned.partition, *gap)
            for piece in pieces
            for gap in piece.lost
        )
        dead = sum(piece.dead_letters for piece in pieces)
        return RangeResult(planned, at, tuple(written), lost, dead, error, tuple(letters))


def checked_sum(value: Any) -> str | None:
    """Return a file's stored checksum, if it has one. Raises ValueError for other values."""
    if value is not None and not (isinstance(value, str) and re.fullmatch("[0-9a-f]{8}", value)):
        raise ValueError(f"crc32c is {value!r}")
    return value


def check_inside(name: str, where: str) -> None:
    """Raise :exc:`ExportError`, which names ``where``, if a name leads out of the destination."""
    parts = PurePosixPath(name).parts
    if (
        not parts
        or name.startswith("/")
        or any(part in ("..", ".") for part in parts)
        or "\0" in name
    ):
        raise ExportError(
            f"{where} is damaged: {name!r} is not the name of a file in the destination"
        )
