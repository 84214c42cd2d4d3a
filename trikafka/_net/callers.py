"""Tasks that make a call for another task, which is not above them in Trio's tree.

A rebalance listener or handler of an asyncio program runs outside of Trio. The Trio task that
called it waits. A call that the listener makes is a task of its own, and counts as made by the
waiting one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from .run_local import RunLocal


class Caller:
    """The Trio task that makes this, while it waits for a function outside of Trio."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = trio.lowlevel.current_task()

    @property
    def task(self) -> trio.lowlevel.Task | None:
        """The waiting task; ``None`` once the function has ended."""
        return self._task

    def end(self) -> None:
        """Record that the function has ended: what it left running is no longer inside it."""
        self._task = None


def _no_calls() -> dict[trio.lowlevel.Task, Caller]:
    return {}


_calls = RunLocal("trikafka_calls", _no_calls)


@contextmanager
def calling_for(caller: Caller) -> Iterator[None]:
    """Mark this task, within the block, as one that makes a call for ``caller``.

    Calls of the clients that a rebalance listener or handler must not make are then refused.

    Args:
        caller: The task that waits; made in that task.
    """
    task = trio.lowlevel.current_task()
    calls = _calls.get()
    calls[task] = caller
    try:
        yield
    finally:
        del calls[task]


def caller_of(task: trio.lowlevel.Task) -> trio.lowlevel.Task | None:
    """Return the waiting task for which ``task`` makes a call, if it does."""
    caller = _calls.get().get(task)
    return None if caller is None else caller.task
