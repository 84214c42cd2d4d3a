"""The Produce request and its response (versions 3 to 12), written and read by hand. No I/O.

kafka-python builds an object for every partition and copies the records several times on their way
into the frame. Here large batches are not copied at all. :class:`ProduceMessage` looks to ``_net``
like any other message. Only the produce manager uses it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kafka.protocol.api_key import ApiKey

from ._format import Buffer
from .messages import Form, RawRequest, RawResponse
from .reading import FieldReader, LeaderIdAndEpoch, NodeEndpoint, read_endpoints, read_leader

_FLEXIBLE = 9
_INT32 = struct.Struct(">i")
_FRONT = struct.Struct(">hi")
_OUTCOME = struct.Struct(">ihqq")
#: The end of a usual response about one batch: the partition's outcome and log start, no records,
#: no message, no tags of partition and topic; the throttle time, no tags.
_PLAIN = struct.Struct(">ihqqqBBBBiB")

#: A batch for a partition: the partition, and the pieces of the batch.
Part = tuple[int, Sequence[Buffer]]


@dataclass(slots=True)
class ProducedPartition:
    """The broker's answer about one batch.

    ``base_offset`` and ``append_time`` are ``None`` where the broker does not state them.
    ``refused`` has the records because of which the batch was refused, by their index in the batch,
    with the message of each (v8, KIP-467). ``current_leader`` comes with the errors of a broker
    that is not the leader (v10, KIP-951).
    """

    topic: str
    partition: int
    error_code: int
    base_offset: int | None
    append_time: int | None
    message: str | None = None
    refused: dict[int, str | None] = field(default_factory=dict)
    current_leader: LeaderIdAndEpoch | None = None


class ProduceResponse(RawResponse):
    """The response to a Produce request: the answer about each batch, and named leaders' addresses.

    The addresses are those of v10 (KIP-951). ``throttle_ms`` is the time (milliseconds) for which
    the broker wants no requests of this connection, 0 for none.
    """

    API_KEY = ApiKey.Produce
    flexible = _FLEXIBLE
    throttle_position = None
    __slots__ = ("node_endpoints", "partitions", "throttle_ms")

    def __init__(
        self,
        partitions: list[ProducedPartition],
        throttle_ms: int = 0,
        node_endpoints: tuple[NodeEndpoint, ...] = (),
    ) -> None:
        self.partitions = partitions
        self.throttle_ms = throttle_ms
        self.node_endpoints = node_endpoints

    @classmethod
    def decode(cls, body: Buffer, *, version: int) -> ProduceResponse:
        """Read the body of a response. Raises :exc:`DamagedResponseError` for any other bytes."""
        if version >= _FLEXIBLE and (plain := _read_plain(body)) is not None:
            return cls([plain[0]], plain[1])
        reader = FieldReader(memoryview(body), version >= _FLEXIBLE, "Produce")
        partitions = []
        for _ in range(reader.count()):
            topic = reader.required_text()
            for _ in range(reader.count()):
                partitions.append(_read_partition(reader, topic, version))
            reader.tags()
        response = cls(partitions, *reader.unpack(_INT32))
        if version >= _FLEXIBLE:
            for tag, field in reader.tagged():
                if tag == 0 and version >= 10:
                    response.node_endpoints = read_endpoints(field)
        reader.end()
        return response


class ProduceMessage(RawRequest):
    """A Produce request: batches by topic, which must not change until the request is sent.

    ``records`` is the number of records in them.
    """

    API_KEY = ApiKey.Produce
    name = "ProduceRequest"
    max_version = 12
    response = ProduceResponse
    __slots__ = ("_acks", "_timeout_ms", "_topics", "_transactional_id", "records")

    def __init__(
        self,
        topics: Mapping[str, Sequence[Part]],
        *,
        records: int,
        acks: int,
        timeout_ms: int,
        transactional_id: str | None = None,
    ) -> None:
        self._topics = topics
        self.records = records
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._transactional_id = transactional_id

    def expect_response(self) -> bool:
        """Return whether the broker responds: not with ``acks=0``."""
        return self._acks != 0

    def _write(self, pieces: list[Buffer], version: int, form: Form) -> None:
        text, count, tags = form
        pieces += (
            text(self._transactional_id),
            _FRONT.pack(self._acks, self._timeout_ms),
            count(len(self._topics)),
        )
        for name, parts in self._topics.items():
            pieces += (text(name), count(len(parts)))
            for partition, batch in parts:
                pieces += (_INT32.pack(partition), count(sum(map(len, batch))), *batch, tags)
            pieces.append(tags)
        pieces.append(tags)


class ProduceBeforeV2(ProduceMessage):
    """A Produce request of a transaction in version 1.

    From version 12 on a request would itself add its partitions at the coordinator (KIP-890).
    """

    max_version = 11
    __slots__ = ()


def _read_plain(body: Buffer) -> tuple[ProducedPartition, int] | None:
    """Return the partition and the throttle time of a usual response, read in one step.

    A usual response is about one batch that was accepted, without records, message or tags.
    ``None``: the response has to be read field by field.
    """
    end = len(body) - _PLAIN.size
    if end < 3 or body[0] != 2 or body[1] != end - 2 or body[1] > 0x7F or body[end - 1] != 2:
        return None
    partition, code, base, append_time, _, *rest, throttle, tags = _PLAIN.unpack_from(body, end)
    if code or tags or rest != [1, 0, 0, 0]:
        return None
    try:
        topic = str(body[2 : end - 1], "utf-8")
    except UnicodeDecodeError:
        return None
    return _produced(topic, partition, code, base, append_time), throttle


def _produced(
    topic: str, partition: int, error_code: int, base_offset: int, append_time: int
) -> ProducedPartition:
    """Return the answer about one batch from the numbers of a response, where -1 means none."""
    return ProducedPartition(
        topic,
        partition,
        error_code,
        None if base_offset < 0 else base_offset,
        None if append_time < 0 else append_time,
    )


def _read_partition(reader: FieldReader, topic: str, version: int) -> ProducedPartition:
    found = _produced(topic, *reader.unpack(_OUTCOME))
    if version >= 5:
        reader.take(8)  # where the log begins
    if version >= 8:
        first = None
        for _ in range(reader.count()):
            (index,) = reader.unpack(_INT32)
            text = reader.text()
            reader.tags()
            found.refused[index] = found.refused.get(index) or text
            first = first or text or None
        found.message = reader.text() or first
    if version >= _FLEXIBLE and not reader.no_tags():
        for tag, field in reader.tagged():
            if tag == 0 and version >= 10:
                found.current_leader = read_leader(field)
    return found
