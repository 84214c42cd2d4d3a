"""``run_tasks``: the checks before the tasks begin, and the choice of the kind of run."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Literal, overload

from .. import Consumer, NewTopic, Producer, RecordBatch
from ..config.whole import is_whole
from ..errors import ConfigurationError
from ..toolkit import check_client
from ..types import Key, Record, TopicPartition, Value
from .callbacks import check_async
from .dead_letters import DeadLetter
from .ensuring import check_topics
from .ensuring import ensure_topics as ensure_topics
from .handling import Handling, RetryPolicy
from .partition_task import PartitionTask
from .plan import HandlingPlan, check_task_timeout
from .run import TaskRun
from .transactional_run import TransactionalRun

_log = logging.getLogger("trikafka.tasks")


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
    handler: Callable[[Any], Awaitable[object]],
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

    A record is processed once the handler returns. A commit never passes a record that is not
    processed, so each record is handled at least once. With a ``producer`` that has a
    ``transactional_id``, what the handler sends through that producer happens exactly once.

    The consumer needs a ``group_id`` and ``enable_auto_commit=False``. Commits happen every
    ``auto_commit_interval_ms``, when partitions are revoked, and at the end of the run.

    A call in the handler that times out (:exc:`KafkaTimeoutError`) suspends the partition's task
    for a while, with a warning; then the handler gets the record again (KIP-572). If
    nothing of the partition succeeds for ``task_timeout_ms`` after the first timeout, one more
    attempt is made. Its timeout ends the run, with the first timeout as the cause. The same holds
    for timeouts of commits, which count for all tasks that they concern. A group of timeouts alone
    counts as one, and so does a failure with a timeout as its cause. The :exc:`trio.TooSlowError`
    of the handler's own ``trio.fail_after`` does not. This is Kafka Streams'
    ``task.timeout.ms`` with a partition as the task: a suspended task does not affect the others,
    and ``prepare`` takes the place of the global thread.

    ``run_tasks`` returns when the consumer is closed or a signal of ``stop_on`` has arrived. The
    records in hand are finished (at most ``close_timeout_ms``) and committed. A revoked partition
    ends its own task in the same way. An error that ends the run is raised as it is, in no group,
    after the other tasks have finished the records in hand; an open transaction is aborted.

    Args:
        consumer: An open consumer, subscribed or assigned.
        handler: An async function of one :class:`Record` (with ``batches=True``: of one
            :class:`RecordBatch`).
        batches: Call the handler with whole batches.
        concurrency: The number of records of a partition that are handled at once. Records of one
            key stay in order. Records without a key have no order. From the first unfinished record
            on, at most 1,000 are taken, and fewer if those behind their keys are large. Not with
            ``batches=True``.
        producer: For exactly once (needs a ``transactional_id``), or for ``dead_letter``.
        retry: The handler's errors to retry, and how often.
        dead_letter: The topic to which ``producer`` writes a record that the handler failed at,
            with the record's coordinates and the error as headers. Without this setting such an
            error ends the run. A :class:`DeadLetter` also says what to do with a record too large
            for that topic; by default its value is truncated.
        prepare: An async function of a :class:`TopicPartition`, awaited before the partition's
            first record. Timeouts in it are retried as those of the handler.
        topics: Topics for :func:`ensure_topics`, before any task begins.
        stop_on: Signals that end the run in order. Only for a run in the main thread.
        task_timeout_ms: The limit without progress, in milliseconds. 0: the first timeout ends the
            run.
        retries: Ignored, with a warning. ``task_timeout_ms`` decides.

    Raises:
        ConfigurationError: A wrong argument or setting, before any I/O. Also a handler that turns
            out at its first call not to be async: its record is neither committed nor written as a
            dead letter.
        KafkaTimeoutError: No progress for ``task_timeout_ms``.
        TopicsNotReadyError: ``topics`` could not be made ready.
        Exception: The error of ``handler`` or ``prepare``, of the consumer, or, in transactions, of
            :func:`process`.

    When cancelled, handlers are cut off, and what is done is committed within a second. After any
    exit the consumer is positioned at the first record that is not done, and may be used again.
    """
    if retries is not None:
        _log.warning(
            "run_tasks() ignores retries=%s: set task_timeout_ms (0: nothing that times out is "
            "tried again), and retry= for errors of the handler; `retries` of open_producer() and "
            "open_admin() keep their meaning",
            retries,
        )
    check_client("run_tasks", consumer, Consumer, "{}, handler")
    if producer is not None:
        check_client("run_tasks", producer, Producer, "consumer, handler, producer={}")
    config = consumer.config
    _check_numbers(concurrency, batches)
    check_task_timeout(task_timeout_ms)
    check_async("handler", handler, "batch" if batches else "record")
    if prepare is not None:
        check_async("prepare", prepare, "partition")
    check_retry(retry)
    _check_dead_letter(dead_letter)
    check_stop_on(stop_on)
    if topics is not None:
        check_topics(topics)
    check_commits(consumer, "run_tasks")
    transactional = producer is not None and producer.config.transactional_id is not None
    if dead_letter is not None and producer is None:
        raise ConfigurationError("dead_letter= needs producer=, which writes to that topic")
    if producer is not None and dead_letter is None and not transactional:
        raise ConfigurationError(
            "producer= has no use here: give dead_letter=, the topic of its dead letters, or open "
            "the producer with a transactional_id, to work exactly once"
        )
    assert config.group_id is not None
    letter = DeadLetter(dead_letter) if isinstance(dead_letter, str) else dead_letter
    handling = Handling(handler, retry, letter, consumer, producer, batches)
    handling.check_not_read({*consumer.subscription(), *(tp.topic for tp in consumer.assignment())})
    plan = HandlingPlan(
        task_timeout_ms, dict(topics or {}), tuple(stop_on), handling, concurrency, prepare
    )
    if producer is not None and transactional:
        producer.transaction()
        await TransactionalRun(consumer, config, producer, plan).run()
    else:
        await TaskRun(consumer, config, plan, partial(PartitionTask, consumer, config, plan)).run()


