"""The Fetch request and its response (versions 4 to 17), written and read by hand. No I/O.

kafka-python's decoder copies every ``records`` field. A fetch carries megabytes, so this module
reads the few fields around the records by hand, and returns slices of the frame. Only the fetch
manager uses it.

From version 13 on topics have ids instead of names (KIP-516), in requests and in responses. A
:class:`FetchMessage` that knows the id of every topic it names may be sent in version 17, others in
12 at most. In a fetch session (KIP-227) that must not change: a session that began with names takes
no ids. So the session's owner gives ``topic_ids`` for all its requests or for none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from kafka.protocol.api_key import ApiKey

from ..errors import DamagedResponseError
from . import _implementation
from ._format import Buffer
from .messages import Form, RawRequest, RawResponse
from .reading import FieldReader, LeaderIdAndEpoch, NodeEndpoint, read_endpoints, read_leader

_FLEXIBLE = 12
_WITH_IDS = 13
_MISSING = memoryview(b"")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_FRONT = struct.Struct(">iiiib")
_FRONT_V15 = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
#: The session fields of a request without a session, and of one that begins a session.
NO_SESSION, NEW_SESSION = (0, -1), (0, 0)

#: The parameters for one partition: its number, its leader's epoch (-1: not known), the offset to
#: begin at, and the epoch of the record before that offset (-1 or left out: not known). By the last
#: one the broker detects a truncated log (KIP-320, v12).
Wanted = tuple[int, int, int] | tuple[int, int, int, int]


class EpochEndOffset(NamedTuple):
    """The end of an epoch in the leader's log (KIP-320, KIP-595).

    The log agrees with what was read up to ``end_offset``, where ``epoch`` ends.
    """

    epoch: int
    end_offset: int


@dataclass(slots=True)
class FetchedPartition:
    """A partition of a Fetch response.

    ``topic`` is its name; "" if the response has an id for which the reader was given no name.
    ``records`` is a slice of the frame. ``aborted`` has (producer id, first offset) of each aborted
    transaction; ``None`` for a read-uncommitted fetch. ``preferred_replica`` is the broker to fetch
    from instead (KIP-392), -1 for none; with one there are no records. ``diverging``: records that
    were read before are no longer in the log (KIP-320). ``current_leader`` comes with the errors of
    a broker that is not the leader (KIP-951).
    """

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None
    preferred_replica: int
    records: memoryview
    topic_id: UUID | None = None
    diverging: EpochEndOffset | None = None
    current_leader: LeaderIdAndEpoch | None = None


@dataclass(slots=True)
class FetchResponse(RawResponse):
    """A Fetch response: the error and session of the whole, and each partition's part.

    Read by :func:`read_fetch_response`.

    ``throttle_ms`` is the time (milliseconds) for which the broker wants no requests of this
    connection, 0 for none. ``session_id`` is 0 if the broker has no session for the client. In a
    session only partitions with news are present. ``node_endpoints`` are the addresses of the
    leaders that ``current_leader`` names (v16).
    """

    throttle_ms: int
    error_code: int
    session_id: int
    partitions: list[FetchedPartition]
    node_endpoints: tuple[NodeEndpoint, ...] = ()

    API_KEY = ApiKey.Fetch
    flexible = _FLEXIBLE
    throttle_position = 0


class FetchMessage(RawRequest):
    """A Fetch request: partitions by topic, with limits in bytes and time.

    ``partition_bytes`` is the limit of each partition, ``max_bytes`` of all, ``max_wait_ms`` the
    longest wait.

    ``session`` is (session id, session epoch): ``NO_SESSION`` (the default), ``NEW_SESSION``, or
    the id that the broker gave with 1, 2, … (KIP-227). In a session ``topics`` has what is new or
    has changed, and ``forgotten`` the partitions that leave it. Brokers older than version 7 have
    no sessions, and take every request for a whole one.

    ``topic_ids`` has the id of every topic in ``topics`` and ``forgotten``. Without it, or if one
    is missing, the request is written in version 12 at most, with names. ``rack`` requests a
    replica that is near (v11, KIP-392).
    """

    API_KEY = ApiKey.Fetch
    name = "FetchRequest"
    response = FetchResponse
    __slots__ = (
        "_forgotten",
        "_front",
        "_partition_bytes",
        "_rack",
        "_session",
        "_topic_ids",
        "_topics",
        "max_version",
    )

    def __init__(
        self,
        topics: Mapping[str, Sequence[Wanted]],
        *,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        partition_bytes: int,
        isolation_level: int = 0,
        rack: str = "",
        session: tuple[int, int] = NO_SESSION,
        forgotten: Mapping[str, Sequence[int]] | None = None,
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> None:
        self._topics = topics
        self._partition_bytes = partition_bytes
        self._rack = rack
        self._front = (max_wait_ms, min_bytes, max_bytes, isolation_level)
        self._session = session
        self._forgotten = forgotten or {}
        self._topic_ids = topic_ids or {}
        named = topics.keys() | self._forgotten.keys()
        knows_all = topic_ids is not None and topic_ids.keys() >= named
        self.max_version = 17 if knows_all else 12

    def _write(self, pieces: list[Buffer], version: int, form: Form) -> None:
        text, count, tags = form
        pieces.append(
            _FRONT_V15.pack(*self._front) if version >= 15 else _FRONT.pack(-1, *self._front)
        )
        if version >= 7:
            pieces.append(_SESSION.pack(*self._session))
        pieces.append(count(len(self._topics)))
        for name, parts in self._topics.items():
            pieces += (self._topic(name, version, text), count(len(parts)))
            self._write_partitions(pieces, parts, version)
            pieces.append(tags)
        if version >= 7:
            pieces.append(count(len(self._forgotten)))
            for name, numbers in self._forgotten.items():
                pieces += (
                    self._topic(name, version, text),
                    count(len(numbers)),
                    *map(_INT32.pack, numbers),
                    tags,
                )
        if version >= 11:
            pieces.append(text(self._rack))
        pieces.append(tags)

    def _topic(self, name: str, version: int, text: Callable[[str | None], bytes]) -> bytes:
        return self._topic_ids[name].bytes if version >= _WITH_IDS else text(name)

    def _write_partitions(
        self, pieces: list[Buffer], parts: Sequence[Wanted], version: int
    ) -> None:
        # -1 is the log start offset: only replicas have one.
        size, none = self._partition_bytes, -1
        if version >= 12:
            for part in parts:
                partition, epoch, offset = part[:3]
                last_epoch = part[3] if len(part) > 3 else -1
                pieces.append(_WANTED_V12.pack(partition, epoch, offset, last_epoch, none, size, 0))
        elif version >= 9:
            pieces += [_WANTED_V9.pack(part[0], part[1], part[2], none, size) for part in parts]
        elif version >= 5:
            pieces += [_WANTED_V5.pack(part[0], part[2], none, size) for part in parts]
        else:
            pieces += [_WANTED_V4.pack(part[0], part[2], size) for part in parts]


#: partition, (leader epoch,) fetch offset, (last fetched epoch,) (log start,) size(, no tags).
_WANTED_V4 = struct.Struct(">iqi")
_WANTED_V5 = struct.Struct(">iqqi")
_WANTED_V9 = struct.Struct(">iiqqi")
_WANTED_V12 = struct.Struct(">iiqiqib")
#: What a usual response has before the length of its records: throttle, error, session id; one
#: topic (id); one partition: number, error, high watermark, last stable offset, log start; whether
#: there is a list of aborted transactions; preferred replica.
_PLAIN = struct.Struct(">ihiB16sBihqqqBi")
_NO_TAGS = bytes(3)
_HEAD_V7 = struct.Struct(">hi")
_PARTITION = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_EPOCH_END = struct.Struct(">iq")
_DIVERGING, _CURRENT_LEADER, _NODE_ENDPOINTS = 0, 1, 0  # tags
#: An aborted transaction has at least one batch, its marker. ``_SOME`` elements are always allowed.
_LEAST_BATCH, _SOME = 61, 1_000
#: The fewest bytes of a topic and of a partition in a response.
_LEAST_TOPIC, _LEAST_PARTITION = 3, _PARTITION.size + 2


class TooManyBytesError(DamagedResponseError):
    """A response brings far more bytes of records than were requested."""


def read_fetch_response(
    body: memoryview,
    version: int,
    names: Mapping[UUID, str] | None = None,
    asked: int | None = None,
    most: int | None = None,
) -> FetchResponse:
    """Read the body of a Fetch response in ``version`` (4 to 17).

    Args:
        body: The bytes after the response's header.
        version: The version of the request.
        names: The names of the requested topics by id. From version 13 on a response has only ids.
        asked: The number of partitions requested. A response with many more, or with more aborted
            transactions than it can hold records of, is damaged.
        most: The bytes of records requested. Twice as many are allowed, and one more batch, which
            comes whole at any size (KIP-74).

    Raises:
        DamagedResponseError: The bytes are not such a response.
        TooManyBytesError: There are more bytes of records than allowed.
    """
    if version >= _WITH_IDS and (plain := _read_plain(body, names or {}, most)) is not None:
        return plain
    reader = FieldReader(body, version >= _FLEXIBLE, "Fetch")
    reader.allow(_SOME + (len(body) if asked is None else 4 * asked) + len(body) // _LEAST_BATCH)
    (throttle,) = reader.unpack(_INT32)
    error_code, session_id = reader.unpack(_HEAD_V7) if version >= 7 else (0, 0)
    partitions: list[FetchedPartition] = []
    for _ in range(reader.count(_LEAST_TOPIC)):
        topic_id: UUID | None = None
        if version >= _WITH_IDS:
            topic_id = reader.topic_id()
            topic = "" if names is None else names.get(topic_id, "")
        else:
            topic = reader.required_text()
        for _ in range(reader.count(_LEAST_PARTITION)):
            found = _read_partition(reader, topic, version)
            found.topic_id = topic_id
            partitions.append(found)
        reader.tags()
    response = FetchResponse(throttle, error_code, session_id, partitions)
    if version >= _FLEXIBLE:
        for tag, field in reader.tagged():
            if tag == _NODE_ENDPOINTS and version >= 16:
                response.node_endpoints = read_endpoints(field)
    reader.end()
    if most is not None and (count := sum(len(part.records) for part in partitions)) > 2 * most:
        largest = max(_first_batch(part.records) for part in partitions)
        if count - largest > 2 * most:
            raise TooManyBytesError(
                f"the response to Fetch brings {count:,} bytes of records, and was asked for "
                f"{most:,}: more than was asked for"
            )
    return response


def _read_plain(
    body: memoryview, names: Mapping[UUID, str], most: int | None
) -> FetchResponse | None:
    """Return a usual response to a consumer that reads record by record, read in one step.

    It is about one partition that has a few records, and has no error, aborted transactions or
    tags. ``None``: the response has to be read field by field.
    """
    if len(body) < _PLAIN.size + 5:
        return None
    throttle, error_code, session_id, topics, topic_id, parts, *fields = _PLAIN.unpack_from(body)
    partition, partition_error, high_watermark, last_stable, log_start, aborted, preferred = fields
    size = body[_PLAIN.size]
    start = _PLAIN.size + 1
    if size >= 0x80:
        size = size & 0x7F | body[start] << 7
        start += 1
    end = start + size - 1  # a length is one more than the bytes
    if (
        (topics, parts, error_code, partition_error) != (2, 2, 0, 0)
        or aborted > 1
        or body[start - 1] >= 0x80
        or size < 1
        or body[end:] != _NO_TAGS
        or (most is not None and size > most)  # near the limit: checked field by field
    ):
        return None
    known_id = UUID(bytes=topic_id)
    found = FetchedPartition(
        names.get(known_id, ""),
        partition,
        partition_error,
        high_watermark,
        last_stable,
        log_start,
        [] if aborted else None,
        preferred,
        body[start:end],
        known_id,
    )
    return FetchResponse(throttle, error_code, session_id, [found])


def _first_batch(records: memoryview) -> int:
    """Return the number of bytes of the first batch, as far as they are here."""
    return (
        min(len(records), 12 + max(0, _INT32.unpack_from(records, 8)[0]))
        if len(records) >= 12
        else len(records)
    )


def _read_partition(reader: FieldReader, topic: str, version: int) -> FetchedPartition:
    partition, error_code, high_watermark, last_stable = reader.unpack(_PARTITION)
    log_start = reader.unpack(_INT64)[0] if version >= 5 else -1
    aborted: list[tuple[int, int]] | None = None
    if (count := reader.count(_ABORTED.size)) >= 0:
        aborted = []
        for _ in range(count):
            producer_id, first_offset = reader.unpack(_ABORTED)
            aborted.append((producer_id, first_offset))
            reader.tags()
    preferred = reader.unpack(_INT32)[0] if version >= 11 else -1
    size = reader.length()
    records = reader.take(size) if size >= 0 else _MISSING
    found = FetchedPartition(
        topic,
        partition,
        error_code,
        high_watermark,
        last_stable,
        log_start,
        aborted,
        preferred,
        records,
    )
    if version >= _FLEXIBLE and not reader.no_tags():
        _read_partition_tags(reader, found)
    return found


def _read_partition_tags(reader: FieldReader, found: FetchedPartition) -> None:
    for tag, field in reader.tagged():
        if tag == _DIVERGING:
            epoch, end_offset = field.unpack(_EPOCH_END)
            field.tags()
            field.end()
            found.diverging = EpochEndOffset(epoch, end_offset) if epoch >= 0 else None
        elif tag == _CURRENT_LEADER:
            found.current_leader = read_leader(field)


def is_damaged(records: memoryview) -> bool:
    """Return whether the first batch is invalid, no matter how much of it is here."""
    if len(records) < 17:
        return False
    size = _INT32.unpack_from(records, 8)[0]
    magic = records[16]
    return bool(size < (49 if magic == 2 else 14) or magic > 2)


def end_of_batches(records: memoryview, start: int) -> int | None:
    """Return the offset after the last complete record batch in ``records``.

    Only the headers of the batches are read. Without a complete batch the result is ``start``. It
    is ``None`` for the old formats, whose offsets show only when they are decoded.
    """
    return _implementation.current.end_of_batches(records, start)
