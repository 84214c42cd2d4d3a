"""Tasks that make a call for another task, which is not above them in Trio's tree.

A rebalance listener or handler of an asyncio program runs outside of Trio. The Trio task that
called it waits. A call that the listener makes is a task of its own, and counts as made by the
waiting one.

A task of asyncio that reads a stream makes each call by another Trio task, or without one. The
stream's reader is then the task of asyncio, until that task ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import trio

from .run_local import RunLocal


class HostTask(Protocol):
    """A task outside of Trio, such as asyncio's."""

    def done(self) -> bool:
        """Return whether the task has ended."""


#: A task that uses a client: Trio's, or one outside of Trio.
ActingTask: TypeAlias = trio.lowlevel.Task | HostTask


class Caller:
    """A Trio task that waits for a function outside of Trio: the one that makes this object."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = trio.lowlevel.current_task()

    @property
    def task(self) -> trio.lowlevel.Task | None:
        """The waiting task; ``None`` once the function has ended."""
        return self._task

    def end(self) -> None:
        """Record that the function has ended. Tasks that it started no longer call for it."""
        self._task = None


_calls: RunLocal[dict[trio.lowlevel.Task, Caller]] = RunLocal("trikafka_callers", dict)


@contextmanager
def calling_for(caller: Caller) -> Iterator[None]:
    """Mark this task, within the block, as one that makes a call for ``caller``.

    Calls of the clients that a rebalance listener or handler must not make are then refused.

    Args:
        caller: The object that the waiting task has made.
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


class Host(Protocol):
    """The program outside of Trio whose guest Trio is."""

    def current_task(self) -> HostTask | None:
        """Return the task that runs there now."""

    async def run(self, function: Callable[[], Awaitable[None]]) -> None:
        """Call an async function there; called in a Trio task, which waits for its end."""

    async def let_others_run(self) -> None:
        """Let other tasks run; called there."""


class _NoHost:
    """Trio alone: everything runs where it is called."""

    def current_task(self) -> HostTask | None:
        return None

    async def run(self, function: Callable[[], Awaitable[None]]) -> None:
        await function()

    async def let_others_run(self) -> None:
        await trio.lowlevel.checkpoint()


class _Hosting:
    """The host of one Trio run."""

    def __init__(self) -> None:
        self.host: Host = _NoHost()
        #: The host's tasks, by the Trio tasks that make their calls.
        self.calls: dict[trio.lowlevel.Task, HostTask] = {}


_hosting = RunLocal("trikafka_host", _Hosting)


def set_host(host: Host) -> None:
    """Set the program whose guest this Trio run is.

    Args:
        host: It runs the user's functions, and its tasks call the clients.
    """
    _hosting.get().host = host


def host_of_this_run() -> Host:
    """Return the program in which the user's functions run; without another one, Trio itself."""
    return _hosting.get().host


@contextmanager
def calling_for_host(task: HostTask | None) -> Iterator[None]:
    """Mark this Trio task, within the block, as one that makes a call for a task of the host.

    Args:
        task: The host's task; ``None`` if the call was made outside of one.
    """
    if task is None:
        yield
        return
    mine = trio.lowlevel.current_task()
    calls = _hosting.get().calls
    calls[mine] = task
    try:
        yield
    finally:
        del calls[mine]


def acting_task() -> ActingTask | None:
    """Return the task that calls: the host's if there is one behind it, otherwise Trio's."""
    hosting = _hosting.get()
    try:
        task = trio.lowlevel.current_task()
    except RuntimeError:  # no Trio task runs: the host calls directly
        return hosting.host.current_task()
    return hosting.calls.get(task, task) if hosting.calls else task


def is_alive(task: ActingTask) -> bool:
    """Return whether the task has not ended."""
    if isinstance(task, trio.lowlevel.Task):
        nursery = task.parent_nursery
        return nursery is None or task in nursery.child_tasks
    return not task.done()
