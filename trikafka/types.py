"""The values of trikafka's public interface. All are immutable; none does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    runtime_checkable,
)
from uuid import UUID

from .errors.peer_text import peer_text

# The defaults (PEP 696) are for type checkers, which know typing_extensions by themselves: Record
# alone means a record of bytes. Python's own TypeVar has them from 3.13 on.
if TYPE_CHECKING:
    from typing_extensions import Buffer, TypeVar

    #: The type of keys and values: bytes, or what a deserializer returns.
    Key = TypeVar("Key", default=bytes | None, covariant=True)
    Value = TypeVar("Value", default=bytes | None, covariant=True)
    #: What a producer writes: bytes, or another object with Python's buffer protocol (PEP 688).
    BytesLike: TypeAlias = Buffer
else:
    from typing import TypeVar

    BytesLike: TypeAlias = bytes | bytearray | memoryview

    Key = TypeVar("Key", covariant=True)
    Value = TypeVar("Value", covariant=True)

#: Headers of a record: pairs of name and value, in order. Names may repeat.
Headers = tuple[tuple[str, bytes | None], ...]


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{peer_text(self.topic)}-{self.partition}"


class TimestampType(IntEnum):
    """The origin of a record's timestamp: the producer or the broker.

    ``CREATE_TIME``: set by the producer. ``LOG_APPEND_TIME``: set by the broker.
    """

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class SubscriptionPattern:
    """A pattern in RE2's syntax that the broker matches with whole topic names (KIP-848).

    See also KIP-1072.
    """

    pattern: str

    def __str__(self) -> str:
        return self.pattern


class Record(NamedTuple, Generic[Key, Value]):
    """One fetched record.

    Attributes:
        topic: The name of the topic.
        partition: The number of the partition.
        offset: The record's offset in the partition.
        timestamp: Milliseconds since the epoch (UTC); ``None`` where the record has none.
        timestamp_type: The origin of the timestamp.
        key: The key; ``None`` where the record has none.
        value: The value; ``None`` for a tombstone.
        headers: Pairs of name and value.

    ``Record`` alone has bytes. With ``key_deserializer`` or ``value_deserializer``, ``key`` and
    ``value`` hold the deserializer's result: ``Record[bytes | None, Flight]``. A missing
    key or value is ``None``, whatever its type says: no deserializer is called for it.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    timestamp_type: TimestampType
    key: Key
    value: Value
    headers: Headers = ()


class OffsetRange(NamedTuple):
    """The records of one partition with ``start <= offset < end``."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed position.

    Attributes:
        offset: The offset of the next record to process.
        leader_epoch: The leader epoch of the last processed record, if known (KIP-320). Before the
            first record it is the one in the look-up's response. It may be that of a later record,
            which is harmless. A lower epoch would count processed records as truncated.
        metadata: A text that the committer stored with the offset.
    """

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """A result of ``offsets_for_times``: the first record at or after the time.

    ``timestamp`` is in milliseconds since the epoch.
    """

    offset: int
    timestamp: int
    leader_epoch: int | None = None


