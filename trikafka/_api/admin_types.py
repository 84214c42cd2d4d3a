"""The values that the admin client takes and gives. All are immutable; none does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import ConfigurationError
from ..types import Node, TopicPartition

#: As brokers name them.
TRANSACTION_STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. ``-1`` leaves the number of partitions or the replication factor to the broker's default."""

    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("partitions", self.partitions), ("replication_factor", self.replication_factor)):
            if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
                raise ConfigurationError(f"{name} must be a whole number from 1, or -1 for the broker's default, not {value!r}")


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers that are alive. ``controller`` takes requests for the controller; in KRaft any broker does."""

    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as ``list_groups`` shows it. ``state`` and ``type`` are ``None`` where the broker is too old to tell.

    ``type`` is ``classic``, ``consumer`` (KIP-848), ``share`` or ``streams``; ``protocol_type`` is ``consumer`` for consumers and
    empty for a group that only has offsets.
    """

    group_id: str
    protocol_type: str
    state: str | None
    type: str | None


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An offset that ``list_offsets`` found; ``timestamp`` (ms since the epoch) only where a time was asked for."""

    offset: int
    timestamp: int | None
    leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id as ``list_transactions`` shows it (KIP-664).

    ``state`` is the coordinator's word: ``Empty``, ``Ongoing``, ``PrepareCommit``, ``PrepareAbort``, ``CompleteCommit`` or
    ``CompleteAbort``.
    """

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """What the coordinator knows of a transactional id. ``timeout`` is in seconds, ``started`` in ms since the epoch.

    ``partitions`` are those that the transaction that is open or ends has written to and that still wait for their marker;
    ``__consumer_offsets`` stands among them for the offsets of groups. ``started`` is ``None`` where there has been none.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout: float
    started: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """What a partition's leader remembers of a producer; ``None`` where it knows nothing.

    ``last_timestamp`` is in ms since the epoch; ``transaction_start`` is the first offset of the transaction that it has open here.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_timestamp: int | None
    coordinator_epoch: int | None
    transaction_start: int | None


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that a partition waits for and that no coordinator will end. ``last_timestamp`` in ms since the epoch.

    ``abort_transaction(partition, start_offset)`` ends it. ``transactional_id`` is that of the producer, where it is known.
    """

    partition: TopicPartition
    start_offset: int
    producer_id: int
    producer_epoch: int
    last_timestamp: int | None
    transactional_id: str | None
