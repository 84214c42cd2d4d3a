"""ShareFetch and ShareAcknowledge (versions 1 and 2), written and read by hand. No I/O.

A ShareFetch carries megabytes of records, as a Fetch does, so its reader returns slices of the
frame (KIP-932). Both requests carry acknowledgements. Version 2 adds the mode of acquiring
(KIP-1206) and renewals of locks (KIP-1222).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, Generic, NamedTuple, Self, TypeVar
from uuid import UUID

from ..errors import DamagedResponseError
from ._format import Buffer
from .messages import Form, RawRequest, RawResponse
from .reading import FieldReader, LeaderIdAndEpoch, NodeEndpoint

Part = TypeVar("Part")
#: The epochs of a request that opens a share session, and of one that closes it.
OPENS, CLOSES = 0, -1
#: The first version with renewals and with the mode of acquiring.
WITH_RENEWALS = 2
_SHARE_FETCH, _SHARE_ACKNOWLEDGE = 78, 79
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_LIMITS = struct.Struct(">iiiiii")
_MODE = struct.Struct(">bb")
_RANGE = struct.Struct(">qq")
_ACQUIRED = struct.Struct(">qqh")
_LEADER = struct.Struct(">ii")
_HEAD = struct.Struct(">ih")
_PARTITION = struct.Struct(">ih")
#: The fewest bytes of a topic and an endpoint in a response.
_LEAST_TOPIC, _LEAST_ENDPOINT = 18, 11
#: Elements that a response may always have.
_SOME = 1_000
#: The most offsets that a response may acquire in one partition. Kafka's own limit is 4,000 locks,
#: passed by no more than a batch.
_MOST_ACQUIRED = 1_000_000


class AckType(IntEnum):
    """The outcome of an acquired record, as an acknowledgement states it."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AckBatch(NamedTuple):
    """Acknowledgements of a range of offsets; a single type holds for the whole range."""

    first: int
    last: int
    types: bytes


#: A partition of a request: its topic's id and its number.
SharePartition = tuple[UUID, int]
#: The acknowledgements for each partition that a request names.
Acknowledgements = Mapping[SharePartition, Sequence[AckBatch]]


class AcquiredRange(NamedTuple):
    """A range of offsets that a response acquired, with the number of their deliveries."""

    first: int
    last: int
    delivery_count: int


@dataclass(slots=True)
class ShareFetchedPartition:
    """A partition of a ShareFetch response.

    ``records`` is a slice of the frame, with whole batches: only offsets in ``acquired`` are this
    member's. ``acknowledge_error`` is the outcome of the acknowledgements in the request.
    """

    topic_id: UUID
    partition: int
    error_code: int
    error_message: str | None
    acknowledge_error: int
    acknowledge_message: str | None
    current_leader: LeaderIdAndEpoch | None
    records: memoryview
    acquired: list[AcquiredRange]

    @property
    def key(self) -> SharePartition:
        """The topic's id and the partition's number."""
        return self.topic_id, self.partition


@dataclass(slots=True)
class _ShareResponse(RawResponse, Generic[Part]):
    """The common form of both responses."""

    throttle_ms: int
    error_code: int
    error_message: str | None
    lock_ms: int
    partitions: list[Part] = field(default_factory=list)
    node_endpoints: tuple[NodeEndpoint, ...] = ()

    #: The name of the API, for errors.
    api: ClassVar[str]
    #: The first version with the time of the locks.
    locks_since: ClassVar[int]
    #: The fewest bytes of a partition.
    least: ClassVar[int]
    flexible = 0
    throttle_position = 0

    @classmethod
    def decode(cls, body: memoryview, version: int) -> Self:
        """Read the body of a response.

        Raises:
            DamagedResponseError: The bytes are not such a response.
        """
        reader = FieldReader(memoryview(body), True, cls.api)
        reader.allow(_SOME + len(body))
        throttle, error_code = reader.unpack(_HEAD)
        message = reader.text()
        lock = reader.unpack(_INT32)[0] if version >= cls.locks_since else 0
        response = cls(throttle, error_code, message, lock)
        for _ in range(reader.count(_LEAST_TOPIC)):
            topic_id = reader.topic_id()
            for _ in range(reader.count(cls.least)):
                response.partitions.append(cls.read_partition(reader, topic_id))
            reader.tags()
        response.node_endpoints = _read_endpoints(reader)
        reader.tags()
        reader.end()
        return response

    @staticmethod
    def read_partition(reader: FieldReader, topic_id: UUID) -> Part:
        """Read one partition."""
        raise NotImplementedError


