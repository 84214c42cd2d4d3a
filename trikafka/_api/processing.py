"""Read, process, write, exactly once: a consumer's batches, what is made of them, and the consumer's offsets in one transaction.

Each transaction is begun, filled and ended between two receives. Rebalances reach a consumer in its receives alone, so none comes
while a transaction is open: what is revoked has been committed or aborted before.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from .._net.retry import Retry
from .._wire.columns import RecordBatch
from ..errors import (
    CommitFailedError,
    ConfigurationError,
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

Handler = Callable[[RecordBatch, Transaction], Awaitable[object]]


async def process(consumer: Consumer, producer: Producer, handler: Handler, *, max_records: int = 10_000) -> None:
    """Read, process, write, exactly once, until cancelled: ``await handler(batch, txn)`` for each batch of records, all in
    transactions.

    What the handler sends by ``producer`` is seen by ``read_committed`` readers if and only if the batch counts as processed. A
    transaction holds what is buffered, up to ``max_records`` records (which the last batch may exceed); it is open for as long
    as the handlers take. If it fails or the group has moved on, it is aborted, the consumer goes back, and the handler sees the
    records again: what it does besides sending must bear that.

    The consumer needs a ``group_id`` and ``enable_auto_commit=False`` (and ``isolation_level="read_committed"`` to see no aborted
    records itself), the producer a ``transactional_id`` of its own for each instance of the program. Keep
    ``transaction_timeout_ms`` above what the handlers take for ``max_records``, and below ``max_poll_interval_ms``.

    Raises :exc:`ConfigurationError` for such settings, what the handler raises, :exc:`ProducerFencedError` and
    :exc:`TransactionFatalError`, and what stops the consumer. Then, and when cancelled, nothing is left open, and the consumer
    stands before what was not committed: it may be called again.
    """
    consumer.check_fits_transactions()
    producer.transaction()
    if max_records < 1:
        raise ConfigurationError(f"max_records must be at least 1, not {max_records}")
    await _settle(consumer, producer)
    retry = Retry(producer._config)
    while True:
        batches = await _receive(consumer, max_records)
        work = _Work(consumer, batches)
        try:
            await _process(consumer, producer, handler, batches)
            retry.reset()
        except TransactionUndecidedError:
            raise  # its commit is tried again where it can be: see there
        except _AGAIN as error:
            work.take_back()
            _log.warning("a transaction of %s records is done again: %s", sum(map(len, batches)), error)
            await retry.wait()
        except BaseException:
            work.take_back()
            raise


class _Work:
    """What was received for one transaction, and where the consumer has to go back to if that is aborted."""

    def __init__(self, consumer: Consumer, batches: list[RecordBatch]) -> None:
        self._consumer = consumer
        self._starts: dict[TopicPartition, int] = {}
        for batch in batches:
            self._starts.setdefault(TopicPartition(batch.topic, batch.partition), batch.offsets[0])

    def take_back(self) -> None:
        """Have them delivered again. No rebalance has come since: what is assigned now was so then, if it was not lost."""
        for tp in self._starts.keys() & self._consumer.assignment():
            self._consumer.seek(tp, self._starts[tp])


async def _receive(consumer: Consumer, max_records: int) -> list[RecordBatch]:
    """What is there, at least one batch; no rebalance comes between the first and the last."""
    batches = [await consumer.receive_batch()]
    count = len(batches[0])
    try:
        while count < max_records:
            batches.append(consumer.receive_batch_nowait())
            count += len(batches[-1])
    except trio.WouldBlock:
        pass
    return [batch for batch in batches if len(batch)]


async def _process(consumer: Consumer, producer: Producer, handler: Handler, batches: list[RecordBatch]) -> None:
    async with producer.transaction() as txn:
        for batch in batches:
            await handler(batch, txn)
        await txn.send_offsets(batches, consumer)
        while True:
            try:
                await txn.commit()
                return
            except TransactionUndecidedError as error:
                _log.warning("still waiting to learn whether a transaction was committed: %s", error)


async def _settle(consumer: Consumer, producer: Producer) -> None:
    """If an earlier run was cut off in its commit, find out how that ended; what is assigned goes on from what is committed."""
    try:
        async with producer.transaction():
            pass
    except TransactionAbortableError as error:
        _log.warning("%s", error)
    if assigned := consumer.assignment():
        for tp, position in (await consumer.committed(assigned)).items():
            if position is not None:
                consumer.seek(tp, position)
