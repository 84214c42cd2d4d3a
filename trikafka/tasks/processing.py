"""``process``: exactly-once processing by batch, in one task.

:mod:`.rounds` has the transaction itself. For several tasks and dead letters, use ``run_tasks``
with a transactional producer.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from numbers import Real

import trio

from .. import Consumer, Producer, RecordBatch, Transaction
from ..errors import ConfigurationError
from ..errors.counts import counted
from ..errors.groups import outlined
from ..toolkit import Retry, check_client
from ..types import Key, OffsetAndMetadata, TopicPartition, Value
from .callbacks import called, check_async
from .plan import TimeoutBudget, check_task_timeout
from .rounds import TransactionRound, may_be_done_again, settle
from .timer import TaskTimer, timeout_in

_log = logging.getLogger("trikafka.transactions")


async def process(
    consumer: Consumer[Key, Value],
    producer: Producer,
    handler: Callable[[RecordBatch[Key, Value], Transaction], Awaitable[object]],
    *,
    max_records: int = 100_000,
    commit_interval: float = 0.1,
    task_timeout_ms: float = 300_000,
) -> None:
    """Process batches exactly once: ``await handler(batch, txn)`` for each, until cancelled.

    ``read_committed`` readers see the records that the handler sends through ``producer`` if and
    only if the batch counts as processed. A transaction takes batches while some are buffered, for
    up to ``commit_interval`` and up to ``max_records`` (the last batch may exceed both). Then it
    commits.

    If the transaction fails, or the group has rebalanced, the transaction is aborted, the consumer
    seeks back, and the handler receives the records again. Other effects of the handler than
    sending are not undone, so it must be possible to repeat them. A timeout in the handler or the
    commit has the same consequence (KIP-572). If no transaction commits for
    ``task_timeout_ms`` after the first timeout, one more attempt is made, and its timeout is
    raised. Work that is slow but succeeds never reaches this limit.

    The consumer needs a ``group_id`` and ``enable_auto_commit=False``. With
    ``isolation_level="read_committed"`` it reads no aborted records itself. The producer needs a
    ``transactional_id`` of its own in each instance of the program. Keep ``transaction_timeout_ms``
    above ``commit_interval`` plus the handler's time for a batch, and below
    ``max_poll_interval_ms``.

    Args:
        consumer: An open consumer.
        producer: An open producer with a ``transactional_id``.
        handler: An async function of a :class:`RecordBatch` and the open :class:`Transaction`. It
            must not end the transaction.
        max_records: The records after which a transaction takes no further batch; at least 1.
        commit_interval: Seconds in which a transaction takes further batches.
        task_timeout_ms: The milliseconds without a commit after which a timeout is raised. 0: the
            first timeout is raised.

    Raises:
        ConfigurationError: A wrong argument or setting, or a handler that is not async.
        ProducerFencedError: Another producer has the ``transactional_id`` now.
        TransactionFatalError: The producer can begin no further transaction.
        TransactionAbortableError: A record was refused permanently (no permission, too large).
        TransactionUndecidedError: The outcome of a commit is unknown after ``task_timeout_ms``, or
            the producer was closed before the outcome came.
        KafkaTimeoutError: No commit for ``task_timeout_ms``. The first timeout is the cause.
        Exception: The error of the handler, or an error that stops the consumer.

    After an error or a cancellation no transaction is left open, except an undecided one, which the
    next call settles. The consumer is positioned at the first record that was not committed. The
    call may be repeated, also after a ``seek`` past a record that the handler cannot process.
    """
    check_client("process", consumer, Consumer, "{}, producer, handler")
    check_client("process", producer, Producer, "consumer, {}, handler")
    check_async("handler", handler, "batch", "txn")
    consumer.check_fits_transactions()
    producer.transaction()
    if not _is_number(max_records) or not max_records >= 1:
        raise ConfigurationError(f"max_records must be at least 1, not {max_records!r}")
    if not _is_number(commit_interval) or not commit_interval >= 0:
        raise ConfigurationError(
            f"commit_interval must be a number of seconds, at least 0, not {commit_interval!r}"
        )
    check_task_timeout(task_timeout_ms)
    # An integer may be larger than any float.
    interval = min(commit_interval, sys.float_info.max)

    def budget(who: str) -> TimeoutBudget:
        return TimeoutBudget(who, [TaskTimer(task_timeout_ms)], Retry(producer.config), _timed_out)

    await budget("settling what the last call left open").until_done(
        partial(settle, consumer, producer)
    )
    receiving = budget("the receive")
    transacting = budget("the transaction")
    # A round is one transaction between two receives. The consumer serves rebalances only in its
    # receives, so there is none while a transaction is open. Therefore the transaction commits only
    # positions of partitions that this member still owns. (The group's coordinator checks that once
    # more by the generation, KIP-447.)
    #
    # ``work.further()`` takes only batches that are buffered. A transaction that waited for records
    # would stay open, and its records invisible to read_committed readers, for as long as the topic
    # is quiet.
    #
    # Receives and transactions have separate timers. A receive that succeeds resets only its own: a
    # transaction that never commits must still reach its limit.
    while True:
        work = TransactionRound(consumer)

        async def handle(txn: Transaction) -> Mapping[TopicPartition, OffsetAndMetadata]:
            # `work` is that of this round, since the function does not outlive the round.
            batch, until = work.last, trio.current_time() + interval  # noqa: B023
            while batch is not None:
                await called("handler", handler, batch, txn)
                await trio.lowlevel.checkpoint()
                more = work.count < max_records and trio.current_time() < until  # noqa: B023
                batch = work.further() if more else None  # noqa: B023
            return work.ends  # noqa: B023

        try:
            await work.receive()
            receiving.succeeded()
            await work.process(producer, handle, transacting.failed)
            transacting.succeeded()
        except BaseException as error:
            work.failed(error)
            if not may_be_done_again(error):
                raise
            await trio.sleep(_wait(transacting if work.count else receiving, work.count, error))


def _is_number(given: object) -> bool:
    return isinstance(given, Real) and not isinstance(given, bool)  # NumPy's are, too


def _timed_out(who: str, delay: float, error: Exception) -> None:
    _log.warning("%s timed out, and is tried again in %.3g s: %s", who, delay, outlined(error))


def _wait(budget: TimeoutBudget, count: int, error: BaseException) -> float:
    """Return the seconds to wait before the next round.

    Raises the timeout in ``error`` if that was the last attempt.
    """
    if isinstance(error, Exception) and timeout_in(error) is not None:
        return budget.failed(error)
    records = counted(count, "record")
    _log.warning("a transaction of %s is done again: %s", records, outlined(error))
    return budget.next_delay()
