"""When a log line about something that goes on is due: at once, then every five minutes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

#: How often (seconds) something that goes on is logged again.
REMINDER = 300.0


class Reminder:
    """The times of the log lines about one thing. ``now`` may be of any clock, always the same."""

    __slots__ = ("logged_at",)

    def __init__(self) -> None:
        self.logged_at: float | None = None

    def is_due(self, now: float) -> bool:
        """Return whether a line is due: the first one, or one that is five minutes later."""
        return self.logged_at is None or now - self.logged_at >= REMINDER

    def logged(self, now: float) -> None:
        """Record that the line was logged."""
        self.logged_at = now

    def forget(self) -> None:
        """Log at once when it happens again."""
        self.logged_at = None


class Reminders:
    """Reminders of many things by key, with a clock. Any thread may call."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[Hashable, Reminder] = {}

    def is_due(self, key: Hashable) -> bool:
        """Return whether to log this now; True counts as logged."""
        with self._lock:
            now = self._clock()
            reminder = self._known.setdefault(key, Reminder())
            due = reminder.is_due(now)
            if due:
                reminder.logged(now)
            return due

    def forget(self, key: Hashable) -> bool:
        """Log this at once when it happens again; return whether it was logged."""
        with self._lock:
            return self._known.pop(key, None) is not None

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._known.clear()
