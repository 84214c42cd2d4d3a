"""The consumer's commits. A part of :class:`~trikafka.Consumer`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .._net.deadlines import check_timeout
from .._state.arguments import checked_partition
from .._state.member import MemberState
from ..errors import PartitionNotOwnedError, from_code
from ..types import OffsetAndMetadata, TopicPartition
from .consumer_base import ConsumerBase


class Committing(ConsumerBase):
    """What is committed, and when."""

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None, *, timeout: float | None = None
    ) -> None:
        """Commit ``offsets`` (of the next record to process; default: the positions, so all that was handed out).

        Raises :exc:`CommitFailedError` if the member is out of the group, :exc:`PartitionNotOwnedError` (one of these) for a
        partition that is not assigned to it, :exc:`RebalanceInProgressError` while it is not in the group yet,
        :exc:`KafkaTimeoutError`. Cancelled while the request is under way, it may or may not have happened.
        """
        check_timeout(timeout, 0.0)
        self._open()
        commits, owned = self._parts.need_commits(), self._assignment.partitions
        self._check_membership()
        if offsets is None:
            todo = {
                tp: OffsetAndMetadata(partition.position, partition.progress.leader_epoch)
                for tp, partition in owned.items()
                if partition.position is not None
            }
        else:
            todo = {checked_partition(tp): _position(tp, value) for tp, value in offsets.items()}
        if self._subscription.grouped and (foreign := [tp for tp in todo if tp not in owned]):
            raise PartitionNotOwnedError(foreign)
        began = {tp: owned[tp] for tp in todo if tp in owned}

        def check() -> None:
            self._check_membership()
            if gone := [tp for tp, partition in began.items() if self._assignment.partitions.get(tp) is not partition]:
                raise PartitionNotOwnedError(gone)

        await commits.commit(todo, timeout=timeout, check=check)
        for tp, partition in began.items():  # the user says that it is processed: auto commit must not go back
            partition.processed_upto(todo[tp].offset)
        if self._parts.auto_commit is not None:
            self._parts.auto_commit.committed(todo)

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for ``partitions``; ``None`` where nothing is."""
        check_timeout(timeout, 0.0)
        self._open()
        return await self._parts.need_commits().committed([checked_partition(tp) for tp in partitions], timeout=timeout)

    # Inside.

    def _check_membership(self) -> None:
        """A member that is out of its group cannot commit."""
        member = self._parts.core.member
        if not self._subscription.grouped:
            return
        if member.state in (MemberState.FENCED, MemberState.STALE):
            raise self._parts.commit_failed()
        if not member.identity.joined:
            raise from_code(27, "the consumer has not joined its group yet")


def _position(tp: TopicPartition, value: OffsetAndMetadata | int) -> OffsetAndMetadata:
    position = OffsetAndMetadata(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(position, OffsetAndMetadata) or position.offset < 0:
        raise ValueError(f"the offset to commit for {tp} must be a whole number from 0 or an OffsetAndMetadata, not {value!r}")
    return position
