"""What observers are told of a producer's batches, and how long brokers took. Nothing here runs a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import trio

from .._state.outcomes import Counters
from .._state.producer_batch import ProducerBatch
from ..types import BatchEvent, BrokerLatency

#: Told of a point (the name of an observer's method) and what happened.
Watch: TypeAlias = Callable[[str, BatchEvent], object]


class WatchedCounters(Counters):
    """Counts, and tells somebody of what is counted."""

    __slots__ = ("_watch",)

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def sent(self, batch: ProducerBatch) -> None:
        """A batch is about to be sent, for the first time or again."""
        Counters.sent(self, batch)
        if batch.delivery.attempts:
            self._tell("batch_retried", batch, batch.delivery.attempts + 1)
        self._tell("batch_sent", batch, batch.delivery.attempts + 1)

    def settled(self, batch: ProducerBatch) -> None:
        """The records of a batch have their outcome."""
        Counters.settled(self, batch)
        self._tell("batch_delivered" if batch.outcome.error is None else "batch_failed", batch, batch.delivery.attempts)

    def _tell(self, point: str, batch: ProducerBatch, attempt: int) -> None:
        error = batch.outcome.error if batch.outcome.error is not None else batch.delivery.last_error
        age = trio.current_time() - batch.created
        self._watch(point, BatchEvent(batch.topic, batch.partition, batch.count, batch.size, attempt, age, error))


class Latency:
    """How long one broker took to respond, and how long its quotas had requests wait, in seconds."""

    __slots__ = ("_count", "_last", "_longest", "_sum", "_throttled")

    def __init__(self) -> None:
        self._count = 0
        self._sum = self._last = self._longest = self._throttled = 0.0

    def took(self, seconds: float, throttled: float) -> None:
        """It has responded to a request after so many seconds, of which these were a quota's."""
        seconds = max(0.0, seconds - throttled)
        self._throttled += throttled
        self._count += 1
        self._sum += seconds
        self._last, self._longest = seconds, max(self._longest, seconds)

    def told(self) -> BrokerLatency | None:
        """What is known; ``None`` before the first response."""
        if not self._count:
            return None
        return BrokerLatency(self._last, self._sum / self._count, self._longest, self._count, self._throttled)
