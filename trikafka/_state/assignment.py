"""The assigned partitions of one consumer: each in one state, and written here alone. No I/O.

Others tell a partition *what happened* in the field's words (``located``, ``fetched``, ``seek``, ``begin_revocation`` ...) and read
its attributes; nobody else assigns to them (``tests/test_one_writer.py`` holds that). Each change wakes those who wait for that
kind of change, by :class:`Wake`, and nobody else has to.

Beside its state (:mod:`.partition_state`) it may be *paused*, may have *failed* (the next receive raises that), may have a *limit*.
Whatever overtakes what is under way (a seek, a reset, a loss) changes the partition's *ticket*. A fetch or a look-up carries the
ticket that it began with, and what comes of an old one is dropped where it arrives: ``accepts`` is the one place that decides.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from uuid import UUID

from .._wire.columns import RecordBatch
from ..config.resets import OffsetReset
from ..errors import IllegalStateError, TrikafkaError, UnknownTopicOrPartitionError
from ..types import OffsetAndMetadata, OffsetSpec, TopicPartition
from .partition_state import LOCATING, SUCCESSORS, PartitionState, Ticket
from .progress import Cursor, Progress
from .progress import LogEnds as LogEnds
from .wake import Wake as Wake

_S = PartitionState


class AssignedPartition:
    """One assigned partition. See the module; attributes are for reading."""

    __slots__ = (
        "_table", "deliverable", "error", "fetch_epoch", "fetch_offset", "fetchable", "limit", "log", "paused",
        "position_requested", "progress", "reset", "state", "ticket", "tp",
    )  # fmt: skip

    def __init__(self, table: Assignment, tp: TopicPartition, state: PartitionState, progress: Progress) -> None:
        self._table = table
        self.tp = tp
        self.state = state
        self.progress = progress  # how far the user is
        self.ticket = 0
        self.fetch_offset = -1  # next to fetch, at or after the position; -1: known once what was fetched is decoded
        self.fetch_epoch: int | None = None  # of the record before fetch_offset, where that is known (KIP-320)
        self.reset: OffsetSpec | OffsetReset | None = None  # a reset that the user or the log asked for, not located yet
        self.position_requested = False  # somebody waits for the position, though the listeners have not been told
        self.paused = False
        self.limit: int | None = None  # deliver nothing at or past this offset
        self.error: Exception | None = None  # to be raised by the next receive
        self.log = LogEnds()
        self.deliverable = self.fetchable = False  # kept by _update

    def __repr__(self) -> str:
        return f"<AssignedPartition {self.tp} {self.state.value} position={self.position}>"

    @property
    def position(self) -> int | None:
        """The offset of the next record to deliver; ``None``: not known yet."""
        return self.progress.position

    @property
    def processed(self) -> int | None:
        """The offset after what the user is done with: what auto commit may commit."""
        return self.progress.processed

    @property
    def owned(self) -> bool:
        """Whether it is this consumer's, and not about to be given up."""
        return self.state not in (_S.REVOKING, _S.LOST, _S.GONE)

    @property
    def awaits_callback(self) -> bool:
        """Whether the listeners have not been told yet that it was assigned."""
        return self.state is _S.AWAITING_CALLBACK

    @property
    def lag(self) -> int | None:
        """Records between the position and the end that the last fetch told (read_committed: the last stable offset)."""
        end, position = self._table.end_of(self.log), self.position
        return None if end is None or position is None else max(0, end - position)

    def accepts(self, ticket: int) -> bool:
        """Whether nothing has overtaken what began with ``ticket``."""
        return ticket == self.ticket

    # Where it is.

    def located(self, offset: int, leader_epoch: int | None = None) -> None:
        """The position was looked up."""
        self.seek(offset, leader_epoch)

    def seek(self, offset: int, leader_epoch: int | None = None) -> None:
        """The user goes elsewhere: wins over everything under way."""
        self._overtake()
        self.progress.start_at(offset, leader_epoch)
        self.fetch_offset, self.fetch_epoch = offset, leader_epoch
        self.reset = self.error = None
        self.position_requested = False
        if self.state in LOCATING:
            self._to(_S.FETCHING)
        self._update()
        self._table.wake.deliver(self)

    def is_in(self, topic_id: UUID) -> bool:
        """Its topic has this id now; whether the position is in that one, or in one that was deleted since (KIP-516)."""
        return self.progress.is_in(topic_id)

    def ask_reset(self, spec: OffsetSpec | OffsetReset) -> None:
        """Forget the position; it is to be looked up by ``spec``."""
        self._overtake()
        self.progress.forget()
        self.fetch_offset, self.fetch_epoch = -1, None
        self.reset, self.error = spec, None
        if self.state in LOCATING:
            self._to(_S.AWAITING_POSITION)
        self._update()

    def request_position(self) -> None:
        """Somebody waits for the position: it is looked up even before the listeners have been told."""
        if not self.position_requested:
            self.position_requested = True
            self._update()

    def to_commit(self, *, done: bool = False) -> OffsetAndMetadata | None:
        """What a commit that names no offset commits: all that was delivered; or what is ``done``, as where the user marks."""
        offset = self.processed if done or self.progress.marked else self.position
        return None if offset is None else OffsetAndMetadata(offset, self.progress.leader_epoch)

    def hand_out_again(self) -> None:
        """Whoever was handed records is gone, and has not processed them: they are delivered again, unless the user marks."""
        if self.processed is not None and self.progress.in_hand and not self.progress.marked:
            self.seek(self.processed, self.progress.leader_epoch)

    # Fetching.

    def fetch_begun(self) -> Ticket:
        """A fetch from :attr:`fetch_offset` goes out."""
        return Ticket(self, self.ticket, self.fetch_offset)

    def fetched(self, end: int | None) -> None:
        """Records up to ``end`` were fetched (``None``: their end is known once they are decoded)."""
        self.fetch_offset, self.fetch_epoch = -1 if end is None else end, None
        if self.limit is not None or end is None:
            self._update()
        else:
            self._table.fetching_changed(self)

    def log_ends(self, ends: LogEnds) -> None:
        """A fetch told where the log begins and ends."""
        self.log = ends

    def refetch(self, offset: int) -> None:
        """Fetch again from ``offset``; what was fetched and is not delivered yet is dropped."""
        self._overtake()
        self.fetch_offset, self.fetch_epoch = offset, None
        self._update()

    def begin_validation(self) -> None:
        """Another leader has taken over: nothing goes on before the position is known to be in its log (KIP-320).

        What is buffered is dropped, for it may not be in that log.
        """
        self._overtake()
        self.fetch_offset, self.fetch_epoch = -1 if self.position is None else self.position, None
        self._to(_S.VALIDATING)
        self._update()

    def validated(self) -> None:
        """The position is in the leader's log. Of one that is given up by now nobody wants to know."""
        if self.state is _S.VALIDATING:
            self._to(_S.FETCHING)
            self._update()
            self._table.wake.deliver(self)

    def confirmed(self, epoch: int) -> None:
        """The leader's log agrees up to where the fetch goes on; ``epoch`` is that of the record before."""
        self.fetch_epoch = epoch
        self._table.fetching_changed(self)

    def has_room(self) -> None:
        """Enough of what is buffered of it was taken to fetch more."""
        self._table.fetching_changed(self)

    def decoded_to(self, end: int) -> None:
        """What was fetched ends here: only decoding could tell."""
        self.fetch_offset = end
        self._update()

    def failed(self, error: Exception) -> None:
        """It cannot go on: the next receive raises ``error``."""
        self.error = error
        self._update()
        self._table.wake.deliver(self)

    def take_error(self) -> Exception | None:
        """The error that it failed with, told once: afterwards it is tried again."""
        error, self.error = self.error, None
        if error is not None:
            self._update()
        return error

    # Delivering.

    def delivered(self, batch: RecordBatch) -> None:
        """The user was handed ``batch`` whole."""
        self.progress.deliver(batch)
        self._passed_limit()

    def begin_records(self, batch: RecordBatch) -> Cursor:
        """The user is about to be handed ``batch`` record by record: by the cursor that this returns, while it is live."""
        return self.progress.begin_cursor(batch)

    def end_records(self) -> None:
        """The cursor delivers no more."""
        self.progress.end_cursor()

    def passed_over(self, upto: int) -> None:
        """Up to ``upto`` there is no record for the user. That is processed at once, unless he still holds records before it."""
        self.progress.passed_over(upto)
        self._passed_limit()

    def came_back(self) -> None:
        """The user came back for more: what he was handed is processed."""
        if self.progress.came_back():
            self._table.wake.commit()

    def processed_upto(self, offset: int) -> None:
        """The user says that everything before ``offset`` is processed."""
        self.progress.processed_upto(offset)
        self._table.wake.commit()

    def mark_processed(self, offsets: Iterable[int]) -> None:
        """The user says that the records at ``offsets`` are processed; others before them may not be."""
        self.progress.mark(offsets)
        self._table.wake.commit()

    def _passed_limit(self) -> None:
        if self.limit is not None:
            self._update()

    # What the user wants.

    def pause(self) -> None:
        """Deliver and fetch nothing until :meth:`resume`."""
        self.paused = True
        self._update()
        self._table.wake.fetch()  # what is buffered of it takes no room from the others any more

    def resume(self) -> None:
        """End a :meth:`pause`."""
        self.paused = False
        self._update()
        self._table.wake.fetch()
        self._table.wake.deliver(self)

    def limit_to(self, offset: int | None) -> None:
        """Deliver, and fetch, nothing at or past ``offset`` (``None``: no limit)."""
        if offset != self.limit:
            self.limit = offset
            self._update()

    # The table's.

    def enter(self, state: PartitionState) -> None:
        """For :class:`Assignment`: go to a state that does not follow from the position."""
        if state is _S.GONE:
            self._overtake()
        self._to(state)
        self._update()

    def callback_done(self) -> None:
        """For :class:`Assignment`: the listeners have been told that it was assigned."""
        if self.state is _S.AWAITING_CALLBACK:
            self._to(_S.AWAITING_POSITION if self.position is None else _S.FETCHING)
            self._update()
            self._table.wake.deliver(self)

    def _overtake(self) -> None:
        self.ticket += 1
        self.progress.end_cursor()
        self._table.wake.overtaken(self)

    def _to(self, state: PartitionState) -> None:
        if state is not self.state and state not in SUCCESSORS[self.state]:
            raise AssertionError(f"{self.tp} cannot go from {self.state.value} to {state.value}")
        self.state = state

    def _update(self) -> None:
        """Say anew what may be done with it, after a change. Ends a cursor whose next record must not be delivered."""
        position, limit = self.position, self.limit
        ended = limit is not None and position is not None and position >= limit
        wanted = self.state is _S.FETCHING and not self.paused and not ended
        if self.deliverable and (not wanted or limit is not None):
            self.progress.end_cursor()
        self.deliverable = wanted
        self.fetchable = wanted and self.error is None and self.fetch_offset >= 0 and (limit is None or self.fetch_offset < limit)
        self._table.sort(self)


