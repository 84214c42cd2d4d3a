"""``run_tasks``: what is checked before the tasks of a consumer begin, and which kind of run it is."""

from __future__ import annotations

import logging
import signal
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Literal, overload

from .._wire.columns import RecordBatch
from ..errors import ConfigurationError
from ..types import Record, TopicPartition
from .admin_types import NewTopic
from .callbacks import check_async
from .consumer import Consumer
from .ensuring import check_topics
from .ensuring import ensure_topics as ensure_topics
from .given import check_client
from .handling import Handling, RetryPolicy
from .partition_task import PartitionTask
from .producer import Producer
from .task_plan import HandlingPlan, check_task_timeout
from .task_run import TaskRun
from .transactional_run import TransactionalRun

_log = logging.getLogger("trikafka.tasks")


@overload
async def run_tasks(
    consumer: Consumer,
    handler: Callable[[Record], Awaitable[object]],
    *,
    batches: Literal[False] = False,
    concurrency: int = 1,
    producer: Producer | None = None,
    retry: RetryPolicy | None = None,
    dead_letter: str | None = None,
    prepare: Callable[[TopicPartition], Awaitable[object]] | None = None,
    topics: Mapping[str, NewTopic] | None = None,
    stop_on: Collection[signal.Signals] = (),
    task_timeout_ms: float = 300_000,
    retries: int | None = None,
) -> None: ...
@overload
async def run_tasks(
    consumer: Consumer,
    handler: Callable[[RecordBatch], Awaitable[object]],
    *,
    batches: Literal[True],
    producer: Producer | None = None,
    retry: RetryPolicy | None = None,
    dead_letter: str | None = None,
    prepare: Callable[[TopicPartition], Awaitable[object]] | None = None,
    topics: Mapping[str, NewTopic] | None = None,
    stop_on: Collection[signal.Signals] = (),
    task_timeout_ms: float = 300_000,
    retries: int | None = None,
) -> None: ...
async def run_tasks(
    consumer: Consumer,
    handler: Callable[[Record], Awaitable[object]] | Callable[[RecordBatch], Awaitable[object]],
    *,
    batches: bool = False,
    concurrency: int = 1,
    producer: Producer | None = None,
    retry: RetryPolicy | None = None,
    dead_letter: str | None = None,
    prepare: Callable[[TopicPartition], Awaitable[object]] | None = None,
    topics: Mapping[str, NewTopic] | None = None,
    stop_on: Collection[signal.Signals] = (),
    task_timeout_ms: float = 300_000,
    retries: int | None = None,
) -> None:
    """Have ``await handler(record)`` called for each record, in one task a partition, and commit what is done (KIP-572).

    A record is processed once the handler returns; nothing past one that is not is committed. So each is handled at least once,
    and with a ``producer`` that has a ``transactional_id`` exactly once, as far as what the handler sends by that goes. The
    consumer needs a ``group_id`` and ``enable_auto_commit=False``; commits come each ``auto_commit_interval_ms``, and when
    partitions or the run end. With ``batches=True`` the handler gets a :class:`RecordBatch`.

    * ``concurrency``: so many records of a partition at once. Those of one key stay in order; those without one are in none.
    * ``retry``: which errors of the handler are tried again, and how often. ``dead_letter``: the topic that ``producer`` writes a
      record to which is not, with its coordinates and the error as headers. Without it such an error ends the run.
    * A call in the handler that times out (:exc:`KafkaTimeoutError`) skips the partition's task for a while, with a warning, and
      the record is handed out again. If nothing of the partition succeeds for ``task_timeout_ms`` since the first of these, one
      more attempt is made; its time-out ends the run, with the first as its cause. With 0 the first one does. So do the time-outs
      of commits, which count for all tasks that they are about.
    * ``prepare``: awaited for each partition before its first record; what times out in it is tried again in the same way.
    * ``topics``: what :func:`ensure_topics` is to see to before any task begins.
    * ``stop_on``: signals that end the run in order; for a run in the main thread.
    * ``retries`` is ignored, with a warning: time decides.

    Returns when the consumer is closed or a signal has come: what is in hand is finished (for ``close_timeout_ms`` at most) and
    committed. When a partition is revoked this goes for it alone. What ends a run is raised as it is, in no group, after the other
    tasks have finished what they had in hand; in a transaction all is aborted. Cancelled: handlers are cut off, what is done is
    committed within a second. Each time the consumer then stands before what is not done, and may be used again.

    Raises :exc:`ConfigurationError` before any I/O, and at its first call for a handler that turns out not to be async (its record
    is not committed, and no dead letter); what ``handler`` and ``prepare`` raise, :exc:`TopicsNotReadyError`, what stops the
    consumer, and of a transaction what :func:`process` raises.
    """
    if retries is not None:
        _log.warning(
            "run_tasks() ignores retries=%s: set task_timeout_ms (0: nothing that times out is tried again), and retry= for errors"
            " of the handler; `retries` of open_producer() and open_admin() keep their meaning",
            retries,
        )
    check_client("run_tasks", consumer, Consumer, "{}, handler")
    if producer is not None:
        check_client("run_tasks", producer, Producer, "consumer, handler, producer={}")
    config = consumer._config
    _check_numbers(concurrency, batches)
    check_task_timeout(task_timeout_ms)
    check_async("handler", handler, "batch" if batches else "record")
    if prepare is not None:
        check_async("prepare", prepare, "partition")
    _check_choices(retry, dead_letter)
    check_stop_on(stop_on)
    if topics is not None:
        check_topics(topics)
    check_commits(consumer, "run_tasks")
    transactional = producer is not None and producer._config.transactional_id is not None
    if dead_letter is not None and producer is None:
        raise ConfigurationError("dead_letter= needs producer=: who writes to it")
    if producer is not None and dead_letter is None and not transactional:
        raise ConfigurationError("producer= is for exactly once, which takes a transactional_id, or for dead_letter=: give either")
    assert config.group_id is not None
    handling = Handling(handler, retry, dead_letter, producer, config.group_id, batches)
    plan = HandlingPlan(task_timeout_ms, dict(topics or {}), tuple(stop_on), handling, concurrency, prepare)
    if producer is not None and transactional:
        producer.transaction()
        await TransactionalRun(consumer, config, producer, plan).run()
    else:
        await TaskRun(consumer, config, plan, partial(PartitionTask, consumer, config, plan)).run()


