""":func:`trikafka.run_tasks` exactly once: in rounds, each one transaction of all tasks.

A round holds what is buffered of the partitions whose tasks are not suspended. A failure in one
task undoes the whole round. The next round leaves that task out until its wait is over. A record
for the dead-letter topic goes there in the repeated round: what its handler had sent before it
failed is never visible.
"""
# Why one transaction for all partitions, and not one for each
# ------------------------------------------------------------
#
# A producer has one transaction at a time, and each end of one costs a round trip to the
# coordinator and markers in every partition written. So all partitions share a transaction, and a
# failure undoes the work of all of them: what a round has done is thrown away as a whole, and the
# consumer goes back to where it began.
#
# That would let one bad partition stop the others, so what is known of a failing record survives
# the round (``_Task.failing``: its attempts, or that it is dead), and its task is suspended until
# its wait is over. The other partitions go on in rounds without it.
#
# Three limits keep this finite. A round ends after auto_commit_interval_ms, or half of
# transaction_timeout_ms. A timeout in a task counts against the task_timeout_ms of that task, and a
# timeout of the commit against that of each task. The brokers may permanently refuse a record whose
# send no handler awaited. The refusal then fails the calls of other records, so the run ends after
# three such rounds.

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

import trio

from .. import Consumer, Producer, RecordBatch, Transaction
from ..config import ConsumerConfig
from ..errors import TransactionError, TransactionUndecidedError
from ..errors.counts import counted
from ..errors.groups import outlined
from ..toolkit import Retry, interrupts_unwrapped
from ..types import OffsetAndMetadata, TopicPartition
from .ensuring import ensure_topics
from .handling import FailureAction, RecordAttempt, explained, failed_transactions
from .keyed_workers import KeyedWorkers
from .plan import HandlingPlan, RunShutdown, TimeoutBudget, most_beside_buffer
from .rounds import TransactionRound, may_be_done_again, refused_for_good, settle
from .signals import stop_on_signal
from .timer import timeout_in

_log = logging.getLogger("trikafka.tasks")
#: The most records that begin in one transaction; ``most_beside_buffer`` bounds their bytes.
_MOST = 10_000
#: The run ends after so many rounds in a row that were refused permanently, where no handler says
#: which record is refused.
_MOST_REFUSED = 3


class _UndoneError(Exception):
    """A task could not do its part of a round; its next attempt is already scheduled."""


class _Task:
    """The task of one partition, as far as it is known between the rounds."""

    def __init__(
        self, tp: TopicPartition, epoch: int | None, plan: HandlingPlan, config: ConsumerConfig
    ) -> None:
        self.tp = tp
        self.epoch = epoch  # the assignment that it is for
        self.timer = plan.timer()
        self.budget = TimeoutBudget(f"the task of {tp}", [self.timer], Retry(config))
        self.ready = plan.prepare is None
        self.begun = False  # its preparation has begun
        self.due = 0.0  # the task is suspended until then
        self.paused = False  # by the run, not by the user
        self.failing: dict[int, RecordAttempt] = {}  # failed attempts, by the offset of the record
        self.scope = trio.CancelScope()  # of its preparation

    @property
    def skipped(self) -> bool:
        """True while the task is suspended, or not prepared."""
        return not self.ready or self.due > trio.current_time()

    def known(self, work: RecordAttempt) -> RecordAttempt:
        """Return this work, or the same work with the state of its failed attempts."""
        before = self.failing.get(work.offset)
        return before if before is not None and before.same(work) else work

    def done_before(self, offset: int) -> None:
        """Record that everything before ``offset`` is done and committed."""
        self.failing = {at: work for at, work in self.failing.items() if at >= offset}
        self.budget.succeeded()


