"""One broker of a share consumer: its session, its connection, and its failures."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import trio

from ..._net.connection import Connection
from ..._net.reminders import Reminder
from ..._net.retry import Retry
from ..._state.share.session import ShareSession
from ..._wire.share import ShareFetchedPartition, SharePartition
from ...errors import TrikafkaError

#: While records are held, and a broker has been silent for this many seconds, the metadata is asked
#: for the leaders of their partitions. A new leader gives the records to others at once, while
#: handlers of this member work on them. This is also the longest pause in fetching after some
#: leaders have moved.
URGENT = 0.08
#: By default the controller replaces a broker 9 s after it froze. A broker that has not responded
#: for this many seconds has no successor, or an election is slow. The metadata is asked less often
#: then: see :data:`_SELDOM`.
_ELECTED_BY = 15.0
#: The seconds between two questions to the metadata after :data:`_ELECTED_BY`.
_SELDOM = 1.0
#: The most seconds that a far broker's responses may take, apart from their waits, before its
#: silence counts.
_FAR = 0.2


class Arrived(NamedTuple):
    """What one response acquired of one partition, not decoded yet.

    ``size`` is the estimated number of bytes once it is decoded. ``losses`` is the count of lost
    sessions when the response came; ``sent`` is when the request went out, and ``lock`` the seconds
    that the lock lasts from then on.
    """

    part: ShareFetchedPartition
    size: int
    sent: float
    lock: float
    losses: int
    renewable: bool

    @property
    def number(self) -> int:
        """The number of acquired offsets."""
        return sum(last - first + 1 for first, last, _ in self.part.acquired)


@dataclass(slots=True)
class Refusal:
    """A series of refused acknowledgements of one partition: its last error, and its times."""

    error: TrikafkaError
    since: float
    until: float

    @property
    def seconds(self) -> float:
        """The time between the first and the last refusal."""
        return self.until - self.since


class ShareBroker:
    """One broker: its session, its connection, and what its task has noted."""

    def __init__(self, node_id: int, rests: Retry, linger: float) -> None:
        self.node_id = node_id
        self.session = ShareSession(linger)
        self._rests = rests  # of partitions that fail
        self.connection: Connection | None = None
        self.heard_at = -math.inf  # when it last responded
        self.takes = 0.0  # the seconds that its last response took, apart from its wait
        #: By partition: the epoch in which this broker was last known to lead it.
        self.epochs: dict[SharePartition, int] = {}
        self.flushes = False  # acknowledgements are to go out now
        self.fetch_from = -math.inf  # when it may be asked for records again
        self._logged: set[str] = set()  # the kinds of errors that were logged
        self.ended = trio.Event()
        #: When the last usable response to a fetch came, and the errors in it.
        self.fetched_at: float | None = None
        self.brought = False  # that response acquired records
        #: What responses acquired that is decoded while the next fetch is on its way.
        self._arrived: deque[Arrived] = deque()
        self.lock = 0.0  # the lock time in the last response, in seconds
        self.errors: dict[SharePartition, TrikafkaError] = {}
        #: Until when the partitions of the session rest that fail while others do not.
        self.rest_until = math.inf
        #: Why the last request failed; ``None`` if it did not.
        self.failure: TrikafkaError | None = None
        #: The partitions whose last acknowledgements the broker did not take.
        self.refusals: dict[SharePartition, Refusal] = {}
        #: Of the log lines about that.
        self.refusals_logged = Reminder()
        #: Since when acknowledgements are sent without an outcome; ``None`` if none are.
        self.without_outcome: float | None = None

    # A broker that had nothing for this member was not silent, though its last response, or the
    # loss of its connection, may be hours old. The fetch in flight when its last partition went
    # away has recorded that. So both are forgotten when a partition comes.
    def want(self, partitions: Collection[SharePartition]) -> bool:
        """Fetch just these partitions from the next request on; return whether that is news."""
        if partitions and not (self.session.wanted or self.session.resting):
            self.fetched_at = None
            self.failure = None
        return self.session.want(partitions)

    def fetched(
        self, now: float, errors: dict[SharePartition, TrikafkaError], *, brought: bool, lock: float
    ) -> None:
        """Record a usable response to a fetch; ``brought``: it acquired records.

        The error of a partition that rests stays until the partition is fetched again.
        """
        self.fetched_at = now
        self.brought = brought
        self.lock = lock
        resting = self.session.resting
        self.errors = {key: error for key, error in self.errors.items() if key in resting} | errors
        if not self.errors:
            self._rests.reset()
        self.failure = None

    def put_arrived(self, arrived: Arrived) -> None:
        """Add what a response acquired of one partition."""
        self._arrived.append(arrived)

    def pop_arrived(self) -> Arrived | None:
        """Take what is to be decoded next; ``None`` if there is nothing."""
        return self._arrived.popleft() if self._arrived else None

    def heard(self, now: float, took: float) -> None:
        """Record a response of any kind.

        ``took`` is its time in seconds, less the wait that the request allowed. A negative number
        says nothing about the network: the fetch ended before that wait was over.
        """
        self.heard_at = now
        if took >= 0:
            self.takes = min(took, _FAR)

    def leads(self, key: SharePartition, epoch: int) -> bool:
        """Record that this broker leads a partition; return False if another one did meanwhile.

        Each election begins an epoch. So the epoch has grown by two or more if another broker led
        the partition in between. One more does not prove that: a leader that stays also begins an
        epoch, as when replicas are reassigned.
        """
        stays = epoch <= self.epochs.get(key, epoch) + 1
        self.epochs[key] = epoch
        return stays

    def asks_at(self, held: Collection[SharePartition], asked_at: float, now: float) -> float:
        """Return when to ask the metadata for leaders because this broker does not name them.

        Args:
            held: The partitions of which this member holds records of this broker.
            asked_at: The time of the last question.
            now: The current time.
        """
        if any(key not in self.session.wanted for key in held):
            return asked_at + URGENT
        silent = self.session.in_flight is not None and now >= self.heard_at + _ELECTED_BY
        again_at = asked_at + (_SELDOM if silent else URGENT)
        return max(self.heard_at + self.takes + URGENT, again_at)

    def keep_only(self, keys: Collection[SharePartition]) -> None:
        """Forget the epochs and the refusals of all partitions but these."""
        self.epochs = {key: epoch for key, epoch in self.epochs.items() if key in keys}
        self.refusals = {key: each for key, each in self.refusals.items() if key in keys}

    def failed(self, error: TrikafkaError) -> None:
        """Record a request without a usable response."""
        self.failure = error

    def sends_acknowledgements(self, now: float) -> None:
        """Record that a request carries acknowledgements or renewals."""
        if self.without_outcome is None:
            self.without_outcome = now

    def refused(self, key: SharePartition, error: TrikafkaError | None, now: float) -> None:
        """Record why acknowledgements of a partition were not taken; ``None``: they were."""
        if error is None:
            self.refusals.pop(key, None)
        elif (refusal := self.refusals.get(key)) is None:
            self.refusals[key] = Refusal(error, now, now)
        else:
            refusal.error = error
            refusal.until = now

    # A refused record is delivered again at the end of its lock. If this member does not get the
    # record, another one does. Then nothing is left here whose acknowledgement could succeed.
    def longest_refusal(self, now: float, limit: float) -> Refusal | None:
        """Return the longest series of refusals without a success; ``None`` if there is none.

        A series is over ``limit`` seconds after the end of a lock, unless records are held. It is
        forgotten then: neither a new refusal nor new records continue it.
        """
        held = self.session.live_partitions()
        self.refusals = {
            key: each
            for key, each in self.refusals.items()
            if key in held or now < each.until + self.lock + limit
        }
        return max(self.refusals.values(), key=lambda each: each.seconds, default=None)

    def has_outcomes(self) -> None:
        """Record that nothing sent waits for an outcome."""
        self.without_outcome = None

    def connected(self, connection: Connection | None) -> None:
        """Set the connection to the broker."""
        self.connection = connection

    def pause_fetching(self, until: float) -> None:
        """Fetch nothing before ``until``."""
        self.fetch_from = until

    # A partition may fail for hours, such as when the state of its group cannot be loaded. A pause
    # of all fetches would slow the other partitions to a few records a second.
    def rest_failing(self, now: float) -> bool:
        """Let the partitions that fail rest for a while, unless all fail; return whether they do.

        All that rest are fetched again in one request.
        """
        failing = self.errors.keys() & self.session.wanted.keys()
        if not failing or failing == self.session.wanted.keys():
            return False
        if not self.session.resting:
            self.rest_until = now + self._rests.delay()
        self.session.rest(self.session.resting | failing)
        return True

    def end_rest(self, now: float) -> float:
        """End the rest of failing partitions at its time; return when that will be."""
        if self.rest_until <= now:
            self.rest_until = math.inf
            self.session.rest(())
        return self.rest_until

    def flush(self, wanted: bool) -> None:
        """Send acknowledgements without waiting for more."""
        self.flushes = wanted

    def should_log(self, error: TrikafkaError | None) -> bool:
        """Return whether an error is to be logged; ``None`` records a success."""
        if error is None:
            self._logged.clear()
            return False
        kind = f"{type(error).__name__} {error.code}"
        if kind in self._logged:
            return False
        self._logged.add(kind)
        return True
