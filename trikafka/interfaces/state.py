"""A consumer's state as its managers see it (``ConsumerContext.core``).

The state holds the subscription, the assignment and the buffer. Attributes are for reading. A
manager reports an event by calling a method, and the method wakes the tasks that wait for that kind
of change.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Protocol
from uuid import UUID

from ..config.resets import OffsetReset
from ..types import OffsetSpec, TopicPartition


# The signals carry no value and do not remember a notification. A waiter must check its condition,
# then wait, in a loop. Nothing is lost in Trio if there is no checkpoint between the check and
# wait(): no other task can run in between.
class SignalView(Protocol):
    """A condition to wait for.

    Check the state, then ``await wait()``, in a loop. There must be no checkpoint between the two.
    """

    async def wait(self) -> None:
        """Wait for the next notification."""

    def notify(self) -> None:
        """Wake all waiting tasks."""


class SignalsView(Protocol):
    """The consumer's signals, one for each kind of change. The state notifies them."""

    @property
    def deliver(self) -> SignalView:
        """Notified when a receive has to look at the state.

        The reason is records, an error, a position, a rebalance, or a new ``fatal`` of the
        membership.
        """

    @property
    def fetch(self) -> SignalView:
        """Notified when a partition may have become fetchable, or the buffer has room."""

    @property
    def locate(self) -> SignalView:
        """Notified when a partition needs a position."""

    @property
    def commit(self) -> SignalView:
        """Notified when more records have been processed."""


class PartitionView(Protocol):
    """One assigned partition.

    A look-up or fetch remembers the ``ticket`` that the partition had at its start. If
    :meth:`accepts` returns False for that ticket, the result is outdated and must be discarded.
    """

    @property
    def tp(self) -> TopicPartition:
        """The topic and number of the partition."""

    @property
    def ticket(self) -> int:
        """A number that changes with every event that outdates work in progress.

        Such events are a seek, a reset and a loss.
        """

    @property
    def position(self) -> int | None:
        """The offset of the next record to deliver; ``None`` while unknown."""

    @property
    def processed(self) -> int | None:
        """The offset after the last record that the user has processed."""

    @property
    def fetch_offset(self) -> int:
        """The offset to fetch next; -1 until fetched records are decoded."""

    @property
    def reset(self) -> OffsetSpec | OffsetReset | None:
        """The requested reset that is not located yet; ``None`` if there is none."""

    @property
    def paused(self) -> bool:
        """True while the user has paused the partition."""

    @property
    def owned(self) -> bool:
        """True while the partition is assigned and not about to be revoked."""

    def accepts(self, ticket: int) -> bool:
        """Return whether work that began with ``ticket`` is still current."""

    def located(self, offset: int, leader_epoch: int | None = None) -> None:
        """Set the position that a look-up found."""

    def ask_reset(self, spec: OffsetSpec) -> None:
        """Discard the position, which is unusable; look up another by ``spec``."""

    def failed(self, error: Exception) -> None:
        """Stop the partition; the next receive raises ``error``."""


class AssignmentView(Protocol):
    """The partitions assigned to the consumer."""

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionView]:
        """All assigned partitions."""

    @property
    def fetchable(self) -> Collection[PartitionView]:
        """The partitions to fetch: located, owned, and neither paused nor failed."""

    @property
    def unlocated(self) -> Collection[PartitionView]:
        """The partitions that need a position."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[PartitionView]: ...


class SubscriptionView(Protocol):
    """The user's subscription."""

    @property
    def grouped(self) -> bool:
        """True if the group assigns the partitions."""

    @property
    def topics(self) -> frozenset[str]:
        """The subscribed topics; for a pattern, the topics that matched last."""

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """The subscribed pattern; ``None`` if topics were named."""

    def match(self, names: Iterable[str]) -> bool:
        """Set the topics to those of ``names`` that match; return whether that changed them."""


class IdentityView(Protocol):
    """The identity of the member in its group."""

    @property
    def member_id(self) -> str:
        """The member id; empty before the group assigned one."""

    @property
    def generation(self) -> int:
        """The generation or member epoch; -1 outside of the group."""

    @property
    def instance_id(self) -> str | None:
        """The setting ``group_instance_id``."""

    @property
    def joined(self) -> bool:
        """True while the member belongs to a generation."""


