"""The acks that a producer hands out: one a record, made by the native code beside the record itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import trio

from .._managers.outcomes import waiters_of
from .._state.producer_batch import ProducerBatch
from .._wire import _implementation
from ..types import RecordMetadata, TopicPartition
from .waiting import fairness

if TYPE_CHECKING:
    from .._wire._fallback_producing import DeliveryHandle as _DeliveryHandle
else:
    _DeliveryHandle = _implementation.current.DeliveryHandle


class Ack(_DeliveryHandle):
    """The promise of one record's outcome. An ack that nobody waits for costs nothing; a failure is then logged."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<trikafka.Ack {self.partition} {'done' if self.done else 'waiting'}>"

    @property
    def partition(self) -> TopicPartition:
        """The partition that the record goes to."""
        place: TopicPartition = self._batch.place
        return place

    @property
    def done(self) -> bool:
        """Whether the outcome is known; then :meth:`wait` does not block."""
        settled: bool = self._batch.part(self._index)[0].settled
        return settled

    async def wait(self) -> RecordMetadata:
        """Wait until the record is delivered; return where it is. Any number of tasks may wait, any number of times.

        Raises :exc:`DeliveryTimeoutError` past ``delivery_timeout_ms`` (the record may or may not be in the log), or why the
        broker did not take it; of that, :exc:`OutOfOrderSequenceError` also means that it may or may not be in the log.
        Cancellation: the record stays on its way.
        """
        batch: ProducerBatch = self._batch
        index = self._index
        if batch.outcome.parts:
            batch, index = batch.part(index)
        if not batch.settled:
            task = trio.lowlevel.current_task()
            while not batch.settled:
                waiters: Any = batch.outcome.signal or waiters_of(batch)
                waiters.add(task)
                await trio.lowlevel.wait_task_rescheduled(waiters)
                if batch.outcome.parts:
                    batch, index = batch.part(index)
        elif time.perf_counter() >= fairness.due:
            await fairness.take()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        return batch.metadata(index, self._timestamp)
