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


class Timeline:
    """The seconds that one batch has waited, backed off after failures, and been in flight.

    Written by the batch alone.
    """

    __slots__ = ("_resumes", "backoff", "in_flight", "since", "waiting")

    def __init__(self, now: float) -> None:
        self.waiting = self.backoff = self.in_flight = 0.0
        #: The time of the last change.
        self.since = self._resumes = now

    def copy(self) -> Timeline:
        """Return a timeline with the same past."""
        twin = Timeline(self.since)
        twin.waiting = self.waiting
        twin.backoff = self.backoff
        twin.in_flight = self.in_flight
        twin._resumes = self._resumes
        return twin

    def sent(self, now: float) -> None:
        """End a time of waiting, of which the first part was backoff."""
        stood_back = max(0.0, min(now, self._resumes) - self.since)
        self.backoff += stood_back
        self.waiting += now - self.since - stood_back
        self.since = now

    def returned(self, now: float) -> None:
        """End a time in flight."""
        self.in_flight += now - self.since
        self.since = self._resumes = now

    def set_retry_at(self, until: float) -> None:
        """Begin a backoff until that time."""
        self._resumes = until

    def report(
        self, now: float, in_flight: bool, obstacle: tuple[str, float] | None
    ) -> tuple[str, dict[str, float]]:
        """Return the present phase, and the seconds in each phase so far.

        ``obstacle``: what the batch waits for, and since when.
        """
        seen = self.copy()
        if in_flight:
            seen.returned(now)
            phase = "in flight"
        else:
            phase = "backoff" if now < self._resumes else "waiting"
            seen.sent(now)
        seconds = {"waiting": seen.waiting, "backoff": seen.backoff, "in flight": seen.in_flight}
        if obstacle is not None and not in_flight:
            phase, since = f"waiting for {obstacle[0]}", obstacle[1]
            seconds[phase] = min(max(0.0, now - max(since, self.since)), seconds["waiting"])
            seconds["waiting"] -= seconds[phase]
        return phase, {name: spent for name, spent in seconds.items() if spent or name == phase}


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
