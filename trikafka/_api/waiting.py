"""What the ways of sending share: one step of a call that ends by itself, and when others must be let run."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from .._net import reasons
from .._net.deadlines import Call

T = TypeVar("T")
#: Other tasks run at least so often (seconds) while one enqueues or takes acks that are there already.
FAIRNESS = 0.001


class Fairness:
    """When the next full checkpoint is due in a run of calls that have nothing to wait for (a full one costs 6 to 9 µs).

    Each such call checks for cancellation; once a millisecond one of them lets the other tasks run, unless its task has slept
    since the last one, and so has let them run already. Where every record passes, the check of the time is written out: as a
    coroutine of its own it would cost each of them as much again.
    """

    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due = 0.0

    async def take(self) -> None:
        """Check for cancellation, and let others run if it is time."""
        now = time.perf_counter()
        task = trio.lowlevel.current_task()
        if now >= self.due:
            self.due = now + FAIRNESS  # many tasks in this situation: one checkpoint is enough for all
            if task.custom_sleep_data is self:  # Trio clears it whenever the task is run again
                await trio.lowlevel.checkpoint()
                self.due = time.perf_counter() + FAIRNESS
            task.custom_sleep_data = self
        await trio.lowlevel.checkpoint_if_cancelled()


fairness = Fairness()


async def within(call: Call, least: float, work: Callable[[], Awaitable[T]]) -> T:
    """Run the one step of a call that ends by itself or not at all. Raises the call's timeout past its limit."""
    with reasons.reasoning() as reason, trio.move_on_after(max(least, call.left)):
        return await work()
    raise call.expired(reason.told())
