"""All tasks of one run (:func:`trikafka.run_tasks`, :func:`trikafka.sink_batches`): begun as partitions come, ended in order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import trio

from .._net.interrupts import interrupts_unwrapped
from .._net.retry import Retry
from ..config import ConsumerConfig
from ..errors import KafkaTimeoutError
from ..types import TopicPartition
from .consumer import Consumer
from .ensuring import ensure_topics
from .partition_stream import PartitionStream
from .service import CANCELLED_CLOSE_LIMIT
from .stream_task import NOT_COMMITTED, StreamTask
from .task_plan import Ending, TaskPlan, Trials

_log = logging.getLogger("trikafka.tasks")


class TaskRun:
    """The tasks of the partitions that the consumer has, each reading a stream of its own."""

    def __init__(
        self,
        consumer: Consumer,
        config: ConsumerConfig,
        plan: TaskPlan,
        new_task: Callable[[PartitionStream, Callable[[Exception], None]], StreamTask],
    ) -> None:
        self._consumer, self._config, self._plan, self._new_task = consumer, config, plan, new_task
        self._tasks: dict[TopicPartition, StreamTask] = {}  # the last one of each partition
        self._begun: list[StreamTask] = []  # all that have not ended
        self._ending = Ending()
        self._retry = Retry(config)  # of commits
        self._topics_ready = trio.Event()

    async def run(self) -> None:
        """Until the consumer is closed, a signal has come, or a task fails, which is raised when all have ended."""
        try:
            with interrupts_unwrapped():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._commit_regularly)
                    nursery.start_soon(self._ensure_topics)
                    if self._plan.stop_on:
                        nursery.start_soon(self._ending.on_signals, tuple(self._plan.stop_on))
                    with self._ending.waits.scope():
                        await self._begin_tasks(nursery)
                    await self._drained()
                    nursery.cancel_scope.cancel()
        finally:  # each task has committed for itself, unless it was cut off
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CANCELLED_CLOSE_LIMIT):
                await self._commit_last()
        if self._ending.error is not None:
            raise self._ending.error

    async def _begin_tasks(self, nursery: trio.Nursery) -> None:
        try:
            async for stream in self._consumer.partitions():
                task = self._new_task(stream, self._ending.fail)
                self._begun = [each for each in self._begun if not each.ended.is_set()]
                before = [each for each in self._begun if each.partition == stream.partition]
                self._begun.append(task)
                self._tasks[stream.partition] = task
                nursery.start_soon(task.run, partial(self._ready, before))
        except Exception as error:
            self._ending.fail(error)

    async def _ready(self, before: list[StreamTask]) -> None:
        """What has to be over before a task may begin: all earlier ones of its partition, and the making of topics.

        Of several the last may be over before the first is: it never began, while a handler of the first does not end.
        """
        for task in before:
            await task.ended.wait()
        await self._topics_ready.wait()

    async def _ensure_topics(self) -> None:
        try:
            if self._plan.topics:
                await ensure_topics(self._consumer, self._plan.topics)
        except Exception as error:
            self._ending.fail(error)
        else:
            self._topics_ready.set()

    async def _drained(self) -> None:
        """Have all tasks finish what is in hand. Those that cannot within ``close_timeout_ms`` are cut off."""
        for task in self._tasks.values():
            task.stop()
        with trio.move_on_after(self._config.close_timeout_ms / 1000):
            for task in self._tasks.values():
                await task.ended.wait()
        if late := [str(task.partition) for task in self._tasks.values() if not task.ended.is_set()]:
            _log.warning("the handlers of %s did not end in time: what they hold will be seen again", ", ".join(late))

    # Commits.

    async def _commit_regularly(self) -> None:
        """One commit for all tasks at a time; one that times out starts the timers of all of them."""
        try:
            delay = interval = self._config.auto_commit_interval_ms / 1000
            while True:
                await trio.sleep(delay)
                delay = await self._commit_once() or interval
        except Exception as error:
            self._ending.fail(error)

    async def _commit_once(self) -> float | None:
        """Commit what is news. Returns the seconds until it is to be tried again, if it has timed out."""
        todo = self._uncommitted()
        trials = Trials(f"the commit of {', '.join(map(str, todo))}", [task.commit_timer for task, _ in todo.values()], self._retry)
        try:
            await self._commit(todo)
        except NOT_COMMITTED as error:
            if isinstance(error, KafkaTimeoutError):
                return trials.failed(error)
            _log.info("not committed now: %s", error)
            return None
        trials.succeeded()
        return None

    async def _commit_last(self) -> None:
        try:
            await self._commit(self._uncommitted(), timeout=CANCELLED_CLOSE_LIMIT)
        except (*NOT_COMMITTED, trio.ClosedResourceError) as error:
            _log.warning("what was done last was not committed, and is seen again: %s", error)

    def _uncommitted(self) -> dict[TopicPartition, tuple[StreamTask, int]]:
        found = {tp: (task, task.to_commit) for tp, task in self._tasks.items()}
        return {tp: (task, offset) for tp, (task, offset) in found.items() if offset is not None}

    async def _commit(self, todo: dict[TopicPartition, tuple[StreamTask, int]], timeout: float | None = None) -> None:
        if not todo:
            await trio.lowlevel.checkpoint()
            return
        await self._consumer.commit({tp: offset for tp, (_, offset) in todo.items()}, timeout=timeout)
        for task, offset in todo.values():
            task.committed(offset)
