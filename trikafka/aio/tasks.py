"""``run_tasks`` for asyncio: the run is Trio's, the handlers are asyncio's."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial, wraps
from typing import Any, Literal, overload

from .. import DeadLetter, NewTopic, Record, RecordBatch, RetryPolicy, TopicPartition
from .. import run_tasks as _run_tasks
from ..errors import ConfigurationError
from .consumer import Consumer
from .crossing import cross, on_host
from .guest import Guest
from .producer import Producer


@overload
async def run_tasks(
    consumer: Consumer,
    handler: Callable[[Record], Awaitable[object]],
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
) -> None: ...
@overload
async def run_tasks(
    consumer: Consumer,
    handler: Callable[[RecordBatch], Awaitable[object]],
    *,
    batches: Literal[True],
    producer: Producer | None = None,
    retry: RetryPolicy | None = None,
    dead_letter: str | DeadLetter | None = None,
    prepare: Callable[[TopicPartition], Awaitable[object]] | None = None,
    topics: Mapping[str, NewTopic] | None = None,
    stop_on: Collection[signal.Signals] = (),
    task_timeout_ms: float = 300_000,
) -> None: ...
async def run_tasks(
    consumer: Consumer,
    handler: Callable[[Record], Awaitable[object]] | Callable[[RecordBatch], Awaitable[object]],
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

    Raises:
        ConfigurationError: A wrong argument or setting, before any I/O.
        IllegalStateError: A handler ended with ``CancelledError``, and the run was not cancelled.
        Exception: As :func:`trikafka.run_tasks`.

    When cancelled, the handlers are cancelled, what is done is committed within a second, and then
    ``CancelledError`` is raised.
    """
    if not isinstance(consumer, Consumer):
        raise ConfigurationError(
            f"run_tasks() of trikafka.aio needs a consumer of trikafka.aio, not {consumer!r}"
        )
    if producer is not None and not isinstance(producer, Producer):
        raise ConfigurationError(
            f"run_tasks() of trikafka.aio needs a producer of trikafka.aio, not {producer!r}"
        )
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
    }
    call: Any = partial(run, consumer._client, _bridged(guest, "handler", handler), **settings)
    await cross(guest, call)


def _bridged(guest: Guest, what: str, function: Any) -> Any:
    """Return an async function for Trio that calls ``function`` in asyncio.

    What is no function is returned as it is, for Trio's side to refuse.
    """
    if not callable(function):
        return function

    @wraps(function)
    async def call(argument: object) -> object:
        return await on_host(guest, what, function, argument)

    return call
