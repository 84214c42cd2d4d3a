"""Record batches (format v2) as bytes: creation, reading and rewriting as in a broker.

Pure functions. Compression uses cramjam, records use kafka-python's record classes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import cramjam
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from trikafka._checksum import crc32c
from trikafka.error_codes import ErrorCode
from trikafka.types import Record, TimestampType

#: A record that a test appends: a value, or ``(key, value[, timestamp in ms[, headers]])``.
Appendable: TypeAlias = (
    bytes
    | tuple[bytes | None, bytes | None]
    | tuple[bytes | None, bytes | None, int | None]
    | tuple[bytes | None, bytes | None, int | None, Sequence[tuple[str, bytes | None]]]
    | None
)

HEADER_SIZE = 61
_HEADER = struct.Struct(">qiibIhiqqqhii")
_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_XERIAL = b"\x82SNAPPY\x00"


class BadBatch(Exception):
    """The bytes are not a complete, valid record batch.

    ``code`` is the error code of the broker's response.
    """

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """The header of a batch."""

    base_offset: int
    size: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record. Sequence numbers wrap to 0 after 2**31 - 1."""
        return (self.base_sequence + self.last_offset_delta) % 2**31

    @property
    def transactional(self) -> bool:
        """True if the batch belongs to a transaction."""
        return bool(self.attributes & 0x10)

    @property
    def control(self) -> bool:
        """True if the batch is the marker of a transaction's end."""
        return bool(self.attributes & 0x20)


def split_batches(data: bytes) -> list[bytes]:
    """Split the ``records`` field of a request into its batches.

    Raises:
        BadBatch: The batches do not fill the field exactly.
    """
    batches, position = [], 0
    while position < len(data):
        if len(data) - position < HEADER_SIZE:
            raise BadBatch(ErrorCode.INVALID_RECORD, "a batch shorter than its header")
        end = position + 12 + int(struct.unpack_from(">i", data, position + 8)[0])
        if end < position + HEADER_SIZE or end > len(data):
            raise BadBatch(ErrorCode.INVALID_RECORD, "a batch whose length does not fit")
        batches.append(bytes(data[position:end]))
        position = end
    return batches


def inspect(batch: bytes, *, check: bool = True) -> BatchInfo:
    """Return the header of a batch.

    Raises:
        BadBatch: With ``check``: the magic, the CRC or the count is wrong.
    """
    (
        base,
        length,
        leader_epoch,
        magic,
        crc,
        attributes,
        delta,
        _,
        latest,
        pid,
        epoch,
        sequence,
        count,
    ) = _HEADER.unpack_from(batch)
    if check and magic != 2:
        raise BadBatch(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"record format {magic}")
    if check and crc != crc32c(memoryview(batch)[21:]):
        raise BadBatch(ErrorCode.CORRUPT_MESSAGE, "the CRC is wrong")
    if check and (count < 1 or delta != count - 1):
        raise BadBatch(
            ErrorCode.INVALID_RECORD, f"{count} records, but the last has the offset delta {delta}"
        )
    return BatchInfo(
        base, length + 12, leader_epoch, attributes, delta, latest, pid, epoch, sequence, count
    )


def verify(batch: bytes) -> None:
    """Read a whole batch, as a broker does before it stores the batch.

    Raises:
        BadBatch: The batch cannot be read.
    """
    inspect(batch)
    try:
        decode_batch(batch, "", 0)
    except BadBatch:
        raise
    except Exception as error:
        raise BadBatch(
            ErrorCode.INVALID_RECORD, f"the records cannot be read: {error!r}"
        ) from error


def place(batch: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """Return the batch with its base offset and leader epoch, which the CRC does not cover."""
    return (
        struct.pack(">q", base_offset) + batch[8:12] + struct.pack(">i", leader_epoch) + batch[16:]
    )


def stamp(batch: bytes, timestamp: int) -> bytes:
    """Return the batch with the broker's timestamp and a new CRC.

    That is ``message.timestamp.type=LogAppendTime``.
    """
    fields = list(_HEADER.unpack_from(batch))
    fields[5] |= 0x08
    fields[8] = timestamp
    return _sealed(fields, batch[HEADER_SIZE:])


def encode_batch(
    records: Iterable[Appendable],
    *,
    timestamp: int,
    compression: str = "none",
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
) -> bytes:
    """Return a batch with base offset 0.

    Args:
        records: The records: values, or ``(key, value[, timestamp in ms[, headers]])``.
        timestamp: The timestamp (milliseconds) of records without their own.
        compression: ``"none"``, ``"gzip"``, ``"snappy"``, ``"lz4"`` or ``"zstd"``.
        producer: Producer id, epoch and base sequence.
        transactional: Mark the batch as part of a transaction.
    """
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=transactional,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=2**31 - 1,
    )
    for index, record in enumerate(records):
        key, value, when, headers = _normal(record)
        builder.append(index, timestamp if when is None else when, key, value, list(headers))
    batch = bytes(builder.build())
    if compression == "none":
        return batch
    fields = list(_HEADER.unpack_from(batch))
    fields[5] |= _CODECS[compression]
    return _sealed(fields, _compress(_CODECS[compression], batch[HEADER_SIZE:]))


