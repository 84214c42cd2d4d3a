"""What was written, and what the producer said became of it: one byte a record. Written by the writers, read by the check."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum

#: What stands in for the offset of a record that was delivered without one (a duplicate), or not delivered.
NO_OFFSET = -1


class Fate(IntEnum):
    """What the producer said of a record. ``MAYBE``: it failed and may be in the log. ``NEVER``: it failed and is not there."""

    PENDING = 0
    ACKED = 1
    MAYBE = 2
    NEVER = 3


class Track:
    """The records of one writer in one partition, numbered from 0 in the order in which they were handed over."""

    __slots__ = ("fates", "offsets", "partition", "writer")

    def __init__(self, writer: str, partition: int) -> None:
        self.writer, self.partition = writer, partition
        self.fates = bytearray()
        self.offsets = array("q")

    def __repr__(self) -> str:
        return f"{self.writer} in partition {self.partition}"

    def begin(self) -> int:
        """The number of the next record."""
        self.fates.append(Fate.PENDING)
        self.offsets.append(NO_OFFSET)
        return len(self.fates) - 1

    def value(self, number: int, size: int) -> bytes:
        """What is written as the record: who it is, filled up."""
        return b"%s %d %d " % (self.writer.encode(), self.partition, number) + b"." * (size - 20)

    def settle(self, number: int, fate: Fate, offset: int | None = None) -> None:
        """Note what became of a record."""
        self.fates[number] = fate
        self.offsets[number] = NO_OFFSET if offset is None else offset


@dataclass(frozen=True, slots=True)
class Table:
    """A table not all of whose rows were delivered: which rows these were, and how many of them the error called what."""

    rows: tuple[tuple[Track, int], ...]
    delivered: int
    unknown: int


@dataclass
class Ledger:
    """All tracks, by writer and partition, and what else is to be counted."""

    partitions: int
    tracks: dict[tuple[str, int], Track] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    #: Errors of records by type and message; those that should not be, by writer, are violations.
    errors: Counter[str] = field(default_factory=Counter)
    unexpected: Counter[str] = field(default_factory=Counter)

    def track(self, writer: str, partition: int) -> Track:
        """The track of a writer in a partition; made at its first use."""
        key = (writer, partition)
        if key not in self.tracks:
            self.tracks[key] = Track(writer, partition)
        return self.tracks[key]

    def count(self) -> tuple[int, int]:
        """How many records were handed over, and how many of them the producer called delivered."""
        written = sum(len(track.fates) for track in self.tracks.values())
        acked = sum(track.fates.count(Fate.ACKED) for track in self.tracks.values())
        return written, acked + sum(table.delivered for table in self.tables)
