"""The Produce request and its answer (versions 3 to 12), written and read by hand. No I/O.

kafka-python builds an object for every partition and copies the records several times on their way into the frame; here large
batches are not copied at all. :class:`ProduceMessage` looks to ``_net`` like any other message. Only the produce
manager uses it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

from kafka.protocol.api_key import ApiKey

from ._format import Buffer
from .reading import Reader
from .writing import HandMade

_FLEXIBLE = 9
_INT32 = struct.Struct(">i")
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
        """Read the body of an answer. Raises :exc:`ProtocolError` for any other bytes."""
        reader = Reader(memoryview(body), version >= _FLEXIBLE, "Produce")
        partitions = []
        for _ in range(reader.count()):
            topic = reader.topic()
            for _ in range(reader.count()):
                partitions.append(_read_partition(reader, topic, version))
            reader.tags()
        reader.take(4)  # throttle time
        reader.tags()
        reader.end()
        return cls(partitions)


class ProduceMessage(HandMade):
    """A Produce request: batches by topic, which must not change until it is sent."""

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


def _read_partition(reader: Reader, topic: str, version: int) -> ProducedPartition:
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
