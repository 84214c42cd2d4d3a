"""The root causes of timeouts: what a task waits for, and why that does not arrive.

When a call runs out of time, something behind it (a dial, a shared look-up) is usually still being
tried. That happens in another task, which knows what went wrong and is not cancelled. So each step
of a call, and each piece of shared work, keeps a :class:`WaitContext`: what is being waited for and
the last failure. A task that waits for shared work links its own reason to that work's meanwhile.
When the time is up, the reason at the end of the links is reported.

The reason of a task is found by a context variable, which the tasks that it starts inherit.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import NamedTuple

import trio

from ..errors import RequestTimedOutError


class Blame(NamedTuple):
    """The thing being waited for (empty: nothing informative), and the last failure."""

    waiting_for: str
    error: Exception | None


class WaitContext:
    """The thing that one step, or one piece of shared work, waits for.

    The tasks that do the work write it.
    """

    __slots__ = ("_behind", "_error", "_waiting_for")

    def __init__(self) -> None:
        self._waiting_for = ""
        self._error: Exception | None = None
        self._behind: list[WaitContext] = []  # one for each wait of its tasks at this moment

    def blame(self) -> Blame:
        """Return what the end of the links waits for."""
        waiting_for, error = self._waiting_for, self._error
        for other in self._behind:
            deeper = other.blame()
            waiting_for = deeper.waiting_for or waiting_for
            error = deeper.error or error
        return Blame(waiting_for, error)

    def error(self) -> Exception | None:
        """Return the failure at the end of the links; ``None`` if nothing is known.

        Without a failure the error says what is being waited for.
        """
        waiting_for, error = self.blame()
        if error is None and waiting_for:
            return RequestTimedOutError(f"no response while waiting for {waiting_for}")
        return error

    def clear(self) -> None:
        """Forget the failure.

        A failure keeps frames alive, and tasks started meanwhile keep this object alive.
        """
        self._waiting_for = ""
        self._error = None


_current: ContextVar[WaitContext | None] = ContextVar("trikafka_reason", default=None)


def adopt(reason: WaitContext) -> None:
    """Make ``reason`` the current task's for the rest of its life.

    Tasks that it starts inherit the reason.
    """
    _current.set(reason)


def waiting_for(what: str, error: Exception | None = None) -> None:
    """Record what the current task waits for from now on, and the last failure of that."""
    reason = _current.get()
    if reason is not None:
        reason._waiting_for = what
        reason._error = error or reason._error


def failed(error: Exception) -> None:
    """Record a failure that does not end the current work, which tries something else."""
    reason = _current.get()
    if reason is not None:
        reason._error = error


# A class and not a generator: a call enters half a dozen of these blocks, and a generator costs
# each of them twice as much.
class _Link:
    """A block in which the current task's reason is linked to that of the work it waits for.

    With ``inside``, that reason is the current task's own in the block.
    """

    __slots__ = ("_inside", "_mine", "_other", "_token")

    def __init__(self, other: WaitContext, *, inside: bool) -> None:
        self._other = other
        self._inside = inside

    def __enter__(self) -> WaitContext:
        self._mine = mine = _current.get()
        if mine is not None:
            mine._behind.append(self._other)
        if self._inside:
            self._token = _current.set(self._other)
        return self._other

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._inside:
            _current.reset(self._token)
        mine = self._mine
        if mine is None:
            return
        if isinstance(error, trio.Cancelled | BaseExceptionGroup):
            # Cut off: the reason is what the work waited for in this moment.
            mine._waiting_for, mine._error = mine.blame()
        mine._behind.remove(self._other)


def waiting_behind(other: WaitContext) -> AbstractContextManager[WaitContext, None]:
    """Link the current task's reason to that of the shared work for which it waits in the block."""
    return _Link(other, inside=False)


def reasoning(shared: WaitContext | None = None) -> AbstractContextManager[WaitContext, None]:
    """Give the block a reason of its own, linked to the one outside.

    ``shared`` is a reason that other tasks wait behind, too.
    """
    return _Link(WaitContext() if shared is None else shared, inside=True)
