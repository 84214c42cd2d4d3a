"""Fairness to other tasks, for all ways of sending."""

from __future__ import annotations

import functools
import threading

import trio

from ..._wire import _implementation
from ..client.turns import known_current_task

#: The most seconds for which one task may enqueue records, or collect acks, before others run.
FAIRNESS = 0.001


class Fairness:
    """The turn of a series of calls that have nothing to wait for.

    Each such call checks for cancellation. Once a millisecond, one of them also lets other tasks
    run, unless its task has slept in the meantime, so that they have run already.

    A call awaits :meth:`checkpoint` if :meth:`passes` returns False.
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
    # To await ``checkpoint`` in each call would double its cost. ``passes`` looks at the clock and
    # at the task's cancellation in one call of compiled code.
    __slots__ = ("passes", "turn")

    def __init__(self, seconds: float = FAIRNESS) -> None:
        #: The turn of the series.
        self.turn = _implementation.current.Turn(seconds, known_current_task())
        #: Return whether the turn is not over, and the task neither cancelled nor interrupted.
        self.passes = self.turn.passes

    async def checkpoint(self) -> None:
        """Check for cancellation; let other tasks run if that is due."""
        task = trio.lowlevel.current_task()
        if self.turn.is_over:
            self.turn.begin()  # until its end no other task needs a checkpoint
            if task.custom_sleep_data is self:  # Trio resets it when the task wakes
                await trio.lowlevel.checkpoint()
                self.turn.begin()
            task.custom_sleep_data = self
        await trio.lowlevel.checkpoint_if_cancelled()


class _OfThread(threading.local):
    """The ``Fairness`` of each thread, which has at most one run of Trio at a time."""

    # Made at first use: `known_current_task()` needs a running task.
    @functools.cached_property
    def fairness(self) -> Fairness:
        return Fairness()


# A thread-local variable and not a RunLocal, which is slower: each wait for a known ack looks here.
# A producer keeps its ``Fairness``, so that a send does not pay for the look-up (32 ns).
current = _OfThread()
