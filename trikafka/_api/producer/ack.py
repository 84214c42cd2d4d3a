"""The acks of a producer: one for each record, made by the native code beside the record."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import trio

from ..._net.signal import Signal
from ..._state.producer.producer_batch import ProducerBatch
from ..._wire import _implementation
from ...types import RecordMetadata, TopicPartition
from ..client.service import check_run
from .waiting import current

if TYPE_CHECKING:
    from ..._wire._fallback_producing import DeliveryHandle as _DeliveryHandle
else:
    _DeliveryHandle = _implementation.current.DeliveryHandle


class Ack(_DeliveryHandle):
    """The future outcome of one record.

    An ack without a waiting task costs nothing. A failure that no task waits for is logged.
    """

    __slots__ = ()
    _run: ClassVar[trio.lowlevel.TrioToken | None] = None  # of the producer; none in Ack itself

    def __repr__(self) -> str:
        return f"<trikafka.Ack {self.partition} {'done' if self.done else 'waiting'}>"

    @property
    def partition(self) -> TopicPartition:
        """The partition that the record goes to."""
        place: TopicPartition = self._batch.place
        return place

    @property
    def done(self) -> bool:
        """True once the outcome is known; then :meth:`wait` returns without waiting."""
        settled: bool = self._batch.part(self._index)[0].settled
        return settled

    def result(self) -> RecordMetadata:
        """Return the record's metadata if it is delivered, without waiting.

        Raises:
            trio.WouldBlock: The outcome is not known yet.
            TrikafkaError: As :meth:`wait`.
        """
        batch, index = self._batch.part(self._index)
        if not batch.settled:
            raise trio.WouldBlock
        metadata: RecordMetadata = batch.metadata(index, self._timestamp)
        return metadata

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call ``callback()`` once the outcome is known; at once if it is known already.

        For a bridge to another event loop; a Trio task calls :meth:`wait`. The callback runs in a
        task of the producer. It must return quickly and must not raise.

        Args:
            callback: A plain function without arguments.
        """
        if not self._at_change(partial(self.when_done, callback)):
            callback()

    def _at_change(self, callback: Callable[[], object]) -> bool:
        """Call ``callback()`` at the next change of the record's batch, unless the outcome is known.

        The change is the outcome, or a split of the batch. After a split the caller calls this
        again, to wait for the part that has the record.

        Returns:
            False if the outcome is known; then ``callback`` is not called.
        """
        batch: ProducerBatch = self._batch
        if batch.parts:
            batch, _ = batch.part(self._index)
        if batch.settled:
            return False
        signal: Any = batch.claim(Signal)
        signal.add_callback(callback)
        return True

    def _left(self) -> None:
        """Have a failure logged: a task of another loop that waited for it was cancelled."""
        batch, _ = self._batch.part(self._index)
        batch.unclaim()

    async def wait(self) -> RecordMetadata:
        """Wait until the record is delivered; return its metadata.

        Any number of tasks may wait, any number of times.

        Returns:
            The record's partition, offset and timestamp.

        Raises:
            DeliveryTimeoutError: No outcome within ``delivery_timeout_ms``. The record may or may
                not be in the log.
            OutOfOrderSequenceError: The record may or may not be in the log.
            TrikafkaError: The broker refused the record.
            IllegalStateError: The outcome is not known yet, and this is another Trio run than the
                producer's.

        When cancelled, the delivery goes on.
        """
        batch: ProducerBatch = self._batch
        index = self._index
        # A split batch has ``parts``: the broker called it too large (MESSAGE_TOO_LARGE), and the
        # records went into smaller batches. Each wait may end by a split rather than by an outcome,
        # so the loop looks up the part that holds this record and waits there.
        #
        # There is no event an ack. The batch has one ``Signal`` for all of its records, which
        # reschedules their tasks in one step when the outcome comes; it is made by the first task
        # that waits.
        if batch.parts:
            batch, index = batch.part(index)
        if not batch.settled:
            if self._run is not None:
                check_run(self._run)
            task = trio.lowlevel.current_task()
            while not batch.settled:
                signal: Any = batch.claim(Signal)  # again after an earlier wait was cancelled
                signal.add(task)
                try:
                    await trio.lowlevel.wait_task_rescheduled(signal)
                except trio.Cancelled:
                    batch.unclaim()
                    raise
                if batch.parts:
                    batch, index = batch.part(index)
        elif not current.fairness.passes():
            await current.fairness.checkpoint()
        return batch.metadata(index, self._timestamp)


def acks_of_this_run() -> type[Ack]:
    """Return the class of a producer's acks, which are awaited in this run of Trio.

    The class and not each ack refers to the run: programs hold millions of acks.
    """
    token = trio.lowlevel.current_trio_token()
    return type("Ack", (Ack,), {"__slots__": (), "_run": token})