class RecordMetadata(NamedTuple):
    """The position of a produced record in the log.

    Attributes:
        topic: The name of the topic.
        partition: The number of the partition.
        offset: The offset; ``None`` if the broker did not return one (``acks=0``, a duplicate).
        timestamp: Milliseconds since the epoch. The record's own, or the broker's where the topic
            uses log-append time.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp: int | None


@dataclass(frozen=True, slots=True)
class PartitionDelivery:
    """The rows written to one partition.

    Records of other producers may lie between the offsets.

    Attributes:
        rows: The number of rows.
        first_offset: The offset of the first row; ``None`` if the broker returns none (``acks=0``).
        last_offset: The offset of the last row, likewise.
    """

    rows: int
    first_offset: int | None
    last_offset: int | None


@dataclass(frozen=True, slots=True)
class Node:
    """The address of a broker.

    ``node_id`` is negative for a bootstrap address whose id is not known yet.
    """

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        host = peer_text(f"[{self.host}]" if ":" in self.host else self.host)
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition as the cluster described it. ``leader`` is ``None`` while there is none."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int | None
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a consumer group or a share group, and the partitions it was assigned.

    Attributes:
        member_id: The id that the member has in its group.
        client_id: The ``client_id`` of its program.
        client_host: The address from which it connects.
        assignment: The partitions that it has.
        instance_id: The id of a static member; ``None`` for others.
        rack: The member's rack, if it named one.
        epoch: The member's epoch; ``None`` in the classic protocol.
        target_assignment: The partitions that the group plans for it; ``None`` if its protocol has
            no such plan.
        topics: The topics that it subscribed to by name.
        pattern: The pattern that it subscribed to; ``None`` if there is none.
    """

    member_id: str
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]
    instance_id: str | None = None
    rack: str | None = None
    epoch: int | None = None
    target_assignment: tuple[TopicPartition, ...] | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group or a share group, and its members.

    Attributes:
        group_id: The group.
        state: The broker's name of the state, such as ``Stable`` or ``Empty``.
        protocol: The assignor that the members of a classic group chose; for other groups their
            type.
        members: The members.
        type: ``"classic"``, ``"consumer"`` (KIP-848), ``"share"`` or ``"streams"``; ``None`` for a
            group that does not exist.
        epoch: The epoch of the group; ``None`` in the classic protocol.
        assignment_epoch: The epoch of the target assignment; ``None`` in the classic protocol.
        assignor: The assignor that made the assignment; ``None`` if there is none.
        authorized_operations: The operations that this client may perform, named as in access
            rules, such as ``"describe_configs"``; ``None`` unless they were asked for.
    """

    group_id: str
    state: str
    protocol: str
    members: tuple[MemberDescription, ...]
    type: str | None = None
    epoch: int | None = None
    assignment_epoch: int | None = None
    assignor: str | None = None
    authorized_operations: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """An event of a producer's batch, for observers.

    Attributes:
        topic: The name of the topic.
        partition: The number of the partition.
        records: The number of records.
        size: Bytes, uncompressed.
        attempt: The number of this attempt, from 1; 0 for a batch that was never sent.
        age: Seconds since the first record was accepted.
        error: The last error of this batch; ``None`` if there was none.
    """

    topic: str
    partition: int
    records: int
    size: int
    attempt: int
    age: float
    error: Exception | None


class UnsentRecord(NamedTuple):
    """A record without an outcome.

    Attributes:
        partition: The record's partition.
        age: Seconds since the record was accepted.
        phase: The phase of its batch, as in :exc:`DeliveryTimeoutError`.
        error: The failure of the last attempt; ``None`` if there was none.
    """

    partition: TopicPartition
    age: float
    phase: str
    error: Exception | None


@dataclass(frozen=True, slots=True)
class BrokerLatency:
    """The time in seconds that a broker took to respond to Produce requests.

    Delays imposed by the broker's quotas (KIP-219) are not included; ``throttled`` is their sum
    over all requests.

    Attributes:
        last: The time of the last response.
        mean: The mean of all responses.
        longest: The longest of all responses.
        requests: The number of responses.
        throttled: Seconds of delay by quotas.
    """

    last: float
    mean: float
    longest: float
    requests: int
    throttled: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerThrottle:
    """The delays that a broker's quotas impose on this client (KIP-219).

    Quotas bound what a user or client id may write, read or request. Times are in seconds.

    Attributes:
        total: The time so far in which at least one connection to the broker had to pause.
        last: The delay that the last throttled response demanded.
        left: The part of all delays that is still to come.
        responses: The number of responses that demanded a delay.
        api: The request of the last one, such as ``"Produce"``.
    """

    total: float
    last: float
    left: float
    responses: int
    api: str


@dataclass(frozen=True, slots=True)
class MetricsPush:
    """The metrics that a client pushes to its brokers for the cluster's operators (KIP-714).

    Attributes:
        state: ``subscription needed`` (the broker is asked next, or wants nothing now), ``push
            needed`` or ``off`` (the brokers refused for good). A client whose brokers take no
            metrics stays in the first.
        client_instance_id: The client's name in the metrics; ``None`` until a broker gave it.
        broker: The broker that the client pushes to; ``None`` until one was asked.
        metrics: The prefixes of the names that the broker wants; ``*``: all.
        interval: Seconds between two pushes; ``None`` before a subscription.
        next: Seconds until the next request; ``None`` if there will be none.
        last: Seconds since the last push that the broker took; ``None`` before the first.
        pushes: Pushes that the brokers took.
        last_error: Why the last request failed; ``None`` after a success.
        failing: Seconds since the first of the requests that failed in a row; ``None`` after a
            success.
    """

    state: str
    client_instance_id: UUID | None
    broker: Node | None
    metrics: tuple[str, ...]
    interval: float | None
    next: float | None
    last: float | None
    pushes: int
    last_error: Exception | None
    failing: float | None = None


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """The current or last connection of one purpose to a broker.

    Attributes:
        node: The broker. A bootstrap address has a negative id.
        purpose: ``"fetch"``, ``"produce"``, ``"group"`` (requests that may wait inside the broker),
            ``"coordinator"``, ``"telemetry"`` (pushed metrics) or ``"general"``.
        state: ``"new"`` (connecting, TLS included), ``"negotiating"``, ``"authenticating"``,
            ``"ready"``, ``"reauthenticating"`` (KIP-368) or ``"closed"``.
        seconds: The time spent in each state so far.
        in_flight: The number of requests without a response.
    """

    node: Node
    purpose: str
    state: str
    seconds: Mapping[str, float]
    in_flight: int


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """A change of a connection's state, for observers.

    The names of purposes and states are those of :class:`ConnectionStatistics`.

    Attributes:
        node: The broker.
        purpose: The purpose of the connection.
        before: The state before.
        state: The new state.
        seconds: Seconds that the connection has spent in the state ``before``, in total.
        error: The reason for closing; ``None`` if no error closed the connection.
    """

    node: Node
    purpose: str
    before: str
    state: str
    seconds: float
    error: Exception | None


#: The kinds of :class:`MembershipEvent`.
MembershipEventKind: TypeAlias = Literal[
    "joined", "left", "stale", "fenced", "session_lost", "coordinator_lost", "coordinator_found"
]


@dataclass(frozen=True, slots=True)
class MembershipEvent:
    """A change of a consumer's membership of its group, or of its coordinator, for observers.

    After ``"stale"``, ``"fenced"`` and ``"session_lost"`` the partitions are lost.

    Attributes:
        kind: ``"joined"`` (with the classic protocol, once per generation); ``"left"``;
            ``"stale"`` (``max_poll_interval_ms`` passed without a receive; the next receive
            joins again); ``"fenced"`` (the group does not know the member or refuses it);
            ``"session_lost"`` (no heartbeat was acknowledged for the session timeout);
            ``"coordinator_lost"`` (the coordinator moved or does not respond); or
            ``"coordinator_found"``. Until the next release ``"stale"`` also equals its old spelling
            ``"expelled"``, with a :exc:`DeprecationWarning`.
        group_id: The group.
        member_id: The member.
        generation: The generation, or the member epoch with the consumer protocol (KIP-848); -1
            outside of the group.
        reason: The reason, as text for people.
        error: The cause, if any. For ``"left"``: why the group did not confirm the departure.
    """

    kind: MembershipEventKind
    group_id: str
    member_id: str
    generation: int
    reason: str
    error: Exception | None


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The identity of a consumer in its group.

    The broker checks a transaction's offsets against this identity (KIP-447). ``generation`` is the
    member epoch where the group uses the consumer protocol (KIP-848), and -1 outside of the group.

    ``topic_ids`` has the topics that the consumer reads, by name. An offset then belongs to that
    topic, and not to one that was created later by the same name (KIP-1319, Kafka 4.4).
    """

    group_id: str
    generation: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    topic_ids: Mapping[str, UUID] = field(
        default_factory=dict, compare=False, repr=False, kw_only=True
    )


