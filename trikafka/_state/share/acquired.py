"""The records that one response acquired in one partition, and what becomes of each.

===========  ===============================================================  ==================
state        meaning                                                          comes after
===========  ===============================================================  ==================
BUFFERED     acquired, and not delivered to the program yet                   (the start), DELIVERED
                                                                              (a receive was cut)
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
from typing import TYPE_CHECKING, Protocol

from ..._wire import _implementation
from ..._wire.columns import RecordBatch
from ..._wire.share import AckType, SharePartition
from ...errors import LockLostError, TrikafkaError
from ...types import Record, TopicPartition
from .acknowledgements import Run, runs_of

if TYPE_CHECKING:
    from ..._wire._fallback_sharing import AcquiredStates as _AcquiredStates
    from ..._wire._fallback_sharing import HoldingCounts as _HoldingCounts
    from ..._wire._fallback_sharing import OpenEntry as _OpenEntry
else:
    _AcquiredStates = _implementation.current.AcquiredStates
    _HoldingCounts = _implementation.current.HoldingCounts
    _OpenEntry = _implementation.current.OpenEntry

#: Records that are made from the columns at a time.
_CHUNK = 256
#: A program decides the records of a turn (seconds) before the time is looked at again.
_TURN = 0.001


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


#: By the least and the most of some states: what ``bytes.translate`` makes 1 of these, 0 of others.
_MASKS = {
    (least, most): bytes(least <= state <= most for state in range(256))
    for least in range(_OPEN + 1)
    for most in range(least, _OPEN + 1)
}


class Block(Protocol):
    """An open block of the program, with the records that it works on."""

    @property
    def acquired(self) -> AcquiredRecords:
        """The records that were acquired together with its own."""

    def lock_lost(self) -> None:
        """Cancel the block: its lock is lost."""

    def cut_off(self) -> None:
        """Cancel the block: it was open for too long."""

    def release_overdue(self) -> None:
        """Release the records: the block was cancelled, and has not ended."""


class Holdings(_HoldingCounts):
    """The numbers of records in each state, of one share consumer, and the blocks that are open."""

    # The record path counts these two, too.
    buffered: int  #: acquired, and not delivered
    held: int  #: those whose locks this member holds: buffered, or delivered

    def __init__(self) -> None:
        super().__init__()
        #: By block: the time at which it was opened, by the clock of the blocks; the oldest first.
        self.blocks: dict[Block, float] = {}
        #: The number of blocks whose records were released because they did not end in time.
        self.overdue = 0
        #: When the receives that wait for async deserializers began to, by the clock of the blocks.
        self.deserializing: list[float] = []
        #: When the program last received something, or something came for it.
        self.received_at = -math.inf
        self.acquired = 0  #: all that were ever acquired
        self.settled = dict.fromkeys(AckType, 0)  #: taken by the broker, by type
        self.failed = 0  #: acknowledgements that failed
        self.lost = 0  #: locks that ended before there was an acknowledgement

    def wake_at(self, enough: int, made_room: Callable[[], object]) -> None:
        """Call ``made_room`` whenever a decision leaves no more than ``enough`` held records.

        It is also called while no record is buffered. :meth:`wake_no_more` ends that.
        """
        self.enough = enough
        self.made_room = made_room

    def wake_no_more(self) -> None:
        """Call nothing when a decision makes room."""
        self.made_room = None

    def expect(self, count: int) -> None:
        """Count records that have arrived, and are acquired once they are decoded.

        A negative number takes back what was counted.
        """
        self.held += count
        self.buffered += count

    def receives(self, now: float) -> None:
        """Record that the program receives something, or that something came for it."""
        self.received_at = now

    def opened(self, block: Block, now: float) -> None:
        """Record that the program is in a block."""
        self.blocks[block] = now

    def closed(self, block: Block) -> None:
        """Record that the program has left a block."""
        if self.blocks.pop(block, None) is None:
            self.overdue -= 1

    def outlasted(self, block: Block) -> None:
        """Record that a block does not end, and that its records are released."""
        del self.blocks[block]
        self.overdue += 1

    def deserializes(self, began: float) -> None:
        """Record that a receive waits for async deserializers since ``began``."""
        self.deserializing.append(began)

    def deserialized(self, began: float) -> None:
        """Record that such a wait has ended."""
        self.deserializing.remove(began)

    @property
    def delivered(self) -> int:
        """The number of records that are delivered, and not decided."""
        return self.held - self.buffered


class Waiting(_OpenEntry):
    """An acknowledgement that waits for a request: of ``acquired[start:stop]``.

    ``lock_ends`` is when the broker's lock of these records ends. Locks of decided records are not
    renewed, so a later renewal for the others does not change it. A renewal that was in flight when
    they were decided includes them, and does.
    """

    __slots__ = ("acquired", "lock_ends", "since", "start")

    def __init__(self, acquired: AcquiredRecords, start: int, stop: int, now: float) -> None:
        self.acquired = acquired
        self.start = start
        self.stop = stop
        #: When the first of these acknowledgements was made.
        self.since = now
        self.lock_ends = acquired.lock_ends

    def is_whole_soon(self, seconds: float, now: float) -> bool:
        """Return whether the other held records will be decided within ``seconds``.

        The seconds begin with the first acknowledgement. The rate so far decides.
        """
        held = self.acquired.held
        decided = self.stop - self.start - 1  # since the first
        taken = now - self.since + _TURN
        return held > 0 and taken * (decided + held) < seconds * decided

    def end_at(self, lock_ends: float) -> None:
        """Record that the lock of these records ends at another time than that of the others."""
        self.lock_ends = lock_ends


class AcquiredRecords(_AcquiredStates):
    """Records of one partition that one response acquired, in the order of their offsets.

    ``records`` is ``None`` for offsets that have no record (compaction, transaction markers).
    ``queue`` is called with the indexes of what was decided; ``settled`` whenever some records
    have reached a final state; ``decided`` once every record is decided.
    """

    __slots__ = (
        "_counts",
        "_errors",
        "_settled",
        "key",
        "lock_ends",
        "offsets",
        "partition",
        "records",
        "renew_at",
        "size",
        "unsettled",
        "why_lost",
    )

    _holdings: Holdings
    queued: Waiting | None

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
        decided: Callable[[], object] = lambda: None,
        size: int = 0,
    ) -> None:
        self.partition = partition
        self.key = key
        self.offsets = offsets
        self.records = records
        #: The bytes that the records keep in memory.
        self.size = size
        self._counts = counts
        self._holdings = holdings
        self._queue = queue
        self._settled = settled
        self._decided = decided
        self.states = bytearray(len(offsets))
        self._types = bytearray(len(offsets))
        self._errors: dict[int, TrikafkaError] = {}
        self._chunk: list[Record] = []
        self._chunk_start = 0
        #: The last of these records' entries among the acknowledgements that wait for a request:
        #: what follows it is added there. ``None``: there is none.
        self.queued: Waiting | None = None
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
        holdings.held += len(offsets)
        holdings.acquired += len(offsets)

    def __len__(self) -> int:
        return len(self.states)

    def state(self, index: int) -> RecordState:
        """Return the state of a record."""
        return RecordState(self.states[index])

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
        """Record that the lock of held records ends at ``ends``, and when to renew it."""
        self.lock_ends = ends
        self.renew_at = renew_at
        # The entry that waits was made with the lock's earlier end, so it takes no further records.
        self.queued = None

    def wait(self, queued: Waiting | None) -> None:
        """Record where these records' acknowledgements wait; ``None``: in no entry any more."""
        self.queued = queued

    def keep(self, until: float) -> None:
        """Renew the locks of delivered records without an open block until then."""
        self.keep_until = until

    def renewing(self, retry_at: float = math.inf) -> None:
        """Record that a renewal is under way, or is to be repeated at ``retry_at``."""
        self.renew_at = retry_at

    def renewable(self) -> Iterator[Run]:
        """Yield the runs of offsets whose lock is to be renewed."""
        renew = bytes(len(self.states))
        for start, stop in self._slices(_BUFFERED, _OPEN):
            yield from runs_of(self.offsets, renew, start, stop)

    # --- transitions ---

    def next_buffered(self, start: int) -> int:
        """Return the index of the first record from ``start`` on that can be delivered; else -1."""
        return self.states.find(_BUFFERED, start)

    def buffered_run(self, start: int) -> int:
        """Return the index after the buffered records that begin at ``start``."""
        rest = bytes(self.states[start:])
        return start + len(rest) - len(rest.lstrip(b"\0"))

    def deliver(self, start: int, stop: int) -> None:
        """Record that the program has these records, which were BUFFERED."""
        assert self._are(start, stop, _BUFFERED)
        self._set(start, stop, _DELIVERED)
        self._holdings.buffered -= stop - start

    def undeliver(self, start: int, stop: int) -> bool:
        """Record that the program did not get these records; return False if they are not held."""
        if not self._are(start, stop, _DELIVERED):
            return False
        self._set(start, stop, _BUFFERED)
        self._holdings.buffered += stop - start
        return True

    def enter(self, start: int, stop: int) -> bool:
        """Record that a block of records is open; return False if they are not DELIVERED."""
        if stop - start == 1:
            if self.states[start] != _DELIVERED:
                return False
            self.states[start] = _OPEN
            return True
        if not self._are(start, stop, _DELIVERED):
            return False
        self._set(start, stop, _OPEN)
        return True

    def leave(self, start: int, stop: int, types: bytes) -> bool:
        """Decide the records of an open block; return False if they are not OPEN."""
        if self.states[start] != _OPEN if stop - start == 1 else not self._are(start, stop, _OPEN):
            return False
        self.decide(start, stop, types)
        return True

    def decide(self, start: int, stop: int, types: bytes) -> None:
        """Take the acknowledgements of held records; a single type holds for all.

        Records whose lock was lost are passed over.
        """
        if stop - start == 1:  # the usual case, in the record path
            self.decide_one(start, types[0])
            return
        for begins, ends in list(self._slices(_BUFFERED, _OPEN, start, stop)):
            count = ends - begins
            self._types[begins:ends] = (
                types * count if len(types) == 1 else types[begins - start : ends - start]
            )
            self._leave(begins, ends, _DECIDED)
            if not self.held:
                self._decided()
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

    def repeat(self, start: int, stop: int, lock_ends: float) -> None:
        """Send these acknowledgements again with the next request, if it goes out in time."""
        assert self._are(start, stop, _SENT)
        self._set(start, stop, _DECIDED)
        self.queued = None  # begin an entry: the lock of the one that waits may end at another time
        self._queue(self, start, stop)
        if self.queued is not None:
            self.queued.end_at(lock_ends)
            self.queued = None

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
        assert self.states[start] in (_DECIDED, _SENT)
        self._set(start, stop, _FAILED)
        self._errors.update(dict.fromkeys(range(start, stop), error))
        self.unsettled -= stop - start
        self._holdings.failed += stop - start
        self._settled()

    def lose(self, why: str) -> None:
        """Record that the locks of all held records are lost; open blocks are notified."""
        lost = 0
        self.why_lost = why  # an earlier reason was that of other records
        blocks = self._blocks()
        for start, stop in list(self._slices(_BUFFERED, _OPEN)):
            self._leave(start, stop, _LOST)
            self.unsettled -= stop - start
            lost += stop - start
        self._holdings.lost += lost
        for block in blocks:
            block.lock_lost()
        self._settled()

    def give_back(self, why: str) -> None:
        """Release the delivered records that are in no open block."""
        self.why_lost = self.why_lost or why
        self.decide_where(_DELIVERED, _DELIVERED, bytes((AckType.RELEASE,)))

    def release_overdue(self, start: int, stop: int, types: bytes, why: str) -> None:
        """Decide the records of a block that does not end; ``types`` as of :meth:`decide`."""
        self.why_lost = self.why_lost or why
        self.decide(start, stop, types)

    def give_back_buffered(self) -> None:
        """Release the records that wait to be delivered."""
        self.decide_where(_BUFFERED, _BUFFERED, bytes((AckType.RELEASE,)))

    def release_all(self) -> None:
        """Release every held record, also those in open blocks, which are notified."""
        self.why_lost = self.why_lost or "the consumer is being closed"
        blocks = self._blocks()
        self.decide_where(_BUFFERED, _OPEN, bytes((AckType.RELEASE,)))
        for block in blocks:
            block.lock_lost()

    def decide_where(self, least: int, most: int, types: bytes) -> None:
        """Decide the held records whose state is from ``least`` to ``most``."""
        for start, stop in list(self._slices(least, most)):
            self.decide(start, stop, types)

    # --- outcomes ---

    def error(self, index: int) -> TrikafkaError | None:
        """Return why a record's acknowledgement did not count; ``None`` if it may have."""
        if self.states[index] == _LOST:
            return self.lock_lost(index)
        error = self._errors.get(index)
        # One such error is kept for all acknowledgements that failed together.
        return self._lock_lost(index, error.reason) if isinstance(error, LockLostError) else error

    def lock_lost(self, index: int) -> LockLostError:
        """Return the error for a record whose lock is gone."""
        return self._lock_lost(index, self.why_lost)

    def _lock_lost(self, index: int, why: str) -> LockLostError:
        return LockLostError(
            self.partition.topic, self.partition.partition, self.offsets[index], why
        )

    def is_settled(self, start: int, stop: int) -> bool:
        """Return whether all of these records have a final state."""
        return min(self.states[start:stop], default=_LOST) >= _SETTLED

    def runs(self, start: int, stop: int) -> Iterator[Run]:
        """Yield the runs of offsets with the same acknowledgement."""
        return runs_of(self.offsets, self._types, start, stop)

    # --- helpers ---

    def _leave(self, start: int, stop: int, state: int) -> None:
        self._holdings.buffered -= self.states.count(_BUFFERED, start, stop)
        self._holdings.held -= stop - start
        self.held -= stop - start
        self._set(start, stop, state)

    def _blocks(self) -> list[Block]:
        """Return the open blocks of these records."""
        if not self.states.count(_OPEN):
            return []
        return [block for block in self._holdings.blocks if block.acquired is self]

    def _set(self, start: int, stop: int, state: int) -> None:
        if stop - start == 1:
            self.states[start] = state
        else:
            self.states[start:stop] = bytes((state,)) * (stop - start)

    def _are(self, start: int, stop: int, state: int) -> bool:
        if stop - start == 1:
            return self.states[start] == state
        return self.states.count(state, start, stop) == stop - start

    def _slices(
        self, least: int, most: int, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """Yield the slices of records with states from ``least`` to ``most``."""
        mask = self.states[start:stop].translate(_MASKS[least, most])
        ends = 0
        while (begins := mask.find(1, ends)) >= 0:
            ends = mask.find(0, begins)
            if ends < 0:
                ends = len(mask)
            yield start + begins, start + ends
