"""``sink_batches``: a consumer whose records go to a sink in tables, beside its life as a member of its group."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import trio

from ..errors import ConfigurationError
from ..interfaces import BatchSink
from .batches import arrow_loaded
from .consumer import Consumer
from .export import find_sink, hidden_options, path_of
from .given import check_client
from .sink_task import SinkPlan, SinkTask
from .task_plan import check_task_timeout
from .task_run import TaskRun
from .tasks import check_commits, check_stop_on


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
    """Write what ``consumer`` reads to ``destination``, in Arrow tables of one partition each, and commit what is durable.

    A table is handed to the sink (hook ``trikafka_sink``, :class:`~trikafka.interfaces.BatchSink`) when its first record is
    ``flush_ms`` old, or it has ``max_rows`` rows or ``max_bytes`` bytes, which the last batch may exceed; so much is held in
    memory of each partition. The partitions are worked on side by side, each in a task. The sink may take as long as it wants:
    the member stays in its group (KIP-62). Nothing is committed before the sink has returned, so each record is written at least
    once; whether one that comes again stands there twice is the sink's to say. The consumer needs a ``group_id`` and
    ``enable_auto_commit=False``.

    What is held is written and committed when its partition is revoked (while the group waits, half of
    ``max_poll_interval_ms`` at most), when the consumer is closed, on a signal of ``stop_on`` (within ``close_timeout_ms``), and
    when another partition's error ends the run. Then it returns, or raises that error. Time-outs of calls are tried again for
    ``task_timeout_ms``, as :func:`run_tasks` does. Cancelled: the sink's work is cut off, what it has returned from is committed
    within a second, and the consumer stands before the rest.

    Raises :exc:`ConfigurationError`, and :exc:`PluginError` when no plugin takes batches there, before any I/O; what the sink
    raises, :exc:`ExportError` above all; and what stops the consumer.
    """
    check_client("sink_batches", consumer, Consumer, "{}, destination")
    for name, value in (("max_rows", max_rows), ("max_bytes", max_bytes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(f"{name} must be a whole number from 1, not {value!r}")
    if isinstance(flush_ms, bool) or not isinstance(flush_ms, int | float) or not flush_ms >= 0:
        raise ConfigurationError(f"flush_ms must be a number of milliseconds, at least 0, not {flush_ms!r}")
    check_task_timeout(task_timeout_ms)
    check_stop_on(stop_on)
    check_commits(consumer, "sink_batches")
    config = consumer._config
    sink: BatchSink = find_sink(path_of(destination), hidden_options(sink_options), config.plugins, BatchSink)
    await arrow_loaded()
    async with sink.open_batches() as writer:
        limiter = trio.CapacityLimiter(2)
        plan = SinkPlan(task_timeout_ms, {}, tuple(stop_on), writer, flush_ms / 1000, max_rows, max_bytes, limiter)
        await TaskRun(consumer, config, plan, partial(SinkTask, consumer, config, plan)).run()