@dataclass(frozen=True, slots=True)
class GroupMembership(GroupMetadata):
    """A subscribed consumer's membership of its group at one moment.

    As a :class:`GroupMetadata` it can be passed to :meth:`Transaction.send_offsets`.

    Attributes:
        group_id: The group.
        generation: The generation, or the member epoch (KIP-848); -1 outside of the group.
        member_id: The member's id; empty outside of the group.
        group_instance_id: The id of a static member (KIP-345).
        state: The member's state, as in :class:`ConsumerStatistics`.
        leader: Whether this member leads the group and assigns its partitions. ``None`` where the
            group has no leader (the consumer protocol), and outside of the group.
    """

    state: str = "unjoined"
    leader: bool | None = None

    @property
    def joined(self) -> bool:
        """True while the group knows the member in a generation."""
        return self.generation >= 0


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """The name of a prepared transaction (KIP-939).

    Store its text (``str``) in the same atomic write as the work that must happen together with the
    transaction.
    """

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> PreparedTransaction:
        """Return the transaction that ``str`` wrote.

        Raises:
            ValueError: The text has another form.
        """
        producer_id, colon, epoch = text.partition(":")
        if not (colon and producer_id.isdecimal() and epoch.isdecimal()):
            raise ValueError(
                f"a prepared transaction is written as '<producer id>:<epoch>', not {text!r}"
            )
        return cls(int(producer_id), int(epoch))


