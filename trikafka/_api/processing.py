"""Read, process, write, exactly once: a consumer's batches, what is made of them, and the consumer's offsets in one transaction.

Each transaction is begun, filled and ended between two receives. Rebalances reach a consumer in its receives alone, so none comes
while a transaction is open: what is revoked has been committed or aborted before.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from weakref import WeakSet

import trio

from .._net.retry import Retry
from .._wire.columns import RecordBatch
from ..errors import (
    CommitFailedError,
    ConfigurationError,
    CorruptRecordError,
    KafkaTimeoutError,
    RebalanceInProgressError,
    TransactionAbortableError,
    TransactionUndecidedError,
)
from ..types import TopicPartition
from .consumer import Consumer
from .producer import Producer
from .transaction import Transaction

_log = logging.getLogger("trikafka.transactions")
#: After these the transaction is surely not committed, and doing its work again may succeed.
_AGAIN = (TransactionAbortableError, CommitFailedError, RebalanceInProgressError, KafkaTimeoutError)
#: Consumers whose last transaction was cut off in its commit: where they have to go on, its outcome tells.
_IN_DOUBT: WeakSet[Consumer] = WeakSet()

Handler = Callable[[RecordBatch, Transaction], Awaitable[object]]


async def process(
    consumer: Consumer, producer: Producer, handler: Handler, *, max_records: int = 100_000, commit_interval: float = 0.1
) -> None:
    """Read, process, write, exactly once, until cancelled: ``await handler(batch, txn)`` for each batch of records, all in
    transactions.

    What the handler sends by ``producer`` is seen by ``read_committed`` readers if and only if the batch counts as processed. A
    transaction takes in batches as long as there are some in the buffer, for up to ``commit_interval`` seconds and up to
    ``max_records`` records (the last batch may exceed both); then it is committed. If it fails or the group has moved on, it is
    aborted, the consumer goes back, and the handler sees the records again: what it does besides sending must bear that.

    The consumer needs a ``group_id`` and ``enable_auto_commit=False`` (and ``isolation_level="read_committed"`` to see no aborted
    records itself), the producer a ``transactional_id`` of its own for each instance of the program. Keep
    ``transaction_timeout_ms`` above what the handler takes for a batch and ``commit_interval``, and below
    ``max_poll_interval_ms``.

    Raises :exc:`ConfigurationError` for such settings, what the handler raises, :exc:`ProducerFencedError` and
    :exc:`TransactionFatalError`, and what stops the consumer; :exc:`TransactionUndecidedError` if the producer is closed before
    the outcome of a commit is known. Then, and when cancelled, nothing is left open, and the consumer stands before what was not
    committed: it may be called again, also after a ``seek`` past what the handler cannot take.
    """
    consumer.check_fits_transactions()
    producer.transaction()
    if max_records < 1:
        raise ConfigurationError(f"max_records must be at least 1, not {max_records}")
    if not commit_interval >= 0:
        raise ConfigurationError(f"commit_interval must be a number of seconds, at least 0, not {commit_interval!r}")
    if consumer in _IN_DOUBT:
        await _settle(consumer, producer)
    retry = Retry(producer._config)
    while True:
        work = _Work(consumer)
        try:
            await work.process(producer, handler, max_records, commit_interval)
            retry.reset()
        except BaseException as error:
            work.take_back()
            if not isinstance(error, _AGAIN) or isinstance(error, TransactionUndecidedError):
                if work.committing:
                    _IN_DOUBT.add(consumer)
                raise
            _log.warning("a transaction of %s records is done again: %s", work.count, error)
            await retry.wait()


class _Work:
    """What is received for one transaction, and where the consumer has to go back to if that is aborted."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._starts: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self.count = 0
        self.committing = False

    async def process(self, producer: Producer, handler: Handler, max_records: int, commit_interval: float) -> None:
        """Do it, in one transaction, of at least one batch; no rebalance comes between the first and the last."""
        batch: RecordBatch | None = self._received(await self._consumer.receive_batch())
        until = trio.current_time() + commit_interval
        async with producer.transaction() as txn:
            while batch is not None:
                await handler(batch, txn)
                await trio.lowlevel.checkpoint()
                more = self.count < max_records and trio.current_time() < until
                batch = self._further() if more else None
            await txn.send_offsets(self._ends, self._consumer)
            self.committing = True
            await _commit(producer, txn)

    def _further(self) -> RecordBatch | None:
        try:
            return self._received(self._consumer.receive_batch_nowait())
        except (trio.WouldBlock, CorruptRecordError):  # the next receive meets what is corrupt again; what came before is committed
            return None

    def _received(self, batch: RecordBatch) -> RecordBatch:
        tp = TopicPartition(batch.topic, batch.partition)
        self._starts.setdefault(tp, batch.offsets[0])
        self._ends[tp] = batch.next_offset
        self.count += len(batch)
        return batch

    def take_back(self) -> None:
        """Have them delivered again. No rebalance has come since: what is assigned now was so then, if it was not lost."""
        for tp in self._starts.keys() & self._consumer.assignment():
            self._consumer.seek(tp, self._starts[tp])


async def _commit(producer: Producer, txn: Transaction) -> None:
    while True:
        try:
            return await txn.commit()
        except TransactionUndecidedError as error:
            if producer._closed:
                raise  # nobody asks any more
            _log.warning("still waiting to learn whether a transaction was committed: %s", error)


async def _settle(consumer: Consumer, producer: Producer) -> None:
    """An earlier run was cut off in its commit: find out how that ended; what is assigned goes on from what is committed."""
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