class ShareFetchResponse(_ShareResponse[ShareFetchedPartition]):
    """A ShareFetch response. ``lock_ms`` is the time for which acquired records are locked."""

    API_KEY = _SHARE_FETCH
    api = "ShareFetch"
    locks_since = 0
    least = 20
    __slots__ = ()

    @staticmethod
    def read_partition(reader: FieldReader, topic_id: UUID) -> ShareFetchedPartition:
        """Read one partition."""
        partition, error_code = reader.unpack(_PARTITION)
        message = reader.text()
        (acknowledge_error,) = reader.unpack(_INT16)
        acknowledge_message = reader.text()
        leader = _read_leader(reader)
        size = reader.length()
        records = reader.take(max(0, size))
        acquired = []
        for _ in range(reader.count(_ACQUIRED.size)):
            first, last, count = reader.unpack(_ACQUIRED)
            reader.tags()
            acquired.append(AcquiredRange(first, last, count))
        reader.tags()
        _check_ranges(acquired)
        return ShareFetchedPartition(
            topic_id,
            partition,
            error_code,
            message,
            acknowledge_error,
            acknowledge_message,
            leader,
            records,
            acquired,
        )


def _check_ranges(acquired: list[AcquiredRange]) -> None:
    """Sort the ranges, and raise :exc:`DamagedResponseError` if they are impossible."""
    acquired.sort()
    before, offsets = -1, 0
    for first, last, _ in acquired:
        offsets += last - first + 1
        if first <= before or last < first or offsets > _MOST_ACQUIRED:
            raise DamagedResponseError(
                f"a ShareFetch response acquires the offsets {first} to {last} after {before}"
            )
        before = last


def _read_leader(reader: FieldReader) -> LeaderIdAndEpoch | None:
    leader_id, epoch = reader.unpack(_LEADER)
    reader.tags()
    return LeaderIdAndEpoch(leader_id, epoch) if leader_id >= 0 and epoch >= 0 else None


def _read_endpoints(reader: FieldReader) -> tuple[NodeEndpoint, ...]:
    endpoints = []
    for _ in range(reader.count(_LEAST_ENDPOINT)):
        (node_id,) = reader.unpack(_INT32)
        host = reader.required_text()
        (port,) = reader.unpack(_INT32)
        endpoints.append(NodeEndpoint(node_id, host, port, reader.text()))
        reader.tags()
    return tuple(endpoints)


@dataclass(slots=True)
class AcknowledgedPartition:
    """The outcome of one partition's acknowledgements, which fail together."""

    topic_id: UUID
    partition: int
    error_code: int
    error_message: str | None
    current_leader: LeaderIdAndEpoch | None

    @property
    def key(self) -> SharePartition:
        """The topic's id and the partition's number."""
        return self.topic_id, self.partition


class ShareAcknowledgeResponse(_ShareResponse[AcknowledgedPartition]):
    """A ShareAcknowledge response. ``lock_ms`` is 0 in version 1."""

    API_KEY = _SHARE_ACKNOWLEDGE
    api = "ShareAcknowledge"
    locks_since = WITH_RENEWALS
    least = 8
    __slots__ = ()

    @staticmethod
    def read_partition(reader: FieldReader, topic_id: UUID) -> AcknowledgedPartition:
        """Read one partition."""
        partition, code = reader.unpack(_PARTITION)
        text = reader.text()
        leader = _read_leader(reader)
        reader.tags()
        return AcknowledgedPartition(topic_id, partition, code, text, leader)


