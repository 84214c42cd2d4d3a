"""Fairness to other tasks, for all ways of sending."""

from __future__ import annotations

import threading
import time

import trio

#: The most seconds for which one task may enqueue records, or collect acks, before others run.
FAIRNESS = 0.001


class Fairness:
    """The time of the next full checkpoint in a series of calls that have nothing to wait for.

    Each such call checks for cancellation. Once a millisecond, one of them also lets other tasks
    run, unless its task has slept in the meantime, so that they have run already.
    """

    # A full checkpoint reschedules the task and costs 6 to 9 µs; a check for cancellation alone
    # costs less. A send() into a buffer with room has nothing to wait for, and would pay the full
    # price for each record. By Trio's rule every async function is a checkpoint: here each call
    # checks for cancellation, and a series of calls shares one reschedule a millisecond.
    #
    # Each thread has one ``Fairness``, and not each client or task: when thousands of tasks send,
    # one checkpoint of any of them lets all others run. One for the whole process would be wrong: a
    # checkpoint in one thread does not let the tasks of another thread's run go on.
    #
    # Calls that every record passes (send, enqueue, Ack.wait) check the clock themselves. To await
    # ``checkpoint`` would double their cost.
    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due = 0.0

    async def checkpoint(self) -> None:
        """Check for cancellation; let other tasks run if that is due."""
        now = time.perf_counter()
        task = trio.lowlevel.current_task()
        if now >= self.due:
            self.due = now + FAIRNESS  # until then no other task needs a checkpoint
            if task.custom_sleep_data is self:  # Trio resets it when the task wakes
                await trio.lowlevel.checkpoint()
                self.due = time.perf_counter() + FAIRNESS
            task.custom_sleep_data = self
        await trio.lowlevel.checkpoint_if_cancelled()


class _OfThread(threading.local):
    """The ``Fairness`` of each thread, which has at most one run of Trio at a time."""

    def __init__(self) -> None:
        self.fairness = Fairness()


# A thread-local variable and not a RunLocal, which is slower: each wait for a known ack looks here.
# A producer keeps its ``Fairness``, so that a send does not pay for the look-up (32 ns).
current = _OfThread()
