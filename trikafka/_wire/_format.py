"""The layout of record batches (message format v2) and the terms that both record paths share.

A change here that moves a byte or a reason must be made in ``_native.pyx`` too. One test suite
compares the two.

Record batch
------------

======  =====  ====================  ============================================================
offset  bytes  field                 meaning
======  =====  ====================  ============================================================
0       8      base offset           of the first record; a producer sends 0, the broker sets it
8       4      length                of everything that follows this field
12      4      leader epoch          set by the broker; a producer sends -1
16      1      magic                 2
17      4      CRC                   CRC-32C of everything from byte 21 on
21      2      attributes            codec (3 bits), log append time, transactional, control
23      4      last offset delta     offset of the last record minus the base offset
27      8      first timestamp       ms; the records' timestamps are deltas to it
35      8      max timestamp         ms; with log append time, the time of all records
43      8      producer id           -1 without idempotence
51      2      producer epoch        -1 without idempotence
53      4      base sequence         number of the first record; -1 without idempotence
57      4      count                 records
61             records               compressed as one block
======  =====  ====================  ============================================================

The CRC leaves out what comes before the attributes, so a broker sets base offset and leader epoch
without computing it again. Everything in the header is big-endian with a fixed width.

A record
-------

Length, attributes (a byte, unused), timestamp delta, offset delta, key, value, number of headers,
headers. A key, a value or a header's value is its length and its bytes; length -1 is null. All
numbers are varints: zigzag (0, -1, 1, -2 become 0, 1, 2, 3), then seven bits a byte, the lowest
first, the highest bit of a byte set if another follows. Lengths and offsets have 32 bits (at most 5
bytes), timestamps 64 (at most 10).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from trikafka._checksum import crc32c

Buffer = bytes | bytearray | memoryview

#: The header: base offset, length (of what follows it), leader epoch, magic, crc, attributes, last
#: offset delta, first timestamp, max timestamp, producer id, producer epoch, base sequence, count.
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
_BEFORE_CRC = struct.Struct(">qiibI")
_AFTER_CRC = struct.Struct(">hiqqqhii")
CRC_START = _BEFORE_CRC.size  #: the checksum covers everything from here on
LENGTH_END = 12

#: The hashes of keys. A fourth one needs a branch in ``_native_partitioning.pxi``, too.
HASH_MURMUR2, HASH_CRC32, HASH_FNV1A = 0, 1, 2

CODEC_MASK = 0x07
LOG_APPEND = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

MIN_RECORD = 7  #: bytes of the smallest record
#: The most bytes that a record needs besides its key, value and headers; and a header besides its
#: name and value.
RECORD_OVERHEAD, HEADER_OVERHEAD = 36, 10
MAX_INT32, MAX_INT64 = 2**31 - 1, 2**63 - 1
MAX_TIMESTAMP = 2**62

#: The reasons to refuse records; the index in this tuple is the error number of ``_native``.
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
    """The decompressed records of one batch and its header's fields: the input of ``fill``."""

    data: Buffer
    start: int
    end: int
    records: int  #: their number, as the header claims
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
    """Return a zigzag variable-length number (both of Kafka's widths)."""
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
    """Return a nullable field: its length, then its bytes."""
    return _NULL if data is None else varint(len(data)) + data


def encode_record(
    timestamp_delta: int,
    offset_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Iterable[tuple[Buffer, Buffer | None]] = (),
) -> bytes:
    """Return one record with its length in front. Header names are UTF-8 bytes here."""
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
    """Return the header, with the checksum, of a batch with this (compressed) payload.

    The base offset is 0, as a producer sends it.
    """
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
    # The checksum is computed in two parts, first over the header's end, then over the payload, so
    # that header and payload need not be joined for it. See ``ProducerBatch.pieces``.
    length = HEADER_SIZE - LENGTH_END + len(payload)
    return _BEFORE_CRC.pack(0, length, -1, 2, crc32c(payload, crc32c(tail))) + tail
