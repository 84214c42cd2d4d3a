"""``sink_batches``: a group member whose records go to a sink, in tables."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import trio

from ..errors import ConfigurationError
from ..interfaces import BatchSink
from ..tasks.plan import check_task_timeout
from ..tasks.run import TaskRun
from ..tasks.run_tasks import check_commits, check_stop_on
from .client.option_parsing import check_client
from .consumer.batches import arrow_loaded
from .consumer.consumer import Consumer
from .sink_task import SinkPlan, SinkTask
from .sinks import find_sink, hidden_options, path_of


async def sink_batches(
    consumer: Consumer,
    destination: str | os.PathLike[str],
    *,
    flush_ms: float = 60_000,
    max_rows: int = 1_000_000,
    max_bytes: int = 67_108_864,
    sink_options: Mapping[str, Any] | None = None,
    stop_on: Collection[signal.Signals] = (),
    task_timeout_ms: float = 300_000,
) -> None:
    """Write the consumer's records to a sink, as Arrow tables; commit what is durable.

    Each table holds records of one partition. The sink (hook ``trikafka_sink``,
    :class:`~trikafka.interfaces.BatchSink`) receives a table when its first record is ``flush_ms``
    old, or when it has ``max_rows`` rows or ``max_bytes`` bytes. That much is held in memory for
    each partition. Partitions are handled side by side, each in a task. The sink may take any time:
    the member stays in its group (KIP-62).

    Nothing is committed before the sink has returned, so each record is written at least once. The
    sink decides whether a repeated record is stored twice. The consumer needs a ``group_id`` and
    ``enable_auto_commit=False``.

    When a partition is revoked, its records in memory are written and committed; the group waits
    for that, at most half of ``max_poll_interval_ms``. All records in memory are written and
    committed when the run ends: the consumer is closed, a signal of ``stop_on`` arrives (within
    ``close_timeout_ms``), or another partition fails. Then the call returns, or raises that error.
    Timeouts of calls are retried for ``task_timeout_ms``, as in :func:`run_tasks`.

    Args:
        consumer: An open consumer.
        destination: A path or an address; its scheme selects the sink.
        flush_ms: The greatest age of a table's first record, in milliseconds.
        max_rows: The number of rows that completes a table.
        max_bytes: The number of bytes that completes a table. The last batch may exceed either
            bound.
        sink_options: Options of the sink, by name.
        stop_on: Signals that end the run in order. Only for a run in the main thread.
        task_timeout_ms: The limit without progress after a timeout, in milliseconds.

    Raises:
        ConfigurationError: A wrong argument or setting, before any I/O.
        PluginError: No plugin takes batches for this destination.
        ExportError: The sink failed. A sink may raise other errors, too.
        TrikafkaError: The consumer cannot go on.

    When cancelled, the sink's work is cut off, finished tables are committed within a second, and
    the consumer is positioned at the first record that is not written.
    """
    check_client("sink_batches", consumer, Consumer, "{}, destination")
    for name, value in (("max_rows", max_rows), ("max_bytes", max_bytes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(f"{name} must be a whole number from 1, not {value!r}")
    if isinstance(flush_ms, bool) or not isinstance(flush_ms, int | float) or not flush_ms >= 0:
        raise ConfigurationError(
            f"flush_ms must be a number of milliseconds, at least 0, not {flush_ms!r}"
        )
    check_task_timeout(task_timeout_ms)
    check_stop_on(stop_on)
    check_commits(consumer, "sink_batches")
    config = consumer._config
    sink: BatchSink = find_sink(
        path_of(destination), hidden_options(sink_options), config.plugins, BatchSink
    )
    await arrow_loaded()
    async with sink.open_batches() as writer:
        limiter = trio.CapacityLimiter(2)
        plan = SinkPlan(
            task_timeout_ms,
            {},
            tuple(stop_on),
            writer,
            flush_ms / 1000,
            max_rows,
            max_bytes,
            limiter,
        )
        await TaskRun(consumer, config, plan, partial(SinkTask, consumer, config, plan)).run()