class FetchLimits(NamedTuple):
    """The limits of a ShareFetch."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int


class _ShareRequest(RawRequest):
    """The common part of both requests: the member, the session's epoch, acknowledgements."""

    __slots__ = ("_acknowledgements", "_epoch", "_group", "_member", "_renews", "max_version")

    def __init__(
        self, group: str, member: str, epoch: int, acknowledgements: Acknowledgements, renews: bool
    ) -> None:
        self.max_version = 2
        self._group = group
        self._member = member
        self._epoch = epoch
        self._acknowledgements = acknowledgements
        self._renews = renews

    def _write_topics(
        self, pieces: list[Buffer], count: Callable[[int], bytes], tags: bytes
    ) -> None:
        topics: dict[UUID, list[tuple[int, Sequence[AckBatch]]]] = {}
        for (topic_id, partition), batches in self._acknowledgements.items():
            topics.setdefault(topic_id, []).append((partition, batches))
        pieces.append(count(len(topics)))
        for topic_id, parts in topics.items():
            pieces += (topic_id.bytes, count(len(parts)))
            for partition, batches in parts:
                pieces += (_INT32.pack(partition), count(len(batches)))
                for first, last, types in batches:
                    pieces += (_RANGE.pack(first, last), count(len(types)), types, tags)
                pieces.append(tags)
            pieces.append(tags)


class ShareFetchMessage(_ShareRequest):
    """A ShareFetch request: partitions that join or leave the session, and acknowledgements.

    Args:
        group: The group's id.
        member: The member's id.
        epoch: The session's epoch, or :data:`OPENS`.
        acknowledgements: The partitions that join the session, without acknowledgements, and those
            with acknowledgements.
        limits: What the response may bring.
        by_record: Acquire no more than ``max_records`` (KIP-1206); brokers older than Kafka 4.2
            acquire whole batches.
        forgotten: The partitions that leave the session.
    """

    API_KEY = _SHARE_FETCH
    name = "ShareFetchRequest"
    response = ShareFetchResponse
    # Nearly all of a response is records, which are only cut out here: that takes less time than a
    # thread. At worst, half a megabyte of acquired ranges takes about 40 ms, and of partitions
    # without records 0.1 s.
    large = 2**19
    __slots__ = ("_by_record", "_forgotten", "_limits")

    def __init__(
        self,
        group: str,
        member: str,
        epoch: int,
        acknowledgements: Acknowledgements,
        limits: FetchLimits,
        *,
        by_record: bool = False,
        forgotten: Sequence[SharePartition] = (),
    ) -> None:
        super().__init__(group, member, epoch, acknowledgements, False)
        self._limits = limits
        self._by_record = by_record
        self._forgotten = forgotten

    def _write(self, pieces: list[Buffer], version: int, form: Form) -> None:
        text, count, tags = form
        pieces += (text(self._group), text(self._member), _LIMITS.pack(self._epoch, *self._limits))
        if version >= WITH_RENEWALS:
            pieces.append(_MODE.pack(self._by_record, False))
        self._write_topics(pieces, count, tags)
        forgotten: dict[UUID, list[int]] = {}
        for topic_id, partition in self._forgotten:
            forgotten.setdefault(topic_id, []).append(partition)
        pieces.append(count(len(forgotten)))
        for topic_id, numbers in forgotten.items():
            pieces += (topic_id.bytes, count(len(numbers)), *map(_INT32.pack, numbers), tags)
        pieces.append(tags)


class ShareAcknowledgeMessage(_ShareRequest):
    """A ShareAcknowledge request; with the epoch :data:`CLOSES` it ends the session.

    The arguments are those of :class:`ShareFetchMessage`. ``renews``: an acknowledgement renews a
    lock.
    """

    API_KEY = _SHARE_ACKNOWLEDGE
    name = "ShareAcknowledgeRequest"
    response = ShareAcknowledgeResponse
    __slots__ = ()

    def __init__(
        self,
        group: str,
        member: str,
        epoch: int,
        acknowledgements: Acknowledgements,
        *,
        renews: bool,
    ) -> None:
        super().__init__(group, member, epoch, acknowledgements, renews)

    def _write(self, pieces: list[Buffer], version: int, form: Form) -> None:
        text, count, tags = form
        pieces += (text(self._group), text(self._member), _INT32.pack(self._epoch))
        if version >= WITH_RENEWALS:
            pieces.append(b"\x01" if self._renews else b"\x00")
        self._write_topics(pieces, count, tags)
        pieces.append(tags)