def check_commits(consumer: Consumer[Any, Any], call: str) -> None:
    """Raise unless ``call`` may commit for the consumer.

    Raises:
        ConfigurationError: The consumer has no ``group_id``, or auto commit is on.
    """
    if consumer.config.group_id is None:
        raise ConfigurationError(
            f"{call} commits what is done, which takes a group: open the consumer with a group_id"
        )
    if consumer.config.enable_auto_commit:
        raise ConfigurationError(
            f"{call} commits by itself: open the consumer with enable_auto_commit=False"
        )
    consumer.check_fits_transactions()


#: Signals that no program receives, where the system has them.
_NEVER_RECEIVED = {getattr(signal, name, None) for name in ("SIGKILL", "SIGSTOP")}


def check_stop_on(stop_on: object) -> None:
    """Raise :exc:`ConfigurationError` unless the values are signals that a program can wait for."""
    if not isinstance(stop_on, Collection) or isinstance(stop_on, str | bytes | Mapping):
        raise ConfigurationError(
            f"stop_on must be a collection of signals, such as [signal.SIGTERM], not {stop_on!r}"
        )
    for number in stop_on:
        if (
            not is_whole(number)
            or number not in signal.valid_signals()
            or number in _NEVER_RECEIVED
        ):
            raise ConfigurationError(
                "stop_on must hold signals that can be waited for, such as signal.SIGTERM, not "
                f"{number!r}"
            )
    if stop_on and threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            "stop_on is only for a run in the main thread, where Python receives signals; "
            "elsewhere cancel the run, or close the consumer"
        )


def check_retry(retry: object) -> None:
    """Raise :exc:`ConfigurationError` unless the value is a policy or ``None``."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise ConfigurationError(
            "retry must be a RetryPolicy, such as RetryPolicy(ConnectionError, attempts=3), not "
            f"{retry!r}"
        )


def _check_dead_letter(dead_letter: object) -> None:
    if dead_letter is not None and (
        not isinstance(dead_letter, str | DeadLetter) or not dead_letter
    ):
        raise ConfigurationError(
            f"dead_letter must be the name of a topic, or a DeadLetter, not {dead_letter!r}"
        )


def _check_numbers(concurrency: int, batches: bool) -> None:
    if not isinstance(batches, bool):
        raise ConfigurationError(f"batches must be True or False, not {batches!r}")
    if not is_whole(concurrency, 1):
        raise ConfigurationError(f"concurrency must be a whole number from 1, not {concurrency!r}")
    if batches and concurrency > 1:
        raise ConfigurationError(
            "a batch holds many keys: concurrency= is for records, not for batches=True"
        )
