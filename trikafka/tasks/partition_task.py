"""A task of :func:`trikafka.run_tasks`: a stream, the records in hand, the progress."""

from __future__ import annotations

from functools import partial

from .. import Consumer, PartitionStream
from ..config import ConsumerConfig
from ..toolkit import Retry
from .handling import FailureAction, RecordAttempt, explained
from .keyed_workers import KeyedWorkers
from .plan import HandlingPlan, RunShutdown, TimeoutBudget, most_beside_buffer
from .stream_task import StreamTask


class PartitionTask(StreamTask):
    """The task that calls the handler with the records of one stream."""

    def __init__(
        self,
        consumer: Consumer,
        config: ConsumerConfig,
        plan: HandlingPlan,
        stream: PartitionStream,
        shutdown: RunShutdown,
    ) -> None:
        super().__init__(consumer, config, plan, stream, shutdown)
        self._plan = plan
        self._workers = KeyedWorkers(plan.concurrency, self._handle, plan.orders)

    @property
    def processed(self) -> int | None:
        """The offset before which everything is done; ``None`` before the first record."""
        return self._workers.order.processed

    def stop(self) -> None:
        """Take no more records; those in hand go on."""
        self._workers.stop()
        super().stop()

    @property
    def _over(self) -> bool:
        return self._workers.stopped or self._stream.ended

    async def _feed(self) -> None:
        if await self._prepared():
            async with self._workers:
                await self._receive_all()

    async def _prepared(self) -> bool:
        if self._plan.prepare is None:
            return not self._over
        budget = TimeoutBudget(
            f"the start of the task of {self.partition}", [self._timer], Retry(self._config)
        )
        return await self._unless_over(
            partial(budget.until_done, partial(self._plan.prepared, self.partition))
        )

    async def _receive_all(self) -> None:
        batches = self._stream.batches()
        order = self._workers.order
        budget = TimeoutBudget(self._name, [self._timer], Retry(self._config))
        while not self._over:
            try:
                with self._waits.scope() as scope:
                    batch = await batches.__anext__()
            except StopAsyncIteration:
                return
            except Exception as error:
                if (delay := self._next_attempt(error, budget)) is None:
                    return
                await self._pause(delay)
                continue
            if scope.cancelled_caught:
                return
            order.passed(batch.offsets[0])
            # Half is for the partitions that need it, and half for equal shares.
            half = max(1, most_beside_buffer(self._consumer) // 2)
            self._workers.allow(half, max(1, half // max(1, len(self._consumer.assignment()))))
            if self._committed is None:
                # The position at the start is already committed, or is not this task's to commit.
                self._committed = order.processed
            for work in self._plan.handling.works(batch):
                await self._workers.ready()
                if self._over:
                    self._workers.stop()
                    return
                await self._workers.put(work)
            order.passed(batch.next_offset)

    async def _handle(self, work: RecordAttempt) -> bool:
        """Handle a record, with all its attempts; return whether it is done.

        It is not done if the partition is revoked, or the run ends, before an attempt succeeds.
        """
        budget: TimeoutBudget | None = None
        # When a record counts as done, and its offset may be committed: the handler returned, or
        # the dead letter is written and acknowledged. Each outcome of a failure
        # (`Handling.classify_failure`) leads to one of three ends here:
        #
        # 1. another attempt after a pause, which the end of the stream or of the run cuts short,
        # 2. the end of the run, by ``_failed``: the record stays undone,
        # 3. False without an error: the partition was revoked during the pause. Its next owner gets
        #    the record.
        #
        # In cases 2 and 3 the workers stop, and ``processed`` stays at this record or before it.
        # Success is progress for both timers (KIP-572), and for the watchdog of stuck handlers.
        while True:
            try:
                await self._attempt(work)
            except Exception as error:
                budget = budget or TimeoutBudget(self._name, [self._timer], Retry(self._config))
                delay = self._classified(work, error, budget)
            else:
                self._stream.report_progress()
                self._timer.progressed()
                self.commit_timer.progressed()
                return True
            if delay is None or not await self._pause(delay):
                return False

    async def _attempt(self, work: RecordAttempt) -> None:
        if self._plan.concurrency == 1:
            await self._plan.handling.attempt(work)
        else:
            with self._stream.handling_beside(work.offset):
                await self._plan.handling.attempt(work)

    def _classified(
        self, work: RecordAttempt, error: Exception, budget: TimeoutBudget
    ) -> float | None:
        """Return the seconds to wait before the next attempt; ``None`` if there is none."""
        try:
            action, delay = self._plan.handling.classify_failure(work, error)
        except Exception as wrong:  # of the program's own code, such as a metaclass of its errors
            self._failed(wrong)
            return None
        if action is FailureAction.RAISE:
            # With several workers, records before this one may be undone.
            self._failed(explained(error, work, at_work=self._plan.concurrency == 1))
            return None
        return (
            self._next_attempt(error, budget, work) if action is FailureAction.TIMED_OUT else delay
        )