def control_batch(producer_id: int, producer_epoch: int, *, commit: bool, timestamp: int) -> bytes:
    """Return the marker that ends a transaction in a partition.

    Args:
        producer_id: The producer's id.
        producer_epoch: The producer's epoch.
        commit: True for a commit, False for an abort.
        timestamp: Milliseconds since the epoch.
    """
    key = struct.pack(">hh", 0, int(commit))
    value = struct.pack(">hi", 0, 0)
    batch = encode_batch(
        [(key, value)],
        timestamp=timestamp,
        producer=(producer_id, producer_epoch, 0),
        transactional=True,
    )
    fields = list(_HEADER.unpack_from(batch))
    fields[5] |= 0x20
    fields[11] = -1
    return _sealed(fields, batch[HEADER_SIZE:])


def commits(control: bytes) -> bool:
    """Return whether a control batch commits its transaction."""
    return bool(next(DefaultRecordBatch(control)).commit)


def decode_batch(batch: bytes, topic: str, partition: int) -> list[Record]:
    """Return the records of a batch; a control batch has none."""
    info = inspect(batch, check=False)
    if info.control:
        return []
    if codec := info.attributes & 0x07:
        fields = list(_HEADER.unpack_from(batch))
        fields[5] &= ~0x07
        batch = _sealed(fields, _decompress(codec, batch[HEADER_SIZE:]))
    return [
        Record(
            topic,
            partition,
            record.offset,
            record.timestamp,
            TimestampType(record.timestamp_type or 0),
            record.key,
            record.value,
            tuple((name, value) for name, value in record.headers),
        )
        for record in DefaultRecordBatch(batch)
    ]


def _normal(
    record: Appendable,
) -> tuple[bytes | None, bytes | None, int | None, Sequence[tuple[str, bytes | None]]]:
    given = record if isinstance(record, tuple) else (None, record)
    key, value, *rest = given
    for name, part in (("key", key), ("value", value)):
        if part is not None and not isinstance(part, bytes | bytearray | memoryview):
            raise TypeError(f"a record's {name} must be bytes or None, not {part!r}")
    when = rest[0] if rest else None
    headers = rest[1] if len(rest) > 1 else ()
    if not (when is None or isinstance(when, int)) or not isinstance(headers, list | tuple):
        raise TypeError(
            f"a record is a value or (key, value[, timestamp in ms[, headers]]), not {record!r}"
        )
    return key, value, when, headers


def _sealed(fields: list[int], body: bytes) -> bytes:
    fields[1] = HEADER_SIZE - 12 + len(body)
    data = bytearray(_HEADER.pack(*fields)) + body
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def _compress(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return bytes(cramjam.gzip.compress(data))
    if codec == 2:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == 4:
        return bytes(cramjam.zstd.compress(data))
    compressor = cramjam.lz4.Compressor(block_linked=False)  # Kafka cannot read linked blocks
    compressor.compress(data)
    return bytes(compressor.finish())


def _decompress(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return bytes(cramjam.gzip.decompress(data))
    if codec == 2:
        return _snappy(data)
    if codec == 4:
        return bytes(cramjam.zstd.decompress(data))
    if not data[4] & 0x20:
        raise BadBatch(
            ErrorCode.UNKNOWN_SERVER_ERROR, "lz4 with linked blocks, which Kafka does not read"
        )
    return bytes(cramjam.lz4.decompress(data))


def _snappy(data: bytes) -> bytes:
    if not data.startswith(_XERIAL):
        return bytes(cramjam.snappy.decompress_raw(data))
    parts, position = [], 16
    while position < len(data):
        size = struct.unpack_from(">i", data, position)[0]
        parts.append(bytes(cramjam.snappy.decompress_raw(data[position + 4 : position + 4 + size])))
        position += 4 + size
    return b"".join(parts)
