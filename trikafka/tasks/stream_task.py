"""A task that reads one stream, in a :class:`~trikafka.tasks.run.TaskRun`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from .. import Consumer, PartitionStream
from ..config import ConsumerConfig
from ..errors import (
    CommitFailedError,
    KafkaTimeoutError,
    RebalanceInProgressError,
    UnknownTopicOrPartitionError,
)
from ..toolkit import with_background
from ..types import TopicPartition
from .handling import RecordAttempt, explained
from .plan import InterruptibleWaits, RunShutdown, TaskPlan, TimeoutBudget

_log = logging.getLogger("trikafka.tasks")
#: The errors of a commit that leave the records to the partition's next owner, or to a later
#: commit. The last one: a topic was deleted, of which the group has no offsets any more. Other
#: topics go on.
NOT_COMMITTED = (
    CommitFailedError,
    RebalanceInProgressError,
    KafkaTimeoutError,
    UnknownTopicOrPartitionError,
)


class StreamTask:
    """A task that reads one stream until the stream ends, or until :meth:`stop`.

    A subclass decides what to do with the records (:meth:`_feed`, :attr:`processed`). A failure is
    reported to ``shutdown`` and ends the whole run.
    """

    def __init__(
        self,
        consumer: Consumer,
        config: ConsumerConfig,
        plan: TaskPlan,
        stream: PartitionStream,
        shutdown: RunShutdown,
    ) -> None:
        self._consumer = consumer
        self._config = config
        self._stream = stream
        self._shutdown = shutdown
        self._failed = shutdown.fail
        self._timer = plan.timer()
        self.commit_timer = plan.timer()
        self.ended = trio.Event()
        self._waits = InterruptibleWaits()  # stop() ends them
        self._committed: int | None = None
        stream.processed_by(lambda: self.processed)  # for a commit() of the program

    @property
    def partition(self) -> TopicPartition:
        """The partition of this task."""
        return self._stream.partition

    @property
    def processed(self) -> int | None:
        """The offset before which everything is done; ``None`` before the first record."""
        raise NotImplementedError

    @property
    def to_commit(self) -> int | None:
        """The offset to commit; ``None`` if the group knows it or the partition was revoked."""
        processed = self.processed
        return processed if self._stream.owned and processed != self._committed else None

    def committed(self, offset: int) -> None:
        """Record that the group has this offset."""
        self._committed = offset

    def stop(self) -> None:
        """Take no more records; finish those in hand."""
        self._waits.end()

    async def read_stream(self, first: Callable[[], Awaitable[object]]) -> None:
        """Read the stream, once ``first`` has returned.

        Raises only cancellations: an error is reported to the run.
        """
        try:
            with self._consumer.handling():
                await self._work(first)
        except Exception as error:
            self._failed(error)
        finally:
            self.ended.set()

    async def _feed(self) -> None:
        """Take records and handle them, until the task is over."""
        raise NotImplementedError

    @property
    def _over(self) -> bool:
        return self._waits.over or self._stream.ended

    @property
    def _name(self) -> str:
        return f"the task of {self.partition}"

    async def _work(self, first: Callable[[], Awaitable[object]]) -> None:
        try:
            # The stream is left last. While this block holds the stream, a revocation of its
            # partition waits (PartitionStreams.drained), and so does the group: the last commit is
            # still accepted. After the block the next owner may already read.
            #
            # The seek in the ``finally`` comes after the stream is left, and only while the
            # partition is owned: the consumer's position then is the first record that is not done,
            # for a later run or a plain receive of this consumer.
            async with self._stream:
                try:
                    with self._stream.awaiting_predecessor():
                        begun = await self._unless_over(first)
                    if begun:
                        await self._feed()
                    # The group waits for this commit while the stream is held.
                    await self._commit_last()
                except BaseException:
                    # Cancelled, or interrupted (Ctrl-C in a handler). The run ends, and has to stop
                    # before this stream is left. Otherwise partitions() yields the partition again
                    # in this very step. The run's last commit would then ask the new task, which
                    # has done nothing, for the offset, instead of this one.
                    self._shutdown.stop()
                    raise
        finally:
            processed = self.processed
            if processed is not None and self._stream.owned:
                self._consumer.seek(self.partition, processed)  # the next reader goes on there

    def _next_attempt(
        self, error: Exception, budget: TimeoutBudget, work: RecordAttempt | None = None
    ) -> float | None:
        """Return the seconds to wait before the next attempt; ``None`` if there is none."""
        try:
            return budget.failed(error)
        except Exception as last:
            self._failed(last if work is None else explained(last, work))
            return None

    async def _commit_last(self) -> None:
        """Commit what is done while the partition is still owned."""
        processed = self.processed
        if processed is None or processed == self._committed:
            return
        try:
            await self._stream.commit(processed)
            self._committed = processed
        except (*NOT_COMMITTED, trio.ClosedResourceError) as error:
            _log.warning(
                "%s: offset %s was not committed, so records before it may be processed again: %s",
                self.partition,
                processed,
                error,
            )

    async def _pause(self, seconds: float) -> bool:
        """Wait, at most until the task is over; return whether to go on."""
        with self._stream.backing_off(), self._waits.scope(), trio.move_on_after(seconds):
            await self._stream.wait_ended()
        return not self._over

    async def _unless_over(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Run ``work``, cut it off when the task is over; return whether to go on."""
        with self._waits.scope() as scope:

            async def watch() -> None:
                await self._stream.wait_ended()
                scope.cancel()

            async def main() -> None:
                await work()

            await with_background([watch], main)
        return not self._over
