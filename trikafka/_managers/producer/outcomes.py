"""The reports of batches' outcomes: to waiting tasks, to observers, and to the log.

Nothing here runs once a record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

import trio

from ..._net.signal import Signal
from ..._state.producer.batch_completion import BatchReports
from ..._state.producer.producer_batch import ProducerBatch
from ..._state.seconds import seconds_hint
from ...errors.counts import counted
from ...types import BatchEvent

#: Called with a point (the name of an observer's method) and what happened.
Watch: TypeAlias = Callable[[str, BatchEvent], object]
#: The time between two lines of a topic, in seconds.
_PAUSE = 1.0
_log = logging.getLogger("trikafka.produce")


async def settled(batch: ProducerBatch) -> None:
    """Wait until the batch, or every part that it was split into, has its outcome."""
    while not batch.settled:
        if not batch.parts:
            await batch.signal_for(Signal).wait()
        for part in batch.parts:
            await settled(part)
        if batch.parts:
            return


class _TopicFailures:
    """The failures of one topic since its last line."""

    __slots__ = ("batches", "error", "partitions", "records")

    def __init__(self) -> None:
        self.records = 0
        self.batches = 0
        self.partitions: set[int] = set()
        self.error: Exception | None = None

    def add(self, batch: ProducerBatch) -> None:
        self.records += batch.count
        self.batches += 1
        self.partitions.add(batch.partition)
        self.error = self.error or batch.error


class FailureLog:
    """The log of failed records whose outcome no task waits for. The produce manager owns it.

    One line a topic, and at most one a second.
    """

    def __init__(self) -> None:
        self._topics: dict[str, _TopicFailures] = {}
        self._some = trio.Event()
        self._held = False

    def failed(self, batch: ProducerBatch) -> None:
        """Record a failed batch, unless tasks observe the outcome and none of them was cancelled."""
        if not batch.claimed or batch.abandoned:
            self._topics.setdefault(batch.topic, _TopicFailures()).add(batch)
            if not self._held:
                self._some.set()

    def hold(self) -> None:
        """Collect failures until :meth:`log_now`: a producer that ends logs them in one line."""
        self._held = True

    def log_now(self) -> None:
        """Write a line for each topic with failures."""
        topics = self._topics
        self._topics = {}
        for topic, failures in topics.items():
            where = ", ".join(map(str, sorted(failures.partitions)[:10])) + (
                ", ..." if len(failures.partitions) > 10 else ""
            )
            what = f"{counted(failures.records, 'record')} for {topic}-{where}"
            if failures.batches > 1:
                what = (
                    f"{failures.records} records in {failures.batches} batches for topic {topic} "
                    f"(partitions {where})"
                )
            verb = "was" if failures.records == 1 else "were"
            _log.warning("%s %s not delivered: %s", what, verb, failures.error)

    async def write_lines(self) -> None:
        """Write the lines, at most once a second, until cancelled."""
        while True:
            await self._some.wait()
            self._some = trio.Event()
            if not self._held:
                self.log_now()
            await trio.sleep(_PAUSE)


class Reports(BatchReports):
    """The reports of a producer's batches, to observers and to the log.

    Args:
        watch: Called for the observers; ``None`` without observers.
        failures: The log of failed records; ``None``: they are reported otherwise.
    """

    def __init__(self, watch: Watch | None, failures: FailureLog | None) -> None:
        self._watch = watch
        self._failures = failures
        # The topics of a warning about timestamps.
        self._warned: set[str] = set()

    # Once a batch, since a look at each record would slow the fast path down. A program that gives
    # seconds gives them for all records, so the latest time of the batch shows it.
    def closed(self, batch: ProducerBatch) -> None:
        """Log, once for each topic, that timestamps of its records are probably in seconds."""
        if batch.encoder is None or batch.topic in self._warned:
            return
        if (hint := seconds_hint(batch.encoder.max_timestamp)) is not None:
            self._warned.add(batch.topic)
            _log.warning(
                "timestamps of records for topic %s were probably given in seconds, so retention "
                "may delete these records at once: %s",
                batch.topic,
                hint,
            )

    def sent(self, batch: ProducerBatch) -> None:
        """Report a batch that is about to be sent, for the first time or again."""
        if self._watch is not None:
            if batch.attempts:
                self._watch("batch_retried", _event(batch, batch.attempts + 1))
            self._watch("batch_sent", _event(batch, batch.attempts + 1))

    def settled(self, batch: ProducerBatch) -> None:
        """Report a batch whose records have their outcome."""
        if batch.error is not None and self._failures is not None:
            self._failures.failed(batch)
        if self._watch is not None:
            point = "batch_delivered" if batch.error is None else "batch_failed"
            self._watch(point, _event(batch, batch.attempts))


def _event(batch: ProducerBatch, attempt: int) -> BatchEvent:
    error = batch.error if batch.error is not None else batch.last_error
    age = trio.current_time() - batch.created
    return BatchEvent(batch.topic, batch.partition, batch.count, batch.size, attempt, age, error)
