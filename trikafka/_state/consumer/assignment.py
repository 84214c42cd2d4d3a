"""The assigned partitions of one consumer, each in one state. No I/O.

This module alone writes them. Other modules report *events* in the field's words (``located``,
``fetched``, ``seek``, ``begin_revocation`` ...) and read attributes; no other module assigns to
them (``tests/test_one_writer.py`` checks that). Each change wakes the tasks that wait for that kind
of change, through :class:`ChangeCallbacks`. The caller does not have to.

Besides its state (:mod:`.partition_state`) a partition may be *paused*, may have *failed* (the next
receive raises the error), and may have a *limit*. An event that overtakes requests under way (a
seek, a reset, a loss) changes the partition's *ticket*. A fetch or a look-up carries the ticket
with which it began. Its result is dropped on arrival if the ticket is old; ``accepts`` is the one
place that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ..._wire import _implementation
from ..._wire._fallback_iterating import Cursor as Cursor
from ..._wire.columns import RecordBatch
from ...config.resets import OffsetReset
from ...errors import IllegalStateError, TrikafkaError, UnknownTopicOrPartitionError
from ...types import OffsetAndMetadata, OffsetSpec, TopicPartition
from .marks import Marks
from .partition_state import LOCATING, SUCCESSORS, PartitionState

_S = PartitionState


class LogEnds(NamedTuple):
    """The begin and the end of a partition's log, as the last fetch reported.

    ``None``: not reported.
    """

    high_watermark: int | None = None
    log_start: int | None = None
    last_stable_offset: int | None = None


class Ticket(NamedTuple):
    """The ticket number and offset with which a fetch or look-up of one partition began."""

    partition: AssignedPartition
    number: int
    offset: int


def _no_task(_: AssignedPartition | None = None) -> None:
    """Wake no task."""


@dataclass(frozen=True, slots=True)
class ChangeCallbacks:
    """The callback for each kind of change.

    Each is called in the step of the change, and must only wake tasks.
    """

    #: There may be something to deliver: records, an error, a known position, a posted rebalance.
    #: Of one partition, or (``None``) of any.
    deliver: Callable[[AssignedPartition | None], None] = _no_task
    #: A partition may have become fetchable, or there is room again.
    fetch: Callable[[], None] = _no_task
    #: A partition needs a position.
    locate: Callable[[], None] = _no_task
    #: More records were processed, or none are in hand any more.
    commit: Callable[[], None] = _no_task
    #: Partitions were added or removed.
    assigned: Callable[[], None] = _no_task
    #: Records fetched of this partition are void: its ticket has changed.
    overtaken: Callable[[AssignedPartition], None] = _no_task


# Invariant: processed <= position, and the records between them are in hand. While a batch is
# delivered record by record, position and processed are the cursor's, which is compiled: counting
# them here would cost a Python call for each record. Every method that changes the position ends
# the cursor first, which copies its numbers back. So there is never a second source of the
# position, and a cursor that was overtaken (by a seek, say) delivers nothing more.
class AssignedPartition:
    """An assigned partition; its attributes are for reading."""

    __slots__ = (
        "_cursor",
        "_marks",
        "_position",
        "_processed",
        "_table",
        "deliverable",
        "error",
        "fetch_epoch",
        "fetch_offset",
        "fetchable",
        "leader_epoch",
        "limit",
        "located_by",
        "log",
        "number",
        "paused",
        "position_requested",
        "reset",
        "state",
        "ticket",
        "topic_id",
        "tp",
    )

    def __init__(
        self, table: Assignment, tp: TopicPartition, state: PartitionState, number: int = 0
    ) -> None:
        self._table = table
        self.tp = tp
        #: The number of this assignment: a partition that is assigned again has a higher one.
        self.number = number
        self.state = state
        self._position: int | None = None
        self._processed: int | None = None
        self._cursor: Cursor | None = None
        self._marks = Marks() if table.marks else None
        #: The leader epoch of the last record delivered.
        self.leader_epoch: int | None = None
        #: The epoch of the leader that looked the position up; ``None``: no leader did.
        self.located_by: int | None = None
        #: The id of the topic that the position is in; a recreated topic has another one.
        self.topic_id: UUID | None = None
        self.ticket = 0
        #: The next offset to fetch, at or after the position; -1: known once the last fetch is
        #: decoded.
        self.fetch_offset = -1
        #: The epoch of the record before ``fetch_offset``, where known (KIP-320).
        self.fetch_epoch: int | None = None
        #: A reset that the user or the log asked for and that is not located yet.
        self.reset: OffsetSpec | OffsetReset | None = None
        #: True while a caller waits for the position though the listeners have not run.
        self.position_requested = False
        self.paused = False
        #: Deliver nothing at or past this offset.
        self.limit: int | None = None
        #: The error that the next receive raises.
        self.error: Exception | None = None
        self.log = LogEnds()
        # Both are computed by _update.
        self.deliverable = False
        self.fetchable = False

    def __repr__(self) -> str:
        return f"<AssignedPartition {self.tp} {self.state.value} position={self.position}>"

    @property
    def position(self) -> int | None:
        """The offset of the next record to deliver; ``None``: not known yet."""
        return self._position if self._cursor is None else self._cursor.position

    @property
    def processed(self) -> int | None:
        """The offset before which the user has processed all records: the limit of auto commit."""
        return (
            self._processed
            if self._cursor is None or self._marks is not None
            else self._cursor.processed
        )

    @property
    def in_hand(self) -> bool:
        """True while the user holds records that are not processed."""
        return self.processed != self.position

    @property
    def owned(self) -> bool:
        """True while the partition is this consumer's and is not being revoked."""
        return self.state not in (_S.REVOKING, _S.LOST, _S.GONE)

    @property
    def awaits_callback(self) -> bool:
        """True while the rebalance listeners have not run for its assignment."""
        return self.state is _S.AWAITING_CALLBACK

    @property
    def lag(self) -> int | None:
        """The number of records between the position and the end reported by the last fetch.

        With read_committed the end is the last stable offset.
        """
        end = self._table.end_of(self.log)
        position = self.position
        return None if end is None or position is None else max(0, end - position)

    @property
    def behind_transaction(self) -> bool:
        """True if an open transaction keeps a read_committed consumer from all further records.

        As the last fetch reported: everything before the last stable offset is read, and the log
        goes on behind it.
        """
        end = self._table.end_of(self.log)
        high_watermark = self.log.high_watermark
        return (
            end is not None and high_watermark is not None and end < high_watermark and not self.lag
        )

    @property
    def at_limit(self) -> bool:
        """True if everything before the limit is delivered."""
        limit, position = self.limit, self.position
        return limit is not None and position is not None and position >= limit

    # Tickets instead of cancellation: a fetch is in flight on a connection that other partitions
    # share, and a look-up may be one request for many partitions. Neither can be cancelled for one
    # partition's seek. A response that arrives after the seek would move the position back, or
    # deliver records from before it. So each event that makes earlier requests worthless increments
    # ``ticket``, and whatever arrives with an older number is dropped. The fetch buffer is emptied
    # in the same step (``wake.overtaken``), so there is no moment at which old records and a new
    # position coexist.
    def accepts(self, ticket: int) -> bool:
        """Return whether a request that began with ``ticket`` is still valid."""
        return ticket == self.ticket

    def awaits_fetch(self, ticket: int, offset: int) -> bool:
        """Return whether a fetch from ``offset`` is still of use; another broker may be quicker."""
        return self.accepts(ticket) and offset == self.fetch_offset

    # Position.

    def located(
        self, offset: int, leader_epoch: int | None = None, *, located_by: int | None = None
    ) -> None:
        """Continue at the position that was looked up.

        ``located_by`` is the epoch of the leader that looked the offset up in its log. Up to that
        epoch the position needs no check, so the first fetch does not name ``leader_epoch``. A
        follower may not know the epoch yet, and would refuse the fetch. ``leader_epoch`` may be
        lower: a look-up by time gives the epoch of the record.
        """
        self.seek(offset, leader_epoch)
        if located_by is not None:
            self.located_by = located_by
            self.fetch_epoch = None

    def seek(self, offset: int, leader_epoch: int | None = None) -> None:
        """Continue at ``offset``, as the user asked; overtakes everything under way."""
        self._overtake()
        self._start_at(offset, leader_epoch)
        self.fetch_offset = offset
        self.fetch_epoch = leader_epoch
        self.reset = None
        self.error = None
        self.position_requested = False
        if self.state in LOCATING:
            self._to(_S.FETCHING)
        self._update()
        self._table.wake.deliver(self)

    def is_in(self, topic_id: UUID) -> bool:
        """Return whether the position is in the topic with this id (KIP-516), and remember the id.

        ``False``: the position is in a topic of the same name that was deleted since.
        """
        before = self.topic_id
        self.topic_id = topic_id
        return before is None or before == topic_id

    def ask_reset(self, spec: OffsetSpec | OffsetReset) -> None:
        """Forget the position and look up another one by ``spec``."""
        self._overtake()
        self._start_at(None, None)
        self.topic_id = None
        self.fetch_offset = -1
        self.fetch_epoch = None
        self.reset = spec
        self.error = None
        if self.state in LOCATING:
            self._to(_S.AWAITING_POSITION)
        self._update()
        # It may have needed a position before, by another rule.
        self._table.wake.locate()

    def request_position(self) -> None:
        """Look up the position even before the listeners have run, since a caller waits for it."""
        if not self.position_requested:
            self.position_requested = True
            self._update()

    def to_commit(self, *, done: bool = False) -> OffsetAndMetadata | None:
        """Return what a commit without explicit offsets commits for this partition.

        That is all that was delivered. With ``done``, or where the user marks records, it is only
        what was processed. ``None``: no position is known.
        """
        offset = self.processed if done or self._marks is not None else self.position
        return None if offset is None else OffsetAndMetadata(offset, self.leader_epoch)

    def redeliver(self) -> None:
        """Deliver again the records that a receiver took and did not process before it ended.

        No-op where the user marks records.
        """
        if self.processed is not None and self.in_hand and self._marks is None:
            self.seek(self.processed, self.leader_epoch)

    def step_back(self, offset: int) -> None:
        """Deliver again from ``offset``, the offset of a record that the user holds.

        Records before ``offset`` stay in hand.
        """
        position, processed = self.position, self.processed
        if position is None or processed is None or not self.owned:
            return
        if processed <= offset < position:
            self.end_records()
            self._position = offset
            self.refetch(offset)

    # Fetching.

    def fetch_begun(self) -> Ticket:
        """Return the ticket for a fetch from :attr:`fetch_offset` that begins now."""
        return Ticket(self, self.ticket, self.fetch_offset)

    def fetched(self, end: int | None) -> None:
        """Move the fetch offset to ``end`` after a response.

        ``None``: the end is known only once the records are decoded.
        """
        self.fetch_offset = -1 if end is None else end
        self.fetch_epoch = None
        if self.limit is not None or end is None:
            self._update()
        else:
            self._table.fetching_changed(self)

    def log_ends(self, ends: LogEnds) -> None:
        """Record where the log begins and ends, as a fetch reported."""
        self.log = ends

    def refetch(self, offset: int) -> None:
        """Fetch again from ``offset``, and drop what was fetched and is not delivered yet."""
        self._overtake()
        self.fetch_offset = offset
        self.fetch_epoch = None
        self._update()

    # After an unclean election the new leader's log may be shorter than the old one's, or differ
    # from it. Without this step the consumer would continue at an offset that now names another
    # record, or one behind the end, and would not notice (KIP-320). The check asks the new leader
    # where the epoch of the last delivered record ends (OffsetForLeaderEpoch). Meanwhile nothing is
    # delivered either: buffered records come from the old leader, and may be among those that were
    # truncated.
    def begin_validation(self) -> None:
        """Stop fetching until the position is known to be in the new leader's log (KIP-320).

        Buffered records are dropped, since they may not be in that log.
        """
        self._overtake()
        self.fetch_offset = -1 if self.position is None else self.position
        self.fetch_epoch = None
        self._to(_S.VALIDATING)
        self._update()

    def validated(self) -> None:
        """Resume fetching: the position is in the leader's log.

        No-op if the partition has left VALIDATING meanwhile, for example by a revocation.
        """
        if self.state is _S.VALIDATING:
            self._to(_S.FETCHING)
            self._update()
            self._table.wake.deliver(self)

    def confirmed(self, epoch: int) -> None:
        """Record that the leader's log agrees up to the fetch offset.

        ``epoch`` is the epoch of the record before that offset.
        """
        self.fetch_epoch = epoch
        self._table.fetching_changed(self)

    def has_room(self) -> None:
        """Mark the partition as changed for fetching: the buffer has room for it again."""
        self._table.fetching_changed(self)

    def decoded_to(self, end: int) -> None:
        """Set the fetch offset to ``end``, which only decoding the last fetch could determine."""
        self.fetch_offset = end
        self._update()

    def failed(self, error: Exception) -> None:
        """Stop the partition with ``error``, which the next receive raises."""
        self.error = error
        self._update()
        self._table.wake.deliver(self)

    def pop_error(self) -> Exception | None:
        """Return the error once and clear it, so that the partition is tried again."""
        error = self.error
        self.error = None
        if error is not None:
            self._update()
        return error

    # Delivering.

    def delivered(self, batch: RecordBatch) -> None:
        """Advance the position past ``batch``, which was delivered whole."""
        self.end_records()
        self._track_contiguous(batch)
        self._position = batch.next_offset
        self._passed_limit()

    def begin_records(self, batch: RecordBatch) -> Cursor:
        """Begin to deliver ``batch`` record by record, by the cursor that is returned.

        The cursor delivers while it is live.
        """
        self.end_records()
        assert self._position is not None
        self._track_contiguous(batch)
        self._cursor = _implementation.current.Cursor(batch, self._position, self._processed)
        return self._cursor

    def end_records(self) -> None:
        """End the cursor, if there is one, so that it delivers no more; copy its position."""
        cursor = self._cursor
        self._cursor = None
        if cursor is not None:
            cursor.end()
            self._position = cursor.position
            if self._marks is None:
                self._processed = cursor.processed

    def passed_over(self, upto: int, leader_epoch: int | None = None) -> None:
        """Advance the position to ``upto``: there is no record for the user before that offset.

        The gap is processed at once, unless the user still holds records before it.
        ``leader_epoch`` is that of the last record in the gap. Without it a later validation would
        take the gap for truncated: the epoch of the records before it may end before it.
        """
        # Where a limit ends the gap, the epoch may be that of the first record behind it. That is
        # harmless: a log that lacks an epoch answers with the next lower one. An epoch that is too
        # low would move the position back.
        self.end_records()
        if leader_epoch is not None:
            self.leader_epoch = leader_epoch
        if self._processed == self._position:
            self._processed = upto
        self._position = upto
        self._passed_limit()

    def mark_all_processed(self) -> None:
        """Mark all delivered records as processed: the user asks for more.

        No-op where the user marks records.
        """
        self.end_records()
        if self._marks is None and self._processed != self._position:
            self._processed = self._position
            self._table.wake.commit()

    def processed_upto(self, offset: int) -> None:
        """Mark every record before ``offset`` as processed, as the user declared.

        Never more than was delivered, and never less than before.
        """
        position, processed = self.position, self.processed
        if position is not None and processed is not None:
            processed = max(processed, min(offset, position))
            if self._marks is not None:
                self._marks.done_before(processed)
                # Records behind the offset may have been marked already.
                processed = self._marks.mark((), processed, position)
            if self._cursor is not None:
                self._cursor.processed_upto(processed)
            self._processed = processed
        self._table.wake.commit()

    def mark_processed(self, offsets: Iterable[int]) -> None:
        """Mark the records at ``offsets`` as processed; earlier ones may not be."""
        if self._marks is not None and self._processed is not None and self.position is not None:
            self._processed = self._marks.mark(offsets, self._processed, self.position)
        self._table.wake.commit()

    def _start_at(self, offset: int | None, leader_epoch: int | None) -> None:
        """Set the position, with everything before it processed; ``None``: it is not known."""
        self._position = offset
        self._processed = offset
        self.leader_epoch = leader_epoch
        self.located_by = None
        self._marks = None if self._marks is None else Marks()

    def _track_contiguous(self, batch: RecordBatch) -> None:
        if batch.leader_epoch is not None and batch.leader_epoch >= 0:
            self.leader_epoch = batch.leader_epoch
        if self._marks is not None:
            self._marks.deliver(batch)

    def _passed_limit(self) -> None:
        if self.limit is not None:
            self._update()

    # Pause and limit.

    def pause(self) -> None:
        """Deliver and fetch nothing until :meth:`resume`."""
        self.paused = True
        self._update()
        # The records buffered of it no longer take room from other partitions.
        self._table.wake.fetch()

    def resume(self) -> None:
        """End a :meth:`pause`."""
        self.paused = False
        self._update()
        self._table.wake.fetch()
        self._table.wake.deliver(self)

    def limit_to(self, offset: int | None) -> None:
        """Deliver and fetch nothing at or past ``offset`` (``None``: no limit)."""
        if offset != self.limit:
            self.limit = offset
            self._update()

    # For the table.

    def enter(self, state: PartitionState) -> None:
        """Go to a state that does not follow from the position. For :class:`Assignment`."""
        if state is _S.GONE:
            self._overtake()
        self._to(state)
        self._update()

    def callback_done(self) -> None:
        """Leave AWAITING_CALLBACK, since the listeners have run. For :class:`Assignment`."""
        if self.state is _S.AWAITING_CALLBACK:
            self._to(_S.AWAITING_POSITION if self.position is None else _S.FETCHING)
            self._update()
            self._table.wake.deliver(self)

    def _overtake(self) -> None:
        self.ticket += 1
        self.end_records()
        self._table.wake.overtaken(self)

    def _to(self, state: PartitionState) -> None:
        if state is not self.state and state not in SUCCESSORS[self.state]:
            raise AssertionError(f"{self.tp} cannot go from {self.state.value} to {state.value}")
        self.state = state

    def _update(self) -> None:
        """Compute ``deliverable`` and ``fetchable`` after a change.

        A cursor whose next record must not be delivered is ended.
        """
        limit = self.limit
        wanted = self.state is _S.FETCHING and not self.paused and not self.at_limit
        if self.deliverable and (not wanted or limit is not None):
            self.end_records()
        self.deliverable = wanted
        self.fetchable = (
            wanted
            and self.error is None
            and self.fetch_offset >= 0
            and (limit is None or self.fetch_offset < limit)
        )
        self._table.sort(self)


