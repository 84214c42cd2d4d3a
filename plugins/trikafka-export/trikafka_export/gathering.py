"""The records that an exporter leaves to a later round, so that files are not too small.

No I/O, and no clock of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from trikafka import TopicPartition
from trikafka.interfaces import RangeResult


class Gathering:
    """The wait of each partition's records for a file of enough records and bytes.

    A file is large enough with ``least`` records and ``least_bytes``. Records that have waited for
    ``patience`` seconds are exported, even if they are few.

    The size of a file is known only after it is written, because columns are packed. It is
    estimated from the bytes per record of the topic in the last files that had some. Until a topic
    has such a file, none of its records wait for bytes.
    """

    def __init__(
        self, least: int = 1, most: int = 1, patience: float = 0.0, least_bytes: int = 1
    ) -> None:
        self._least = least
        self._most = most
        self._patience = patience
        self._least_bytes = least_bytes
        #: The bytes of one offset in the files that were published last, by topic.
        self._sizes: dict[str, float] = {}
        #: The first offset that waits, and since when, by partition. A run that fails changes
        #: neither.
        self._since: dict[TopicPartition, tuple[int, float]] = {}
        #: The number of waiting records, by partition, in the last round that looked.
        self._left: dict[TopicPartition, int] = {}

    @property
    def left(self) -> int:
        """The number of records that wait; in compacted topics there are fewer."""
        return sum(self._left.values())

    def forget_others(self, tps: Collection[TopicPartition]) -> None:
        """Forget the waiting records of all but these partitions: those cannot be exported now."""
        self._left = {tp: count for tp, count in self._left.items() if tp in tps}

    def ends(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], now: float
    ) -> dict[TopicPartition, int]:
        """Return the end of this round in each partition: the log's end, or before waiting records.

        A range is cut into files of ``most`` records, so only the rest can make a file that is too
        small.
        """
        return {tp: self._end(tp, start, ends[tp], now) for tp, start in starts.items()}

    def _end(self, tp: TopicPartition, start: int, end: int, now: float) -> int:
        rest = (end - start) % self._most
        first = end - rest
        self._left.pop(tp, None)
        if not 0 < rest < self._enough(tp.topic):
            return end
        if self._since.get(tp, (-1, now))[0] != first:
            self._since[tp] = (first, now)
        if now - self._since[tp][1] >= self._patience:
            return end
        self._left[tp] = rest
        return first

    def _enough(self, topic: str) -> int:
        """Return the number of records that a file should have.

        It is at most ``most``, even if a file of so many records is still small.
        """
        size = self._sizes.get(topic)
        wanted = 1 if size is None else math.ceil(self._least_bytes / size)
        return max(self._least, min(wanted, self._most))

    def learn(self, results: Iterable[RangeResult]) -> None:
        """Update the estimated size of a record from the files that were written.

        A large part of a small file is no records, so the estimate is too high after one. The next
        file is larger, though still too small. After a few files the estimate is right.
        """
        offsets: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for result in results:
            topic = result.planned.topic
            written = sum(file.bytes for file in result.files)
            if written:
                offsets[topic] = offsets.get(topic, 0) + result.reached - result.planned.start
                sizes[topic] = sizes.get(topic, 0) + written
        self._sizes |= {topic: size / offsets[topic] for topic, size in sizes.items()}
