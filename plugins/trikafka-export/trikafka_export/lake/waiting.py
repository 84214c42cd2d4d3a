"""The limit of a call of a table's log, which may make many requests."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

#: Restarts the limit of the call in this thread. A thread of Trio has its caller's context.
restart: ContextVar[Callable[[], None]] = ContextVar("restart", default=lambda: None)


def responded() -> None:
    """Restart the limit of this call, because the store has responded.

    Raises:
        trio.Cancelled: The caller has abandoned this thread.
    """
    restart.get()()
