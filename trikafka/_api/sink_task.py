"""One task of :func:`trikafka.sink_batches`: gathers the records of one partition, and hands them to the sink in tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from .._net.retry import Retry
from .._wire.columns import RecordBatch
from ..config import ConsumerConfig
from ..interfaces import BatchWriter, SinkBatch
from .batches import joined
from .consumer import Consumer
from .partition_stream import PartitionStream, StreamBatches
from .stream_task import StreamTask
from .task_plan import TaskPlan, Trials


@dataclass(frozen=True)
class SinkPlan(TaskPlan):
    """How tasks work that write to a sink. A table is handed over when it is so old (seconds), or holds so much."""

    writer: BatchWriter
    flush_after: float
    max_rows: int
    max_bytes: int
    limiter: trio.CapacityLimiter  #: of the threads that make the tables


@dataclass
class _Held:
    """What was read and is not written."""

    since: float
    batches: list[RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def add(self, more: list[RecordBatch]) -> None:
        self.batches += more
        self.rows += sum(map(len, more))
        self.bytes += sum(batch.nbytes for batch in more)


class SinkTask(StreamTask):
    """Writes the records of one stream. What it holds when the stream ends, or the run, is written then, if it is the consumer's
    still."""

    def __init__(
        self,
        consumer: Consumer,
        config: ConsumerConfig,
        plan: SinkPlan,
        stream: PartitionStream,
        failed: Callable[[Exception], None],
    ) -> None:
        super().__init__(consumer, config, plan, stream, failed)
        self._plan = plan
        self._written: int | None = None

    @property
    def processed(self) -> int | None:
        """The offset before which everything is written; ``None``: nothing was taken."""
        return self._written

    async def _feed(self) -> None:
        batches = self._stream.batches()
        while not self._over:
            held = await self._gathered(batches)
            if held is None or self._stream._gone or not await self._write(held):
                return

    async def _gathered(self, batches: StreamBatches) -> _Held | None:
        """What is to be written next; ``None``: nothing came before the end."""
        plan, held = self._plan, None
        trials = Trials(self._name, [self._timer], Retry(self._config))
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
                if (delay := self._next_attempt(error, trials)) is None:
                    self.stop()
                else:
                    await self._pause(delay)
        return held

    def _begun(self, more: list[RecordBatch]) -> _Held:
        if self._written is None:
            self._written = self._committed = int(more[0].offsets[0])  # where it began is no news
        return _Held(trio.current_time())

    async def _write(self, held: _Held) -> bool:
        """See it through; whether it is written."""
        batch = await self._batch(held)
        trials = Trials(f"writing {batch}", [self._timer], Retry(self._config))
        while True:
            try:
                await self._plan.writer.write(batch)
            except Exception as error:
                delay = self._next_attempt(error, trials)
            else:
                self._written = batch.end
                trials.succeeded()
                self.commit_timer.progressed()
                return True
            if delay is None or not await self._pause(delay):
                return False

    async def _batch(self, held: _Held) -> SinkBatch:
        table = await joined(held.batches, self._plan.limiter)
        tp, first, last = self.partition, held.batches[0], held.batches[-1]
        return SinkBatch(tp.topic, tp.partition, int(first.offsets[0]), last.next_offset, table)
