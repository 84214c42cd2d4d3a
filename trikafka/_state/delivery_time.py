"""Where a batch's time went, so that a batch that expires can say so. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ..types import TopicPartition

#: What batches of every broker wait for.
PRODUCER_ID = "producer id"


def not_added(place: TopicPartition) -> tuple[str, TopicPartition]:
    """What batches for ``place`` wait for while its transaction's coordinator does not know of it (version 1)."""
    return "not added", place


class Timeline:
    """Of one batch: the seconds that it has waited, stood back after a failure, and been in flight. Written by the batch alone."""

    __slots__ = ("_resumes", "backoff", "in_flight", "since", "waiting")

    def __init__(self, now: float) -> None:
        self.waiting = self.backoff = self.in_flight = 0.0
        #: When the last change was.
        self.since = self._resumes = now

    def copy(self) -> Timeline:
        """The same past."""
        twin = Timeline(self.since)
        twin.waiting, twin.backoff, twin.in_flight, twin._resumes = self.waiting, self.backoff, self.in_flight, self._resumes
        return twin

    def sent(self, now: float) -> None:
        """What came before was waiting, first for the end of the backoff."""
        stood_back = max(0.0, min(now, self._resumes) - self.since)
        self.backoff += stood_back
        self.waiting += now - self.since - stood_back
        self.since = now

    def returned(self, now: float) -> None:
        """What came before was in flight."""
        self.in_flight += now - self.since
        self.since = self._resumes = now

    def stands_back(self, until: float) -> None:
        """It is not sent before ``until``."""
        self._resumes = until

    def report(self, now: float, in_flight: bool, obstacle: tuple[str, float] | None) -> tuple[str, dict[str, float]]:
        """The phase it is in, and the seconds in each so far. ``obstacle``: what it waits for, and since when."""
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


class Obstacles:
    """What keeps batches from being sent, and since when. Written by the accumulator's parts alone.

    It is a broker (by its id) that is not connected, or that has as many requests as it may have; a partition whose leader is not
    known, or that the transaction's coordinator does not know; or the producer id that is not there.
    """

    __slots__ = ("_clock", "_since")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[Hashable, float] = {}

    def met(self, what: Hashable) -> None:
        """It is in the way from now on, if it was not before."""
        if what not in self._since:
            self._since[what] = self._clock()

    def overcome(self, what: Hashable) -> None:
        """It is out of the way."""
        self._since.pop(what, None)

    def since(self, what: Hashable) -> float | None:
        """Since when it is in the way; ``None``: it is not."""
        return self._since.get(what)