class MemberView(Protocol):
    """The consumer's membership. Only the membership manager changes it."""

    @property
    def state(self) -> Enum:
        """The member's state, as ``statistics()`` shows it."""

    @property
    def identity(self) -> IdentityView:
        """The member's identity."""

    def know_as(self, member_id: str, generation: int = -1) -> None:
        """Set the identity that the group assigned."""

    def forget(self, *, keep_id: bool = False) -> None:
        """End the generation.

        Args:
            keep_id: Keep the member id for the next join.
        """


class PollTimerView(Protocol):
    """The time since the user's last receive (``max_poll_interval_ms``)."""

    @property
    def overdue(self) -> bool:
        """True once the time exceeds ``max_poll_interval_ms``."""

    async def expired(self) -> None:
        """Wait until the time exceeds ``max_poll_interval_ms``."""


class ReconcilerView(Protocol):
    """The object that moves the owned partitions to the group's target, for membership managers.

    It runs the rebalance listeners.
    """

    @property
    def owned(self) -> list[TopicPartition]:
        """The owned partitions, including those about to be revoked."""

    def to_revoke(self, wanted: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the owned partitions that are not in ``wanted``."""

    async def revoke(self, tps: Iterable[TopicPartition]) -> bool:
        """Run the listeners, then release these partitions; return whether there were any."""

    async def assign(self, wanted: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Run the listeners, then take the new partitions of ``wanted``; return the new ones."""

    def begin_loss(self) -> list[TopicPartition]:
        """Stop the delivery of all owned partitions; return the partitions."""

    async def lose(self, *, wait: bool = False) -> None:
        """Notify the listeners that all owned partitions are lost, then release them.

        Args:
            wait: Wait for the next receive even if no partition is owned.
        """


class BufferView(Protocol):
    """The fetched records that are not delivered yet, bounded by ``fetch_buffer_bytes``."""

    @property
    def buffered(self) -> int:
        """The number of bytes in the buffer."""

    def share(self, partitions: int) -> int:
        """Return the bytes that each partition may buffer before it is left out of fetches.

        Args:
            partitions: The number of partitions that share the buffer.
        """


class ConsumerState(Protocol):
    """The whole state of a consumer."""

    @property
    def subscription(self) -> SubscriptionView:
        """The user's subscription."""

    @property
    def assignment(self) -> AssignmentView:
        """The assigned partitions."""

    @property
    def buffer(self) -> BufferView:
        """The fetched records."""

    @property
    def member(self) -> MemberView:
        """The consumer's membership."""

    @property
    def poll_timer(self) -> PollTimerView:
        """The time since the last receive."""

    @property
    def signals(self) -> SignalsView:
        """The signals to wait for."""

    def news(self) -> None:
        """Wake the waiting receives, for example because a membership's ``fatal`` changed."""

    def buffered_of(self, tp: TopicPartition) -> int:
        """Return the buffered bytes of one partition."""

    def fetched(
        self,
        tp: TopicPartition,
        ticket: int,
        records: memoryview,
        end: int | None,
        aborted: list[tuple[int, int]] | None = None,
    ) -> bool:
        """Buffer the result of a fetch; return whether the fetch was still current.

        Args:
            tp: The partition.
            ticket: The partition's ticket when the fetch began. The fetch started at its
                ``fetch_offset``.
            records: The record batches as received.
            end: The offset after the last complete batch; ``None`` if only decoding can determine
                it.
            aborted: The aborted transactions as (producer id, first offset), for
                ``read_committed``.
        """


class ShareAssignmentView(Protocol):
    """The topics that a share consumer subscribes to, and the partitions that it is assigned."""

    @property
    def topics(self) -> frozenset[str]:
        """The names of the subscribed topics."""

    @property
    def partitions(self) -> frozenset[tuple[UUID, int]]:
        """The assigned partitions: the topic's id and the partition's number."""

    def assign(self, partitions: Iterable[tuple[UUID, int]]) -> bool:
        """Set the assignment; return whether it differs from the last one.

        Args:
            partitions: The topics' ids and the partitions' numbers.
        """


class ShareState(Protocol):
    """A share consumer's state (``ShareConsumerContext.core``)."""

    @property
    def assignment(self) -> ShareAssignmentView:
        """The subscription and the assignment."""

    @property
    def wake(self) -> SignalView:
        """Notified when there may be something to acquire or to acknowledge."""

    @property
    def deliver(self) -> SignalView:
        """Notified when a receive has to look at the state."""
