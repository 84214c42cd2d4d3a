"""A task that reads the stream of one partition, beside others in a :class:`~trikafka._api.task_run.TaskRun`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from .._net.gather import with_background
from ..config import ConsumerConfig
from ..errors import CommitFailedError, KafkaTimeoutError, RebalanceInProgressError
from ..types import TopicPartition
from .consumer import Consumer
from .handler_tasks import running_handlers
from .handling import Work, explained
from .partition_stream import PartitionStream
from .task_plan import TaskPlan, Trials, Waits

_log = logging.getLogger("trikafka.tasks")
#: A commit ended in one of these: others have the partition, or will; they see its records again.
NOT_COMMITTED = (CommitFailedError, RebalanceInProgressError, KafkaTimeoutError)


class StreamTask:
    """Reads one stream until that ends, or :meth:`stop`. ``failed`` is told what ends the whole run.

    What is done with the records is a subclass's: :meth:`_feed` and :attr:`processed`.
    """

    def __init__(
        self,
        consumer: Consumer,
        config: ConsumerConfig,
        plan: TaskPlan,
        stream: PartitionStream,
        failed: Callable[[Exception], None],
    ) -> None:
        self._consumer, self._config, self._stream, self._failed = consumer, config, stream, failed
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
    def processed(self) -> int | None:
        """The offset before which everything is done; ``None``: nothing was taken."""
        raise NotImplementedError

    @property
    def to_commit(self) -> int | None:
        """The offset before which everything is done, where that is news to the group and the partition is ours."""
        processed = self.processed
        return processed if self._stream._owned and processed != self._committed else None

    def committed(self, offset: int) -> None:
        """The group knows that offset now."""
        self._committed = offset

    def stop(self) -> None:
        """Take nothing more; what is in hand goes on."""
        self._waits.end()

    async def run(self, first: Callable[[], Awaitable[object]]) -> None:
        """Live, once ``first`` has returned. Raises nothing but the cancellation of those around."""
        try:
            with running_handlers(self._consumer):
                await self._work(first)
        except Exception as error:
            self._failed(error)
        finally:
            self.ended.set()

    async def _feed(self) -> None:
        """Take records and see them through, until it is over."""
        raise NotImplementedError

    @property
    def _over(self) -> bool:
        return self._waits.over or self._stream.ended

    @property
    def _name(self) -> str:
        return f"the task of {self.partition}"

    async def _work(self, first: Callable[[], Awaitable[object]]) -> None:
        try:
            async with self._stream:
                if await self._unless_over(first):
                    await self._feed()
                await self._commit_last()  # as long as the stream is not left, the group waits for that
        finally:
            processed = self.processed
            if processed is not None and self._stream._owned:
                self._consumer.seek(self.partition, processed)  # who reads it next goes on there

    def _next_attempt(self, error: Exception, trials: Trials, work: Work | None = None) -> float | None:
        """The seconds to wait before the next attempt; ``None``: there is none."""
        try:
            return trials.failed(error)
        except Exception as last:
            self._failed(last if work is None else explained(last, work))
            return None

    async def _commit_last(self) -> None:
        """The partition goes, or the run ends: commit what is done, while it still can be."""
        processed = self.processed
        if processed is None or processed == self._committed:
            return
        try:
            await self._stream.commit(processed)
            self._committed = processed
        except (*NOT_COMMITTED, trio.ClosedResourceError) as error:
            _log.warning("what was done of %s before offset %s was not committed: %s", self.partition, processed, error)

    # Waiting, which the end of the stream or of the run cuts short.

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
