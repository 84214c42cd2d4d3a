"""When a connection is given up because its broker says nothing, or because nobody has used it for long."""

from __future__ import annotations

from collections.abc import Callable

import trio


class ExpiryWatch:
    """Cancels :attr:`patience`, the scope of the connection's reader, when a request has waited too long.

    It sleeps until the first expiry that it knows of, and only then looks whether that request still waits: so a request whose
    response comes in time costs no change of a deadline.
    """

    def __init__(self, idle_limit: float) -> None:
        self.patience = trio.CancelScope()
        self._idle_since = trio.current_time()
        self._idle_limit = idle_limit
        self._sleep = trio.CancelScope()  # its deadline is never after the first expiry

    def expect(self, expires: float) -> None:
        """A request was made that expires then."""
        if expires < self._sleep.deadline:
            self._sleep.deadline = expires

    def used(self) -> None:
        """A request ended."""
        self._idle_since = trio.current_time()

    async def run(self, first_expiry: Callable[[], float | None]) -> None:
        """Return once the patience is over. ``first_expiry`` is that of the requests that wait; ``None``: there are none."""
        while True:
            first = first_expiry()
            deadline = self._idle_since + self._idle_limit if first is None else first
            if deadline <= trio.current_time():
                break
            with trio.CancelScope(deadline=deadline) as self._sleep:
                await trio.sleep_forever()
        self.patience.cancel()
