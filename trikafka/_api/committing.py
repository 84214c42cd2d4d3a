"""The consumer's commits. A part of :class:`~trikafka.Consumer`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from .._net.deadlines import check_timeout
from .._state.arguments import checked_partition, offset_and_metadata
from .._state.member import MemberState
from .._wire.columns import RecordBatch
from ..error_codes import ErrorCode
from ..errors import ConfigurationError, IllegalStateError, PartitionNotOwnedError, PollIntervalExceededError, from_code
from ..types import GroupMetadata, OffsetAndMetadata, Record, TopicPartition
from .consumer_base import ConsumerBase

#: What can be committed: offsets of the next records to process, or what was processed.
ToCommit = Mapping[TopicPartition, OffsetAndMetadata | int] | Record | RecordBatch | Iterable[Record | RecordBatch]


class Committing(ConsumerBase):
    """What is committed, and when."""

    def mark_processed(self, processed: Record | RecordBatch) -> bool:
        """Say that a record, or a whole batch, is processed: in any order, from any task. For ``enable_auto_offset_store=False``.

        Only what was marked is committed then, by auto commit, by :meth:`commit` without arguments and when partitions go, and
        never past a record before it that was not marked. Returns False if the partition is not this consumer's any more: then
        there is nothing to do, its next owner sees the record again. Raises :exc:`IllegalStateError` with the default setting,
        where coming back for more marks what was handed out. Not to be called from another thread.
        """
        if self._config.enable_auto_offset_store:
            raise IllegalStateError("mark_processed() needs enable_auto_offset_store=False; else coming back for more marks")
        if not isinstance(processed, Record | RecordBatch):
            raise TypeError(f"what is processed must be a Record or a RecordBatch, not {processed!r}")
        partition = self._assignment.partitions.get(TopicPartition(processed.topic, processed.partition))
        if partition is None:
            return False
        partition.mark_processed(processed.offsets if isinstance(processed, RecordBatch) else (processed.offset,))
        return True

    async def commit(self, offsets: ToCommit | None = None, *, timeout: float | None = None) -> None:
        """Commit ``offsets``, by default all that was handed out (of streams: what their handlers have come back from).

        A mapping holds the offset of the next record to process, with a note for whoever reads it if you like
        (:class:`OffsetAndMetadata`). A record, a batch, or several of them stand for what comes after them. With
        ``enable_auto_offset_store=False`` the default is what is marked. Of commits by several tasks at once, the last one's
        offsets stand.

        Raises :exc:`CommitFailedError` if the member is out of the group, :exc:`PartitionNotOwnedError` (one of these) for a
        partition that is not assigned to it, :exc:`RebalanceInProgressError` while it is not in the group yet,
        :exc:`KafkaTimeoutError`. Cancelled while the request is under way, it may or may not have happened.
        """
        check_timeout(timeout, 0.0)
        self._open()
        commits, owned = self._parts.group.need_commits(), self._assignment.partitions
        todo = self._to_commit(offsets)
        began = {tp: (owned[tp], owned[tp].position) for tp in todo if tp in owned}

        def check() -> None:
            self._check_membership()
            if gone := [tp for tp, (partition, _) in began.items() if self._assignment.partitions.get(tp) is not partition]:
                raise PartitionNotOwnedError(gone)

        auto_commit = self._parts.group.auto_commit
        number = 0 if auto_commit is None else auto_commit.begin()
        try:
            await commits.commit(todo, timeout=timeout, check=check)
        except BaseException:
            if auto_commit is not None:
                auto_commit.doubtful(todo, number)
            raise
        for tp, (partition, position) in began.items():  # the user says that it is processed: auto commit must not go back
            if position is None or (partition.position or 0) >= position:  # unless he did, meanwhile
                partition.processed_upto(todo[tp].offset)
        if auto_commit is not None:
            auto_commit.committed(todo, number)

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for ``partitions``; ``None`` where nothing is."""
        check_timeout(timeout, 0.0)
        self._open()
        return await self._parts.group.need_commits().committed([checked_partition(tp) for tp in partitions], timeout=timeout)

    def group_metadata(self) -> GroupMetadata:
        """This consumer as the member of its group that it is now, for :meth:`Transaction.send_offsets` (KIP-447).

        Raises :exc:`ConfigurationError` without a ``group_id``.
        """
        self._parts.group.need_commits()
        identity = self._parts.core.member.identity
        assert self._config.group_id is not None
        if not (self._subscription.grouped and identity.joined):
            return GroupMetadata(self._config.group_id)
        return GroupMetadata(self._config.group_id, identity.generation, identity.member_id, identity.instance_id)

    def offsets_for_transaction(
        self, offsets: ToCommit | None = None
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], Callable[[], GroupMetadata]]:
        """What :meth:`commit` would commit of ``offsets``, and as which member: for :meth:`Transaction.send_offsets`, which asks
        for it.

        Raises :exc:`ConfigurationError` where the consumer commits by itself, and what :meth:`commit` raises before any I/O. The
        second raises :exc:`CommitFailedError` once this member, or one of the partitions, is not what it was.
        """
        self._open()
        self.check_fits_transactions()
        todo, before = self._to_commit(offsets), self.group_metadata()
        owned = {tp: self._assignment.partitions.get(tp) for tp in todo}

        def member() -> GroupMetadata:
            now = self.group_metadata()
            if now.member_id != before.member_id or (now.generation < 0) != (before.generation < 0):
                raise self._parts.group.commit_failed()  # outside the group nothing would keep it from overwriting another member's
            if gone := [tp for tp, partition in owned.items() if self._assignment.partitions.get(tp) is not partition]:
                raise PartitionNotOwnedError(gone)
            return now

        return todo, member

    def check_fits_transactions(self) -> None:
        """Raise :exc:`ConfigurationError` if this consumer's offsets cannot be committed by a transaction."""
        self._parts.group.need_commits()
        if self._parts.group.auto_commit is not None:
            raise ConfigurationError(
                "offsets that a transaction commits must not be committed by the consumer too: set enable_auto_commit=False"
            )

    # Inside.

    def _to_commit(self, offsets: ToCommit | None) -> dict[TopicPartition, OffsetAndMetadata]:
        owned = self._assignment.partitions
        self._check_membership()
        if offsets is None:
            streamed = self._parts.streams.partitions
            found = {tp: partition.to_commit(done=partition in streamed) for tp, partition in owned.items()}
            return {tp: position for tp, position in found.items() if position is not None}
        todo = offsets_to_commit(offsets)
        if self._subscription.grouped and (foreign := [tp for tp in todo if tp not in owned]):
            raise PartitionNotOwnedError(foreign)
        return todo

    def _check_membership(self) -> None:
        """A member that is out of its group cannot commit."""
        member = self._parts.core.member
        if not self._subscription.grouped:
            return
        if member.state is MemberState.STALE:
            raise PollIntervalExceededError(int(self._parts.core.poll_timer.limit * 1000))
        if member.state is MemberState.FENCED:
            raise self._parts.group.commit_failed()
        if not member.identity.joined:
            raise from_code(ErrorCode.REBALANCE_IN_PROGRESS, "the consumer has not joined its group yet")


def offsets_to_commit(given: ToCommit) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets that are meant. Raises :exc:`TypeError` for what stands for none."""
    if isinstance(given, Mapping):
        return {checked_partition(tp): offset_and_metadata(tp, value) for tp, value in given.items()}
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    items = given if isinstance(given, Iterable) and not isinstance(given, Record | RecordBatch) else [given]
    for item in items:
        if not isinstance(item, Record | RecordBatch):
            raise TypeError(f"what to commit must be a mapping of partitions to offsets, records or batches, not {item!r}")
        tp, after = TopicPartition(item.topic, item.partition), item.offset + 1 if isinstance(item, Record) else item.next_offset
        if item and (tp not in found or found[tp].offset < after):
            found[tp] = OffsetAndMetadata(after)
    return found
