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
from ..error_codes import ErrorCode
from ..errors import (
    ArrowDeliveryError,
    AuthorizationError,
    CommitFailedError,
    CorruptRecordError,
    InvalidTopicError,
    KafkaTimeoutError,
    RebalanceInProgressError,
    RecordTooLargeError,
    TransactionAbortableError,
    TransactionUndecidedError,
)
from ..types import OffsetAndMetadata, TopicPartition
from .committing import ToCommit
from .consumer import Consumer
from .producer import Producer
from .transaction import Transaction

_log = logging.getLogger("trikafka.transactions")
#: After these the transaction is surely not committed, and doing its work again may succeed.
_AGAIN = (TransactionAbortableError, CommitFailedError, RebalanceInProgressError, KafkaTimeoutError)
#: Because of these it would fail again.
_FOR_GOOD = (AuthorizationError, InvalidTopicError, RecordTooLargeError)
_FOR_GOOD_CODES = frozenset({ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP})
#: Consumers whose last transaction was cut off in its commit: where they have to go on, its outcome tells.
_IN_DOUBT: WeakSet[Consumer] = WeakSet()


def may_be_done_again(error: BaseException) -> bool:
    """Whether a round that ended so was surely not committed, and may succeed when it is done again. Of a group: each of it."""
    if isinstance(error, BaseExceptionGroup):  # of a nursery in the handler, whose tasks are all told of the same failure
        return all(may_be_done_again(inner) for inner in error.exceptions)
    if isinstance(error, ArrowDeliveryError):
        return may_be_done_again(error.error)
    return isinstance(error, _AGAIN) and not isinstance(error, TransactionUndecidedError) and not refused_for_good(error)


def refused_for_good(error: BaseException | None) -> bool:
    """Whether a record was the reason that is refused the next time, too: without an end nobody would be told."""
    while error is not None:
        if isinstance(error, _FOR_GOOD) or getattr(error, "code", None) in _FOR_GOOD_CODES:
            return True
        error = error.__cause__
    return False


class Round:
    """What is received for one transaction, and where the consumer has to go back to if that is aborted."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._starts: dict[TopicPartition, int] = {}
        self._committing = False
        self.last: RecordBatch | None = None  # that was received
        self.ends: dict[TopicPartition, OffsetAndMetadata] = {}  # what lies after what was received
        self.count = 0

    async def receive(self, timeout: float | None = None) -> RecordBatch | None:
        """The first batch; ``None`` past ``timeout`` seconds."""
        return self._received(await self._consumer.receive_batch(timeout))

    def further(self) -> RecordBatch | None:
        """Another one, if there is one in the buffer; no rebalance comes between the first and the last."""
        try:
            return self._received(self._consumer.receive_batch_nowait())
        except (trio.WouldBlock, CorruptRecordError):  # the next receive meets what is corrupt again; what came before is committed
            return None

    def _received(self, batch: RecordBatch) -> RecordBatch | None:
        if not batch:
            return None
        tp = TopicPartition(batch.topic, batch.partition)
        self._starts.setdefault(tp, batch.offsets[0])
        self.ends[tp] = OffsetAndMetadata(batch.next_offset, batch.leader_epoch)
        self.count += len(batch)
        self.last = batch
        return batch

    async def process(
        self,
        producer: Producer,
        handle: Callable[[Transaction], Awaitable[ToCommit]],
        undecided: Callable[[TransactionUndecidedError], float],
    ) -> None:
        """Do it, in one transaction, with the offsets that ``handle`` returns.

        ``undecided`` is told each time that the outcome did not come in time; it returns the seconds until that is asked for
        again, or raises.
        """
        async with producer.transaction() as txn:
            with txn._lend():
                done = await handle(txn)
            await txn.send_offsets(done, self._consumer)
            self._committing = True
            while True:
                try:
                    return await txn.commit()
                except TransactionUndecidedError as error:
                    if not producer._closed:
                        await trio.sleep(undecided(error))
                    if producer._closed:
                        raise  # nobody asks any more

    def failed(self, error: BaseException) -> None:
        """It ended with ``error``: have its records delivered again.

        No rebalance has come since: what is assigned now was so then, if it was not lost.
        """
        for tp in self._starts.keys() & self._consumer.assignment():
            self._consumer.seek(tp, self._starts[tp])
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
