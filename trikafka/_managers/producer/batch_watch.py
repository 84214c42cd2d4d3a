"""The events about a producer's batches for observers, and the response times of brokers.

Nothing here runs once a record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import trio

from ..._state.producer.batch_completion import Counters
from ..._state.producer.producer_batch import ProducerBatch
from ...types import BatchEvent, BrokerLatency

#: Called with a point (the name of an observer's method) and what happened.
Watch: TypeAlias = Callable[[str, BatchEvent], object]


class WatchedCounters(Counters):
    """Counters that also report each event to observers."""

    __slots__ = ("_watch",)

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def sent(self, batch: ProducerBatch) -> None:
        """Count a batch that is about to be sent, for the first time or again."""
        Counters.sent(self, batch)
        if batch.attempts:
            self._notify_observers("batch_retried", batch, batch.attempts + 1)
        self._notify_observers("batch_sent", batch, batch.attempts + 1)

    def settled(self, batch: ProducerBatch) -> None:
        """Count a batch whose records have their outcome."""
        Counters.settled(self, batch)
        self._notify_observers(
            "batch_delivered" if batch.error is None else "batch_failed",
            batch,
            batch.attempts,
        )

    def _notify_observers(self, point: str, batch: ProducerBatch, attempt: int) -> None:
        error = batch.error if batch.error is not None else batch.last_error
        age = trio.current_time() - batch.created
        self._watch(
            point,
            BatchEvent(batch.topic, batch.partition, batch.count, batch.size, attempt, age, error),
        )


class Latency:
    """The response times of one broker, and the waits that its quotas caused, in seconds."""

    __slots__ = ("_count", "_last", "_longest", "_sum", "_throttled")

    def __init__(self) -> None:
        self._count = 0
        self._sum = self._last = self._longest = self._throttled = 0.0

    def took(self, seconds: float, throttled: float) -> None:
        """Record a response after ``seconds``, of which ``throttled`` were a quota's."""
        seconds = max(0.0, seconds - throttled)
        self._throttled += throttled
        self._count += 1
        self._sum += seconds
        self._last = seconds
        self._longest = max(self._longest, seconds)

    def told(self) -> BrokerLatency | None:
        """Return the figures so far; ``None`` before the first response."""
        if not self._count:
            return None
        return BrokerLatency(
            self._last, self._sum / self._count, self._longest, self._count, self._throttled
        )
