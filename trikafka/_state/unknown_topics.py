"""Topics and partitions that records were meant for which nobody knows: since when each is looked for. No I/O.

A place is looked for from the first call that names it. As long as it may still appear the outcome is *not now*; once its time is
up it is *never*, in each call, until it appears after all. Only so many are looked for at a time: who comes while all seats are
taken is told *not now*, too, and gets a seat when one who has been told *never* leaves his. So a loop over *not now* ends.
"""

from __future__ import annotations

from collections.abc import Callable

#: A topic, and a partition of it if the record named one.
Place = tuple[str, int | None]
#: How many are looked for at a time.
MOST = 1_000
#: After this time (seconds) a place that nobody has asked for again may lose its seat.
_FORGOTTEN_AFTER = 60.0


class UnknownTopics:
    """Owned by the produce manager."""

    __slots__ = ("_clock", "_places", "_since", "_told", "changes")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[Place, tuple[float, int]] = {}  # and the metadata's version then; the oldest first
        self._told: dict[Place, None] = {}  # those whose time is up, and somebody knows it
        self._places: dict[str, set[Place]] = {}  # by topic
        #: How often somebody has taken a seat.
        self.changes = 0

    @property
    def topics(self) -> set[str]:
        """The topics that are looked for, or have partitions that are."""
        return set(self._places)

    def look_for(self, place: Place, patience: float, version: int) -> bool:
        """Look for ``place``, if there is a seat. Returns whether it has been looked for in vain for ``patience`` seconds.

        It has not if there was no news meanwhile: ``version`` is that of the metadata.
        """
        found = self._since.get(place)
        if found is None:
            if len(self._since) >= MOST and not self._free_a_seat():
                return False
            found = self._since[place] = self._clock(), version
            self._places.setdefault(place[0], set()).add(place)
            self.changes += 1
        since, before = found
        if self._clock() - since < patience or (patience and version == before):
            return False
        self._told[place] = None
        return True

    def found(self, topic: str, partitions: int) -> None:
        """The topic is there, with so many partitions."""
        for place in [each for each in self._places.get(topic, ()) if (each[1] or 0) < partitions]:
            self._leave(place)

    def _free_a_seat(self) -> bool:
        oldest = next(iter(self._told), None) or next(iter(self._since))
        if oldest not in self._told and self._clock() - self._since[oldest][0] < _FORGOTTEN_AFTER:
            return False
        self._leave(oldest)
        return True

    def _leave(self, place: Place) -> None:
        del self._since[place]
        self._told.pop(place, None)
        self._places[place[0]].remove(place)
        if not self._places[place[0]]:
            del self._places[place[0]]
