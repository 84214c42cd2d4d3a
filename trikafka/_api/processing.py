"""Read, process, write, exactly once, in one task and by batch: a consumer's batches and what is made of them, in transactions.

:mod:`.rounds` has the transaction itself; ``run_tasks`` with a producer of transactions builds tasks and dead letters on it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from .._net.retry import Retry
from .._state.task_timer import TaskTimer, timeout_in
from .._wire.columns import RecordBatch
from ..errors import ConfigurationError
from .callbacks import awaitable, check_async
from .committing import ToCommit
from .consumer import Consumer
from .given import check_client
from .producer import Producer
from .rounds import Round, may_be_done_again, settle
from .task_plan import Trials, check_task_timeout
from .transaction import Transaction

_log = logging.getLogger("trikafka.transactions")

Handler = Callable[[RecordBatch, Transaction], Awaitable[object]]


async def process(
    consumer: Consumer,
    producer: Producer,
    handler: Handler,
    *,
    max_records: int = 100_000,
    commit_interval: float = 0.1,
    task_timeout_ms: float = 300_000,
) -> None:
    """Read, process, write, exactly once, until cancelled: ``await handler(batch, txn)`` for each batch of records, all in
    transactions.

    What the handler sends by ``producer`` is seen by ``read_committed`` readers if and only if the batch counts as processed. A
    transaction takes in batches as long as there are some in the buffer, for up to ``commit_interval`` seconds and up to
    ``max_records`` records (the last batch may exceed both); then it is committed. If it fails or the group has moved on, it is
    aborted, the consumer goes back, and the handler sees the records again: what it does besides sending must bear that.

    So it is, too, when a call of trikafka's times out, in the handler or in the commit. If no transaction is committed for
    ``task_timeout_ms`` (milliseconds) since the first of these, one more attempt is made, and its time-out is raised (KIP-572, seed
    004; 0: the first one is). Work that is slow and succeeds does not meet this limit.

    The consumer needs a ``group_id`` and ``enable_auto_commit=False`` (and ``isolation_level="read_committed"`` to see no aborted
    records itself), the producer a ``transactional_id`` of its own for each instance of the program. Keep
    ``transaction_timeout_ms`` above what the handler takes for a batch and ``commit_interval``, and below
    ``max_poll_interval_ms``.

    Raises :exc:`ConfigurationError` for such settings and a handler that is not async, what the handler raises,
    :exc:`ProducerFencedError` and :exc:`TransactionFatalError`, :exc:`TransactionAbortableError` where a record was refused for
    good (no permission, too large), :exc:`KafkaTimeoutError` past ``task_timeout_ms``, with the first time-out as its cause, and
    what stops the consumer; :exc:`TransactionUndecidedError` if the outcome of a commit is not known by then, or the producer is
    closed before it is. Then, and when cancelled, nothing is left open (but what is undecided, which the next call settles), and
    the consumer stands before what was not committed: it may be called again, also after a ``seek`` past what the handler cannot
    take.
    """
    check_client("process", consumer, Consumer, "{}, producer, handler")
    check_client("process", producer, Producer, "consumer, {}, handler")
    check_async("handler", handler, "batch", "txn")
    consumer.check_fits_transactions()
    producer.transaction()
    if max_records < 1:
        raise ConfigurationError(f"max_records must be at least 1, not {max_records}")
    if not commit_interval >= 0:
        raise ConfigurationError(f"commit_interval must be a number of seconds, at least 0, not {commit_interval!r}")
    check_task_timeout(task_timeout_ms)

    def trials(who: str) -> Trials:
        return Trials(who, [TaskTimer(task_timeout_ms)], Retry(producer._config), _timed_out)

    await trials("settling what the last call left open").until_done(partial(settle, consumer, producer))
    receiving, transacting = trials("the receive"), trials("the transaction")
    while True:
        work = Round(consumer)

        async def handle(txn: Transaction) -> ToCommit:
            batch, until = work.last, trio.current_time() + commit_interval  # noqa: B023 - it does not outlive this round
            while batch is not None:
                await awaitable("handler", handler, handler(batch, txn))
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


def _timed_out(who: str, delay: float, error: Exception) -> None:
    _log.warning("%s timed out, and is tried again in %.3g s: %s", who, delay, error)


def _wait(trials: Trials, count: int, error: BaseException) -> float:
    """The seconds to wait before it is done again. Raises the time-out in ``error`` if that was the last one."""
    if isinstance(error, Exception) and timeout_in(error) is not None:
        return trials.failed(error)
    _log.warning("a transaction of %s records is done again: %s", count, error)
    return trials.wait()
