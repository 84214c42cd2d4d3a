"""The tasks of :func:`trikafka.run_tasks` with a producer of transactions: round by round, each round one transaction of all tasks.

A round holds what is buffered of the partitions whose tasks are not skipped. What a task cannot do makes the whole round undone; it
is done again without that task, whose turn comes after a wait. A record for the dead-letter topic goes there in the round that is
done again, so that nothing which its handler had sent before it failed is ever seen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

import trio

from .._net.interrupts import interrupts_unwrapped
from .._net.retry import Retry
from .._state.assignment import AssignedPartition
from .._state.task_timer import timeout_in
from .._wire.columns import RecordBatch
from ..config import ConsumerConfig
from ..errors import TransactionError, TransactionUndecidedError
from ..types import OffsetAndMetadata, TopicPartition
from .consumer import Consumer
from .ensuring import ensure_topics
from .handler_tasks import running_handlers
from .handling import Verdict, Work, explained, failed_transaction
from .lanes import Lanes
from .producer import Producer
from .rounds import Round, may_be_done_again, refused_for_good, settle
from .task_plan import Ending, HandlingPlan, Trials
from .transaction import Transaction

_log = logging.getLogger("trikafka.tasks")
#: So many records begin in one transaction at most.
_MOST = 10_000
#: So many rounds in a row fail because of what is refused for good, and no handler says which record it is of: that ends the run.
_MOST_REFUSED = 3


class _UndoneError(Exception):
    """A task could not do its part of a round; when it is tried again is settled."""


class _Task:
    """What is known of the task of one partition between the rounds."""

    def __init__(self, tp: TopicPartition, plan: HandlingPlan, config: ConsumerConfig) -> None:
        self.tp = tp
        self.timer = plan.timer()
        self.trials = Trials(f"the task of {tp}", [self.timer], Retry(config))
        self.ready = plan.prepare is None
        self.begun = False  # its start
        self.due = 0.0  # it is skipped until then
        self.paused = False  # by us
        self.failing: dict[int, Work] = {}  # works that have failed, by their offset
        self.scope = trio.CancelScope()  # of its start

    @property
    def skipped(self) -> bool:
        """Whether its turn has not come."""
        return not self.ready or self.due > trio.current_time()

    def known(self, work: Work) -> Work:
        """This one, or the same as it was when it failed."""
        before = self.failing.get(work.offset)
        return before if before is not None and before.same(work) else work

    def done_before(self, offset: int) -> None:
        """What lies before ``offset`` is done, and committed."""
        self.failing = {at: work for at, work in self.failing.items() if at >= offset}
        self.trials.succeeded()


class _Part:
    """What the tasks make of one round's records, in its transaction."""

    def __init__(self, consumer: Consumer, plan: HandlingPlan, until: float, ending: Ending) -> None:
        self._consumer, self._plan, self._until, self._ending = consumer, plan, until, ending
        self._scope = trio.CancelScope()
        self._undone = False
        self.judged = False  # a record has failed for a reason of its own
        self.refused: TransactionError | None = None  # of what a handler had not waited for
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}  # up to where it is done

    async def do(self, todo: dict[_Task, list[RecordBatch]], txn: Transaction) -> dict[TopicPartition, OffsetAndMetadata]:
        """All partitions side by side. Raises :exc:`_UndoneError` if the transaction is to be aborted."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                for task, batches in todo.items():
                    nursery.start_soon(self._handlers, task, batches)
        if self._undone:
            raise _UndoneError
        return self.offsets

    async def _handlers(self, task: _Task, batches: Iterable[RecordBatch]) -> None:
        with running_handlers(self._consumer):
            await self._partition(task, batches)

    async def _partition(self, task: _Task, batches: Iterable[RecordBatch]) -> None:
        leader_epoch, end = None, None
        async with Lanes(self._plan.concurrency, partial(self._handle, task)) as lanes:
            for batch in batches:
                for work in self._plan.handling.works(batch):
                    if end is not None and (self._ending.stopping or trio.current_time() >= self._until):
                        break
                    await lanes.put(task.known(work))
                    end, leader_epoch = work.offset + 1, batch.leader_epoch
                else:
                    end = batch.next_offset
                    continue
                break
        assert end is not None
        self.offsets[task.tp] = OffsetAndMetadata(end, leader_epoch)

    async def _handle(self, task: _Task, work: Work) -> bool:
        handling = self._plan.handling
        try:
            await handling.attempt(work)
        except Exception as error:
            self._undone = True
            task.failing[work.offset] = work
            verdict, delay = handling.judge(work, error)
            self._note(verdict, error)
            if verdict is Verdict.DEAD:
                return True  # the others of this round go on, so that all that is dead is known when it is done again
            try:
                if verdict is Verdict.RAISE:
                    raise explained(error, work)
                wait = task.trials.failed(error) if verdict is Verdict.TIMED_OUT else delay or task.trials.wait()
                task.due = trio.current_time() + wait
            except Exception as last:
                self._ending.fail(explained(last, work) if verdict is Verdict.TIMED_OUT else last)
            self._scope.cancel()
            return False
        return True

    def _note(self, verdict: Verdict, error: Exception) -> None:
        if verdict is Verdict.AGAIN and (failed := failed_transaction(error)) is not None:
            if self.refused is None and refused_for_good(failed):
                self.refused = failed
        elif verdict in (Verdict.AGAIN, Verdict.DEAD):
            self.judged = True


class TransactionalRun:
    """The rounds, and the tasks of the partitions that the consumer has."""

    def __init__(self, consumer: Consumer, config: ConsumerConfig, producer: Producer, plan: HandlingPlan) -> None:
        self._consumer, self._config, self._producer, self._plan = consumer, config, producer, plan
        self._limit = min(config.auto_commit_interval_ms, producer._config.transaction_timeout_ms / 2) / 1000  # of a round
        self._tasks: dict[AssignedPartition, _Task] = {}
        self._ending = Ending()
        self._retry = Retry(config)
        self._refused = 0  # rounds in a row

    async def run(self) -> None:
        """Until a signal has come, or a task fails, which is raised when what was open is aborted."""
        try:
            with interrupts_unwrapped():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._cut_off, nursery.cancel_scope)
                    if self._plan.stop_on:
                        nursery.start_soon(self._ending.on_signals, tuple(self._plan.stop_on))
                    try:
                        await self._rounds(nursery)
                    except Exception as error:
                        if not (self._consumer._closed and isinstance(error, trio.ClosedResourceError)):  # that ends it in order
                            self._ending.fail(error)
                    nursery.cancel_scope.cancel()
        finally:
            for partition, task in self._tasks.items():
                if task.paused and self._consumer._assignment.partitions.get(task.tp) is partition:
                    self._consumer.resume([task.tp])
        if self._ending.error is not None:
            raise self._ending.error

    async def _cut_off(self, scope: trio.CancelScope) -> None:
        await self._ending.stopped.wait()
        await trio.sleep(self._config.close_timeout_ms / 1000)
        _log.warning("the handlers did not end in time: their transaction is aborted, and its records will be seen again")
        scope.cancel()

    async def _rounds(self, nursery: trio.Nursery) -> None:
        with self._ending.waits.scope():
            if self._plan.topics:
                await ensure_topics(self._consumer, self._plan.topics)
            last = Trials("what the last run left open", [self._plan.timer()], Retry(self._config))
            await last.until_done(partial(settle, self._consumer, self._producer))
        while not self._ending.stopping:
            work = Round(self._consumer)
            try:
                await self._round(work, nursery)
            except BaseException as error:
                work.failed(error)
                if not isinstance(error, _UndoneError):
                    await self._failed(work, error)

    async def _round(self, work: Round, nursery: trio.Nursery) -> None:
        with self._ending.waits.scope():
            await work.receive(self._wake_tasks(nursery))
        batch, todo = work.last, dict[_Task, list[RecordBatch]]()
        while batch is not None:
            todo.setdefault(self._task(TopicPartition(batch.topic, batch.partition)), []).append(batch)
            batch = work.further() if work.count < _MOST else None
        if self._ending.stopping or any(task.skipped for task in todo):
            raise _UndoneError
        if not todo:
            return
        part = _Part(self._consumer, self._plan, trio.current_time() + self._limit, self._ending)
        try:
            await work.process(self._producer, partial(part.do, todo), partial(self._undecided, todo))
        except _UndoneError:
            self._count_refused(part)
            raise
        self._retry.reset()
        self._refused = 0
        for task in todo:
            committed = part.offsets[task.tp].offset
            task.done_before(committed)
            if task.tp in self._consumer.assignment() and committed < work.ends[task.tp].offset:
                self._consumer.seek(task.tp, committed)

    def _count_refused(self, part: _Part) -> None:
        """What was refused for good is told to whoever calls next, whose record is not to blame: that must not go on for ever.

        The handler whose record it is may wait for it in another round, and its judge knows what to do.
        """
        if part.judged:
            self._refused = 0
        elif part.refused is not None:
            self._refused += 1
            if self._refused >= _MOST_REFUSED:
                self._ending.fail(part.refused)

    async def _failed(self, work: Round, error: BaseException) -> None:
        """What the tasks have in common has failed. Raises what ends the run; waits before the next round."""
        if not may_be_done_again(error):
            raise error
        if timeout_in(error) is not None:
            assert isinstance(error, Exception)
            delay = self._trials(work.ends.keys() or self._consumer.assignment()).failed(error)
        else:
            delay = self._retry.delay()
            _log.warning("a transaction of %s records is done again: %s", work.count, error)
        with self._ending.waits.scope():
            await trio.sleep(delay)

    def _trials(self, tps: Iterable[TopicPartition]) -> Trials:
        tasks = [self._task(tp) for tp in sorted(tps)]
        who = f"the transaction of {', '.join(str(task.tp) for task in tasks)}"
        return Trials(who, [task.timer for task in tasks], self._retry)

    def _undecided(self, tasks: Iterable[_Task], error: TransactionUndecidedError) -> float:
        return self._trials(task.tp for task in tasks).failed(error)

    # The tasks.

    def _task(self, tp: TopicPartition) -> _Task:
        partition = self._consumer._assignment.partitions.get(tp)
        task = None if partition is None else self._tasks.get(partition)
        if task is None:  # it came in this very receive, or is gone again
            task = _Task(tp, self._plan, self._config)
            if partition is not None:
                self._tasks[partition] = task
        return task

    def _wake_tasks(self, nursery: trio.Nursery) -> float | None:
        """Let those go on whose turn has come, skip the others; returns the seconds until the next turn."""
        assigned = self._consumer._assignment.partitions
        for partition in [partition for partition, task in self._tasks.items() if assigned.get(task.tp) is not partition]:
            self._tasks.pop(partition).scope.cancel()
        now, turns = trio.current_time(), list[float]()
        for tp, partition in assigned.items():
            task = self._task(tp)
            if not task.ready and not task.begun:
                task.begun = True
                nursery.start_soon(self._prepare, task)
            if task.skipped != task.paused and not (task.skipped and partition.paused):
                (self._consumer.pause if task.skipped else self._consumer.resume)([tp])
                task.paused = task.skipped
            if task.due > now:
                turns.append(task.due - now)
        return min(turns, default=None)

    async def _prepare(self, task: _Task) -> None:
        try:
            with task.scope, running_handlers(self._consumer):
                await task.trials.until_done(partial(self._plan.prepared, task.tp))
                task.ready = True
                self._ending.waits.cut()  # the next receive is with it
        except Exception as error:
            self._ending.fail(error)
