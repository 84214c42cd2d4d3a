"""What a plugin's factory gets to know of the client that opens: all that trikafka's own managers are made from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, overload, runtime_checkable

from ..config import ClientConfig, ConsumerConfig, ProducerConfig
from ..types import BatchEvent, MembershipEventKind, TopicPartition
from .managers import (
    CommitManager,
    CoordinatorManager,
    FetchManager,
    HeartbeatManager,
    ManagerKind,
    MembershipManager,
    MetadataManager,
    OffsetsManager,
    PositionsManager,
    ProduceManager,
    TransactionManager,
)
from .network import BrokerAccess
from .state import ConsumerState, ReconcilerView
from .transaction import ProducerTransactionState, TransactionSignals

#: ``(topic, key, partition numbers) -> number``: chooses for records without an explicit partition.
Partitioner = Callable[[str, bytes | None, Sequence[int]], int]


class MembershipNews(Protocol):
    """Tells observers what becomes of a group's member."""

    def tell(self, kind: MembershipEventKind, reason: str, error: Exception | None = None) -> None:
        """This has just happened, once a change; see :class:`~trikafka.MembershipEvent`."""


@runtime_checkable
class ClientContext(Protocol):
    """What every client has. A consumer's is a :class:`ConsumerContext`, a producer's a :class:`ProducerContext`.

    Seats are filled in the order of :data:`ManagerKind`: ``manager(kind)`` knows those before.
    """

    @property
    def config(self) -> ClientConfig:
        """The client's settings: a ``ConsumerConfig``, a ``ProducerConfig`` or an ``AdminConfig``."""

    @property
    def brokers(self) -> BrokerAccess:
        """Sends requests."""

    @overload
    def manager(self, kind: Literal["metadata"]) -> MetadataManager: ...
    @overload
    def manager(self, kind: Literal["coordinator"]) -> CoordinatorManager: ...
    @overload
    def manager(self, kind: Literal["offsets"]) -> OffsetsManager: ...
    @overload
    def manager(self, kind: Literal["commit"]) -> CommitManager: ...
    @overload
    def manager(self, kind: Literal["positions"]) -> PositionsManager: ...
    @overload
    def manager(self, kind: Literal["fetch"]) -> FetchManager: ...
    @overload
    def manager(self, kind: Literal["heartbeat"]) -> HeartbeatManager: ...
    @overload
    def manager(self, kind: Literal["membership"]) -> MembershipManager: ...
    @overload
    def manager(self, kind: Literal["produce"]) -> ProduceManager: ...
    @overload
    def manager(self, kind: Literal["transactions"]) -> TransactionManager: ...

    def builtin(self, kind: ManagerKind) -> Any:
        """A manager for ``kind`` as trikafka itself makes it (it meets the seat's Protocol): to hand on what is not replaced."""

    def start_soon(self, async_fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task that ends with the client, and whose failure ends it."""


class OfferedAssignor(Protocol):
    """An assignor of ``partition_assignment_strategy`` (hook ``trikafka_assignor``)."""

    name: str
    cooperative: bool  #: whether members keep their partitions while they join again (KIP-429)

    def assign(self, members: Mapping[str, Any], partitions: Mapping[str, Sequence[int]]) -> Mapping[str, Sequence[TopicPartition]]:
        """Assign ``partitions`` (topic -> numbers) to ``members`` (member id -> its subscription). Pure; called on the leader."""


@runtime_checkable
class ConsumerContext(ClientContext, Protocol):
    """A consumer's. The last two are there for members of a group, from the seat ``heartbeat`` on."""

    @property
    def config(self) -> ConsumerConfig:
        """The consumer's settings."""

    @property
    def core(self) -> ConsumerState:
        """The state that its managers share."""

    @property
    def reconciler(self) -> ReconcilerView:
        """Carries out what the group assigned."""

    @property
    def assignors(self) -> Sequence[OfferedAssignor]:
        """Those of ``partition_assignment_strategy``, in its order."""

    @property
    def membership_events(self) -> MembershipNews | None:
        """Tells a :class:`MembershipObserver` of changes; ``None`` without a ``group_id``."""


@runtime_checkable
class ProducerContext(ClientContext, Protocol):
    """A producer's."""

    @property
    def config(self) -> ProducerConfig:
        """The producer's settings."""

    @property
    def partitioner(self) -> Partitioner | None:
        """The partitioner that the settings name; ``None``: the default one."""

    @property
    def watch(self) -> Callable[[str, BatchEvent], object] | None:
        """Tells observers of a point of :class:`ProducerObserver`, by its name; ``None`` if nobody wants to know."""

    @property
    def transaction(self) -> ProducerTransactionState | None:
        """The state of a producer with a ``transactional_id``, told by its managers; ``None``: it has no such id."""

    @property
    def transaction_signals(self) -> TransactionSignals:
        """What that state wakes tasks with."""
