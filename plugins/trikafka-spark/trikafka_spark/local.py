"""The tasks of a small export in threads of this process: no Java, no Spark, nothing to wait for.

The loop is never held up, and a cancelled scope ends the tasks at once: what they have published stays, and what they have not is
dropped.
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
from .rounds import Aside, Rounds, Try
from .task import Stopped, Stopper, WriteTask, write_range

_POLL_EVERY = 0.2
#: What is wrong with a file system, and with no file of it.
_OF_ALL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}
#: How long a cancelled export waits for its threads (seconds): each ends at its next batch.
_LEAVE_LIMIT = 0.8


class LocalJob:
    """Tasks to run, at most ``threads`` at a time, by a limiter of their own. A thread has its client from one task to the next."""

    def __init__(self, tasks: Sequence[WriteTask], threads: int) -> None:
        self._tasks = tasks
        self._limiter = trio.CapacityLimiter(threads)
        self._stopper = Stopper()
        self._rounds = Rounds([task.planned for task in tasks])
        #: Held for what follows, down to the readers that nobody uses just now.
        self._lock = threading.Lock()
        self._rows = self._done = self._working = 0
        self._free: list[Reader] = []
        self._idle = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._failure: Exception | None = None

    async def run(self, report: Callable[[int, int], None]) -> list[Exception | None]:
        """Run them; ``report(tasks done, rows done)`` a few times a second.

        Returns for each task the error of Kafka's that ended it, or ``None``. Raises :exc:`ExportError` for what else one of them
        raises, when the others have been stopped, and what ``report`` raises.
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
                    if self._stopper.stopped and self._failure is not None and not finished.is_set():
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

    async def _round(self, tries: Sequence[Try]) -> None:
        results: list[tuple[int, Exception | None]] = []
        aside = Aside()

        async def work(each: Try) -> None:
            task = self._tasks[each.index]
            try:
                error = await trio.to_thread.run_sync(
                    self._work, task, each.patience, aside, abandon_on_cancel=True, limiter=self._limiter
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
        self._rounds.note(results)

    def _report(self, report: Callable[[int, int], None]) -> None:
        try:
            report(self._done, self._rows)
        except Exception as error:
            self._failure = self._failure or error
            self._stopper.stop()

    def _work(self, task: WriteTask, patience: float | None, aside: Aside) -> Exception | None:
        with self._lock:
            self._working += 1
            reader = self._free.pop() if self._free else Reader(task.settings)
        try:
            self._stopper.check()
            tp = task.planned.tp
            error = aside.errors.get(tp) or write_range(task, self._stopper, self._tell, reader, patience)
            aside.note(tp, error)
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
        """For the next task; or close it, for a thread may end long after the job was left."""
        with self._lock:
            if not self._stopper.stopped:
                self._free.append(reader)
                return
        reader.close()

    async def _close(self) -> None:
        """Those of threads that are at work are closed by these. (The stopper is set: no more come.)"""
        with self._lock:
            free, self._free = self._free, []

        def close() -> None:
            for reader in free:
                reader.close()

        await trio.to_thread.run_sync(close, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))

    def _tell(self, rows: int) -> None:
        with self._lock:
            self._rows += rows


def _explained(task: WriteTask, error: Exception) -> ExportError:
    """As Spark's job says it: what is not trikafka's own error with the range, but for what is wrong with the whole destination."""
    if isinstance(error, OSError) and error.errno in _OF_ALL:  # whichever range meets it first: --every is to tell it once
        text = f"cannot write to {task.root}: {os.strerror(error.errno)}"
    else:
        text = f"exporting {task.planned} failed: {str(error) or type(error).__name__}"
    failure = ExportError(text)
    failure.__cause__ = error
    return failure
