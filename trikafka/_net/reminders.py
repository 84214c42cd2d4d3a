"""When a log line about something that goes on is due: at once, then every five minutes."""

from __future__ import annotations

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