class Assignment:
    """The table of the assigned partitions, in the order of their assignment.

    The sets ``fetchable``, ``unlocated``, ``unvalidated`` and ``failed`` are kept with each change,
    so that no task walks over all partitions.
    """

    def __init__(
        self,
        wake: ChangeCallbacks | None = None,
        *,
        read_committed: bool = False,
        marks: bool = False,
    ) -> None:
        self.wake = wake or ChangeCallbacks()
        self.partitions: dict[TopicPartition, AssignedPartition] = {}
        self.fetchable: dict[AssignedPartition, None] = {}
        #: The partitions whose position is needed and not known.
        self.unlocated: dict[AssignedPartition, None] = {}
        #: The partitions whose position is to be checked against the new leader's log.
        self.unvalidated: dict[AssignedPartition, None] = {}
        self.failed: dict[AssignedPartition, None] = {}
        #: The partitions that changed for fetching; ``None`` until first read.
        self._changed: dict[AssignedPartition, None] | None = None
        #: The partitions that the cluster does not know: since when, and the snapshot's version.
        self._missing: dict[AssignedPartition, tuple[float, int]] = {}
        #: The number of assignments of partitions so far.
        self._numbers = 0
        #: The number of receives under way.
        self._receivers = 0
        self._limits: Mapping[TopicPartition, int] | None = None
        self._read_committed = read_committed
        #: True if the user marks processed records one by one.
        self.marks = marks

    def __iter__(self) -> Iterator[AssignedPartition]:
        return iter(self.partitions.values())

    def topic_ids(self) -> dict[str, UUID]:
        """Return the id of each topic that the positions are in, where all agree on one."""
        found: dict[str, UUID | None] = {}
        for tp, partition in self.partitions.items():
            topic_id = partition.topic_id
            if found.setdefault(tp.topic, topic_id) != topic_id:
                found[tp.topic] = None
        return {name: topic_id for name, topic_id in found.items() if topic_id is not None}

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self.partitions

    def __len__(self) -> int:
        return len(self.partitions)

    def get(self, tp: TopicPartition) -> AssignedPartition:
        """Return an assigned partition.

        Raises:
            IllegalStateError: the partition is not assigned.
        """
        partition = self.partitions.get(tp)
        if partition is None:
            raise IllegalStateError(f"partition {tp} is not assigned to this consumer")
        return partition

    def end_of(self, log: LogEnds) -> int | None:
        """Return the end of what this consumer can read.

        That is the last stable offset with read_committed, else the high watermark.
        """
        return (
            log.last_stable_offset
            if self._read_committed and log.last_stable_offset is not None
            else log.high_watermark
        )

    # Adding and removing partitions.

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions, without a group.

        Those that stay keep their positions.
        """
        wanted = dict.fromkeys(tps)
        self._remove([tp for tp in self.partitions if tp not in wanted])
        self.partitions = {
            tp: self.partitions.get(tp) or self._new(tp, _S.AWAITING_POSITION) for tp in wanted
        }
        self._partitions_changed()

    def add(self, tps: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Add the partitions that the group assigned, and return the new ones.

        They wait for the listeners (AWAITING_CALLBACK).
        """
        new = [tp for tp in dict.fromkeys(tps) if tp not in self.partitions]
        for tp in new:
            self.partitions[tp] = self._new(tp, _S.AWAITING_CALLBACK)
        if new:
            self._partitions_changed()
        return new

    def callback_done(self, tps: Iterable[TopicPartition]) -> None:
        """Record that the listeners have run for the assignment of these partitions."""
        for tp in tps:
            if (partition := self.partitions.get(tp)) is not None:
                partition.callback_done()

    def begin_revocation(
        self, tps: Iterable[TopicPartition] | None = None, *, lost: bool = False
    ) -> list[TopicPartition]:
        """Stop delivering and fetching these partitions (``None``: all); return the assigned ones.

        ``lost``: other members may own them already.
        """
        chosen = [
            tp for tp in (list(self.partitions) if tps is None else tps) if tp in self.partitions
        ]
        for partition in map(self.partitions.__getitem__, chosen):
            partition.enter(_S.LOST if lost or partition.state is _S.LOST else _S.REVOKING)
        if chosen:
            self.wake.fetch()
            # The streams of these partitions end.
            self.wake.deliver(None)
        return chosen

    def revoked(self, tps: Iterable[TopicPartition]) -> None:
        """Remove these partitions: they are no longer this consumer's."""
        self._remove(tps)
        self._partitions_changed()

    def lost(self, tps: Iterable[TopicPartition]) -> None:
        """Remove these partitions, which other members may own already."""
        self.revoked(tps)

    def clear(self) -> None:
        """Remove all partitions and limits."""
        self._limits = None
        self.revoked(list(self.partitions))

    def of_topics_not_in(self, topics: frozenset[str]) -> list[TopicPartition]:
        """Return the partitions whose topic is not in ``topics``."""
        return [tp for tp in self.partitions if tp.topic not in topics]

    # Receives.

    def receive_begun(self) -> None:
        """Count a receive that waits for records."""
        self._receivers += 1

    def receive_ended(self) -> None:
        """Count a receive that no longer waits."""
        self._receivers -= 1

    def limit(self, until: Mapping[TopicPartition, int] | None) -> None:
        """Deliver and fetch only what stands before the offsets of ``until``.

        Nothing of other partitions is delivered. ``None`` removes all limits.
        """
        if until is self._limits:
            return
        self._limits = until
        for tp, partition in self.partitions.items():
            partition.limit_to(None if until is None else until.get(tp, 0))
        self.wake.fetch()

    def all_processed(self, besides: Container[AssignedPartition] = ()) -> None:
        """Mark all delivered records as processed, except those of the partitions in ``besides``.

        A partition that is read as a stream is excepted: its handler decides.
        """
        for partition in self:
            if partition not in besides:
                partition.mark_all_processed()

    def pop_error(self) -> Exception | None:
        """Return the error of a failed partition, each once; ``None``: no partition failed."""
        for partition in self.failed:
            return partition.pop_error()
        return None

    def missing(
        self,
        partition: AssignedPartition,
        error: TrikafkaError,
        now: float,
        version: int,
        *,
        grouped: bool,
    ) -> None:
        """Record that the cluster does not know the partition, or no leader of it.

        ``version`` is the metadata's version. The partition fails with ``error`` once a receive has
        waited for the error's ``patience``. If the error is not retriable, a newer snapshot with
        the same result fails it at once. A group never fails here: it waits for its topics to
        appear.
        """
        waited_for = not grouped and (self._receivers > 0 or partition.position_requested)
        if not waited_for or not isinstance(error, UnknownTopicOrPartitionError):
            self._missing.pop(partition, None)
            return
        since, first = self._missing.setdefault(partition, (now, version))
        if now - since >= error.patience or (not error.retriable and version > first):
            del self._missing[partition]
            partition.failed(error)

    def found(self, partition: AssignedPartition) -> None:
        """Forget that the cluster did not know the partition."""
        self._missing.pop(partition, None)

    # Fetching.

    def fetching_changes(self) -> dict[AssignedPartition, None]:
        """Return the partitions that changed for fetching since the last call.

        The first call returns all partitions. Only one fetch manager may call this.
        """
        changed = dict.fromkeys(self) if self._changed is None else self._changed
        self._changed = {}
        return changed

    def fetching_changed(self, partition: AssignedPartition) -> None:
        """Mark the partition as changed for fetching.

        :class:`AssignedPartition` and the fetch plan call this.
        """
        if self._changed is not None:
            self._changed[partition] = None

    # Internal.

    def sort(self, partition: AssignedPartition) -> None:
        """Put the partition into the sets that it belongs in, and wake the tasks that read them."""
        here = self.partitions.get(partition.tp) is partition
        if _put(self.fetchable, partition, here and partition.fetchable):
            self.wake.fetch()
        wanted = here and partition.owned and partition.position is None and partition.error is None
        if _put(
            self.unlocated,
            partition,
            wanted and (partition.state is _S.AWAITING_POSITION or partition.position_requested),
        ):
            self.wake.locate()
        if _put(
            self.unvalidated,
            partition,
            here and partition.state is _S.VALIDATING and partition.error is None,
        ):
            self.wake.fetch()
        _put(self.failed, partition, here and partition.error is not None)
        self.fetching_changed(partition)

    def _new(self, tp: TopicPartition, state: PartitionState) -> AssignedPartition:
        self._numbers += 1
        partition = AssignedPartition(self, tp, state, self._numbers)
        if self._limits is not None:
            partition.limit_to(self._limits.get(tp, 0))
        return partition

    def _remove(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            if (partition := self.partitions.pop(tp, None)) is not None:
                partition.enter(_S.GONE)
                self._missing.pop(partition, None)

    def _partitions_changed(self) -> None:
        # Partitions that wait for their position since their creation are not in a set yet.
        for partition in self:
            self.sort(partition)
        self.wake.assigned()
        self.wake.locate()
        self.wake.fetch()
        self.wake.deliver(None)


def _put(where: dict[AssignedPartition, None], partition: AssignedPartition, wanted: bool) -> bool:
    """Add ``partition`` to ``where`` or remove it; return whether it is new there."""
    if not wanted:
        where.pop(partition, None)
        return False
    if partition in where:
        return False
    where[partition] = None
    return True
