"""The number of records that a share consumer may hold at the time. No I/O."""

from __future__ import annotations

#: The size at which a window begins, and below which it does not shrink.
_LEAST = 500
#: Records that were decided within the first time (seconds) after they came let the window grow;
#: those that took longer than the second let it shrink.
_QUICK, _SLOW = 0.2, 1.0


class FetchWindow:
    """A window that grows while the program is fast, up to ``most``, and shrinks when it is slow.

    A fetch of a share group takes some milliseconds however little it brings: the broker stores the
    acknowledgements that come with it. So a fast program is only fed by large fetches. A slow one
    would only keep records from other members.
    """

    __slots__ = ("_most", "size")

    def __init__(self, most: int) -> None:
        self._most = most
        #: The number of records that may be held.
        self.size = min(most, _LEAST)

    def done(self, seconds: float) -> None:
        """Record that records of one response were all decided, ``seconds`` after they came."""
        if seconds < _QUICK:
            self.size = min(self._most, 2 * self.size)
        elif seconds > _SLOW:
            self.size = max(min(self._most, _LEAST), self.size // 2)
