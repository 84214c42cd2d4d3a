"""The times of log lines about a state that lasts: at once, then every five minutes."""

from __future__ import annotations

#: The seconds after which a state that lasts is logged again.
REMINDER = 300.0


class Reminder:
    """The times of the log lines about one state. ``now`` is always of the same clock."""

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
        """Record the end of the state: its next beginning is logged at once."""
        self.logged_at = None
