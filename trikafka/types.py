"""The values that cross trikafka's public interface. All are immutable; none does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

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


@dataclass(frozen=True, slots=True)
class RecordMetadata:
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
