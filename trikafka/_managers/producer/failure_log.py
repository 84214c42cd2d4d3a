"""The log of failed records whose outcome no task waits for.

One line a topic, and at most one a second.
"""

from __future__ import annotations

import logging

import trio

from ..._state.producer.producer_batch import ProducerBatch

#: The time between two lines of a topic, in seconds.
_PAUSE = 1.0
_log = logging.getLogger("trikafka.produce")


class _TopicFailures:
    """The failures of one topic since its last line."""

    __slots__ = ("batches", "error", "partitions", "records")

    def __init__(self) -> None:
        self.records = self.batches = 0
        self.partitions: set[int] = set()
        self.error: Exception | None = None

    def add(self, batch: ProducerBatch) -> None:
        self.records += batch.count
        self.batches += 1
        self.partitions.add(batch.partition)
        self.error = self.error or batch.error


class FailureLog:
    """The failures that have not been logged yet. The produce manager owns it."""

    def __init__(self) -> None:
        self._topics: dict[str, _TopicFailures] = {}
        self._some = trio.Event()
        self._held = False

    def failed(self, batch: ProducerBatch) -> None:
        """Record a failed batch, unless its outcome was claimed."""
        if not batch.claimed:
            self._topics.setdefault(batch.topic, _TopicFailures()).add(batch)
            if not self._held:
                self._some.set()

    def hold(self) -> None:
        """Log nothing until :meth:`log_now`: the producer ends, and all failures go into one line."""
        self._held = True

    def log_now(self) -> None:
        """Write a line for each topic with failures."""
        topics = self._topics
        self._topics = {}
        for topic, failures in topics.items():
            where = ", ".join(map(str, sorted(failures.partitions)[:10])) + (
                ", ..." if len(failures.partitions) > 10 else ""
            )
            what = f"{failures.records} records for {topic}-{where}"
            if failures.batches > 1:
                what = (
                    f"{failures.records} records in {failures.batches} batches for topic {topic} "
                    f"(partitions {where})"
                )
            _log.warning("%s were not delivered: %s", what, failures.error)

    async def write_lines(self) -> None:
        """Write the lines, at most once a second, until cancelled."""
        while True:
            await self._some.wait()
            self._some = trio.Event()
            if not self._held:
                self.log_now()
            await trio.sleep(_PAUSE)
