"""A snapshot of many partitions that tells in which thread each of them is freed."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from trikafka.interfaces.cluster import ClusterSnapshot, TopicInfo
from trikafka.types import PartitionInfo

MANY = 60_000


class Freed:
    """How many partitions were freed in this thread, which is the loop's, and how many in others."""

    def __init__(self) -> None:
        self.loop = threading.get_ident()
        self.here = self.elsewhere = 0

    def one(self) -> None:
        """A partition is freed, in the thread that calls."""
        if threading.get_ident() == self.loop:
            self.here += 1
        else:
            self.elsewhere += 1


@dataclass(frozen=True)
class Watched(PartitionInfo):
    """A partition that says when it goes."""

    freed: Freed

    def __del__(self) -> None:
        self.freed.one()


def large(version: int, freed: Freed) -> ClusterSnapshot:
    """The snapshot. Whoever holds it holds all that there is of it."""
    parts = {number: Watched("big", number, 0, 0, (0, number), (0, number), freed) for number in range(MANY)}
    return ClusterSnapshot(version, "c", 0, {}, {"big": TopicInfo("big", 0, None, False, parts)})
