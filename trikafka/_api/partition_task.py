"""One task of :func:`trikafka.run_tasks`: the stream of one partition, the records in hand, and what of them is done."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from .._net.gather import with_background
from .._net.retry import Retry
from ..config import ConsumerConfig
from ..errors import CommitFailedError, KafkaTimeoutError, RebalanceInProgressError
from ..types import TopicPartition
from .consumer import Consumer
from .handling import Verdict, Work, explained
from .lanes import Lanes
from .partition_stream import PartitionStream
from .task_plan import TaskPlan, Trials, Waits

_log = logging.getLogger("trikafka.tasks")
#: A commit ended in one of these: others have the partition, or will; they see its records again.
NOT_COMMITTED = (CommitFailedError, RebalanceInProgressError, KafkaTimeoutError)


class PartitionTask:
    """Reads one stream until that ends, or :meth:`stop`. ``failed`` is told what ends the whole run."""

    def __init__(
        self,
        consumer: Consumer,
        config: ConsumerConfig,
        plan: TaskPlan,
        stream: PartitionStream,
        failed: Callable[[Exception], None],
    ) -> None:
        self._consumer, self._config, self._plan, self._stream, self._failed = consumer, config, plan, stream, failed
        self._lanes = Lanes(plan.concurrency, self._handle)
        self._timer = plan.timer()
        self.commit_timer = plan.timer()
        self.ended = trio.Event()
        self._waits = Waits()  # that stopping cuts short
        self._committed: int | None = None

    @property
    def partition(self) -> TopicPartition:
        """Whose task it is."""
        return self._stream.partition

    @property
    def to_commit(self) -> int | None:
        """The offset before which everything is done, where that is news to the group and the partition is ours."""
        processed = self._lanes.order.processed
        return processed if self._stream._owned and processed != self._committed else None

    def committed(self, offset: int) -> None:
        """The group knows that offset now."""
        self._committed = offset

    def stop(self) -> None:
        """Take nothing more; what is in hand goes on."""
        self._lanes.stop()
        self._waits.end()

    async def run(self, first: Callable[[], Awaitable[object]]) -> None:
        """Live, once ``first`` has returned. Raises nothing but the cancellation of those around."""
        try:
            await self._work(first)
        except Exception as error:
            self._failed(error)
        finally:
            self.ended.set()

    @property
    def _over(self) -> bool:
        return self._lanes.stopped or self._stream.ended

    async def _work(self, first: Callable[[], Awaitable[object]]) -> None:
        try:
            async with self._stream:
                if await self._unless_over(first) and await self._prepared():
                    async with self._lanes:
                        await self._feed()
                await self._commit_last()  # as long as the stream is not left, the group waits for that
        finally:
            processed = self._lanes.order.processed
            if processed is not None and self._stream._owned:
                self._consumer.seek(self.partition, processed)  # who reads it next goes on there

    async def _prepared(self) -> bool:
        if self._plan.prepare is None:
            return not self._over
        trials = Trials(f"the start of the task of {self.partition}", [self._timer], Retry(self._config))
        return await self._unless_over(partial(trials.until_done, partial(self._plan.prepared, self.partition)))

    async def _feed(self) -> None:
        batches, order = self._stream.batches(), self._lanes.order
        trials = Trials(self._name, [self._timer], Retry(self._config))
        while not self._over:
            try:
                with self._waits.scope() as scope:
                    batch = await batches.__anext__()
            except StopAsyncIteration:
                return
            except Exception as error:
                if (delay := self._next_attempt(error, trials)) is None:
                    return
                await self._pause(delay)
                continue
            if scope.cancelled_caught:
                return
            order.passed(batch.offsets[0])
            if self._committed is None:
                self._committed = order.processed  # where it began is no news
            for work in self._plan.handling.works(batch):
                if self._over:
                    self._lanes.stop()
                    return
                await self._lanes.put(work)
            order.passed(batch.next_offset)

    async def _handle(self, work: Work) -> bool:
        """See it through; whether it is done. Not if the partition goes, or the run ends, before an attempt has succeeded."""
        trials: Trials | None = None
        while True:
            try:
                await self._plan.handling.attempt(work)
            except Exception as error:
                trials = trials or Trials(self._name, [self._timer], Retry(self._config))
                delay = self._judged(work, error, trials)
            else:
                self._timer.progressed()
                self.commit_timer.progressed()
                return True
            if delay is None or not await self._pause(delay):
                return False

    def _judged(self, work: Work, error: Exception, trials: Trials) -> float | None:
        """The seconds to wait before the next attempt; ``None``: there is none."""
        verdict, delay = self._plan.handling.judge(work, error)
        if verdict is Verdict.RAISE:
            self._failed(explained(error, work))
            return None
        return self._next_attempt(error, trials, work) if verdict is Verdict.TIMED_OUT else delay

    def _next_attempt(self, error: Exception, trials: Trials, work: Work | None = None) -> float | None:
        try:
            return trials.failed(error)
        except Exception as last:
            self._failed(last if work is None else explained(last, work))
            return None

    async def _commit_last(self) -> None:
        """The partition goes, or the run ends: commit what is done, while it still can be."""
        processed = self._lanes.order.processed
        if processed is None or processed == self._committed:
            return
        try:
            await self._stream.commit(processed)
            self._committed = processed
        except (*NOT_COMMITTED, trio.ClosedResourceError) as error:
            _log.warning("what was done of %s before offset %s was not committed: %s", self.partition, processed, error)

    # Waiting, which the end of the stream or of the run cuts short.

    @property
    def _name(self) -> str:
        return f"the task of {self.partition}"

    async def _pause(self, seconds: float) -> bool:
        """Wait; whether to go on then."""
        with self._waits.scope(), trio.move_on_after(seconds):
            await self._stream._until_ended()
        return not self._over

    async def _unless_over(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Do it, unless the end comes first; whether to go on."""
        with self._waits.scope() as scope:

            async def watch() -> None:
                await self._stream._until_ended()
                scope.cancel()

            async def main() -> None:
                await work()

            await with_background([watch], main)
        return not self._over
