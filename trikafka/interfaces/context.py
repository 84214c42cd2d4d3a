"""The context of a plugin's factory: the client that opens.

trikafka's own managers are built from the same context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, overload, runtime_checkable

from ..config import ClientConfig, ConsumerConfig, ProducerConfig, ShareConsumerConfig
from ..types import BatchEvent, MembershipEventKind
from .assignors import OfferedAssignor
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
    ShareFetchManager,
    ShareMembershipManager,
    TelemetryManager,
    TransactionManager,
)
from .metrics import ClientMetrics
from .network import BrokerAccess
from .state import ConsumerState, ReconcilerView, ShareState
from .transaction import ProducerTransactionState, TransactionSignals

#: ``(topic, key, partition numbers) -> number``: chooses the partition of a record that names none.
Partitioner = Callable[[str, bytes | None, Sequence[int]], int]


#: Bytes, or a type that shares memory with them.
Buffer = bytes | bytearray | memoryview


@runtime_checkable
class CompressionCodec(Protocol):
    """A codec for Kafka's record batches (hook ``trikafka_compression``).

    The codec reads and writes the format of Kafka's other clients. ``gzip``: RFC 1952. ``snappy``:
    raw blocks, and blocks framed by the xerial library. ``lz4``: frames of independent blocks.
    ``zstd``: frames.

    Both methods are plain, pure functions. Several threads call them at the same time. When a
    client opens, this codec and trikafka's own must read each other's sample.
    """

    def compress(self, data: Buffer, level: int | None) -> Buffer:
        """Return ``data`` compressed.

        Args:
            data: The bytes to compress.
            level: The level from the settings; ``None`` means the codec's default.
        """

    def decompress(self, data: Buffer, limit: int) -> Buffer:
        """Return ``data`` decompressed.

        The data comes from the network and may be hostile. An implementation must never allocate
        more than ``limit`` bytes for the output.

        Args:
            data: The compressed bytes.
            limit: The largest output, in bytes.

        Raises:
            ValueError: The data is corrupt, or its content is larger than ``limit``. The client
                raises :exc:`~trikafka.CorruptRecordError`.
        """


class MembershipNews(Protocol):
    """Notifications of a membership manager to the client's observers."""

    def report(
        self, kind: MembershipEventKind, reason: str, error: Exception | None = None
    ) -> None:
        """Notify the observers of a change that has just happened, once per change.

        Args:
            kind: The kind of change; see :class:`~trikafka.MembershipEvent`.
            reason: The reason, as text for people.
            error: The error behind the change, if any.
        """


@runtime_checkable
class ClientContext(Protocol):
    """The parts that every client has.

    A consumer passes a :class:`ConsumerContext`, a producer a :class:`ProducerContext`, a share
    consumer a :class:`ShareConsumerContext`. Managers are created in the order of
    :data:`ManagerKind`, except ``telemetry``, which is created early. So ``manager(kind)`` returns
    only those created earlier, and raises :exc:`~trikafka.IllegalStateError` for the others.
    """

    @property
    def config(self) -> ClientConfig:
        """The client's settings, such as a ``ConsumerConfig``."""

    @property
    def brokers(self) -> BrokerAccess:
        """The client's connections, for sending requests."""

    @property
    def metrics(self) -> ClientMetrics:
        """The metrics that the client measures for brokers."""

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
    @overload
    def manager(self, kind: Literal["share_membership"]) -> ShareMembershipManager: ...
    @overload
    def manager(self, kind: Literal["share_fetch"]) -> ShareFetchManager: ...
    @overload
    def manager(self, kind: Literal["telemetry"]) -> TelemetryManager: ...

    def builtin(self, kind: ManagerKind) -> Any:
        """Return trikafka's own manager for ``kind``.

        A plugin that replaces a part of a manager delegates the rest to this object.

        Args:
            kind: The kind of manager. The object meets the Protocol of that kind.

        Returns:
            The manager; ``None`` if this client has no such seat.
        """

    def start_soon(self, async_fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a background task of the client.

        The task is cancelled when the client closes. If the task fails, the client fails.

        Args:
            async_fn: The function to run.
            args: Its positional arguments.
        """


@runtime_checkable
class ConsumerContext(ClientContext, Protocol):
    """A consumer's context.

    ``assignors`` is filled for members of a group before the kind ``heartbeat`` is created.
    """

    @property
    def config(self) -> ConsumerConfig:
        """The consumer's settings."""

    @property
    def core(self) -> ConsumerState:
        """The state that the consumer's managers share."""

    @property
    def reconciler(self) -> ReconcilerView:
        """The object that applies the group's assignment and runs the rebalance listeners."""

    @property
    def assignors(self) -> Sequence[OfferedAssignor]:
        """The assignors of ``partition_assignment_strategy``, in that order.

        Empty without a ``group_id``, and before the kind ``heartbeat`` is created.
        """

    @property
    def membership_events(self) -> MembershipNews | None:
        """The notifier of :class:`MembershipObserver`; ``None`` without a ``group_id``."""


@runtime_checkable
class ProducerContext(ClientContext, Protocol):
    """A producer's context."""

    @property
    def config(self) -> ProducerConfig:
        """The producer's settings."""

    @property
    def partitioner(self) -> Partitioner | None:
        """The partitioner named in the settings; ``None`` means the default one."""

    @property
    def codec(self) -> CompressionCodec | None:
        """The codec that a plugin offers for ``compression_type``.

        ``None`` means trikafka's own codec, or no compression.
        """

    @property
    def watch(self) -> Callable[[str, BatchEvent], object] | None:
        """The notifier of :class:`ProducerObserver`; ``None`` when no observer has its methods.

        The first argument is the name of the observer's method, the second its event.
        """

    @property
    def transaction(self) -> ProducerTransactionState | None:
        """The transaction state; ``None`` for a producer without a ``transactional_id``."""

    @property
    def transaction_signals(self) -> TransactionSignals:
        """The conditions that the transaction state notifies."""


@runtime_checkable
class ShareConsumerContext(ClientContext, Protocol):
    """A share consumer's context."""

    @property
    def config(self) -> ShareConsumerConfig:
        """The share consumer's settings."""

    @property
    def core(self) -> ShareState:
        """The state that the share consumer's managers share."""

    @property
    def membership_events(self) -> MembershipNews | None:
        """The notifier of :class:`MembershipObserver`."""

    @property
    def decompression(self) -> Mapping[int, Any]:
        """The codecs of record batches by their ids, with those that plugins replace."""
