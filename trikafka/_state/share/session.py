"""The share session with one broker (KIP-932): its epoch, its partitions, its acknowledgements.

No I/O. The fetch manager alone reports to it. The rules, in the order of KIP-932 and of Kafka's
brokers:

* Epoch 0 opens a session with all partitions, and carries no acknowledgement. Then follow 1, 2 and
  so on; after the largest number comes 1. -1 closes the session, and may carry acknowledgements.
* ShareFetch and ShareAcknowledge both move the epoch, so one request is in flight at a time.
* A session is lost if the broker does not know it (any more), or if a response is missing. All its
  locks and acknowledgements are lost with it: the broker has released the records, or will do so.
  None of these acknowledgements is sent in another session.
* Any other error of a whole response moves the epoch like a success.
* A partition that a ShareFetch names joins the session. So acknowledgements of a partition that is
  not in the session (it was unassigned, or its leader moved) travel by ShareAcknowledge, which
  changes no session. Otherwise the broker would go on acquiring records of it.
* A renewal excludes records from the response. So renewals travel by ShareAcknowledge, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from ..._wire.share import CLOSES, OPENS, AckBatch, AckType, SharePartition
from ...errors import (
    AcknowledgementError,
    DamagedResponseError,
    ErrorCode,
    LockLostError,
    TrikafkaError,
)
from .acknowledgements import Run, fold
from .acquired import AcquiredRecords, Waiting

_LAST_EPOCH = 2**31 - 1
_LOCK_ENDED = "its time is over"
_UNSENT = "its time was over before the acknowledgement could be sent"
_LATE_ANSWER = "its time was over before the broker's answer to the acknowledgement came"
#: The share of a lock's time after which it is renewed.
_RENEW_AFTER = 0.5
#: After a renewal that may be repeated, the seconds until the next attempt.
_RENEW_AGAIN = 0.5
#: A program that is about to decide all records that were acquired together gets a longer time for
#: that than ``ack_linger_ms``: so many times as long, and so many seconds at most.
_LINGER_FACTOR, _MOST_LINGER = 10, 0.05
#: The errors of one partition's acknowledgements after which they are sent once more, in the same
#: session.
_REPEATED = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)

#: A slice of acquired records: their indexes from the second number to before the third.
Slice = tuple[AcquiredRecords, int, int]


@dataclass(slots=True)
class ShareRequest:
    """The contents of one request, and what its response is matched with.

    ``named`` has the partitions that join the session, and those with acknowledgements.
    """

    epoch: int
    named: dict[SharePartition, list[AckBatch]]
    forgotten: list[SharePartition] = field(default_factory=list)
    renews: bool = False
    #: By partition: the acknowledgements without an outcome, and the renewals.
    decided: dict[SharePartition, list[Waiting]] = field(default_factory=dict)
    renewed: dict[SharePartition, list[AcquiredRecords]] = field(default_factory=dict)
    #: By partition: the acknowledgements of records that this request renews, decided since it was
    #: sent. They wait for the next request.
    decided_since: dict[SharePartition, list[Waiting]] = field(default_factory=dict)

    @property
    def awaited(self) -> set[SharePartition]:
        """The partitions for which the response has to state the outcome of acknowledgements."""
        return {*self.decided, *self.renewed}


class ShareSession:
    """The session of this member with one broker; see the module."""

    def __init__(self, linger: float = 0.0) -> None:
        self._linger = linger
        self._whole_within = min(_LINGER_FACTOR * linger, _MOST_LINGER)
        self._epoch = OPENS
        #: The partitions to fetch from this broker: those assigned, but for those that rest.
        self.wanted: dict[SharePartition, None] = {}
        self._assigned: dict[SharePartition, None] = {}
        #: The partitions that are not fetched for a while, because they fail.
        self.resting: frozenset[SharePartition] = frozenset()
        #: The partitions in the broker's session.
        self._joined: dict[SharePartition, None] = {}
        self._pending: dict[SharePartition, list[Waiting]] = {}
        # The time of the oldest pending acknowledgement; infinity while there is none.
        self._pending_since = math.inf
        # Records with a held lock, or without a final state.
        self._live: dict[AcquiredRecords, None] = {}
        self.in_flight: ShareRequest | None = None
        #: How often a session was lost.
        self.losses = 0

    @property
    def is_open(self) -> bool:
        """True while the broker has a session, as far as this client knows."""
        return self._epoch != OPENS

    @property
    def is_idle(self) -> bool:
        """True while no record of this session is held, and nothing of it waits for an outcome."""
        return not self._live and not self._pending

    @property
    def pending_since(self) -> float:
        """The time of the oldest acknowledgement that waits; infinity if none does."""
        return self._pending_since

    def want(self, partitions: Iterable[SharePartition]) -> bool:
        """Fetch just these partitions from the next request on; return whether that is news."""
        assigned = dict.fromkeys(partitions)
        changed = assigned.keys() != self._assigned.keys()
        self._assigned = assigned
        self.rest(self.resting & assigned.keys())
        return changed

    def rest(self, partitions: Collection[SharePartition]) -> None:
        """Leave these partitions, which fail, out of the fetches; they leave the session."""
        self.resting = frozenset(partitions)
        self.wanted = {key: None for key in self._assigned if key not in self.resting}

    def add(self, acquired: AcquiredRecords, sent_at: float, lock: float) -> None:
        """Add records that were acquired by a request sent at ``sent_at``.

        The lock counts from then: the broker acquired them later.
        """
        acquired.locked(sent_at + lock, sent_at + lock * _RENEW_AFTER)
        self._live[acquired] = None

    def queue(self, acquired: AcquiredRecords, start: int, stop: int, now: float) -> None:
        """Send the acknowledgements of these records with the next request."""
        queued = acquired.queued
        if queued is not None and queued.stop == start:
            queued.upto(stop)
            return
        queued = Waiting(acquired, start, stop, now)
        acquired.wait(queued)
        self._pending.setdefault(acquired.key, []).append(queued)
        self._pending_since = min(self._pending_since, now)
        request = self.in_flight
        if request is not None and acquired in request.renewed.get(acquired.key, ()):
            request.decided_since.setdefault(acquired.key, []).append(queued)

    def waiting(self) -> Iterator[Slice]:
        """Yield the acknowledgements that have no outcome yet."""
        entries = list(self._pending.values())
        if self.in_flight is not None:
            entries += self.in_flight.decided.values()
        for waiting in entries:
            yield from [(each.acquired, each.start, each.stop) for each in waiting]

    # --- requests ---

    def must_acknowledge(self, now: float) -> bool:
        """Return whether the next request has to be a ShareAcknowledge."""
        return any(key not in self._staying() for key in self._pending) or (
            self.is_open and self.renew_at() <= now
        )

    def _staying(self) -> Collection[SharePartition]:
        return self._joined.keys() & self.wanted.keys()

    def fetch(self, now: float) -> ShareRequest:
        """Return the contents of the next ShareFetch."""
        assert self.in_flight is None
        if not self.is_open:
            assert not self._pending
            self._joined = dict(self.wanted)
            request = ShareRequest(OPENS, {key: [] for key in self.wanted})
        else:
            named: dict[SharePartition, list[AckBatch]] = {
                key: [] for key in self.wanted if key not in self._joined
            }
            forgotten = [key for key in self._joined if key not in self.wanted]
            request = ShareRequest(self._epoch, named, forgotten)
            self._take_pending(request, now, self._staying(), keeps_unfinished=True)
            self._joined = dict(self.wanted)
        self.in_flight = request
        return request

    def acknowledge(
        self, now: float, *, closes: bool = False, keeps_unfinished: bool = False
    ) -> ShareRequest | None:
        """Return the contents of the next ShareAcknowledge; ``None`` if there is nothing to say.

        All that a request carries of one partition fails together. So acknowledgements of a
        partition whose locks are renewed wait for the request after: one that comes too late must
        not cost the locks of other records.

        ``closes`` makes it the session's last request, which is never ``None`` in an open session.
        ``keeps_unfinished``: acknowledgements that are better sent later stay; see
        :meth:`_is_unfinished`.
        """
        assert self.in_flight is None
        if not self.is_open:
            return None
        request = ShareRequest(CLOSES if closes else self._epoch, {})
        if not closes:
            self._take_renewals(request, now)
        others = self._pending.keys() - request.named.keys()
        self._take_pending(request, now, others, keeps_unfinished=keeps_unfinished)
        if not request.named and not closes:
            return None
        self.in_flight = request
        return request

    def _take_pending(
        self,
        request: ShareRequest,
        now: float,
        only: Collection[SharePartition],
        *,
        keeps_unfinished: bool,
    ) -> None:
        """Move the pending acknowledgements of some partitions into a request."""
        staying = self._staying() if keeps_unfinished else ()
        for key in [key for key in self._pending if key in only]:
            runs: list[Run] = []
            later: list[Waiting] = []
            for each in self._pending.pop(key):
                if key in staying and self._is_unfinished(each, now):
                    later.append(each)
                    continue
                acquired, start, stop = each.acquired, each.start, each.stop
                acquired.wait(None)
                # One late acknowledgement would fail all others of its partition. And the record
                # may have been delivered again, even to this member.
                if each.lock_ends <= now:
                    self._fail(acquired, start, stop, _lock_ended(acquired, start, _UNSENT))
                    continue
                runs += acquired.runs(start, stop)
                acquired.sent(start, stop)
                request.decided.setdefault(key, []).append(each)
            if runs:
                request.named[key] = fold(runs)
            if later:
                self._pending[key] = later
        self._pending_since = min(
            (each.since for entries in self._pending.values() for each in entries),
            default=math.inf,
        )

    # A broker keeps one state and one timer for what it acquired together. When only a part of that
    # is acknowledged, it makes them for each record, which doubled its processor time. That time
    # bounded the rate of a quick program.
    def _is_unfinished(self, waiting: Waiting, now: float) -> bool:
        """Return whether an acknowledgement is better sent later, with the others of its batch.

        Not near the end of its lock: it could come too late.
        """
        return waiting.lock_ends - 2 * self._whole_within > now and waiting.is_whole_soon(
            self._whole_within, now
        )

    @property
    def kept_until(self) -> float:
        """The time by which the acknowledgements that wait have to be sent; infinity: none waits.

        Directly after :meth:`fetch` that is what the fetch has kept.
        """
        return self._pending_since + self._whole_within

    def due_at(self, now: float) -> float:
        """Return when to look for acknowledgements to send without a fetch; infinity without any.

        If the time is not after ``now``, some have to be sent. Whether a batch is finished soon is
        judged again after each ``ack_linger_ms``.
        """
        due = self._pending_since + self._linger
        if due > now:
            return due
        return min(
            min(each.since + self._whole_within, now + self._linger)
            if self._is_unfinished(each, now)
            else each.since + self._linger
            for entries in self._pending.values()
            for each in entries
        )

    def _take_renewals(self, request: ShareRequest, now: float) -> None:
        renewals: dict[SharePartition, list[Run]] = {}
        for acquired in self._live:
            if acquired.renew_at > now or not acquired.held:
                continue
            runs = list(acquired.renewable())
            if not runs:
                continue
            acquired.renewing()
            # Records that are decided from now on get an entry of their own: they are in this
            # renewal, and those of an earlier entry are not.
            acquired.wait(None)
            request.renewed.setdefault(acquired.key, []).append(acquired)
            renewals.setdefault(acquired.key, []).extend(
                Run(run.first, run.last, AckType.RENEW) for run in runs
            )
        for key, runs in renewals.items():
            request.renews = True
            request.named[key] = fold(runs)

    # --- responses ---

    def responded(self, request: ShareRequest) -> None:
        """Record a response to the request that does not end the session."""
        assert request is self.in_flight
        self.in_flight = None
        if request.epoch == CLOSES:
            self._end()
        else:
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def check_fetched(self, keys: Iterable[SharePartition]) -> None:
        """Check that records were acquired in partitions of the session, and once in each.

        Raises:
            DamagedResponseError: The response has another partition, or one of them twice.
        """
        seen: set[SharePartition] = set()
        for key in keys:
            if key not in self._joined or key in seen:
                what = "twice" if key in seen else "which was not asked for"
                raise DamagedResponseError(
                    f"a ShareFetch response has partition {key[1]} of the topic with id {key[0]}, "
                    f"{what}"
                )
            seen.add(key)

    def acknowledged(
        self,
        request: ShareRequest,
        key: SharePartition,
        error: TrikafkaError | None,
        sent_at: float,
        lock: float,
        now: float,
    ) -> bool:
        """Apply the outcome of one partition's acknowledgements.

        Returns whether some of them are to be repeated after a pause.
        """
        repeats = error is not None and error.code in _REPEATED
        for each in request.decided.pop(key, ()):
            acquired, start, stop = each.acquired, each.start, each.stop
            # A broker also reports success for records before its start offset. So a success that
            # comes after the lock's end proves nothing: another member may have accepted them.
            if error is None and now >= each.lock_ends:
                self._fail(acquired, start, stop, _lock_ended(acquired, start, _LATE_ANSWER))
            elif error is None:
                acquired.settle(start, stop)
                self._drop_if_done(acquired)
            elif repeats:
                acquired.repeat(start, stop, each.lock_ends)
            else:
                self._fail(acquired, start, stop, error)
        for acquired in request.renewed.pop(key, ()):
            if error is None and lock > 0:
                acquired.locked(sent_at + lock, sent_at + lock * _RENEW_AFTER)
            elif error is None or repeats:  # a renewal by no time leaves the lock as it was
                acquired.renewing(sent_at + _RENEW_AGAIN)
            else:
                acquired.lose(f"the broker did not renew it: {error}")
                self._drop_if_done(acquired)
        for each in request.decided_since.pop(key, ()):
            if error is None and lock > 0:
                each.end_at(sent_at + lock)
        return repeats

    def failed(self, request: ShareRequest, error: TrikafkaError, sent_at: float) -> None:
        """Apply an error of the whole response: no acknowledgement of the request had an effect."""
        for key in request.awaited:
            self.acknowledged(request, key, error, sent_at, 0.0, sent_at)

    def lost(self, error: TrikafkaError) -> None:
        """Begin another session: the broker has none, or a response is missing."""
        request = self.in_flight
        self.in_flight = None
        self.losses += self.is_open
        if request is not None:
            for entries in request.decided.values():
                for each in entries:
                    self._fail(each.acquired, each.start, each.stop, error)
        self._end(f"the session with its broker ended: {error}", error)

    def _end(self, why: str = "the session was closed", error: TrikafkaError | None = None) -> None:
        self._epoch = OPENS
        self._joined = {}
        pending = self._pending
        self._pending = {}
        self._pending_since = math.inf
        for entries in pending.values():
            for each in entries:
                acquired, start, stop = each.acquired, each.start, each.stop
                acquired.wait(None)
                self._fail(acquired, start, stop, error or acquired.lock_lost(start))
        for acquired in list(self._live):
            if acquired.held:
                acquired.lose(why)
            self._drop_if_done(acquired)

    def lose_partition(self, key: SharePartition, why: str) -> None:
        """Lose the locks of a partition."""
        for acquired in [each for each in self._live if each.key == key and each.held]:
            acquired.lose(why)
            self._drop_if_done(acquired)

    def live_partitions(self) -> set[SharePartition]:
        """Return the partitions of which this member holds a lock."""
        return {acquired.key for acquired in self._live if acquired.held}

    # --- time ---

    def renew_at(self) -> float:
        """Return when the next lock is to be renewed; infinity if none is."""
        return min((each.renew_at for each in self._live if each.held), default=math.inf)

    def ends_at(self) -> float:
        """Return when the next lock ends, or stops being renewed."""
        return min(
            (min(each.lock_ends, each.keep_until) for each in self._live if each.held),
            default=math.inf,
        )

    def expire(self, now: float) -> None:
        """Lose the locks whose time is over; give back what was held for too long."""
        for acquired in list(self._live):
            if not acquired.held:
                self._drop_if_done(acquired)
            elif acquired.lock_ends <= now:
                acquired.lose(_LOCK_ENDED)
                self._drop_if_done(acquired)
            elif acquired.keep_until <= now:
                acquired.give_back("max_processing_ms passed")
                acquired.keep(math.inf)

    def release_all(self) -> None:
        """Release every record that this member holds, in an open block or not."""
        for acquired in list(self._live):
            acquired.release_all()

    def _fail(self, acquired: AcquiredRecords, start: int, stop: int, error: TrikafkaError) -> None:
        failure = error
        if not isinstance(error, LockLostError):
            failure = AcknowledgementError(
                acquired.partition.topic,
                acquired.partition.partition,
                acquired.offsets[start],
                acquired.offsets[stop - 1],
                error,
            )
        acquired.fail(start, stop, failure)
        self._drop_if_done(acquired)

    def _drop_if_done(self, acquired: AcquiredRecords) -> None:
        if not acquired.unsettled:
            self._live.pop(acquired, None)


def _lock_ended(acquired: AcquiredRecords, index: int, why: str) -> LockLostError:
    """Return the error of an acknowledgement whose lock ended before it had an outcome."""
    return LockLostError(
        acquired.partition.topic, acquired.partition.partition, acquired.offsets[index], why
    )
