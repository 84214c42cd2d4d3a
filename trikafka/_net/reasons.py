"""What a task waits for, and why that does not come: so that a time-out names its root cause.

A call that has run out of time was cut off while something behind it (a dial, a shared look-up) was still being tried, in a task
that knows what went wrong and that nobody cancels. So each step of a call, and each piece of shared work, keeps a :class:`Reason`:
what is being waited for and how it failed last. Who waits for shared work links its own reason to that work's meanwhile, and when
the time is up the reason at the end of the links is the one that is told.

The reason of a task is found by a context variable, which the tasks that it starts inherit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import trio

from ..errors import RequestTimedOutError


class Told(NamedTuple):
    """What is being waited for (empty: nothing that says more), and its last failure."""

    waiting_for: str
    error: Exception | None


class Reason:
    """What one step, or one piece of shared work, waits for. Written by the tasks that do the work."""

    __slots__ = ("_behind", "_error", "_waiting_for")

    def __init__(self) -> None:
        self._waiting_for = ""
        self._error: Exception | None = None
        self._behind: list[Reason] = []  # as many as its tasks wait for at this moment

    def told(self) -> Told:
        """What stands at the end of the links."""
        waiting_for, error = self._waiting_for, self._error
        for other in self._behind:
            deeper = other.told()
            waiting_for, error = deeper.waiting_for or waiting_for, deeper.error or error
        return Told(waiting_for, error)

    def error(self) -> Exception | None:
        """What failed at the end of the links, or else that nothing came of what is waited for; ``None`` if nothing is known."""
        waiting_for, error = self.told()
        if error is None and waiting_for:
            return RequestTimedOutError(f"no response while waiting for {waiting_for}")
        return error

    def clear(self) -> None:
        """Forget the failure: it holds on to frames, and tasks that were started meanwhile hold on to this."""
        self._waiting_for, self._error = "", None


_current: ContextVar[Reason | None] = ContextVar("trikafka_reason", default=None)


def adopt(reason: Reason) -> None:
    """Make ``reason`` that of the current task, and of the tasks that it starts, for the rest of its life."""
    _current.set(reason)


def waiting_for(what: str, error: Exception | None = None) -> None:
    """Note what the current task waits for from now on, and how that failed the last time."""
    reason = _current.get()
    if reason is not None:
        reason._waiting_for = what
        reason._error = error or reason._error


def failed(error: Exception) -> None:
    """Note a failure that does not end the current work, because something else is tried next."""
    reason = _current.get()
    if reason is not None:
        reason._error = error


@contextmanager
def waiting_behind(other: Reason) -> Iterator[None]:
    """Link the current task's reason to that of the shared work it waits for inside."""
    mine = _current.get()
    if mine is None:
        yield
        return
    mine._behind.append(other)
    try:
        yield
    except (trio.Cancelled, BaseExceptionGroup):
        mine._waiting_for, mine._error = mine.told()  # cut off: what the work was at in this moment is the reason
        raise
    finally:
        mine._behind.remove(other)


@contextmanager
def reasoning(shared: Reason | None = None) -> Iterator[Reason]:
    """A reason of its own for what is done inside (``shared``: one that others wait behind, too), linked to the one outside."""
    reason = Reason() if shared is None else shared
    with waiting_behind(reason):
        token = _current.set(reason)
        try:
            yield reason
        finally:
            _current.reset(token)
