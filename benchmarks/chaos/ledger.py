"""The records that were written, and the outcomes that the producer reported: one byte per record.

The writers write it and the check reads it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum

#: The offset of a record that was delivered without one (a duplicate), or not delivered.
NO_OFFSET = -1


class Fate(IntEnum):
    """The outcome that the producer reported for a record.

    ``MAYBE``: the record failed and may be in the log. ``NEVER``: it failed and is not there.
    """

    PENDING = 0
    ACKED = 1
    MAYBE = 2
    NEVER = 3


class Track:
    """The records of one writer in one partition, numbered from 0 in the order of the calls."""

    __slots__ = ("fates", "offsets", "partition", "writer")

    def __init__(self, writer: str, partition: int) -> None:
        self.writer = writer
        self.partition = partition
        self.fates = bytearray()
        self.offsets = array("q")

    def __repr__(self) -> str:
        return f"{self.writer} in partition {self.partition}"

    def begin(self) -> int:
        """Add a record and return its number."""
        self.fates.append(Fate.PENDING)
        self.offsets.append(NO_OFFSET)
        return len(self.fates) - 1

    def value(self, number: int, size: int) -> bytes:
        """Return the value of a record: its writer, partition and number, filled up to ``size``."""
        return b"%s %d %d " % (self.writer.encode(), self.partition, number) + b"." * (size - 20)

    def settle(self, number: int, fate: Fate, offset: int | None = None) -> None:
        """Record the outcome of a record."""
        self.fates[number] = fate
        self.offsets[number] = NO_OFFSET if offset is None else offset


@dataclass(frozen=True, slots=True)
class Table:
    """A table of which some rows were not delivered.

    ``delivered`` and ``unknown`` are the numbers in its error.
    """

    rows: tuple[tuple[Track, int], ...]
    delivered: int
    unknown: int


@dataclass
class Ledger:
    """All tracks, by writer and partition, the partly failed tables, and the errors."""

    partitions: int
    tracks: dict[tuple[str, int], Track] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    #: Errors of records by type; ``unexpected`` ones, by writer, are violations.
    errors: Counter[str] = field(default_factory=Counter)
    unexpected: Counter[str] = field(default_factory=Counter)

    def track(self, writer: str, partition: int) -> Track:
        """Return the track of a writer in a partition, created at its first use."""
        key = (writer, partition)
        if key not in self.tracks:
            self.tracks[key] = Track(writer, partition)
        return self.tracks[key]

    def count(self) -> tuple[int, int]:
        """Return the numbers of records that were written and of those reported as delivered."""
        written = sum(len(track.fates) for track in self.tracks.values())
        acked = sum(track.fates.count(Fate.ACKED) for track in self.tracks.values())
        return written, acked + sum(table.delivered for table in self.tables)
