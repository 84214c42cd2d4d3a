"""A snapshot of many partitions that records the thread in which each partition is freed."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from trikafka.interfaces.cluster import ClusterSnapshot, TopicInfo
from trikafka.types import PartitionInfo

MANY = 60_000


class Freed:
    """The numbers of partitions freed in this thread, which is the loop's, and in other threads."""

    def __init__(self) -> None:
        self.loop = threading.get_ident()
        self.here = 0
        self.elsewhere = 0

    def one(self) -> None:
        """Count a partition as freed in the calling thread."""
        if threading.get_ident() == self.loop:
            self.here += 1
        else:
            self.elsewhere += 1


@dataclass(frozen=True)
class Watched(PartitionInfo):
    """A partition that records its destruction."""

    freed: Freed

    def __del__(self) -> None:
        self.freed.one()


def large(version: int, freed: Freed) -> ClusterSnapshot:
    """Return the snapshot. It holds the only references to its partitions."""
    parts = {
        number: Watched("big", number, 0, 0, (0, number), (0, number), freed)
        for number in range(MANY)
    }
    return ClusterSnapshot(version, "c", 0, {}, {"big": TopicInfo("big", 0, None, False, parts)})
