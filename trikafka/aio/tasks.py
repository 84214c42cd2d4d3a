"""``run_tasks``, ``run_queue`` and ``process`` for asyncio.

The run is Trio's; the handlers are asyncio's.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial, wraps
from typing import Any, Literal, overload

from .. import DeadLetter, NewTopic, PartitionInfo, Record, RecordBatch, RetryPolicy, TopicPartition
from .. import Delivery as _Delivery
from .. import Transaction as _Transaction
from .. import ensure_topics as _ensure_topics
from .. import process as _process
from .. import run_tasks as _run_tasks
from ..errors import ConfigurationError
from ..tasks.callbacks import check_async
from ..tasks.queue import QueueRun, queue_settings
from ..toolkit import Unopened, shown
from ..types import Key, Value
from .consumer import Consumer
from .crossing import Client, cross, on_host
from .guest import Guest
from .opening import Opening, open_share_consumer
from .producer import Producer, Transaction
from .sharing import Delivery


@overload
async def run_tasks(
    consumer: Consumer[Key, Value],
    handler: Callable[[Record[Key, Value]], Awaitable[object]],
    *,
    batches: Literal[False] = False,
    concurrency: int = 1,
    producer: Producer | None = None,
    retry: RetryPolicy | None = None,
    dead_letter: str | DeadLetter | None = None,
    prepare: Callable[[TopicPartition], Awaitable[object]] | None = None,
    topics: Mapping[str, NewTopic] | None = None,
    stop_on: Collection[signal.Signals] = (),
    task_timeout_ms: float = 300_000,
    retries: int | None = None,
) -> None: ...
@overload
async def run_tasks(
    consumer: Consumer[Key, Value],
    handler: Callable[[RecordBatch[Key, Value]], Awaitable[object]],
    *,
    batches: Literal[True],
    producer: Producer | None = None,
    retry: RetryPolicy | None = None,
    dead_letter: str | DeadLetter | None = None,
    prepare: Callable[[TopicPartition], Awaitable[object]] | None = None,
    topics: Mapping[str, NewTopic] | None = None,
    stop_on: Collection[signal.Signals] = (),
    task_timeout_ms: float = 300_000,
    retries: int | None = None,
) -> None: ...
async def run_tasks(
    consumer: Consumer[Any, Any],
    handler: Callable[[Record[Any, Any]], Awaitable[object]]
    | Callable[[RecordBatch[Any, Any]], Awaitable[object]],
    *,
    batches: bool = False,
    concurrency: int = 1,
    producer: Producer | None = None,
    retry: RetryPolicy | None = None,
    dead_letter: str | DeadLetter | None = None,
    prepare: Callable[[TopicPartition], Awaitable[object]] | None = None,
    topics: Mapping[str, NewTopic] | None = None,
    stop_on: Collection[signal.Signals] = (),
    task_timeout_ms: float = 300_000,
    retries: int | None = None,
) -> None:
    """Call ``await handler(record)`` for each record, in one task a partition; commit progress.

    As :func:`trikafka.run_tasks`: the same promises, arguments and errors. Each call of ``handler``
    and ``prepare`` is a task of asyncio, in a copy of the caller's context. A call costs a task and
    two turns of the loop, so ``batches=True`` is much cheaper a record.

    Args:
        consumer: An open consumer, subscribed or assigned.
        handler: An async function of one :class:`Record` (with ``batches=True``: of one
            :class:`RecordBatch`).
        batches: Call the handler with whole batches.
        concurrency: The number of records of a partition that are handled at once.
        producer: For exactly once (needs a ``transactional_id``), or for ``dead_letter``.
        retry: The handler's errors to retry, and how often.
        dead_letter: The topic for records that the handler failed at, or a :class:`DeadLetter`.
        prepare: An async function of a :class:`TopicPartition`, awaited before the partition's
            first record.
        topics: Topics to create or check before any task begins.
        stop_on: Signals that end the run in order. Only for a run in the main thread.
        task_timeout_ms: The limit without progress, in milliseconds.
        retries: Ignored, with a warning.

    Raises:
        ConfigurationError: A wrong argument or setting, before any I/O.
        IllegalStateError: A handler ended with ``CancelledError``, and the run was not cancelled.
        Exception: As :func:`trikafka.run_tasks`.

    When cancelled, the handlers are cancelled, what is done is committed within a second, and then
    ``CancelledError`` is raised.
    """
    _check("run_tasks", consumer, Consumer)
    if producer is not None:
        _check("run_tasks", producer, Producer)
    check_async("handler", handler, "batch" if batches else "record")  # _bridged() hides it
    if prepare is not None:
        check_async("prepare", prepare, "partition")
    consumer._check()
    guest, run = consumer._guest, _run_tasks
    settings: dict[str, Any] = {
        "batches": batches,
        "concurrency": concurrency,
        "producer": None if producer is None else producer._client,
        "retry": retry,
        "dead_letter": dead_letter,
        "prepare": None if prepare is None else _bridged(guest, "prepare", prepare),
        "topics": topics,
        "stop_on": stop_on,
        "task_timeout_ms": task_timeout_ms,
        "retries": retries,
    }
    call: Any = partial(run, consumer._client, _bridged(guest, "handler", handler), **settings)
    await cross(guest, call)


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

    As :func:`trikafka.process`: the same promises, arguments and errors. Each call of ``handler``
    is a task of asyncio, in a copy of the caller's context.

    Args:
        consumer: An open consumer.
        producer: An open producer with a ``transactional_id``.
        handler: An async function of a :class:`RecordBatch` and the open :class:`Transaction`. It
            must not end the transaction.
        max_records: Records in a transaction, at least 1.
        commit_interval: Seconds in which a transaction takes further batches.
        task_timeout_ms: The limit without a commit, in milliseconds.

    Raises:
        ConfigurationError: A wrong argument or setting, before any I/O.
        Exception: As :func:`trikafka.process`.

    When cancelled, the handler is cancelled, the transaction is aborted, and then
    ``CancelledError`` is raised.
    """
    _check("process", consumer, Consumer)
    _check("process", producer, Producer)
    check_async("handler", handler, "batch", "txn")  # what is bridged hides it
    consumer._check()
    guest = consumer._guest

    def call(function: Any) -> Any:
        @wraps(function)
        async def bridged(batch: RecordBatch[Key, Value], txn: _Transaction) -> object:
            lent = Transaction(producer, txn)
            return await on_host(guest, "handler", function, batch, lent)

        return bridged

    settings: dict[str, Any] = {
        "max_records": max_records,
        "commit_interval": commit_interval,
        "task_timeout_ms": task_timeout_ms,
    }
    bridged = call(handler) if callable(handler) else handler
    await cross(guest, partial(_process, consumer._client, producer._client, bridged, **settings))


