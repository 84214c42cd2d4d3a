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

from trikafka import ExportError, KafkaTimeoutError, TopicPartition

from .task import Stopped, Stopper, WriteTask, write_range

_POLL_EVERY = 0.2
#: What is wrong with a file system, and with no file of it.
_OF_ALL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}
#: How long a cancelled export waits for its threads (seconds): each ends at its next batch.
_LEAVE_LIMIT = 0.8


class LocalJob:
    """Tasks to run, at most ``threads`` at a time, by a limiter of their own."""

    def __init__(self, tasks: Sequence[WriteTask], threads: int) -> None:
        self._tasks = tasks
        self._limiter = trio.CapacityLimiter(threads)
        self._stopper = Stopper()
        self._lock = threading.Lock()
        self._rows = 0
        self._done = 0
        self._working = 0
        self._idle = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._failure: Exception | None = None
        #: What a partition has timed out with: its other ranges do not wait as long, one after the other, in the threads of all.
        self._stuck: dict[TopicPartition, KafkaTimeoutError] = {}

    async def run(self, report: Callable[[int, int], None]) -> list[Exception | None]:
        """Run them; ``report(tasks done, rows done)`` a few times a second.

        Returns for each task the error of Kafka's that ended it, or ``None``. Raises :exc:`ExportError` for what else one of them
        raises, when the others have been stopped, and what ``report`` raises.
        """
        self._token = trio.lowlevel.current_trio_token()
        results: list[Exception | None] = [None] * len(self._tasks)
        finished = trio.Event()

        async def work(index: int) -> None:
            try:
                results[index] = await trio.to_thread.run_sync(
                    self._work, self._tasks[index], abandon_on_cancel=True, limiter=self._limiter
                )
                self._done += 1
            except Stopped:
                pass
            except Exception as error:
                self._failure = self._failure or _explained(self._tasks[index], error)
                self._stopper.stop()

        async def work_all() -> None:
            async with trio.open_nursery() as nursery:
                for index in range(len(self._tasks)):
                    nursery.start_soon(work, index)
            finished.set()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work_all)
                while not finished.is_set():
                    with trio.move_on_after(_POLL_EVERY):
                        await finished.wait()
                    self._report(report)
                    if self._stopper.stopped and self._failure is not None and not finished.is_set():
                        await finished.wait()
        finally:
            self._stopper.stop()
            if self._working:
                with trio.move_on_after(_LEAVE_LIMIT, shield=True):
                    await self._idle.wait()
        if self._failure is not None:
            raise self._failure
        return results

    def _report(self, report: Callable[[int, int], None]) -> None:
        try:
            report(self._done, self._rows)
        except Exception as error:
            self._failure = self._failure or error
            self._stopper.stop()

    def _work(self, task: WriteTask) -> Exception | None:
        with self._lock:
            self._working += 1
        try:
            self._stopper.check()
            tp = task.planned.tp
            error = self._stuck.get(tp) or write_range(task, self._stopper, self._tell)
            if isinstance(error, KafkaTimeoutError):
                self._stuck[tp] = error
            return error
        finally:
            with self._lock:
                self._working -= 1
                last = not self._working and self._stopper.stopped
            if last and self._token is not None:
                with contextlib.suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._idle.set)

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
