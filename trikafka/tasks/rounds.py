"""A transaction of a read-process-write loop, with the consumer's offsets.

A round begins, is filled and ends between two receives. A consumer serves rebalances only in its
receives, so no rebalance happens while a transaction is open. The records of a revoked partition
have been committed or aborted before. Used by ``process`` and by ``run_tasks``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from weakref import WeakSet

import trio

from .. import Consumer, Producer, RecordBatch, Transaction
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
from ..errors.groups import members
from ..types import OffsetAndMetadata, TopicPartition
from .timer import causes

_log = logging.getLogger("trikafka.transactions")
#: After these the transaction is surely not committed, and another attempt may succeed.
_AGAIN = (TransactionAbortableError, CommitFailedError, RebalanceInProgressError, KafkaTimeoutError)
#: After these another attempt would fail, too.
_FOR_GOOD = (AuthorizationError, InvalidTopicError, RecordTooLargeError)
_FOR_GOOD_CODES = frozenset({ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP})
_in_doubt: trio.lowlevel.RunVar[WeakSet[Consumer[Any, Any]]] = trio.lowlevel.RunVar(
    "trikafka_in_doubt"
)


def consumers_in_doubt() -> WeakSet[Consumer[Any, Any]]:
    """Return this run's consumers whose last transaction was cut off in its commit.

    The outcome of that transaction decides where such a consumer goes on.
    """
    try:
        return _in_doubt.get()
    except LookupError:
        _in_doubt.set(WeakSet())
        return _in_doubt.get()


def may_be_done_again(error: BaseException) -> bool:
    """Return whether a failed round was surely not committed, and may succeed when repeated.

    In a group, such as the tasks of a handler's nursery raise, every member has to allow it.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(may_be_done_again, members(error)))
    if isinstance(error, ArrowDeliveryError):
        return may_be_done_again(error.error)
    return (
        isinstance(error, _AGAIN)
        and not isinstance(error, TransactionUndecidedError)
        and not refused_for_good(error)
    )


def refused_for_good(error: BaseException) -> bool:
    """Return whether the error is about a record that would be refused again.

    A round with such a record must end with the error: repeated, it would fail for ever without
    notice.
    """
    return any(
        isinstance(each, _FOR_GOOD) or getattr(each, "code", None) in _FOR_GOOD_CODES
        for each in (error, *causes(error))
    )


class TransactionRound:
    """The records received for one transaction, and the offsets to go back to on an abort."""

    def __init__(self, consumer: Consumer[Any, Any]) -> None:
        self._consumer = consumer
        self._starts: dict[TopicPartition, int] = {}
        self._committing = False
        self.last: RecordBatch[Any, Any] | None = None  # received
        self.ends: dict[TopicPartition, OffsetAndMetadata] = {}  # after what was received
        self.count = 0
        self.size = 0  # bytes

    async def receive(self, timeout: float | None = None) -> RecordBatch[Any, Any] | None:
        """Return the first batch; ``None`` past ``timeout`` seconds."""
        return self._received(await self._consumer.receive_batch(timeout))

    def further(self) -> RecordBatch[Any, Any] | None:
        """Return another batch if one is buffered.

        No rebalance comes between the first batch and the last.
        """
        try:
            return self._received(self._consumer.receive_batch_nowait())
        except (trio.WouldBlock, CorruptRecordError):
            # The next receive raises the error of a corrupt record again; the batches before it
            # are committed.
            return None

    def _received(self, batch: RecordBatch[Any, Any]) -> RecordBatch[Any, Any] | None:
        if not batch:
            return None
        tp = TopicPartition(batch.topic, batch.partition)
        self._starts.setdefault(tp, batch.offsets[0])
        self.ends[tp] = OffsetAndMetadata(batch.next_offset, batch.leader_epoch)
        self.count += len(batch)
        self.size += batch.nbytes
        self.last = batch
        return batch

    async def process(
        self,
        producer: Producer,
        handle: Callable[[Transaction], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]],
        undecided: Callable[[TransactionUndecidedError], float],
    ) -> None:
        """Handle the round in one transaction, with the offsets that ``handle`` returns.

        ``undecided`` is called each time that the outcome of the commit did not arrive in time. It
        returns the seconds until the next call of ``commit``, or raises.
        """
        with self._consumer.in_transaction(self.ends.keys()):
            await self._in_transaction(producer, handle, undecided)

    async def _in_transaction(
        self,
        producer: Producer,
        handle: Callable[[Transaction], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]],
        undecided: Callable[[TransactionUndecidedError], float],
    ) -> None:
        async with producer.transaction() as txn:
            with txn.lend():
                done = await handle(txn)
            await txn.send_offsets(done, self._consumer)
            self._committing = True
            while True:
                try:
                    return await txn.commit()
                except TransactionUndecidedError as error:
                    if not producer.is_closed:
                        await trio.sleep(undecided(error))
                    if producer.is_closed:
                        raise  # no task asks for the outcome any more

    def failed(self, error: BaseException) -> None:
        """Seek back to where the round began, after ``error``.

        No rebalance happens during a round. So each partition that is still assigned was assigned
        when the round began.
        """
        # A commit that was cut off may have happened. Then the group's offsets, not the starts of
        # this round, say where to go on: going on from the starts could handle committed records
        # twice. So the consumer is marked, and the next run asks for the outcome first
        # (``settle``).
        for tp in self._starts.keys() & self._consumer.assignment():
            self._consumer.seek(tp, self._starts[tp])
        if self._committing and not may_be_done_again(error):
            consumers_in_doubt().add(self._consumer)


async def settle(consumer: Consumer[Any, Any], producer: Producer) -> None:
    """Find out how an earlier run's commit ended, if that run was cut off in it.

    The assigned partitions then go on from the committed offsets.
    """
    if consumer not in consumers_in_doubt():
        return
    try:
        async with producer.transaction():
            pass
    except TransactionAbortableError as error:
        _log.warning("%s", error)
    if assigned := consumer.assignment():
        for tp, position in (await consumer.committed(assigned)).items():
            if position is not None and tp in consumer.assignment():
                consumer.seek(tp, position)
    consumers_in_doubt().discard(consumer)
