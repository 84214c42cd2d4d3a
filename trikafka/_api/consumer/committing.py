"""The consumer's commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..._net.deadlines import check_timeout
from ..._state.arguments import ToCommit, checked_partition, offsets_to_commit
from ..._state.group.member import MemberState
from ..._wire.columns import RecordBatch
from ...error_codes import ErrorCode
from ...errors import (
    ConfigurationError,
    IllegalStateError,
    PartitionNotOwnedError,
    PollIntervalExceededError,
    from_code,
)
from ...interfaces import CommitManager
from ...types import (
    AnyRecord,
    GroupMembership,
    GroupMetadata,
    OffsetAndMetadata,
    Record,
    TopicPartition,
)
from .base import ConsumerBase


class Committing(ConsumerBase):
    """The commits of :class:`~trikafka.Consumer`."""

    def mark_processed(self, processed: AnyRecord | RecordBatch[Any, Any]) -> bool:
        """Mark a record, or a whole batch, as processed: in any order, from any task.

        For ``enable_auto_offset_store=False``. Then only marked records are committed: by auto
        commit, by :meth:`commit` without arguments, and when partitions are revoked. A commit never
        passes an earlier record that is not marked. Call it in the Trio thread only.

        Args:
            processed: A record or a batch that this consumer has delivered.

        Returns:
            False if the partition is no longer this consumer's. Nothing has to be done then: the
            partition's next owner receives the record again.

        Raises:
            IllegalStateError: ``enable_auto_offset_store`` is on. Then the next receive marks what
                was delivered before.
            TypeError: ``processed`` is neither a record nor a batch.
        """
        if self._config.enable_auto_offset_store:
            raise IllegalStateError(
                "mark_processed() needs enable_auto_offset_store=False; else coming back for more "
                "marks"
            )
        if not isinstance(processed, Record | RecordBatch):
            raise TypeError(
                f"what is processed must be a Record or a RecordBatch, not {processed!r}"
            )
        partition = self._assignment.partitions.get(
            TopicPartition(processed.topic, processed.partition)
        )
        if partition is None:
            return False
        partition.mark_processed(
            processed.offsets if isinstance(processed, RecordBatch) else (processed.offset,)
        )
        return True

    async def commit(
        self, offsets: ToCommit | None = None, *, timeout: float | None = None
    ) -> None:
        """Commit offsets; by default the offsets after all that was delivered.

        Of streams, the default is what their handlers have finished: a record counts once the
        handler asks for the next. With ``enable_auto_offset_store=False`` the default is what is
        marked. When several tasks commit at once, the offsets of the last call stand.

        Args:
            offsets: A mapping from partition to the offset of the next record to process, with an
                optional note (:class:`OffsetAndMetadata`). Or a record, a batch, or several of
                these: the offset after each partition's last one is committed.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            CommitFailedError: The group has removed the member.
            PartitionNotOwnedError: A partition is not assigned to this member. A subclass of
                :exc:`CommitFailedError`.
            RebalanceInProgressError: The member has not joined its group yet.
            KafkaTimeoutError: No answer in time.
            ConfigurationError: The consumer has no ``group_id``.

        When cancelled while the request is in flight, the commit may or may not have happened.
        """
        check_timeout(timeout, 0.0)
        self._open()
        commits, owned = self._commits(), self._assignment.partitions
        todo = self._to_commit(offsets)
        began = {tp: (owned[tp], owned[tp].position) for tp in todo if tp in owned}

        def check() -> None:
            self._check_membership()
            if gone := [
                tp
                for tp, (partition, _) in began.items()
                if self._assignment.partitions.get(tp) is not partition
            ]:
                raise PartitionNotOwnedError(gone)

        # Auto commit and explicit commits write the same offsets, so auto commit must know of this
        # one. After a success, its own next commit starts there. A commit that failed or was
        # cancelled is in doubt: the broker may hold other offsets than auto commit sent last, so
        # auto commit sends its own again.
        #
        # After the commit the user has declared everything before the offset processed. Without
        # that, the next auto commit would move the group back. A position that is now before the
        # one at the call means that the user has sought back meanwhile: then the newer wish counts.
        #
        # ``check`` runs in the commit's turn, right before the request is written: a rebalance
        # while the commit waited for the coordinator may have taken a partition away. The object is
        # compared, not the name: a partition that left and came back is another assignment.
        auto_commit = self._parts.group.auto_commit
        number = 0 if auto_commit is None else auto_commit.begin()
        try:
            await commits.commit(todo, timeout=timeout, check=check)
        except BaseException:
            if auto_commit is not None:
                auto_commit.commit_unknown(todo, number)
            raise
        for tp, (
            partition,
            position,
        ) in began.items():
            if position is None or (partition.position or 0) >= position:
                partition.processed_upto(todo[tp].offset)
        if auto_commit is not None:
            auto_commit.committed(todo, number)

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the offsets that the group has committed; ``None`` where there is none.

        Args:
            partitions: The partitions; they need not be assigned.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            KafkaTimeoutError: No answer in time.
            ConfigurationError: The consumer has no ``group_id``.

        When cancelled, nothing has changed.
        """
        check_timeout(timeout, 0.0)
        self._open()
        return await self._commits().committed(
            [checked_partition(tp) for tp in partitions], timeout=timeout
        )

    def group_metadata(self) -> GroupMetadata:
        """Return this consumer's membership, for :meth:`Transaction.send_offsets` (KIP-447).

        Raises:
            ConfigurationError: The consumer has no ``group_id``.
        """
        self._commits()
        identity = self._parts.core.member.identity
        assert self._config.group_id is not None
        if not (self._subscription.grouped and identity.joined):
            return GroupMetadata(self._config.group_id)
        return GroupMetadata(
            self._config.group_id, identity.generation, identity.member_id, identity.instance_id
        )

    def membership(self) -> GroupMembership | None:
        """Return this consumer's membership of its group.

        Returns:
            Its generation, and whether it leads the group. ``None`` while nothing is subscribed: a
            consumer of :meth:`assign` is no member.
        """
        if not self._subscription.grouped:
            return None
        who, member = self.group_metadata(), self._parts.core.member
        return GroupMembership(
            who.group_id,
            who.generation,
            who.member_id,
            who.group_instance_id,
            member.state.value,
            member.leads,
        )

    def offsets_for_transaction(
        self, offsets: ToCommit | None = None
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], Callable[[], GroupMetadata]]:
        """Return what :meth:`commit` would commit, and a function for the membership.

        :meth:`Transaction.send_offsets` calls this.

        Args:
            offsets: As in :meth:`commit`.

        Returns:
            The offsets, and a function that returns the member's :class:`GroupMetadata` of now.
            That function raises :exc:`CommitFailedError` once the member, or the owner of one of
            the partitions, has changed.

        Raises:
            ConfigurationError: The consumer commits by auto commit.
            TrikafkaError: As :meth:`commit` before any I/O.
        """
        self._open()
        self.check_fits_transactions()
        todo, before = self._to_commit(offsets), self.group_metadata()
        owned = {tp: self._assignment.partitions.get(tp) for tp in todo}

        def member() -> GroupMetadata:
            now = self.group_metadata()
            if now.member_id != before.member_id or (now.generation < 0) != (before.generation < 0):
                # outside the group nothing would keep it from overwriting another member's
                raise self._parts.group.commit_failed()
            if gone := [
                tp
                for tp, partition in owned.items()
                if self._assignment.partitions.get(tp) is not partition
            ]:
                raise PartitionNotOwnedError(gone)
            return now

        return todo, member

    def check_fits_transactions(self) -> None:
        """Raise if a transaction cannot commit this consumer's offsets.

        Raises:
            ConfigurationError: The consumer has no ``group_id``, or auto commit is on.
        """
        self._commits()
        if self._parts.group.auto_commit is not None:
            raise ConfigurationError(
                "offsets that a transaction commits must not be committed by the consumer too: "
                "set enable_auto_commit=False"
            )

    def _commits(self) -> CommitManager:
        """Return the commit manager. Raises :exc:`ConfigurationError` without a group."""
        commits = self._parts.group.commits
        if commits is None:
            raise ConfigurationError(
                "committed offsets belong to a group; open the consumer with a group_id"
            )
        return commits

    def _to_commit(self, offsets: ToCommit | None) -> dict[TopicPartition, OffsetAndMetadata]:
        owned = self._assignment.partitions
        self._check_membership()
        if offsets is None:
            streamed = self._parts.streams.partitions
            found = {
                tp: partition.to_commit(done=partition in streamed)
                for tp, partition in owned.items()
            }
            return {tp: position for tp, position in found.items() if position is not None}
        todo = offsets_to_commit(offsets)
        if self._subscription.grouped and (foreign := [tp for tp in todo if tp not in owned]):
            raise PartitionNotOwnedError(foreign)
        return todo

    def _check_membership(self) -> None:
        """Raise unless the member may commit now."""
        member = self._parts.core.member
        if not self._subscription.grouped:
            return
        if member.state is MemberState.STALE:
            raise PollIntervalExceededError(int(self._parts.core.poll_timer.limit * 1000))
        if member.state is MemberState.FENCED:
            raise self._parts.group.commit_failed()
        if not member.identity.joined:
            raise from_code(
                ErrorCode.REBALANCE_IN_PROGRESS, "the consumer has not joined its group yet"
            )
