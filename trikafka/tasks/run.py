"""All tasks of one :func:`trikafka.run_tasks`.

Tasks begin as partitions are assigned and end in order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import trio

from .. import Consumer, PartitionStream
from ..config import ConsumerConfig
from ..errors import KafkaTimeoutError, TrikafkaError
from ..toolkit import Retry, interrupts_unwrapped
from ..types import TopicPartition
from .ensuring import ensure_topics
from .plan import RunShutdown, TaskPlan, TimeoutBudget
from .signals import stop_on_signal
from .stream_task import NOT_COMMITTED, StreamTask

_log = logging.getLogger("trikafka.tasks")
#: The limit of the last commit of a run that was cut off, in seconds. A client that is cancelled
#: closes within the same time.
_LAST_COMMIT_LIMIT = 1.0


class TaskRun:
    """The tasks of the consumer's partitions, each with a stream of its own."""

    def __init__(
        self,
        consumer: Consumer,
        config: ConsumerConfig,
        plan: TaskPlan,
        new_task: Callable[[PartitionStream, RunShutdown], StreamTask],
    ) -> None:
        self._consumer = consumer
        self._config = config
        self._plan = plan
        self._new_task = new_task
        self._tasks: dict[TopicPartition, StreamTask] = {}  # the latest of each partition
        self._begun: list[StreamTask] = []  # all that have not ended
        self._shutdown = RunShutdown()
        self._retry = Retry(config)  # of commits
        self._topics_ready = trio.Event()

    async def run(self) -> None:
        """Run until the consumer is closed, a signal arrives, or a task fails.

        The error of a failed task is raised after all tasks have ended.
        """
        # A task never raises into this nursery: a failure would cancel all others in the middle of
        # their records, and the error would be raised in a group. Instead the task reports to
        # ``_shutdown``, which stops everything in order, and the first error is raised at the end.
        #
        # The scope holds only the loop that begins tasks. When a stop ends that loop, the tasks go
        # on with the records in hand, and the commits at the interval go on beside them.
        # ``_drained`` bounds this; then the nursery is cancelled.
        #
        # The last commit is in the ``finally``, shielded, for a second: after a cancellation it is
        # the only commit of what is done. A run that ended in order has nothing left to commit
        # there, because each task has committed before it left its stream.
        try:
            with interrupts_unwrapped():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._commit_regularly)
                    nursery.start_soon(self._ensure_topics)
                    if self._plan.stop_on:
                        nursery.start_soon(
                            stop_on_signal, tuple(self._plan.stop_on), self._shutdown.stop
                        )
                    with self._shutdown.waits.scope():
                        await self._begin_tasks(nursery)
                    await self._drained()
                    nursery.cancel_scope.cancel()
        except BaseException:
            if self._shutdown.error is not None:
                _log.warning(
                    "the run was cancelled before it could raise the error that ended it: %r",
                    self._shutdown.error,
                )
            raise
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _LAST_COMMIT_LIMIT):
                await self._commit_last()
        if self._shutdown.error is not None:
            raise self._shutdown.error

    async def _begin_tasks(self, nursery: trio.Nursery) -> None:
        try:
            async for stream in self._consumer.partitions():
                task = self._new_task(stream, self._shutdown)
                self._begun = [each for each in self._begun if not each.ended.is_set()]
                before = [each for each in self._begun if each.partition == stream.partition]
                self._begun.append(task)
                self._tasks[stream.partition] = task
                nursery.start_soon(task.read_stream, partial(self._ready, before))
        except Exception as error:
            self._shutdown.fail(error)

    async def _ready(self, before: list[StreamTask]) -> None:
        """Wait until a task may begin: after its predecessors, and after the topics are ready.

        All earlier tasks of the partition count, not the latest alone. The latest may have ended
        before it began, while a handler of the one before still runs.
        """
        for task in before:
            await task.ended.wait()
        await self._topics_ready.wait()

    async def _ensure_topics(self) -> None:
        try:
            if self._plan.topics:
                await ensure_topics(self._consumer, self._plan.topics)
        except Exception as error:
            self._shutdown.fail(error)
        else:
            self._topics_ready.set()

    async def _drained(self) -> None:
        """Stop all tasks, and wait at most ``close_timeout_ms`` until their records in hand are done.

        That includes the tasks of earlier assignments, whose handlers may still run.
        """
        tasks = [task for task in self._begun if not task.ended.is_set()]
        for task in tasks:
            task.stop()
        with trio.move_on_after(self._config.close_timeout_ms / 1000):
            for task in tasks:
                await task.ended.wait()
        if late := dict.fromkeys(str(task.partition) for task in tasks if not task.ended.is_set()):
            _log.warning(
                "the handlers of %s did not end within close_timeout_ms: their records will be "
                "processed again",
                ", ".join(late),
            )

    async def _commit_regularly(self) -> None:
        """Commit for all tasks at the interval, one commit at a time.

        A commit that times out starts the timers of all tasks in it.
        """
        try:
            delay = interval = self._config.auto_commit_interval_ms / 1000
            while True:
                await trio.sleep(delay)
                delay = await self._commit_once() or interval
        except Exception as error:
            self._shutdown.fail(error)

    async def _commit_once(self) -> float | None:
        """Commit the tasks' progress.

        Returns the seconds until the next attempt if the commit timed out.
        """
        todo = self._uncommitted()
        budget = TimeoutBudget(
            f"the commit of {', '.join(map(str, todo))}",
            [task.commit_timer for task, _ in todo.values()],
            self._retry,
        )
        try:
            await self._commit(todo)
        except NOT_COMMITTED as error:
            if isinstance(error, KafkaTimeoutError):
                return budget.failed(error)
            _log.info("the tasks' progress is committed later: %s", error)
            return None
        budget.succeeded()
        return None

    async def _commit_last(self) -> None:
        try:
            await self._commit(self._uncommitted(), timeout=_LAST_COMMIT_LIMIT)
        except (TrikafkaError, trio.ClosedResourceError) as error:
            _log.warning(
                "the last commit failed, so records since the one before are processed again: %s",
                error,
            )
            if not isinstance(error, (*NOT_COMMITTED, trio.ClosedResourceError)):
                self._shutdown.fail(error)  # not raised if the run already ends by an exception

    def _uncommitted(self) -> dict[TopicPartition, tuple[StreamTask, int]]:
        found = {tp: (task, task.to_commit) for tp, task in self._tasks.items()}
        # Partitions come and go for weeks. A task that has ended and has nothing to commit now will
        # have nothing to commit later.
        self._tasks = {
            tp: task
            for tp, (task, offset) in found.items()
            if offset is not None or not task.ended.is_set()
        }
        return {tp: (task, offset) for tp, (task, offset) in found.items() if offset is not None}

    async def _commit(
        self, todo: dict[TopicPartition, tuple[StreamTask, int]], timeout: float | None = None
    ) -> None:
        if not todo:
            await trio.lowlevel.checkpoint()
            return
        await self._consumer.commit(
            {tp: offset for tp, (_, offset) in todo.items()}, timeout=timeout
        )
        for task, offset in todo.values():
            task.committed(offset)
