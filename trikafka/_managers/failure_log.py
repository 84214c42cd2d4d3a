"""Says in the log which records failed of which nobody waits for the outcome: one line a topic, and at most one a second."""

from __future__ import annotations

import logging

import trio

from .._state.producer_batch import ProducerBatch

#: The time between two lines of a topic, in seconds.
_PAUSE = 1.0
_log = logging.getLogger("trikafka.produce")


class _Failures:
    """Of one topic, since the last line."""

    __slots__ = ("batches", "error", "partitions", "records")

    def __init__(self) -> None:
        self.records = self.batches = 0
        self.partitions: set[int] = set()
        self.error: Exception | None = None

    def add(self, batch: ProducerBatch) -> None:
        """One more."""
        self.records += batch.count
        self.batches += 1
        self.partitions.add(batch.partition)
        self.error = self.error or batch.outcome.error


class FailureLog:
    """Owned by the produce manager."""

    def __init__(self) -> None:
        self._topics: dict[str, _Failures] = {}
        self._some = trio.Event()
        self._held = False

    def failed(self, batch: ProducerBatch) -> None:
        """A batch failed."""
        if not batch.outcome.claimed:
            self._topics.setdefault(batch.topic, _Failures()).add(batch)
            if not self._held:
                self._some.set()

    def hold(self) -> None:
        """Say nothing by itself from now on: the producer ends, and all that fails now is told in one."""
        self._held = True

    def tell(self) -> None:
        """Write a line for each topic, if there is something to say."""
        topics, self._topics = self._topics, {}
        for topic, failures in topics.items():
            where = ", ".join(map(str, sorted(failures.partitions)[:10])) + (", ..." if len(failures.partitions) > 10 else "")
            what = f"{failures.records} records for {topic}-{where}"
            if failures.batches > 1:
                what = f"{failures.records} records in {failures.batches} batches for topic {topic} (partitions {where})"
            _log.warning("%s were not delivered: %s", what, failures.error)

    async def run(self) -> None:
        """Tell what there is, and no more for a while, until cancelled."""
        while True:
            await self._some.wait()
            self._some = trio.Event()
            if not self._held:
                self.tell()
            await trio.sleep(_PAUSE)