def check_commits(consumer: Consumer, call: str) -> None:
    """Raise :exc:`ConfigurationError` unless ``call`` may commit for the consumer."""
    if consumer._config.group_id is None:
        raise ConfigurationError(f"{call} commits what is done, which takes a group: open the consumer with a group_id")
    if consumer._parts.group.auto_commit is not None:
        raise ConfigurationError(f"{call} commits by itself: open the consumer with enable_auto_commit=False")
    consumer.check_fits_transactions()


def check_stop_on(stop_on: object) -> None:
    """Raise :exc:`ConfigurationError` unless these are signals that can be waited for."""
    if not isinstance(stop_on, Collection) or isinstance(stop_on, str | bytes | Mapping):
        raise ConfigurationError(f"stop_on must be a collection of signals, such as [signal.SIGTERM], not {stop_on!r}")
    for number in stop_on:
        if not isinstance(number, int) or number not in signal.valid_signals() or number in (signal.SIGKILL, signal.SIGSTOP):
            raise ConfigurationError(f"stop_on must hold signals that can be waited for, such as signal.SIGTERM, not {number!r}")


def _check_choices(retry: object, dead_letter: object) -> None:
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise ConfigurationError(f"retry must be a RetryPolicy, such as RetryPolicy(ConnectionError, attempts=3), not {retry!r}")
    if dead_letter is not None and (not isinstance(dead_letter, str) or not dead_letter):
        raise ConfigurationError(f"dead_letter must be the name of a topic, not {dead_letter!r}")


def _check_numbers(concurrency: int, batches: bool) -> None:
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise ConfigurationError(f"concurrency must be a whole number from 1, not {concurrency!r}")
    if batches and concurrency > 1:
        raise ConfigurationError("a batch holds many keys: concurrency= is for records, not for batches=True")
