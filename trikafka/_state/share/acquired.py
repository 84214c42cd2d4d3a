"""The records that one response acquired in one partition, and what becomes of each.

===========  ===============================================================  ==================
state        meaning                                                          comes after
===========  ===============================================================  ==================
BUFFERED     acquired, and not delivered to the program yet                   (the start)
DELIVERED    the program has the record, and no block of it is open           BUFFERED
OPEN         the program is inside ``async with delivery``                    DELIVERED
DECIDED      the acknowledgement is known, and waits for the next request     BUFFERED, DELIVERED,
                                                                              OPEN, SENT (a retry)
SENT         a request in flight carries the acknowledgement                  DECIDED
SETTLED      the broker has taken the acknowledgement                         SENT
FAILED       the broker refused it, or it could not be sent in time           DECIDED, SENT
LOST         the lock ended before there was an acknowledgement               BUFFERED, DELIVERED,
                                                                              OPEN
===========  ===============================================================  ==================

While a record is in one of the first three states, this member holds its lock. The last three
states are final.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum

from ..._wire.columns import RecordBatch
from ..._wire.share import AckType, SharePartition
from ...errors import LockLostError, TrikafkaError
from ...types import Record, TopicPartition
from .acknowledgements import Run, runs_of

#: Records that are made from the columns at a time.
_CHUNK = 64


class RecordState(IntEnum):
    """The state of an acquired record; the module's table gives the meanings."""

    BUFFERED = 0
    DELIVERED = 1
    OPEN = 2
    DECIDED = 3
    SENT = 4
    SETTLED = 5
    FAILED = 6
    LOST = 7


_BUFFERED, _DELIVERED, _OPEN, _DECIDED, _SENT, _SETTLED, _FAILED, _LOST = map(int, RecordState)


class Holdings:
    """The numbers of records in each state, of one share consumer."""

    def __init__(self) -> None:
        self.buffered = 0  #: acquired, and not delivered
        self.delivered = 0  #: delivered, and not decided
        self.acquired = 0  #: all that were ever acquired
        self.settled = dict.fromkeys(AckType, 0)  #: taken by the broker, by type
        self.failed = 0  #: acknowledgements that failed
        self.lost = 0  #: locks that ended before there was an acknowledgement

    @property
    def held(self) -> int:
        """The number of records whose locks this member holds."""
        return self.buffered + self.delivered


