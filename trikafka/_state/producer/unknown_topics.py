"""The topics and partitions of records that the cluster does not know, and since when. No I/O.

A place is looked for from the first call that names it. As long as it may still appear, a call's
outcome is *not now*. Once its time is up the outcome is *never*, in each call, until the place
appears after all. At most ``MOST`` places are looked for at a time. With all seats taken, a call
for another place gets *not now* as well, and a seat once a place with the outcome *never* leaves
one. So a loop over *not now* ends.
"""

from __future__ import annotations

from collections.abc import Callable

#: A topic, and a partition of it if the record named one.
Place = tuple[str, int | None]
#: The number of places that are looked for at a time.
MOST = 1_000
#: The time (seconds) after which a place without an outcome may lose its seat.
_FORGOTTEN_AFTER = 60.0


# Bounded on purpose: ``send_nowait`` cannot wait, so a program may call it in a loop with topic
# names from its input. Without a bound each wrong name would be kept, and asked for in each
# metadata request. With a bound and no second rule, a thousand wrong names would make the next
# name's outcome *not now* for ever. So seats are freed: first those whose outcome *never* was
# returned, then those older than ``_FORGOTTEN_AFTER``.
class UnknownTopics:
    """The places that are looked for. Owned by the produce manager."""

    __slots__ = ("_clock", "_places", "_reported", "_since", "changes")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: When each place was first named, and the metadata's version then; the oldest first.
        self._since: dict[Place, tuple[float, int]] = {}
        #: The places whose outcome *never* has been returned.
        self._reported: dict[Place, None] = {}
        #: The places by topic.
        self._places: dict[str, set[Place]] = {}
        #: How often a place has taken a seat.
        self.changes = 0

    @property
    def topics(self) -> set[str]:
        """The topics that are looked for, or have partitions that are."""
        return set(self._places)

    def look_for(self, place: Place, patience: float, version: int) -> bool:
        """Look for ``place`` if there is a seat; return whether the outcome is *never*.

        That is so after ``patience`` seconds, if the metadata were updated meanwhile. ``version``
        is the metadata's version.
        """
        found = self._since.get(place)
        if found is None:
            if len(self._since) >= MOST and not self._make_room():
                return False
            found = self._since[place] = self._clock(), version
            self._places.setdefault(place[0], set()).add(place)
            self.changes += 1
        since, before = found
        if self._clock() - since < patience or (patience and version == before):
            return False
        self._reported[place] = None
        return True

    def found(self, topic: str, partitions: int) -> None:
        """Forget the places of a topic that exists with this number of partitions."""
        for place in [each for each in self._places.get(topic, ()) if (each[1] or 0) < partitions]:
            self._leave(place)

    def _make_room(self) -> bool:
        oldest = next(iter(self._reported), None) or next(iter(self._since))
        if (
            oldest not in self._reported
            and self._clock() - self._since[oldest][0] < _FORGOTTEN_AFTER
        ):
            return False
        self._leave(oldest)
        return True

    def _leave(self, place: Place) -> None:
        del self._since[place]
        self._reported.pop(place, None)
        self._places[place[0]].remove(place)
        if not self._places[place[0]]:
            del self._places[place[0]]
