"""Assignors of the classic protocol (hook ``trikafka_assignor``): the contract and its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..types import TopicPartition


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The subscription of one member, as it was sent when the member joined.

    Attributes:
        topics: The member's topics.
        owned: The member's partitions before it joined again.
        generation: The generation of ``owned``; -1 if unknown.
        instance_id: The member's ``group_instance_id``.
        user_data: The bytes that the member's assignor of the same name added (see
            :class:`SubscribesWithUserData`).
        rack: The member's ``client_rack``; ``None`` if unknown.
    """

    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None
    user_data: bytes | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class LastAssignment:
    """The last assignment of a member.

    Attributes:
        assignor: The name of the assignor that made it.
        generation: The generation of the group.
        partitions: The member's partitions.
    """

    assignor: str
    generation: int
    partitions: tuple[TopicPartition, ...]


class OfferedAssignor(Protocol):
    """An assignor of ``partition_assignment_strategy`` (hook ``trikafka_assignor``).

    Members offer their assignors by name, and the coordinator chooses one that all members offer.
    """

    name: str
    cooperative: bool  #: whether members keep their partitions while they join again (KIP-429)

    def assign(
        self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """Return the partitions of each member.

        The group's leader calls this method. It must be pure. A cooperative assignor leaves out a
        partition that another member still owns: it is assigned when the owner has released it and
        the members join again.

        Args:
            members: The subscription of each member, by member id.
            partitions: The partition numbers of each topic.

        Returns:
            The assigned partitions by member id. Every member has an entry, which may be empty. A
            member gets only partitions of topics that it subscribes to.
        """


@runtime_checkable
class SubscribesWithUserData(Protocol):
    """An :class:`OfferedAssignor` that adds bytes to each member's subscription, for the leader."""

    def user_data(self, topics: frozenset[str], last: LastAssignment | None) -> bytes | None:
        """Return the user data of a member that subscribes to ``topics``.

        Pure.

        Args:
            topics: The member's topics.
            last: What this assignor assigned to the member last; ``None``: nothing so far.

        Returns:
            The bytes for the leader; ``None``: none.
        """
