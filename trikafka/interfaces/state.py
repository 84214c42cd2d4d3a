"""A consumer's state as its managers see it (``ConsumerContext.core``): what is wanted, what is assigned, what is buffered.

Attributes are for reading. What happened is told by calling a method, which wakes whoever waits for that kind of change.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Protocol

from ..config.resets import OffsetReset
from ..types import OffsetSpec, TopicPartition


class SignalView(Protocol):
    """Check what you wait for, then ``await wait()``, in a loop: nothing is lost while there is no checkpoint between the two."""

    async def wait(self) -> None:
        """Wait for the next notification."""

    def notify(self) -> None:
        """Wake all that wait now."""


class SignalsView(Protocol):
    """One signal for each kind of news. The state notifies them."""

    @property
    def deliver(self) -> SignalView:
        """Whoever receives has to look: records, an error, a position, a rebalance, a membership's ``fatal``."""

    @property
    def fetch(self) -> SignalView:
        """Something may have become fetchable, or there is room again."""

    @property
    def locate(self) -> SignalView:
        """A partition needs a position."""

    @property
    def commit(self) -> SignalView:
        """More has been processed."""


class PartitionView(Protocol):
    """One assigned partition. A ``ticket`` that is not :meth:`accepts`-ed any more belongs to what was overtaken: drop it."""

    @property
    def tp(self) -> TopicPartition:
        """Which it is."""

    @property
    def ticket(self) -> int:
        """Changes with everything that overtakes what is under way: a seek, a reset, a loss. Look-ups and fetches keep it."""

    @property
    def position(self) -> int | None:
        """The offset of the next record to deliver; ``None``: not known yet."""

    @property
    def processed(self) -> int | None:
        """The offset after what the user is done with."""

    @property
    def fetch_offset(self) -> int:
        """The offset to fetch next; -1 while only decoding can tell."""

    @property
    def reset(self) -> OffsetSpec | OffsetReset | None:
        """A reset that was asked for and is not located yet."""

    @property
    def paused(self) -> bool:
        """Whether the user paused it."""

    @property
    def owned(self) -> bool:
        """Whether it is this consumer's, and not about to be given up."""

    def accepts(self, ticket: int) -> bool:
        """Whether nothing has overtaken what began with ``ticket``."""

    def located(self, offset: int, leader_epoch: int | None = None) -> None:
        """Its position was looked up."""

    def ask_reset(self, spec: OffsetSpec) -> None:
        """Its position is worth nothing: it is to be looked up by ``spec``."""

    def failed(self, error: Exception) -> None:
        """It cannot go on: the next receive raises ``error``."""


class AssignmentView(Protocol):
    """The partitions that the consumer has."""

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionView]:
        """All of them."""

    @property
    def fetchable(self) -> Collection[PartitionView]:
        """Those to fetch: located, not paused, not failed, not given up."""

    @property
    def unlocated(self) -> Collection[PartitionView]:
        """Those that a position is wanted of, and not known."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[PartitionView]: ...


class SubscriptionView(Protocol):
    """What the user subscribed to."""

    @property
    def grouped(self) -> bool:
        """Whether partitions come from the group."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics (of a pattern: those that matched last)."""

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """The pattern, if it is one."""

    def match(self, names: Iterable[str]) -> bool:
        """Set the topics to those of ``names`` that the pattern matches; return whether that changed them."""


class IdentityView(Protocol):
    """Who the member is to its group."""

    @property
    def member_id(self) -> str:
        """Empty: none yet."""

    @property
    def generation(self) -> int:
        """-1: in none."""

    @property
    def instance_id(self) -> str | None:
        """``group_instance_id``."""

    @property
    def joined(self) -> bool:
        """Whether it is in a generation."""


class MemberView(Protocol):
    """The member of the group that the consumer is. The membership manager alone tells it."""

    @property
    def state(self) -> Enum:
        """What ``statistics()`` shows."""

    @property
    def identity(self) -> IdentityView:
        """Who it is."""

    def know_as(self, member_id: str, generation: int = -1) -> None:
        """The group gave it this identity."""

    def forget(self, *, keep_id: bool = False) -> None:
        """Its generation is over."""


class PollTimerView(Protocol):
    """How long the user has asked for nothing (``max_poll_interval_ms``)."""

    @property
    def overdue(self) -> bool:
        """Whether that was too long."""

    async def expired(self) -> None:
        """Return when it is."""


class ReconcilerView(Protocol):
    """Brings what is owned to what the group wants, rebalance listeners included: for a membership manager."""

    @property
    def owned(self) -> list[TopicPartition]:
        """What is this member's, what is about to be given up included."""

    def to_revoke(self, wanted: Collection[TopicPartition]) -> list[TopicPartition]:
        """What is owned, and to be given up if ``wanted`` is what the group wants."""

    async def revoke(self, tps: Iterable[TopicPartition]) -> bool:
        """Give up these, once the listeners have run. Returns whether there were any."""

    async def assign(self, wanted: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Take what is new in ``wanted``, once the listeners have run. Returns that."""

    def begin_loss(self) -> list[TopicPartition]:
        """Deliver nothing more of anything. Returns what that is."""

    async def lose(self, *, wait: bool = False) -> None:
        """Everything owned is lost: tell the listeners, let go."""


class BufferView(Protocol):
    """What was fetched and not delivered yet; bounded by ``fetch_buffer_bytes``."""

    @property
    def buffered(self) -> int:
        """Bytes in it."""

    def share(self, partitions: int) -> int:
        """How many bytes each of so many partitions may have here before it is left out of fetches."""


class ConsumerState(Protocol):
    """All of it."""

    @property
    def subscription(self) -> SubscriptionView:
        """What the user wants."""

    @property
    def assignment(self) -> AssignmentView:
        """What the consumer has."""

    @property
    def buffer(self) -> BufferView:
        """What was fetched."""

    @property
    def member(self) -> MemberView:
        """Who it is in its group."""

    @property
    def poll_timer(self) -> PollTimerView:
        """Whether the user is there."""

    @property
    def signals(self) -> SignalsView:
        """What to wait for."""

    def news(self) -> None:
        """Have everybody look who waits to receive: a membership's ``fatal`` has changed, say."""

    def buffered_of(self, tp: TopicPartition) -> int:
        """Bytes in the buffer of one partition."""

    def fetched(
        self,
        tp: TopicPartition,
        ticket: int,
        records: memoryview,
        end: int | None,
        aborted: list[tuple[int, int]] | None = None,
    ) -> bool:
        """Buffer what was fetched of a partition, from its ``fetch_offset`` with its ``ticket``; whether that was not overtaken.

        ``records`` are record batches as they came; ``end`` is the offset after the last whole one (``None``: decoding will tell);
        ``aborted`` the aborted transactions as (producer id, first offset), for ``read_committed``.
        """
