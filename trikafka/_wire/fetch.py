"""The Fetch request and its answer (versions 4 to 12), written and read by hand. No I/O.

kafka-python's decoder copies every ``records`` field. A fetch carries megabytes, so this one reads the few fields around
them by hand and hands out slices of the frame. Only the fetch manager uses it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kafka.protocol.api_key import ApiKey

from . import _implementation
from ._format import Buffer
from .reading import Reader
from .writing import HandMade

_FLEXIBLE = 12
_MISSING = memoryview(b"")
_FRONT = struct.Struct(">iiiib")
_INT32, _INT64 = struct.Struct(">i"), struct.Struct(">q")
_NO_SESSION = struct.pack(">ii", 0, -1)
_UNKNOWN_EPOCH, _UNKNOWN_START = _INT32.pack(-1), _INT64.pack(-1)


@dataclass(slots=True)
class FetchedPartition:
    """One partition of a Fetch answer. ``records`` is a slice of the frame; ``aborted`` is (producer id, first offset)."""

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None
    preferred_replica: int
    records: memoryview


@dataclass(slots=True)
class FetchAnswer:
    """One Fetch answer: the error and session of the whole, and each partition's part. Read by :func:`read_fetch_answer`."""

    throttle_ms: int
    error_code: int
    session_id: int
    partitions: list[FetchedPartition]

    API_KEY = ApiKey.Fetch

    @staticmethod
    def flexible_version_q(version: int) -> bool:
        """Whether lengths are compact and tags follow in this version."""
        return version >= _FLEXIBLE


#: What to fetch of a partition: its number, its leader's epoch (-1: not known), the offset to begin at.
Wanted = tuple[int, int, int]


class FetchMessage(HandMade):
    """A Fetch request without a session: partitions by topic, ``partition_bytes`` at most of each, ``max_bytes`` of all."""

    API_KEY = ApiKey.Fetch
    name = "FetchRequest"
    max_version = 12
    flexible = _FLEXIBLE
    answer = FetchAnswer
    __slots__ = ("_front", "_isolation", "_partition_bytes", "_rack", "_topics")

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
    ) -> None:
        super().__init__()
        self._topics, self._partition_bytes, self._rack = topics, partition_bytes, rack
        self._front = (-1, max_wait_ms, min_bytes, max_bytes, isolation_level)

    def _write(
        self, pieces: list[Buffer], version: int, text: Callable[[str | None], bytes], count: Callable[[int], bytes], tags: bytes
    ) -> None:
        pieces.append(_FRONT.pack(*self._front))
        if version >= 7:
            pieces.append(_NO_SESSION)
        pieces.append(count(len(self._topics)))
        for name, parts in self._topics.items():
            pieces += (text(name), count(len(parts)))
            for partition, epoch, offset in parts:
                pieces.append(_INT32.pack(partition))
                if version >= 9:
                    pieces.append(_INT32.pack(epoch))
                pieces.append(_INT64.pack(offset))
                if version >= 12:
                    pieces.append(_UNKNOWN_EPOCH)
                if version >= 5:
                    pieces.append(_UNKNOWN_START)
                pieces += (_INT32.pack(self._partition_bytes), tags)
            pieces.append(tags)
        if version >= 7:
            pieces.append(count(0))  # topics that a session forgets
        if version >= 11:
            pieces.append(text(self._rack))
        pieces.append(tags)


_HEAD_V7, _PARTITION = struct.Struct(">hi"), struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")


def read_fetch_answer(body: memoryview, version: int) -> FetchAnswer:
    """Read the body of a Fetch answer in ``version`` (4 to 12). Raises :exc:`ProtocolError` for any other bytes."""
    reader = Reader(body, version >= _FLEXIBLE, "Fetch")
    (throttle,) = reader.unpack(_INT32)
    error_code, session_id = reader.unpack(_HEAD_V7) if version >= 7 else (0, 0)
    partitions: list[FetchedPartition] = []
    for _ in range(reader.count()):
        topic = reader.topic()
        for _ in range(reader.count()):
            partitions.append(_read_partition(reader, topic, version))
        reader.tags()
    reader.tags()
    reader.end()
    return FetchAnswer(throttle, error_code, session_id, partitions)


def _read_partition(reader: Reader, topic: str, version: int) -> FetchedPartition:
    partition, error_code, high_watermark, last_stable = reader.unpack(_PARTITION)
    log_start = reader.unpack(_INT64)[0] if version >= 5 else -1
    aborted: list[tuple[int, int]] | None = None
    if (count := reader.count()) >= 0:
        aborted = []
        for _ in range(count):
            producer_id, first_offset = reader.unpack(_ABORTED)
            aborted.append((producer_id, first_offset))
            reader.tags()
    preferred = reader.unpack(_INT32)[0] if version >= 11 else -1
    size = reader.length()
    records = reader.take(size) if size >= 0 else _MISSING
    reader.tags()
    return FetchedPartition(topic, partition, error_code, high_watermark, last_stable, log_start, aborted, preferred, records)


def is_damaged(records: memoryview) -> bool:
    """Whether the first batch cannot be right, however much of it has come."""
    if len(records) < 17:
        return False
    size, magic = _INT32.unpack_from(records, 8)[0], records[16]
    return bool(size < (49 if magic == 2 else 14) or magic > 2)


def end_of_batches(records: memoryview, start: int) -> int | None:
    """The offset after the last complete record batch in ``records``, read from the batches' headers alone.

    ``start`` when there is no complete batch; ``None`` for the old formats, whose offsets show only when they are decoded.
    """
    return _implementation.current.end_of_batches(records, start)
