"""The time of a batch by phase, so that the error of an expired batch can name it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ...types import TopicPartition

#: The obstacle of batches of every broker that wait for a producer id.
PRODUCER_ID = "producer id"


def not_added(place: TopicPartition) -> tuple[str, TopicPartition]:
    """Return the obstacle key of a partition that its transaction does not contain yet.

    Batches for it wait until the coordinator has added it (version 1).
    """
    return "not added", place


class BlockedSince:
    """The obstacles to sending batches, and since when each exists.

    Written by the accumulator's parts alone. An obstacle is one of these:

    - a broker (its id) that is not connected, or has as many requests in flight as allowed;
    - a partition without a known leader, or that the transaction's coordinator does not know;
    - the missing producer id.
    """

    __slots__ = ("_clock", "_since")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[Hashable, float] = {}

    def met(self, what: Hashable) -> None:
        """Record that the obstacle exists from now on, if it did not before."""
        if what not in self._since:
            self._since[what] = self._clock()

    def overcome(self, what: Hashable) -> None:
        """Remove the obstacle."""
        self._since.pop(what, None)

    def since(self, what: Hashable) -> float | None:
        """Return since when the obstacle exists; ``None``: it does not."""
        return self._since.get(what)
