"""The poll timer: how long the user has asked for nothing (``max_poll_interval_ms``, KIP-62). Owned by the consumer's receives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio


class PollTimer:
    """Receives tell it that the user is there; the membership waits for him to be overdue.

    After an event loop that was blocked for long a receive may run before the task that watches the session: so the session's end
    is looked at here too.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit  #: seconds that the user may take between two receives
        self._last_poll = trio.current_time()
        self._watched = self._late = False  # somebody waits for the limit; it was passed, though the user came back since
        self._session_ends = math.inf
        self._session_expired: Callable[[], object] = lambda: None
        self._waiting = 0  # receives that wait for records: the consuming task is there

    def limit_to(self, limit: float) -> None:
        """The user may take ``limit`` seconds between two receives from now on: the group's protocol decides."""
        self.limit = limit

    def polled(self, now: float) -> None:
        """The user came back for more. If the session has ended meanwhile, the member learns that before he gets anything."""
        if self._watched and self._overdue_at(now):
            self._late = True
        self._last_poll = now
        self.check_session(now)

    def check_session(self, now: float) -> None:
        """If the session has ended, have the member learn that in this step. For whatever delivers, before it does."""
        if now >= self._session_ends:
            self._session_ends = math.inf
            self._session_expired()

    def watch_session(self, ends: float, expired: Callable[[], object]) -> None:
        """By its own clock the member is out of its group at ``ends``: call ``expired`` then, at the latest at the next receive."""
        self._session_ends, self._session_expired = ends, expired

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A receive waits for records: the user is there all the time. (Listeners that a receive runs have to be quick.)"""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._last_poll = trio.current_time()
            self.polled(trio.current_time())

    @property
    def overdue(self) -> bool:
        """Whether the user has asked for nothing for longer than the limit."""
        return self._late or self._overdue_at(trio.current_time())

    def _overdue_at(self, now: float) -> bool:
        return not self._waiting and now >= self._last_poll + self.limit

    async def expired(self) -> None:
        """Return when the user is overdue."""
        self._watched, self._late = True, False
        try:
            while not self.overdue:
                # Many a receive goes by in this time; a signal from each of them would cost more than looking again.
                now = trio.current_time()
                await trio.sleep_until(max(self._last_poll, now if self._waiting else 0.0) + self.limit)
        finally:
            self._watched = False
