"""What both implementations of the record path share: the layout of record batches (message format v2), and its words.

A change here that moves a byte or a reason must be made in ``_native.pyx`` too; one suite of tests holds the two together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from trikafka._checksum import crc32c

Buffer = bytes | bytearray | memoryview

#: base offset, length (of what follows it), leader epoch, magic, crc, attributes, last offset delta, first timestamp,
#: max timestamp, producer id, producer epoch, base sequence, count.
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
_BEFORE_CRC = struct.Struct(">qiibI")
_AFTER_CRC = struct.Struct(">hiqqqhii")
CRC_START = _BEFORE_CRC.size  #: the checksum covers everything from here on
LENGTH_END = 12

CODEC_MASK, LOG_APPEND, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20

MIN_RECORD = 7  #: bytes of the smallest record
#: Bytes that a record can need beside its key, value and headers; and a header beside its name and value.
RECORD_OVERHEAD, HEADER_OVERHEAD = 36, 10
MAX_INT32, MAX_INT64 = 2**31 - 1, 2**63 - 1
MAX_TIMESTAMP = 2**62

#: Why records were refused; the position in this tuple is the error number of ``_native``.
REASONS = (
    "",
    "a variable-length number is too long",
    "a record reaches beyond its end",
    "a record's length does not match its fields",
    "a field has a negative length",
    "a record has an impossible number of headers or a header without a name",
    "offsets in a batch are not in order",
    "a timestamp is out of range",
    "bytes are left after the last record",
    "the batch is too small for the number of records that it claims",
    "keys, values or headers of one batch exceed 2 GiB",
)
(
    OK,
    BAD_VARINT,
    CUT,
    BAD_LENGTH,
    NEGATIVE_LENGTH,
    BAD_HEADERS,
    BAD_OFFSET,
    BAD_TIMESTAMP,
    LEFTOVER,
    BAD_COUNT,
    TOO_LARGE,
) = range(len(REASONS))


class Section(NamedTuple):
    """The records of one batch, decompressed, and what its header says of them: the input of ``fill``."""

    data: Buffer
    start: int
    end: int
    records: int  #: how many, as the header claims
    base_offset: int
    last_offset_delta: int
    base_timestamp: int
    timestamp_type: int
    append_timestamp: int
    min_offset: int  #: records below it are dropped


#: The columns' fields as ``fill`` returns them: the arguments of ``Columns``.
Fields = tuple[
    int,
    memoryview,
    memoryview,
    memoryview,
    memoryview,
    Buffer,
    Buffer | None,
    memoryview,
    Buffer,
    Buffer | None,
    memoryview | None,
    memoryview | None,
    Buffer | None,
    memoryview | None,
    Buffer | None,
    Buffer | None,
]


def varint(number: int) -> bytes:
    """A zigzag variable-length number (both of Kafka's widths)."""
    number = number << 1 if number >= 0 else ~(number << 1)
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_NULL = varint(-1)


def encode_field(data: Buffer | None) -> bytes:
    """A nullable field: its length, then its bytes."""
    return _NULL if data is None else varint(len(data)) + data


def encode_record(
    timestamp_delta: int,
    offset_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Iterable[tuple[Buffer, Buffer | None]] = (),
) -> bytes:
    """One record with its length in front. Header names are UTF-8 bytes here."""
    parts: list[Buffer] = [b"\x00", varint(timestamp_delta), varint(offset_delta)]
    for field in (key, value):
        parts += (_NULL,) if field is None else (varint(len(field)), field)
    headers = tuple(headers)
    parts.append(varint(len(headers)))
    for name, content in headers:
        parts += (varint(len(name)), name)
        parts += (_NULL,) if content is None else (varint(len(content)), content)
    body = b"".join(parts)
    return varint(len(body)) + body


def batch_head(
    payload: Buffer,
    *,
    codec_id: int,
    count: int,
    first_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool,
) -> bytes:
    """Header and checksum of the batch with this (compressed) payload; base offset 0, as a producer sends it."""
    if not count:
        raise ValueError("a record batch needs a record")
    tail = _AFTER_CRC.pack(
        codec_id | (TRANSACTIONAL if transactional else 0),
        count - 1,
        first_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    length = HEADER_SIZE - LENGTH_END + len(payload)
    return _BEFORE_CRC.pack(0, length, -1, 2, crc32c(payload, crc32c(tail))) + tail
