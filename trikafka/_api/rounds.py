"""One transaction of a read-process-write loop: what was received for it, what is made of that, and the consumer's offsets.

It is begun, filled and ended between two receives. Rebalances reach a consumer in its receives alone, so none comes while a
transaction is open: what is revoked has been committed or aborted before. Used by ``process`` and by the tasks of ``run_tasks``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from weakref import WeakSet

import trio

from .._wire.columns import RecordBatch
from ..errors import (
    CommitFailedError,
    KafkaTimeoutError,
    RebalanceInProgressError,
    TransactionAbortableError,
    TransactionUndecidedError,
)
from ..types import TopicPartition
from .committing import ToCommit
from .consumer import Consumer
from .producer import Producer
from .transaction import Transaction

_log = logging.getLogger("trikafka.transactions")
#: After these the transaction is surely not committed, and doing its work again may succeed.
_AGAIN = (TransactionAbortableError, CommitFailedError, RebalanceInProgressError, KafkaTimeoutError)
#: Consumers whose last transaction was cut off in its commit: where they have to go on, its outcome tells.
_IN_DOUBT: WeakSet[Consumer] = WeakSet()


def may_be_done_again(error: BaseException) -> bool:
    """Whether a round that ended so was surely not committed, and may succeed when it is done again."""
    return isinstance(error, _AGAIN) and not isinstance(error, TransactionUndecidedError)


class Round:
    """What is received for one transaction, and where the consumer has to go back to if that is aborted."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.batches: list[RecordBatch] = []
        self.count = 0
        self._committing = False

    @property
    def partitions(self) -> set[TopicPartition]:
        """Of which there are records."""
        return {TopicPartition(batch.topic, batch.partition) for batch in self.batches}

    def end_of(self, tp: TopicPartition) -> int:
        """The offset after what was received of a partition."""
        return max(batch.next_offset for batch in self.batches if (batch.topic, batch.partition) == tp)

    async def receive(self, max_records: int, timeout: float | None = None) -> None:
        """What is there, at least one batch; no rebalance comes between the first and the last. None past ``timeout`` seconds."""
        self._add(await self._consumer.receive_batch(timeout))
        try:
            while 0 < self.count < max_records:
                self._add(self._consumer.receive_batch_nowait())
        except trio.WouldBlock:
            pass

    def _add(self, batch: RecordBatch) -> None:
        if len(batch):
            self.batches.append(batch)
            self.count += len(batch)

    async def process(
        self,
        producer: Producer,
        handle: Callable[[list[RecordBatch], Transaction], Awaitable[ToCommit]],
        undecided: Callable[[TransactionUndecidedError], None],
    ) -> None:
        """Do it, in one transaction, with the offsets that ``handle`` returns.

        ``undecided`` is told each time that the outcome did not come in time, and may raise.
        """
        async with producer.transaction() as txn:
            done = await handle(self.batches, txn)
            await txn.send_offsets(done, self._consumer)
            self._committing = True
            while True:
                try:
                    return await txn.commit()
                except TransactionUndecidedError as error:
                    if producer._closed:
                        raise  # nobody asks any more
                    undecided(error)

    def failed(self, error: BaseException) -> None:
        """It ended with ``error``: have its records delivered again.

        No rebalance has come since: what is assigned now was so then, if it was not lost.
        """
        starts: dict[TopicPartition, int] = {}
        for batch in self.batches:
            starts.setdefault(TopicPartition(batch.topic, batch.partition), batch.offsets[0])
        for tp in starts.keys() & self._consumer.assignment():
            self._consumer.seek(tp, starts[tp])
        if self._committing and not may_be_done_again(error):
            _IN_DOUBT.add(self._consumer)


async def settle(consumer: Consumer, producer: Producer) -> None:
    """If an earlier run was cut off in its commit, find out how that ended; what is assigned goes on from what is committed."""
    if consumer not in _IN_DOUBT:
        return
    try:
        async with producer.transaction():
            pass
    except TransactionAbortableError as error:
        _log.warning("%s", error)
    if assigned := consumer.assignment():
        for tp, position in (await consumer.committed(assigned)).items():
            if position is not None:
                consumer.seek(tp, position)
    _IN_DOUBT.discard(consumer)
