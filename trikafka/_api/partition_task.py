"""One task of :func:`trikafka.run_tasks`: the stream of one partition, the records in hand, and what of them is done."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .._net.retry import Retry
from ..config import ConsumerConfig
from .consumer import Consumer
from .handling import Verdict, Work, explained
from .lanes import Lanes
from .partition_stream import PartitionStream
from .stream_task import StreamTask
from .task_plan import HandlingPlan, Trials


class PartitionTask(StreamTask):
    """Hands the records of one stream to the handler."""

    def __init__(
        self,
        consumer: Consumer,
        config: ConsumerConfig,
        plan: HandlingPlan,
        stream: PartitionStream,
        failed: Callable[[Exception], None],
    ) -> None:
        super().__init__(consumer, config, plan, stream, failed)
        self._plan = plan
        self._lanes = Lanes(plan.concurrency, self._handle)

    @property
    def processed(self) -> int | None:
        """The offset before which everything is done; ``None``: nothing was taken."""
        return self._lanes.order.processed

    def stop(self) -> None:
        """Take nothing more; what is in hand goes on."""
        self._lanes.stop()
        super().stop()

    @property
    def _over(self) -> bool:
        return self._lanes.stopped or self._stream.ended

    async def _feed(self) -> None:
        if await self._prepared():
            async with self._lanes:
                await self._take()

    async def _prepared(self) -> bool:
        if self._plan.prepare is None:
            return not self._over
        trials = Trials(f"the start of the task of {self.partition}", [self._timer], Retry(self._config))
        return await self._unless_over(partial(trials.until_done, partial(self._plan.prepared, self.partition)))

    async def _take(self) -> None:
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