class AcquiredRecords:
    """Records of one partition that one response acquired, in the order of their offsets.

    ``records`` is ``None`` for offsets that have no record (compaction, transaction markers).
    ``queue`` is called with the indexes of what was decided; ``settled`` whenever some records
    have reached a final state.
    """

    __slots__ = (
        "_blocks",
        "_chunk",
        "_chunk_start",
        "_counts",
        "_errors",
        "_holdings",
        "_queue",
        "_settled",
        "_states",
        "_types",
        "held",
        "keep_until",
        "key",
        "lock_ends",
        "offsets",
        "partition",
        "records",
        "renew_at",
        "unsettled",
        "why_lost",
    )

    def __init__(
        self,
        partition: TopicPartition,
        key: SharePartition,
        offsets: Sequence[int] | memoryview,
        counts: int | array[int],
        records: RecordBatch | None,
        *,
        holdings: Holdings,
        queue: Callable[[AcquiredRecords, int, int], object],
        settled: Callable[[], object],
    ) -> None:
        self.partition = partition
        self.key = key
        self.offsets = offsets
        self.records = records
        self._counts = counts
        self._holdings = holdings
        self._queue = queue
        self._settled = settled
        self._states = bytearray(len(offsets))
        self._types = bytearray(len(offsets))
        self._blocks: dict[int, Callable[[], object]] = {}
        self._errors: dict[int, TrikafkaError] = {}
        self._chunk: list[Record] = []
        self._chunk_start = 0
        #: The number of records that this member holds, and that of records without a final state.
        self.held = len(offsets)
        self.unsettled = len(offsets)
        #: When the lock ends by this client's clock, and when it is to be renewed.
        self.lock_ends = math.inf
        self.renew_at = math.inf
        #: Until when delivered records are renewed although no block of them is open.
        self.keep_until = math.inf
        #: Why locks were lost; empty while none was.
        self.why_lost = ""
        holdings.buffered += len(offsets)
        holdings.acquired += len(offsets)

    def __len__(self) -> int:
        return len(self._states)

    def state(self, index: int) -> RecordState:
        """Return the state of a record."""
        return RecordState(self._states[index])

    def delivery_count(self, index: int) -> int:
        """Return how often a record was delivered to members of the group, this time included."""
        return self._counts if isinstance(self._counts, int) else self._counts[index]

    def counts(self, start: int, stop: int) -> Sequence[int]:
        """Return the delivery counts of ``stop - start`` records."""
        if isinstance(self._counts, int):
            return (self._counts,) * (stop - start)
        return self._counts[start:stop]

    def record(self, index: int) -> Record:
        """Return a record; some are made at a time."""
        at = index - self._chunk_start
        if not 0 <= at < len(self._chunk):
            assert self.records is not None
            self._chunk_start = index
            self._chunk = list(self.records[index : index + _CHUNK])
            at = 0
        return self._chunk[at]

    # --- the lock ---

    def locked(self, ends: float, renew_at: float) -> None:
        """Record that the lock ends at ``ends``, and when to renew it."""
        self.lock_ends = ends
        self.renew_at = renew_at

    def keep(self, until: float) -> None:
        """Renew the locks of delivered records without an open block until then."""
        self.keep_until = until

    def renewing(self, retry_at: float = math.inf) -> None:
        """Record that a renewal is under way, or is to be repeated at ``retry_at``."""
        self.renew_at = retry_at

    def renewable(self) -> Iterator[Run]:
        """Yield the runs of offsets whose lock is to be renewed."""
        renew = bytes(len(self._states))
        for start, stop in self._slices(_BUFFERED, _OPEN):
            yield from runs_of(self.offsets, renew, start, stop)

    # --- transitions ---

    def next_buffered(self, start: int) -> int:
        """Return the index of the first record from ``start`` on that can be delivered; else -1."""
        return self._states.find(_BUFFERED, start)

    def buffered_run(self, start: int) -> int:
        """Return the index after the buffered records that begin at ``start``."""
        rest = bytes(self._states[start:])
        return start + len(rest) - len(rest.lstrip(b"\0"))

    def deliver(self, start: int, stop: int) -> None:
        """Record that the program has these records, which were BUFFERED."""
        assert self._are(start, stop, _BUFFERED)
        self._set(start, stop, _DELIVERED)
        self._holdings.buffered -= stop - start
        self._holdings.delivered += stop - start

    def enter(self, start: int, stop: int, lost: Callable[[], object]) -> None:
        """Record that a block of delivered records is open; ``lost``: their lock has ended."""
        assert self._are(start, stop, _DELIVERED)
        self._set(start, stop, _OPEN)
        self._blocks[start] = lost

    def decide(self, start: int, stop: int, types: bytes) -> None:
        """Take the acknowledgements of held records; a single type holds for all.

        Records whose lock was lost are passed over.
        """
        if stop - start == 1:  # the usual case, without a loop
            if self._states[start] <= _OPEN:
                self._types[start] = types[0]
                self._leave(start, stop, _DECIDED)
                self._queue(self, start, stop)
            return
        for begins, ends in list(self._slices(_BUFFERED, _OPEN, start, stop)):
            count = ends - begins
            self._types[begins:ends] = (
                types * count if len(types) == 1 else types[begins - start : ends - start]
            )
            self._leave(begins, ends, _DECIDED)
            self._queue(self, begins, ends)

    def are_delivered(self, start: int, stop: int) -> bool:
        """Return whether the program has all of these records, and no block of them is open."""
        return self._are(start, stop, _DELIVERED)

    def are_open(self, start: int, stop: int) -> bool:
        """Return whether the block of all of these records is open."""
        return self._are(start, stop, _OPEN)

    def sent(self, start: int, stop: int) -> None:
        """Record that a request carries these acknowledgements."""
        assert self._are(start, stop, _DECIDED)
        self._set(start, stop, _SENT)

    def repeat(self, start: int, stop: int) -> None:
        """Send these acknowledgements again with the next request."""
        assert self._are(start, stop, _SENT)
        self._set(start, stop, _DECIDED)
        self._queue(self, start, stop)

    def settle(self, start: int, stop: int) -> None:
        """Record that the broker has taken these acknowledgements."""
        assert self._are(start, stop, _SENT)
        self._set(start, stop, _SETTLED)
        self.unsettled -= stop - start
        settled = self._holdings.settled
        for kind in AckType:
            settled[kind] += self._types.count(kind, start, stop)
        self._settled()

    def fail(self, start: int, stop: int, error: TrikafkaError) -> None:
        """Record that these acknowledgements failed."""
        assert self._states[start] in (_DECIDED, _SENT)
        self._set(start, stop, _FAILED)
        self._errors.update(dict.fromkeys(range(start, stop), error))
        self.unsettled -= stop - start
        self._holdings.failed += stop - start
        self._settled()

    def lose(self, why: str) -> None:
        """Record that the locks of all held records are lost; open blocks are notified."""
        lost = 0
        self.why_lost = self.why_lost or why
        blocks = list(self._blocks.values())
        for start, stop in list(self._slices(_BUFFERED, _OPEN)):
            self._leave(start, stop, _LOST)
            self.unsettled -= stop - start
            lost += stop - start
        self._holdings.lost += lost
        for notify in blocks:
            notify()
        self._settled()

    def give_back(self, why: str) -> None:
        """Release the delivered records that are in no open block."""
        self.why_lost = self.why_lost or why
        self.decide_where(_DELIVERED, _DELIVERED, bytes((AckType.RELEASE,)))

    def give_back_buffered(self) -> None:
        """Release the records that wait to be delivered."""
        self.decide_where(_BUFFERED, _BUFFERED, bytes((AckType.RELEASE,)))

    def release_all(self) -> None:
        """Release every held record, also those in open blocks, which are notified."""
        self.why_lost = self.why_lost or "the consumer is being closed"
        blocks = list(self._blocks.values())
        self.decide_where(_BUFFERED, _OPEN, bytes((AckType.RELEASE,)))
        for notify in blocks:
            notify()

    def decide_where(self, least: int, most: int, types: bytes) -> None:
        """Decide the held records whose state is from ``least`` to ``most``."""
        for start, stop in list(self._slices(least, most)):
            self.decide(start, stop, types)

    # --- outcomes ---

    def error(self, index: int) -> TrikafkaError | None:
        """Return why a record's acknowledgement did not count; ``None`` if it may have."""
        if self._states[index] == _LOST:
            return self.lock_lost(index)
        return self._errors.get(index)

    def lock_lost(self, index: int) -> LockLostError:
        """Return the error for a record whose lock is gone."""
        return LockLostError(
            self.partition.topic, self.partition.partition, self.offsets[index], self.why_lost
        )

    def is_settled(self, start: int, stop: int) -> bool:
        """Return whether all of these records have a final state."""
        return min(self._states[start:stop], default=_LOST) >= _SETTLED

    def runs(self, start: int, stop: int) -> Iterator[Run]:
        """Yield the runs of offsets with the same acknowledgement."""
        return runs_of(self.offsets, self._types, start, stop)

    # --- helpers ---

    def _leave(self, start: int, stop: int, state: int) -> None:
        buffered = self._states.count(_BUFFERED, start, stop)
        self._holdings.buffered -= buffered
        self._holdings.delivered -= stop - start - buffered
        self.held -= stop - start
        self._set(start, stop, state)
        if self._blocks:
            if stop - start == 1:
                self._blocks.pop(start, None)
                return
            for index in range(start, stop):
                self._blocks.pop(index, None)

    def _set(self, start: int, stop: int, state: int) -> None:
        if stop - start == 1:
            self._states[start] = state
        else:
            self._states[start:stop] = bytes((state,)) * (stop - start)

    def _are(self, start: int, stop: int, state: int) -> bool:
        if stop - start == 1:
            return self._states[start] == state
        return self._states.count(state, start, stop) == stop - start

    def _slices(
        self, least: int, most: int, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """Yield the slices of records with states from ``least`` to ``most``."""
        stop = len(self._states) if stop is None else stop
        begins = -1
        for index in range(start, stop):
            if least <= self._states[index] <= most:
                if begins < 0:
                    begins = index
            elif begins >= 0:
                yield begins, index
                begins = -1
        if begins >= 0:
            yield begins, stop