async def run_queue(
    handler: Callable[[Delivery[Any, Any]], Awaitable[object]],
    *topics: str,
    group_id: str,
    concurrency: int = 1,
    retry: RetryPolicy | None = None,
    reject_after: int | None = None,
    stop_on: Collection[signal.Signals] = (),
    **settings: Any,
) -> None:
    """Call ``await handler(delivery)`` for each record of a share group, until cancelled.

    As :func:`trikafka.run_queue`: the same promises, arguments and errors. Each call of ``handler``
    is a task of asyncio, in a copy of the caller's context. It is cancelled if the lock is lost.

    Args:
        handler: An async function of a :class:`Delivery`.
        topics: Names of topics.
        group_id: The share group.
        concurrency: The number of records that are handled at once.
        retry: The handler's errors to retry at once, and how often, before they count.
        reject_after: The delivery of a record that is its last one, counted from 1.
        stop_on: Signals that end the run in order. Only for a run in the main thread.
        settings: Those of :func:`open_share_consumer`, with the defaults of
            :func:`trikafka.run_queue`.

    Raises:
        ConfigurationError: A wrong argument or setting, before any I/O.
        IllegalStateError: A handler ended with ``CancelledError``, and the run was not cancelled.
        Exception: As :func:`trikafka.run_queue`.

    When cancelled, the handlers are cancelled, their records are released within a second, and then
    ``CancelledError`` is raised.
    """
    given = queue_settings(handler, topics, concurrency, retry, reject_after, stop_on, settings)
    async with open_share_consumer(*topics, group_id=group_id, **given) as queue:
        guest = queue._guest

        @wraps(handler)
        async def call(held: _Delivery[Any, Any]) -> object:
            return await on_host(guest, "handler", handler, Delivery(queue, held))

        run = QueueRun(queue._client, call, retry, reject_after)
        await cross(guest, partial(run.run, concurrency, tuple(stop_on)))


async def ensure_topics(
    consumer: Consumer[Any, Any], topics: Mapping[str, NewTopic], *, timeout: float | None = None
) -> dict[str, list[PartitionInfo]]:
    """Create missing topics and check existing ones, as :func:`trikafka.ensure_topics`.

    Args:
        consumer: An open consumer, whose settings and subscription are used.
        topics: A :class:`NewTopic` for each name.
        timeout: Seconds (default: half of ``max_poll_interval_ms``).

    Returns:
        The partitions of each topic, the subscribed ones included.

    Raises:
        TopicsNotReadyError: A topic is missing when the time is up, or an existing topic differs.
        TrikafkaError: As :func:`trikafka.ensure_topics`.

    When cancelled, topics that were created stay.
    """
    _check("ensure_topics", consumer, Consumer)
    consumer._check()
    return await cross(
        consumer._guest, partial(_ensure_topics, consumer._client, topics, timeout=timeout)
    )


def _check(call: str, client: object, kind: type[Client]) -> None:
    """Raise :exc:`ConfigurationError` unless this is an open client of trikafka.aio."""
    if not isinstance(client, kind):
        name = kind.__name__.lower()
        is_client = type(client).__module__.startswith("trikafka.")
        what = repr(client) if is_client and not isinstance(client, Unopened) else shown(client)
        if isinstance(client, Opening) and client.opens == f"open_{name}":
            what = (
                f"one that is not open yet; write: async with trikafka.aio.open_{name}(...) as "
                f"{name}: await trikafka.aio.{call}(...)"
            )
        raise ConfigurationError(
            f"{call}() of trikafka.aio needs a {name} of trikafka.aio, not {what}"
        )


def _bridged(guest: Guest, what: str, function: Any) -> Any:
    """Return an async function for Trio that calls ``function`` in asyncio.

    Anything that is not a function is returned unchanged: Trio's side refuses it.
    """
    if not callable(function):
        return function

    @wraps(function)
    async def call(argument: object) -> object:
        return await on_host(guest, what, function, argument)

    return call
