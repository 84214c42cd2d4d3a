"""A task of :func:`trikafka.sink_batches`: a partition's records, in tables, to the sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import trio

from .._net.retry import Retry
from .._wire.columns import RecordBatch
from ..config import ConsumerConfig
from ..interfaces import BatchWriter, SinkBatch
from ..tasks.callbacks import seen_through
from ..tasks.plan import RunShutdown, TaskPlan, TimeoutBudget
from ..tasks.stream_task import StreamTask
from .consumer.batches import joined
from .consumer.consumer import Consumer
from .consumer.partition_stream import PartitionStream, StreamBatches


@dataclass(frozen=True)
class SinkPlan(TaskPlan):
    """The plan of tasks that write to a sink; ``flush_after`` is in seconds."""

    writer: BatchWriter
    flush_after: float
    max_rows: int
    max_bytes: int
    limiter: trio.CapacityLimiter  # threads that make the tables


@dataclass
class _Held:
    """Records that were read and are not written yet."""

    since: float
    batches: list[RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def add(self, more: list[RecordBatch]) -> None:
        self.batches += more
        self.rows += sum(map(len, more))
        self.bytes += sum(batch.nbytes for batch in more)


class SinkTask(StreamTask):
    """The task that writes the records of one stream.

    When the stream or the run ends, the task writes what it holds, if the consumer still owns the
    partition.
    """

    def __init__(
        self,
        consumer: Consumer,
        config: ConsumerConfig,
        plan: SinkPlan,
        stream: PartitionStream,
        shutdown: RunShutdown,
    ) -> None:
        super().__init__(consumer, config, plan, stream, shutdown)
        stream._allow_any_time()  # as promised to the sink
        self._plan = plan
        self._written: int | None = None

    @property
    def processed(self) -> int | None:
        """The offset before which everything is written; ``None`` before the first record."""
        return self._written

    async def _feed(self) -> None:
        # A round gathers one table and writes it, and ``_written`` moves only after the sink has
        # returned: until then nothing of the table may be committed. A table that is held when the
        # partition is lost is dropped, since its new owner reads the same records. While the
        # partition is being revoked it is still owned, so the table is written, and the group
        # waits.
        batches = self._stream.batches()
        while not self._over:
            held = await self._gathered(batches)
            if held is None or self._stream._gone or not await self._write(held):
                return

    async def _gathered(self, batches: StreamBatches) -> _Held | None:
        """Return the records to write next; ``None`` if none came before the end."""
        plan, held = self._plan, None
        budget = TimeoutBudget(self._name, [self._timer], Retry(self._config))
        while not self._over:
            due = float("inf") if held is None else held.since + plan.flush_after
            rows, size = (0, 0) if held is None else (held.rows, held.bytes)
            if rows >= plan.max_rows or size >= plan.max_bytes or trio.current_time() >= due:
                break
            try:
                with self._waits.scope(), trio.move_on_at(due):
                    more = await batches.gather(plan.max_rows - rows, plan.max_bytes - size)
                    held = held or self._begun(more)
                    held.add(more)
            except StopAsyncIteration:
                break
            except Exception as error:
                if (delay := self._next_attempt(error, budget)) is None:
                    self.stop()
                else:
                    await self._pause(delay)
        return held

    def _begun(self, more: list[RecordBatch]) -> _Held:
        if self._written is None:
            self._written = self._committed = int(
                more[0].offsets[0]
            )  # the position at the start is not progress
        return _Held(trio.current_time())

    async def _write(self, held: _Held) -> bool:
        """Write a table, with all attempts; return whether it is written."""
        batch = await self._batch(held)
        budget = TimeoutBudget(f"writing {batch}", [self._timer], Retry(self._config))
        while True:
            try:
                await seen_through(f"writing {batch}", partial(self._plan.writer.write, batch))
            except Exception as error:
                delay = self._next_attempt(error, budget)
            else:
                self._written = batch.end
                budget.succeeded()
                self.commit_timer.progressed()
                return True
            if delay is None or not await self._pause(delay):
                return False

    async def _batch(self, held: _Held) -> SinkBatch:
        table = await joined(held.batches, self._plan.limiter)
        tp, first, last = self.partition, held.batches[0], held.batches[-1]
        return SinkBatch(tp.topic, tp.partition, int(first.offsets[0]), last.next_offset, table)
