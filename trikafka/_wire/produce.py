"""The Produce request and its answer (versions 3 to 12), written and read by hand. No I/O.

kafka-python builds an object for every partition and copies the records several times on their way into the frame; here they
are copied once, when the frame is joined. :class:`ProduceMessage` looks to ``_net`` like any other message. Only the produce
manager uses it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka.protocol.api_key import ApiKey

from ._format import Buffer
from .writing import HandMade

_FLEXIBLE = 9
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_FRONT, _OUTCOME = struct.Struct(">hi"), struct.Struct(">ihqq")

#: A batch for a partition: the partition, and the pieces of the batch.
Part = tuple[int, Sequence[Buffer]]


class ProducedPartition:
    """What the broker says of one batch. ``base_offset`` and ``append_time`` are ``None`` where it does not say."""

    __slots__ = ("append_time", "base_offset", "error_code", "message", "partition", "topic")

    def __init__(self, topic: str, partition: int, error_code: int, base_offset: int, append_time: int) -> None:
        self.topic, self.partition, self.error_code = topic, partition, error_code
        self.base_offset = None if base_offset < 0 else base_offset
        self.append_time = None if append_time < 0 else append_time
        self.message: str | None = None


class ProduceAnswer:
    """The answer to a Produce request: what became of each batch."""

    API_KEY = ApiKey.Produce
    __slots__ = ("partitions",)

    def __init__(self, partitions: list[ProducedPartition]) -> None:
        self.partitions = partitions

    @staticmethod
    def flexible_version_q(version: int) -> bool:
        """Whether lengths are compact and tags follow in this version."""
        return version >= _FLEXIBLE

    @classmethod
    def decode(cls, body: Buffer, *, version: int) -> ProduceAnswer:
        """Read the body of an answer. Raises all sorts of exceptions for other bytes; whoever calls makes them one."""
        reader = _Reader(memoryview(body), version >= _FLEXIBLE)
        partitions = []
        for _ in range(reader.count()):
            topic = reader.text() or ""
            for _ in range(reader.count()):
                partitions.append(_read_partition(reader, topic, version))
            reader.tags()
        reader.take(4)  # throttle time
        reader.tags()
        if reader.position != len(reader.data):
            raise ValueError(f"{len(reader.data) - reader.position} bytes are left")
        return cls(partitions)


class ProduceMessage(HandMade):
    """A Produce request: batches by topic. It is encoded once, so the pieces may be given up after that."""

    API_KEY = ApiKey.Produce
    name = "ProduceRequest"
    max_version = 12
    flexible = _FLEXIBLE
    answer = ProduceAnswer
    __slots__ = ("_acks", "_timeout_ms", "_topics", "_transactional_id")

    def __init__(
        self, topics: Mapping[str, Sequence[Part]], *, acks: int, timeout_ms: int, transactional_id: str | None = None
    ) -> None:
        super().__init__()
        self._topics, self._acks, self._timeout_ms, self._transactional_id = topics, acks, timeout_ms, transactional_id

    def expect_response(self) -> bool:
        """Whether the broker answers."""
        return self._acks != 0

    def _write(
        self, pieces: list[Buffer], version: int, text: Callable[[str | None], bytes], count: Callable[[int], bytes], tags: bytes
    ) -> None:
        pieces += (text(self._transactional_id), _FRONT.pack(self._acks, self._timeout_ms), count(len(self._topics)))
        for name, parts in self._topics.items():
            pieces += (text(name), count(len(parts)))
            for partition, batch in parts:
                pieces += (_INT32.pack(partition), count(sum(map(len, batch))), *batch, tags)
            pieces.append(tags)
        pieces.append(tags)


class _Reader:
    """A cursor over an answer, in one of the two ways in which lengths are written."""

    __slots__ = ("compact", "data", "position")

    def __init__(self, data: memoryview, compact: bool) -> None:
        self.data, self.position, self.compact = data, 0, compact

    def take(self, size: int) -> memoryview:
        start = self.position
        if not 0 <= size <= len(self.data) - start:
            raise ValueError("a field reaches beyond the end")
        self.position = start + size
        return self.data[start : start + size]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self.take(layout.size))

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte: int = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a length is malformed")

    def count(self) -> int:
        """How many entries an array has; each takes a byte at least."""
        count: int = self.uvarint() - 1 if self.compact else self.unpack(_INT32)[0]
        if count > len(self.data) - self.position:
            raise ValueError("an array is longer than the answer")
        return count

    def text(self) -> str | None:
        size: int = self.uvarint() - 1 if self.compact else self.unpack(_INT16)[0]
        return None if size < 0 else str(self.take(size), "utf-8")

    def tags(self) -> None:
        if self.compact:
            for _ in range(self.uvarint()):
                self.uvarint()
                self.take(self.uvarint())


def _read_partition(reader: _Reader, topic: str, version: int) -> ProducedPartition:
    found = ProducedPartition(topic, *reader.unpack(_OUTCOME))
    if version >= 5:
        reader.take(8)  # where the log begins
    if version >= 8:
        texts = []
        for _ in range(reader.count()):
            reader.take(4)  # the record's index
            texts.append(reader.text())
            reader.tags()
        found.message = reader.text() or next((text for text in texts if text), None)
    reader.tags()
    return found