@dataclass(frozen=True, slots=True)
class DetachedTransaction:
    """The name of an open transaction whose producer has sent all records and detached.

    :meth:`Transaction.detach` returns it, and :meth:`Admin.end_transaction` ends the transaction.
    Any process with this value may end the transaction. It can be pickled. ``version`` is the
    transaction version (2: KIP-890).
    """

    transactional_id: str
    producer_id: int
    epoch: int
    version: int

    def __str__(self) -> str:
        return f"{self.transactional_id!r} ({self.producer_id}:{self.epoch})"


class OffsetSpec(IntEnum):
    """The offsets that ``list_offsets`` can find besides those of a timestamp.

    With tiered storage (KIP-405) a partition has older segments in a remote tier and newer ones on
    its leader's disk. ``None`` is found where a partition has no such offset.

    Attributes:
        LATEST: The end: the offset of the next record.
        EARLIEST: The first offset.
        MAX_TIMESTAMP: The record with the greatest timestamp.
        EARLIEST_LOCAL: The first offset on the leader's disk (Kafka 3.5 and newer).
        LATEST_TIERED: The last offset in the remote tier (Kafka 3.9 and newer).
        EARLIEST_PENDING_UPLOAD: The first offset that is not yet in the remote tier (KIP-1023,
            Kafka 4.2 and newer).
    """

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class IsolationLevel(Enum):
    """The visibility of transactional records.

    ``READ_COMMITTED`` hides records of open and aborted transactions.
    """

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class OAuthToken:
    """A token for OAUTHBEARER. ``extensions`` are sent with it (KIP-342)."""

    value: str = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Deserializer(Protocol[Value]):
    """An object that makes keys or values from bytes, and sees the record's topic and headers.

    For ``key_deserializer`` and ``value_deserializer``, where a function of the bytes is too
    little.
    """

    def deserialize(self, topic: str, headers: Headers, data: bytes) -> Value:
        """Return the key or value for its bytes.

        What is raised here becomes a :exc:`DeserializationError` of that record.
        """
        ...


@runtime_checkable
class AsyncDeserializer(Protocol[Value]):
    """A :class:`Deserializer` that waits for something, such as a schema that is looked up.

    The receive awaits it before the record is delivered. What else it changes:

    * A receive returns the records that are done after 10 ms, so slow calls make small batches. Its
      ``timeout`` cuts off no deserializer.
    * A call that takes longer than ``max_poll_interval_ms`` makes the member leave its group, with
      a warning that names the deserializer. Give it a limit of its own.
    * After a failure the next receive calls it again.
    * ``receive_nowait`` and ``receive_batch_nowait`` raise :exc:`trio.WouldBlock` until
      ``wait_receivable`` has awaited the next records. So a transaction of :func:`process` or
      :func:`run_tasks` holds one batch.
    * In a share consumer it has ``max_processing_ms``; then its record is released.
    """

    async def deserialize(self, topic: str, headers: Headers, data: bytes) -> Value:
        """Return the key or value for its bytes.

        What is raised here becomes a :exc:`DeserializationError` of that record. When the receive
        is cancelled, this call is cancelled, too, and made again by the next receive.
        """
        ...


#: A record with keys and values of any type.
AnyRecord: TypeAlias = Record[Any, Any]