class Assignment:
    """The table of the assigned partitions, in the order in which they came. See the module."""

    def __init__(self, wake: Wake | None = None, *, read_committed: bool = False, marks: bool = False) -> None:
        self.wake = wake or Wake()
        self.partitions: dict[TopicPartition, AssignedPartition] = {}
        self.fetchable: dict[AssignedPartition, None] = {}
        self.unlocated: dict[AssignedPartition, None] = {}  # a position is wanted and not known
        self.unvalidated: dict[AssignedPartition, None] = {}  # the position is to be checked against the new leader's log
        self.failed: dict[AssignedPartition, None] = {}
        self._changed: dict[AssignedPartition, None] | None = None  # in what can be fetched; once somebody asks
        self._missing: dict[AssignedPartition, tuple[float, int]] = {}  # since when the cluster has not known them
        self._receivers = 0  # receives under way
        self._limits: Mapping[TopicPartition, int] | None = None
        self._read_committed, self._marks = read_committed, marks

    def __iter__(self) -> Iterator[AssignedPartition]:
        return iter(self.partitions.values())

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self.partitions

    def __len__(self) -> int:
        return len(self.partitions)

    def get(self, tp: TopicPartition) -> AssignedPartition:
        """An assigned partition. Raises :exc:`IllegalStateError` for one that is not."""
        partition = self.partitions.get(tp)
        if partition is None:
            raise IllegalStateError(f"partition {tp} is not assigned to this consumer")
        return partition

    def end_of(self, log: LogEnds) -> int | None:
        """The end that this consumer can read to."""
        return log.last_stable_offset if self._read_committed and log.last_stable_offset is not None else log.high_watermark

    # Coming and going.

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        """Exactly these, without a group: those that stay keep their positions."""
        wanted = dict.fromkeys(tps)
        self._remove([tp for tp in self.partitions if tp not in wanted])
        self.partitions = {tp: self.partitions.get(tp) or self._new(tp, _S.AWAITING_POSITION) for tp in wanted}
        for partition in self:
            self.sort(partition)
        self._came_or_went()

    def add(self, tps: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The group assigned these; the listeners are to be told. Returns those that are new."""
        new = [tp for tp in dict.fromkeys(tps) if tp not in self.partitions]
        for tp in new:
            self.partitions[tp] = self._new(tp, _S.AWAITING_CALLBACK)
        if new:
            self._came_or_went()
        return new

    def callback_done(self, tps: Iterable[TopicPartition]) -> None:
        """The listeners have been told of these."""
        for tp in tps:
            if (partition := self.partitions.get(tp)) is not None:
                partition.callback_done()

    def begin_revocation(self, tps: Iterable[TopicPartition] | None = None, *, lost: bool = False) -> list[TopicPartition]:
        """Deliver and fetch nothing more of these (``None``: all), which others may have (``lost``); returns the assigned ones."""
        chosen = [tp for tp in (list(self.partitions) if tps is None else tps) if tp in self.partitions]
        for partition in map(self.partitions.__getitem__, chosen):
            partition.enter(_S.LOST if lost or partition.state is _S.LOST else _S.REVOKING)
        if chosen:
            self.wake.fetch()
            self.wake.deliver(None)  # their streams end
        return chosen

    def revoked(self, tps: Iterable[TopicPartition]) -> None:
        """These have been given up: they are not this consumer's any more."""
        self._remove(tps)
        self._came_or_went()

    def lost(self, tps: Iterable[TopicPartition]) -> None:
        """These are somebody else's already."""
        self.revoked(tps)

    def clear(self) -> None:
        """Nothing is assigned any more."""
        self._limits = None
        self.revoked(list(self.partitions))

    def of_topics_not_in(self, topics: frozenset[str]) -> list[TopicPartition]:
        """The partitions of other topics than these."""
        return [tp for tp in self.partitions if tp.topic not in topics]

    # Receives.

    def receive_begun(self) -> None:
        """Somebody waits for records."""
        self._receivers += 1

    def receive_ended(self) -> None:
        """He does not any more."""
        self._receivers -= 1

    def limit(self, until: Mapping[TopicPartition, int] | None) -> None:
        """Deliver, and fetch, only what stands before the offsets of ``until``, and nothing of others (``None``: no limits)."""
        if until is self._limits:
            return
        self._limits = until
        for tp, partition in self.partitions.items():
            partition.limit_to(None if until is None else until.get(tp, 0))
        self.wake.fetch()

    def all_processed(self, besides: Container[AssignedPartition] = ()) -> None:
        """The user is done with all that he was handed, but for what is read as a stream: there that is its handler's to say."""
        for partition in self:
            if partition not in besides:
                partition.came_back()

    def take_error(self) -> Exception | None:
        """The error of a partition that failed, each told once."""
        for partition in self.failed:
            return partition.take_error()
        return None

    def missing(self, partition: AssignedPartition, error: TrikafkaError, now: float, version: int, *, grouped: bool) -> None:
        """The cluster, as a snapshot of that ``version`` shows it, does not know the partition (or its leader), by ``error``.

        That fails it once somebody has waited for as long as the error's ``patience``; at once, if a newer snapshot than that
        which was there first knows the topic and says the same. A group waits for its topics to appear.
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
        """The cluster knows it."""
        self._missing.pop(partition, None)

    # Fetching.

    def fetching_changes(self) -> dict[AssignedPartition, None]:
        """The partitions in which something changed that concerns fetching, since the last time this was asked.

        The first time these are all. For one fetch manager.
        """
        changed = dict.fromkeys(self) if self._changed is None else self._changed
        self._changed = {}
        return changed

    def fetching_changed(self, partition: AssignedPartition) -> None:
        """For :class:`AssignedPartition`: it is to be fetched from elsewhere, or not any more, or may be again."""
        if self._changed is not None:
            self._changed[partition] = None

    # Inside.

    def sort(self, partition: AssignedPartition) -> None:
        """For :class:`AssignedPartition`: it may have to be fetched, located or told now, or not any more. Wakes who does that."""
        here = self.partitions.get(partition.tp) is partition
        if _put(self.fetchable, partition, here and partition.fetchable):
            self.wake.fetch()
        wanted = here and partition.owned and partition.position is None and partition.error is None
        if _put(self.unlocated, partition, wanted and (partition.state is _S.AWAITING_POSITION or partition.position_requested)):
            self.wake.locate()
        if _put(self.unvalidated, partition, here and partition.state is _S.VALIDATING and partition.error is None):
            self.wake.fetch()
        _put(self.failed, partition, here and partition.error is not None)
        self.fetching_changed(partition)

    def _new(self, tp: TopicPartition, state: PartitionState) -> AssignedPartition:
        partition = AssignedPartition(self, tp, state, Progress(marks=self._marks))
        if self._limits is not None:
            partition.limit_to(self._limits.get(tp, 0))
        return partition

    def _remove(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            if (partition := self.partitions.pop(tp, None)) is not None:
                partition.enter(_S.GONE)
                self._missing.pop(partition, None)

    def _came_or_went(self) -> None:
        for partition in self:  # also those that wait for their position since they came
            self.sort(partition)
        self.wake.assigned()
        self.wake.locate()
        self.wake.fetch()
        self.wake.deliver(None)


def _put(where: dict[AssignedPartition, None], partition: AssignedPartition, wanted: bool) -> bool:
    """Have ``partition`` in ``where`` or not; whether it is new there."""
    if not wanted:
        where.pop(partition, None)
        return False
    if partition in where:
        return False
    where[partition] = None
    return True
