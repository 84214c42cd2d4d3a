"""Fairness to other tasks, for all ways of sending."""

from __future__ import annotations

import threading
import time

import trio

#: Other tasks run at least this often (seconds) while one task enqueues, or takes acks that are
#: complete.
FAIRNESS = 0.001


class Fairness:
    """The time of the next full checkpoint in a series of calls that have nothing to wait for.

    Each such call checks for cancellation. Once a millisecond, one of them lets other tasks run,
    unless its task has slept since then and so has let them run already.
    """

    # A full checkpoint reschedules the task and costs 6 to 9 µs; a check for cancellation alone
    # costs less. A send() into a buffer with room has nothing to wait for, and would pay that for
    # each record. Trio asks every async function to be a checkpoint: here each call checks for
    # cancellation, and the series of calls shares one reschedule a millisecond.
    #
    # There is one ``Fairness`` for a thread, not one a client or a task: when thousands of tasks
    # send, one checkpoint of any of them has let all others run. It is not one for the process: a
    # checkpoint in one thread lets no task of another thread's run go on.
    #
    # Where every record passes (send, enqueue, Ack.wait), the look at the clock is written out in
    # the caller: as a coroutine of its own it would cost each record as much again.
    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due = 0.0

    async def checkpoint(self) -> None:
        """Check for cancellation; let other tasks run if that is due."""
        now = time.perf_counter()
        task = trio.lowlevel.current_task()
        if now >= self.due:
            self.due = now + FAIRNESS  # one checkpoint is enough for all tasks in this situation
            if task.custom_sleep_data is self:  # Trio resets it whenever the task runs again
                await trio.lowlevel.checkpoint()
                self.due = time.perf_counter() + FAIRNESS
            task.custom_sleep_data = self
        await trio.lowlevel.checkpoint_if_cancelled()


class _OfThread(threading.local):
    """The object of each thread, which has at most one run of Trio at a time."""

    def __init__(self) -> None:
        self.fairness = Fairness()


# A thread-local variable and no RunLocal: an ack whose outcome is known looks here at each wait. A
# producer keeps the object, so that no send looks it up (32 ns).
current = _OfThread()
