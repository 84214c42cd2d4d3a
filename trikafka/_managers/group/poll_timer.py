"""The poll timer: how long the user has received nothing (``max_poll_interval_ms``, KIP-62).

The consumer's receives write it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import trio

from ..._net.clock import clock_of_run


class StreamTimes(Protocol):
    """The streams of a consumer, as far as the poll timer needs them.

    A handler may hang while the task in ``partitions()`` waits.
    """

    def stuck_at(self, now: float) -> float:
        """Return when every stream will have held a record for the limit.

        Infinity while one of them is not stuck.
        """

    def left_behind(self) -> str:
        """Record that the member leaves because of the streams that are stuck now.

        Returns the names of their partitions.
        """

    async def returned(self) -> None:
        """Wait until a stream that made the member leave has ended, or its handler goes on."""


class _Presence(AbstractContextManager[None]):
    """The wait of a receive for records; the timer holds its state, so one object serves all."""

    def __init__(self, timer: PollTimer) -> None:
        self._timer = timer

    def __enter__(self) -> None:
        self._timer.wait_begun()

    def __exit__(self, *_: object) -> None:
        self._timer.wait_ended()


class PollTimer:
    """The time of the last receive, and whether the user is overdue.

    Receives report the user's presence; the membership waits for the user to be overdue. After a
    blocked event loop a receive may run before the task that watches the session, so the end of the
    session is checked here too.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit  #: seconds that the user may take between two receives
        self._now = clock_of_run()
        self._last_poll = self._now()
        self._presence = _Presence(self)
        # Whether a task waits for the limit, and whether the limit was passed although the user has
        # received since.
        self._watched = False
        self._late = False
        self._session_ends = math.inf
        self._session_expired: Callable[[], object] = lambda: None
        self._waiting = 0  # receives that wait for records: the consuming task is present
        self._waiting_since = 0.0
        self._waited = 0.0  # seconds, without those of the receives that wait now
        self._streams: StreamTimes | None = None
        self._stuck: str | None = None  # partitions of the streams that made the member leave
        self._deserializing: Callable[[], str | None] = lambda: None

    def limit_to(self, limit: float) -> None:
        """Set the limit in seconds between two receives, which the group's protocol decides."""
        self.limit = limit

    def polled(self, now: float) -> None:
        """Record a receive.

        If the session has ended meanwhile, the member learns that before the receive delivers.
        """
        if self._watched and self._overdue_at(now):
            self._late = True
        self._last_poll = now
        self.check_session(now)

    def check_session(self, now: float) -> None:
        """Report the end of the session in this step, if it has ended.

        Each delivery calls this first.
        """
        if now >= self._session_ends:
            self._session_ends = math.inf
            self._session_expired()

    def watch_streams(self, streams: StreamTimes) -> None:
        """Count the user as overdue, too, when every one of these streams is stuck."""
        self._streams = streams

    def watch_deserializers(self, deserializing: Callable[[], str | None]) -> None:
        """Set the function that names the partition whose async deserializer a receive awaits."""
        self._deserializing = deserializing

    @property
    def deserializing(self) -> str | None:
        """The partition whose async deserializer a receive waits for; ``None`` if there is none."""
        return self._deserializing()

    def watch_session(self, ends: float, expired: Callable[[], object]) -> None:
        """Call ``expired`` in the first receive after ``ends``.

        By the member's own clock it is out of its group then.
        """
        self._session_ends = ends
        self._session_expired = expired

    def waiting(self) -> AbstractContextManager[None]:
        """Count a receive that waits for records: the user is present all the time.

        Listeners that a receive runs have to be quick.
        """
        return self._presence

    def wait_begun(self) -> None:
        """Record that a receive begins to wait."""
        if not self._waiting:
            self._waiting_since = self._now()
        self._waiting += 1

    def wait_ended(self) -> None:
        """Record that the wait of a receive has ended."""
        now = self._now()
        self._waiting -= 1
        if not self._waiting:
            self._waited += now - self._waiting_since
        self._last_poll = now
        self.polled(now)

    def waited(self, now: float) -> float:
        """Return the seconds until ``now`` in which a receive waited for records."""
        return self._waited + (now - self._waiting_since if self._waiting else 0.0)

    @property
    def overdue(self) -> bool:
        """True if the user has received nothing for longer than the limit."""
        return self._late or self._overdue_at(trio.current_time())

    def _overdue_at(self, now: float) -> bool:
        return not self._waiting and now >= self._last_poll + self.limit

    async def expired(self) -> None:
        """Return when the user is overdue."""
        self._watched = True
        self._late = False
        self._stuck = None
        try:
            while not self.overdue:
                # Many receives happen in this time. A signal from each would cost more than another
                # look afterwards.
                now = trio.current_time()
                again_at = max(self._last_poll, now if self._waiting else 0.0) + self.limit
                if self._streams is not None:
                    stuck_at = self._streams.stuck_at(now)
                    if stuck_at <= now:
                        self._stuck = self._streams.left_behind()
                        return
                    again_at = min(again_at, stuck_at)
                await trio.sleep_until(again_at)
        finally:
            self._watched = False

    @property
    def stuck(self) -> str | None:
        """The partitions of the streams that made the member leave, until a handler goes on."""
        return self._stuck

    async def returned(self) -> None:
        """Wait until the user is present again, where a receive does not show that.

        Stuck streams may have made the member leave. The task in ``partitions()`` runs the
        listeners all the time, but its presence is no reason to join again: the member would hold
        its partitions for another interval, with no handler that works on them.
        """
        if self._stuck is not None and self._streams is not None:
            await self._streams.returned()
        self._stuck = None
