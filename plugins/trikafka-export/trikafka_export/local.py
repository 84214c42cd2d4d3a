"""The tasks of a small export in threads of this process, without Java and Spark.

The Trio loop never blocks. A cancelled scope ends the tasks at once: the files that they have
published stay, and the others are dropped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Sequence

import trio

from trikafka import ExportError

from .reader import Reader
from .reading import NothingYet
from .rounds import RangeAttempt, Rounds, UnresponsivePartitions
from .task import Stopped, Stopper, WriteTask, write_range

_POLL_EVERY = 0.2
#: Errors of a whole file system, not of one file.
_OF_ALL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}
#: How long a cancelled export waits for its threads (seconds); each ends at its next batch.
_LEAVE_LIMIT = 0.8


class LocalJob:
    """The tasks of one job, at most ``threads`` at a time.

    A thread keeps its client from one task to the next.
    """

    def __init__(self, tasks: Sequence[WriteTask], threads: int) -> None:
        self._tasks = tasks
        self._limiter = trio.CapacityLimiter(threads)
        self._stopper = Stopper()
        self._rounds = Rounds([task.planned for task in tasks])
        #: Guards the counters and the idle readers.
        self._lock = threading.Lock()
        self._rows = 0
        self._done = 0
        self._working = 0
        self._free: list[Reader] = []
        self._idle = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._failure: Exception | None = None

    async def run(self, report: Callable[[int, int], None]) -> list[Exception | None]:
        """Run the tasks, and return for each task the error of Kafka that ended it, or ``None``.

        ``report(tasks done, rows done)`` is called a few times a second. If a task fails for
        another reason, the other tasks are stopped.

        Raises:
            ExportError: A task failed for another reason than Kafka's.
            Exception: The error of ``report``.

        Cancellation: the tasks stop at their next batch. The call waits for them for less than a
        second.
        """
        self._token = trio.lowlevel.current_trio_token()
        finished = trio.Event()

        async def work() -> None:
            while not self._stopper.stopped and (tries := self._rounds.next()):
                await self._round(tries)
            finished.set()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work)
                while not finished.is_set():
                    with trio.move_on_after(_POLL_EVERY):
                        await finished.wait()
                    self._report(report)
                    if (
                        self._stopper.stopped
                        and self._failure is not None
                        and not finished.is_set()
                    ):
                        await finished.wait()
        finally:
            self._stopper.stop()
            with trio.move_on_after(_LEAVE_LIMIT, shield=True):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._close)
                    if self._working:
                        await self._idle.wait()
        if self._failure is not None:
            raise self._failure
        return self._rounds.results

    async def _round(self, tries: Sequence[RangeAttempt]) -> None:
        results: list[tuple[int, Exception | None]] = []
        unresponsive = UnresponsivePartitions()

        async def work(each: RangeAttempt) -> None:
            task = self._tasks[each.index]
            try:
                error = await trio.to_thread.run_sync(
                    self._work,
                    task,
                    each.patience,
                    unresponsive,
                    abandon_on_cancel=True,
                    limiter=self._limiter,
                )
                results.append((each.index, error))
            except Stopped:
                pass
            except Exception as error:
                self._failure = self._failure or _explained(task, error)
                self._stopper.stop()

        async with trio.open_nursery() as nursery:
            for each in tries:
                nursery.start_soon(work, each)
        self._rounds.record(results)

    def _report(self, report: Callable[[int, int], None]) -> None:
        try:
            report(self._done, self._rows)
        except Exception as error:
            self._failure = self._failure or error
            self._stopper.stop()

    def _work(
        self, task: WriteTask, patience: float | None, unresponsive: UnresponsivePartitions
    ) -> Exception | None:
        with self._lock:
            self._working += 1
            reader = self._free.pop() if self._free else Reader(task.settings)
        try:
            self._stopper.check()
            tp = task.planned.tp
            error = unresponsive.errors.get(tp) or write_range(
                task, self._stopper, self._add_rows, reader, patience
            )
            unresponsive.record(tp, error)
            with self._lock:
                self._done += not isinstance(error, NothingYet)
            return error
        finally:
            self._give_back(reader)
            with self._lock:
                self._working -= 1
                last = not self._working and self._stopper.stopped
            if last and self._token is not None:
                with contextlib.suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._idle.set)

    def _give_back(self, reader: Reader) -> None:
        """Keep the reader for the next task, or close it if the job has stopped.

        A thread may end long after the job was left.
        """
        with self._lock:
            if not self._stopper.stopped:
                self._free.append(reader)
                return
        reader.close()

    async def _close(self) -> None:
        """Close the idle readers.

        The stopper is set, so no more become idle: the threads at work close their own readers.
        """
        with self._lock:
            free = self._free
            self._free = []

        def close() -> None:
            for reader in free:
                reader.close()

        await trio.to_thread.run_sync(
            close, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
        )

    def _add_rows(self, rows: int) -> None:
        with self._lock:
            self._rows += rows


def _explained(task: WriteTask, error: Exception) -> ExportError:
    """Return the error as Spark's job would raise it.

    An error of the whole destination names no range: a repeated export then logs it once, whichever
    range meets it first.
    """
    if isinstance(error, OSError) and error.errno in _OF_ALL:
        text = f"cannot write to {task.root}: {os.strerror(error.errno)}"
    else:
        text = f"exporting {task.planned} failed: {str(error) or type(error).__name__}"
    failure = ExportError(text)
    failure.__cause__ = error
    return failure