class _RoundPart:
    """The handlers' part of one round, in its transaction."""

    def __init__(
        self, consumer: Consumer, plan: HandlingPlan, until: float, shutdown: RunShutdown
    ) -> None:
        self._consumer = consumer
        self._plan = plan
        self._until = until
        self._shutdown = shutdown
        self._scope = trio.CancelScope()
        self._undone = False
        self.judged = False  # a record has failed for a reason of its own
        self.refused: TransactionError | None = None  # of a send that a handler did not wait for
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}  # up to which all is done

    async def do(
        self, todo: dict[_Task, list[RecordBatch]], txn: Transaction
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Handle all partitions side by side.

        Raises :exc:`_UndoneError` if the transaction must be aborted.
        """
        with self._scope:
            async with trio.open_nursery() as nursery:
                for task, batches in todo.items():
                    nursery.start_soon(self._handlers, task, batches)
        if self._undone:
            raise _UndoneError
        return self.offsets

    async def _handlers(self, task: _Task, batches: Iterable[RecordBatch]) -> None:
        with self._consumer.handling():
            await self._partition(task, batches)

    async def _partition(self, task: _Task, batches: Iterable[RecordBatch]) -> None:
        leader_epoch, end = None, None
        async with KeyedWorkers(self._plan.concurrency, partial(self._handle, task)) as workers:
            for batch in batches:
                for work in self._plan.handling.works(batch):
                    await workers.ready()
                    if end is not None and (
                        self._shutdown.stopping or trio.current_time() >= self._until
                    ):
                        break
                    await workers.put(task.known(work))
                    end, leader_epoch = work.offset + 1, batch.leader_epoch
                else:
                    end = batch.next_offset
                    continue
                break
        assert end is not None
        self.offsets[task.tp] = OffsetAndMetadata(end, leader_epoch)

    async def _handle(self, task: _Task, work: RecordAttempt) -> bool:
        handling, action = self._plan.handling, FailureAction.RAISE
        try:
            await handling.attempt(work)
        except Exception as error:
            self._undone = True
            task.failing[work.offset] = work
            try:
                action, delay = handling.classify_failure(work, error)
                self._record_failure(action, error)
                if action is FailureAction.DEAD:
                    # The other records of this round go on: the repeated round then knows all that
                    # are dead.
                    return True
                if action is FailureAction.RAISE:
                    raise explained(error, work)
                wait = (
                    task.budget.failed(error)
                    if action is FailureAction.TIMED_OUT
                    else delay or task.budget.next_delay()
                )
                task.due = trio.current_time() + wait
            except Exception as last:
                self._shutdown.fail(
                    explained(last, work) if action is FailureAction.TIMED_OUT else last
                )
            self._scope.cancel()
            return False
        return True

    def _record_failure(self, action: FailureAction, error: Exception) -> None:
        if action is FailureAction.AGAIN and (failed := failed_transactions(error)):
            if self.refused is None:
                self.refused = next(filter(refused_for_good, failed), None)
        elif action in (FailureAction.AGAIN, FailureAction.DEAD, FailureAction.SHORTER):
            self.judged = True


class TransactionalRun:
    """The rounds, and the tasks of the consumer's partitions."""

    def __init__(
        self, consumer: Consumer, config: ConsumerConfig, producer: Producer, plan: HandlingPlan
    ) -> None:
        self._consumer = consumer
        self._config = config
        self._producer = producer
        self._plan = plan
        # The longest time that a round takes records.
        self._limit = (
            min(config.auto_commit_interval_ms, producer.config.transaction_timeout_ms / 2) / 1000
        )
        self._tasks: dict[TopicPartition, _Task] = {}
        self._shutdown = RunShutdown()
        self._retry = Retry(config)
        self._refused = 0  # in a row

    async def run(self) -> None:
        """Run until a signal arrives or a task fails.

        Its error is raised after the open transaction was aborted.
        """
        try:
            with interrupts_unwrapped():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._cut_off, nursery.cancel_scope)
                    nursery.start_soon(self._stop_when_closed)
                    if self._plan.stop_on:
                        nursery.start_soon(
                            stop_on_signal, tuple(self._plan.stop_on), self._shutdown.stop
                        )
                    try:
                        await self._rounds(nursery)
                    except Exception as error:
                        # A closed consumer ends the run in order.
                        closed = isinstance(error, trio.ClosedResourceError)
                        if not (closed and self._consumer.is_closed):
                            self._shutdown.fail(error)
                    nursery.cancel_scope.cancel()
        except BaseException:
            if self._shutdown.error is not None:
                _log.warning(
                    "the run was cancelled before it could raise the error that ended it: %r",
                    self._shutdown.error,
                )
            raise
        finally:
            for tp, task in self._tasks.items():
                if task.paused and self._consumer.assignment_epoch(tp) == task.epoch:
                    self._consumer.resume([tp])
        if self._shutdown.error is not None:
            raise self._shutdown.error

    async def _cut_off(self, scope: trio.CancelScope) -> None:
        await self._shutdown.stopped.wait()
        await trio.sleep(self._config.close_timeout_ms / 1000)
        _log.warning(
            "the handlers did not end within close_timeout_ms: their transaction is aborted, and "
            "its records will be processed again"
        )
        scope.cancel()

    async def _stop_when_closed(self) -> None:
        """End the run in order once the consumer is closed.

        Without this task, the run would notice it late while handlers work or topics are not ready.
        """
        await self._consumer.wait_closed()
        self._shutdown.stop()

    async def _rounds(self, nursery: trio.Nursery) -> None:
        with self._shutdown.waits.scope():
            if self._plan.topics:
                await ensure_topics(self._consumer, self._plan.topics)
            last = TimeoutBudget(
                "what the last run left open", [self._plan.timer()], Retry(self._config)
            )
            await last.until_done(partial(settle, self._consumer, self._producer))
        while not self._shutdown.stopping:
            work = TransactionRound(self._consumer)
            try:
                await self._round(work, nursery)
            except BaseException as error:
                work.failed(error)
                if not isinstance(error, _UndoneError):
                    await self._failed(work, error)

    async def _round(self, work: TransactionRound, nursery: trio.Nursery) -> None:
        with self._shutdown.waits.scope():
            await work.receive(self._wake_tasks(nursery))
        batch = work.last
        # A round's records are no longer in the consumer's buffer, which fills again meanwhile.
        most = most_beside_buffer(self._consumer)
        todo = dict[_Task, list[RecordBatch]]()
        while batch is not None:
            todo.setdefault(self._task(TopicPartition(batch.topic, batch.partition)), []).append(
                batch
            )
            batch = work.further() if work.count < _MOST and work.size < most else None
        if self._shutdown.stopping or any(task.skipped for task in todo):
            raise _UndoneError
        if not todo:
            return
        part = _RoundPart(
            self._consumer, self._plan, trio.current_time() + self._limit, self._shutdown
        )
        try:
            await work.process(
                self._producer, partial(part.do, todo), partial(self._undecided, todo)
            )
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

    def _count_refused(self, part: _RoundPart) -> None:
        """End the run after some rounds in a row that were refused permanently.

        The next call in the transaction raises the refusal, although its own record is not to
        blame. In another round the handler of the refused record may await the send, and its
        failure is classified. Without a bound the rounds could be repeated for ever.
        """
        if part.judged:
            self._refused = 0
        elif part.refused is not None:
            self._refused += 1
            if self._refused >= _MOST_REFUSED:
                self._shutdown.fail(part.refused)

    async def _failed(self, work: TransactionRound, error: BaseException) -> None:
        """Wait before the next round, after a failure that concerns all tasks.

        Raises an error that ends the run.
        """
        if not may_be_done_again(error):
            raise error
        if timeout_in(error) is not None:
            assert isinstance(error, Exception)
            delay = self._budget(work.ends.keys() or self._consumer.assignment()).failed(error)
        else:
            delay = self._retry.delay()
            _log.warning(
                "a transaction of %s is done again: %s",
                counted(work.count, "record"),
                outlined(error),
            )
        with self._shutdown.waits.scope():
            await trio.sleep(delay)

    def _budget(self, tps: Iterable[TopicPartition]) -> TimeoutBudget:
        tasks = [self._task(tp) for tp in sorted(tps)]
        who = f"the transaction of {', '.join(str(task.tp) for task in tasks)}"
        return TimeoutBudget(who, [task.timer for task in tasks], self._retry)

    def _undecided(self, tasks: Iterable[_Task], error: TransactionUndecidedError) -> float:
        return self._budget(task.tp for task in tasks).failed(error)

    # --- the tasks ---

    def _task(self, tp: TopicPartition) -> _Task:
        """Return the task of a partition's present assignment."""
        epoch = self._consumer.assignment_epoch(tp)
        task = self._tasks.get(tp)
        if task is None or task.epoch != epoch:
            self._drop(tp)
            task = _Task(tp, epoch, self._plan, self._config)
            if epoch is not None:  # None: revoked since it was received
                self._tasks[tp] = task
        return task

    def _drop(self, tp: TopicPartition) -> None:
        """Forget the task of an assignment that has ended; cancel its preparation."""
        if (task := self._tasks.pop(tp, None)) is not None:
            task.scope.cancel()

    def _wake_tasks(self, nursery: trio.Nursery) -> float | None:
        """Resume the tasks whose wait is over, pause the suspended ones.

        Returns the seconds until the next wait is over.
        """
        assigned = self._consumer.assignment()
        paused = self._consumer.paused()
        for tp in self._tasks.keys() - assigned:
            self._drop(tp)
        now = trio.current_time()
        turns = list[float]()
        for tp in assigned:
            task = self._task(tp)
            if not task.ready and not task.begun:
                task.begun = True
                nursery.start_soon(self._prepare, task)
            if task.skipped != task.paused and not (task.skipped and tp in paused):
                (self._consumer.pause if task.skipped else self._consumer.resume)([tp])
                task.paused = task.skipped
            if task.due > now:
                turns.append(task.due - now)
        return min(turns, default=None)

    async def _prepare(self, task: _Task) -> None:
        try:
            with task.scope, self._consumer.handling():
                await task.budget.until_done(partial(self._plan.prepared, task.tp))
                task.ready = True
                self._shutdown.waits.cut()  # the next receive includes this task
        except Exception as error:
            self._shutdown.fail(error)
