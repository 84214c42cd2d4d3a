"""The values that cross trikafka's public interface. All are immutable; none does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Literal, NamedTuple, TypeAlias

#: Headers of a record: pairs of name and value, in order; names may repeat.
Headers = tuple[tuple[str, bytes | None], ...]


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TimestampType(IntEnum):
    """Who set a record's timestamp: the producer (``CREATE_TIME``) or the broker (``LOG_APPEND_TIME``)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class SubscriptionPattern:
    """A pattern of topic names in RE2's syntax, which the broker matches with whole names (KIP-848, KIP-1072)."""

    pattern: str

    def __str__(self) -> str:
        return self.pattern


class Record(NamedTuple):
    """One fetched record. ``timestamp`` is in milliseconds since the epoch (UTC); ``None`` where the record has none.

    ``key`` and ``value`` are bytes. With ``key_deserializer`` or ``value_deserializer`` they are what that returns, which the types
    here do not know: ``flight = typing.cast(Flight, record.value)``.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class OffsetRange(NamedTuple):
    """The records of one partition with ``start <= offset < end``."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed position: the ``offset`` of the next record to process, and what the committer noted beside it."""

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The answer of ``offsets_for_times``: the first record at or after the time. ``timestamp`` in ms since the epoch."""

    offset: int
    timestamp: int
    leader_epoch: int | None = None


class RecordMetadata(NamedTuple):
    """Where a produced record went. ``offset`` is ``None`` if the broker does not give it (``acks=0``, duplicate).

    ``timestamp`` is in ms since the epoch: the record's own, or the broker's where the topic uses log-append time.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp: int | None


@dataclass(frozen=True, slots=True)
class Node:
    """A broker's address. ``node_id`` is negative for a bootstrap address whose id is not known yet."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """What the cluster said of a partition. ``leader`` is ``None`` while there is none."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int | None
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a consumer group and the partitions it was assigned."""

    member_id: str
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group: its state as the broker names it (``Stable``, ``Empty`` ...) and its members."""

    group_id: str
    state: str
    protocol: str
    members: tuple[MemberDescription, ...]


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """What happened to a batch of a producer, for observers. ``size`` in bytes, uncompressed; ``age`` in seconds.

    ``attempt`` counts from 1; of a batch that was never sent it is 0. ``error`` is the last one of this batch.
    """

    topic: str
    partition: int
    records: int
    size: int
    attempt: int
    age: float
    error: Exception | None


class UnsentRecord(NamedTuple):
    """A record without an outcome: for how long (seconds), where its batch is, and what its last attempt failed with.

    ``phase`` is as of :exc:`DeliveryTimeoutError`.
    """

    partition: TopicPartition
    age: float
    phase: str
    error: Exception | None


@dataclass(frozen=True, slots=True)
class BrokerLatency:
    """How long a broker took to respond to Produce requests: the last, the mean of all, the longest. In seconds.

    What a quota of the broker had them wait (KIP-219) is not in that: these seconds, of all requests together, are ``throttled``.
    """

    last: float
    mean: float
    longest: float
    requests: int
    throttled: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerThrottle:
    """How a broker's quotas have this client wait (KIP-219): by how much a user or a client id may write, read or ask of it.

    In seconds: ``total``, for how long nothing was sent to it so far, on one of its connections at least; ``last``, what it asked
    for last; ``left``, what of all is still to come. So many ``responses`` have asked for it, the last one to an ``api`` such as
    ``"Produce"``.
    """

    total: float
    last: float
    left: float
    responses: int
    api: str


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """One connection to a broker: the one that is there, or is being made, or was there last.

    A bootstrap address has a negative id. ``purpose`` is what it is for: ``"fetch"``, ``"produce"``, ``"group"`` (what may wait
    inside the broker), ``"coordinator"`` or ``"general"``. ``state`` is ``"new"`` (it is dialled, TLS included), ``"negotiating"``,
    ``"authenticating"``, ``"ready"``, ``"reauthenticating"`` (KIP-368) or ``"closed"``; ``seconds`` how long it was in each so far.
    ``in_flight``: requests without a response.
    """

    node: Node
    purpose: str
    state: str
    seconds: Mapping[str, float]
    in_flight: int


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """A connection has changed its state, for observers: see :class:`ConnectionStatistics` for the names.

    ``seconds`` is how long it was in the state ``before``, in all. ``error`` is why it closed, if it was for one.
    """

    node: Node
    purpose: str
    before: str
    state: str
    seconds: float
    error: Exception | None


#: What a :class:`MembershipEvent` tells of.
MembershipEventKind: TypeAlias = Literal[
    "joined", "left", "expelled", "fenced", "session_lost", "coordinator_lost", "coordinator_found"
]


@dataclass(frozen=True, slots=True)
class MembershipEvent:
    """A consumer's membership of its group has changed, or what it knows of the group's coordinator; for observers.

    ``kind``: ``"joined"`` (each generation anew with the classic protocol), ``"left"``, ``"expelled"`` (``max_poll_interval_ms``
    passed without a receive; it joins again at the next one), ``"fenced"`` (the group does not know the member any more, or will
    not have it), ``"session_lost"`` (no heartbeat was answered for a session), ``"coordinator_lost"`` (it moved or does not
    respond) or ``"coordinator_found"``. After ``"expelled"``, ``"fenced"`` and ``"session_lost"`` the partitions are lost.

    ``generation`` is the member epoch where the group has the consumer protocol (KIP-848); -1 outside of the group. ``error`` is
    the cause, if there is one; of ``"left"``, why the group did not confirm it.
    """

    kind: MembershipEventKind
    group_id: str
    member_id: str
    generation: int
    reason: str
    error: Exception | None


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer as the member of its group that it is now: what a transaction's offsets are checked against (KIP-447).

    ``generation`` is the member epoch where the group has the consumer protocol (KIP-848); -1 outside of the group.
    """

    group_id: str
    generation: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """Names a transaction that was prepared (KIP-939). Keep its text (``str``) beside what must happen with it or not at all."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> PreparedTransaction:
        """Read what ``str`` gave. Raises :exc:`ValueError` for anything else."""
        producer_id, colon, epoch = text.partition(":")
        if not (colon and producer_id.isdecimal() and epoch.isdecimal()):
            raise ValueError(f"a prepared transaction is written as '<producer id>:<epoch>', not {text!r}")
        return cls(int(producer_id), int(epoch))


@dataclass(frozen=True, slots=True)
class DetachedTransaction:
    """Names a transaction that its producer has left open, whole and at the brokers; whoever has this may end it.

    Made by :meth:`Transaction.detach`, ended by :meth:`Admin.end_transaction`. It can be pickled. ``version`` is that of the
    protocol (2: KIP-890).
    """

    transactional_id: str
    producer_id: int
    epoch: int
    version: int

    def __str__(self) -> str:
        return f"{self.transactional_id!r} ({self.producer_id}:{self.epoch})"


class OffsetSpec(IntEnum):
    """What ``list_offsets`` looks for, where it is not a timestamp in milliseconds."""

    LATEST = -1
    EARLIEST = -2


class IsolationLevel(Enum):
    """``READ_COMMITTED`` hides records of open and aborted transactions."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class OAuthToken:
    """A token for OAUTHBEARER. ``extensions`` go with it (KIP-342)."""

    value: str = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict)
