"""Record batches for tests, written by kafka-python or by hand.

No byte of them comes from trikafka's own encoder.
"""

import gzip
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import cramjam
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from trikafka._checksum import crc32c
from trikafka._wire.columns import Columns, RecordBatch
from trikafka._wire.records import decode_records, decode_some

NOW = 1_700_000_000_000
HEADER_SIZE = 61
LOG_APPEND, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20


class Rec(NamedTuple):
    """A record to write.

    ``offset`` is relative to the batch's base offset; with ``None`` it is the next one.
    """

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = NOW
    offset: int | None = None


def xerial(data: bytes, block: int = 32 * 1024) -> bytes:
    out = [b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"]
    for start in range(0, len(data), block):
        packed = bytes(cramjam.snappy.compress_raw(data[start : start + block]))
        out += [struct.pack(">i", len(packed)), packed]
    return b"".join(out)


#: The compression of other clients: name of the case -> (codec id, function).
FRAMINGS: dict[str, tuple[int, Any]] = {
    "none": (0, bytes),
    "gzip": (1, gzip.compress),
    "snappy-raw": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "snappy-xerial": (2, xerial),
    "snappy-xerial-small": (2, lambda data: xerial(data, 7)),
    "lz4-linked": (3, lambda data: bytes(cramjam.lz4.compress(data))),
    "lz4-independent": (3, lambda data: _lz4(data)),
    "zstd": (4, lambda data: bytes(cramjam.zstd.compress(data))),
    "zstd-streamed": (4, lambda data: _streamed(cramjam.zstd.Compressor(), data)),
}


def _lz4(data: bytes) -> bytes:
    return _streamed(cramjam.lz4.Compressor(content_checksum=True, block_linked=False), data)


def _streamed(compressor: Any, data: bytes) -> bytes:
    compressor.compress(data)
    return bytes(compressor.finish())


def seal(batch: bytes | bytearray) -> bytes:
    """Return the batch with its length and checksum corrected."""
    batch = bytearray(batch)
    batch[8:12] = struct.pack(">i", len(batch) - 12)
    batch[17:21] = struct.pack(">I", crc32c(bytes(batch[21:])))
    return bytes(batch)


def batch_v2(
    records: Sequence[Rec],
    *,
    base: int = 0,
    framing: str = "none",
    attributes: int = 0,
    producer_id: int = -1,
    last_delta: int | None = None,
    leader_epoch: int = -1,
    max_timestamp: int | None = None,
    count: int | None = None,
) -> bytes:
    """Return a batch of message format v2 by kafka-python's builder.

    Fields that the builder cannot write are patched.
    """
    builder = DefaultRecordBatchBuilder(2, 0, False, producer_id, 0, 0, 1 << 30)
    position = 0
    for record in records:
        position = position if record.offset is None else record.offset
        builder.append(position, record.timestamp, record.key, record.value, list(record.headers))
        position += 1
    plain = bytearray(builder.build() if records else bytes(HEADER_SIZE))
    if not records:
        struct.pack_into(
            ">qiibIhiqqqhii", plain, 0, 0, 0, -1, 2, 0, 0, 0, NOW, NOW, producer_id, 0, 0, 0
        )
    codec, compress = FRAMINGS[framing]
    out = plain[:HEADER_SIZE] + compress(bytes(plain[HEADER_SIZE:]))
    struct.pack_into(">q", out, 0, base)
    struct.pack_into(">i", out, 12, leader_epoch)
    struct.pack_into(">h", out, 21, attributes | codec)
    for offset, kind, value in (
        (23, ">i", last_delta),
        (35, ">q", max_timestamp),
        (57, ">i", count),
    ):
        if value is not None:
            struct.pack_into(kind, out, offset, value)
    return seal(out)


def control(base: int, producer_id: int, *, abort: bool) -> bytes:
    """Return a transaction marker."""
    marker = Rec(struct.pack(">hh", 0, 0 if abort else 1), struct.pack(">hi", 0, 0))
    return batch_v2(
        [marker], base=base, attributes=CONTROL | TRANSACTIONAL, producer_id=producer_id
    )


def message_set(magic: int, records: Sequence[Rec], *, codec: int = 0) -> bytes:
    """Return messages of format v0 or v1 by kafka-python's builder (codec: 0, or 1 for gzip)."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 30)
    for index, record in enumerate(records):
        builder.append(index, record.timestamp, record.key, record.value)
    return bytes(builder.build())


def wrapped(
    magic: int,
    records: Sequence[Rec],
    framing: str,
    *,
    offset: int = 0,
    log_append: int | None = None,
) -> bytes:
    """Return a compressed message of format v0 or v1 as a broker stores it.

    Its own offset is the offset of its last record.
    """
    codec, compress = FRAMINGS[framing]
    outer = bytearray(message_set(magic, [Rec(value=compress(message_set(magic, records)))]))
    struct.pack_into(">q", outer, 0, offset)
    outer[17] |= codec
    if log_append is not None:
        outer[17] |= LOG_APPEND
        struct.pack_into(">q", outer, 18, log_append)
    struct.pack_into(">I", outer, 12, zlib.crc32(outer[16:]))
    return bytes(outer)


_DEFAULTS = {
    "topic": "t",
    "partition": 3,
    "fetch_offset": 0,
    "aborted": None,
    "check_crcs": True,
    "max_bytes": 1 << 24,
}


def decode(data: Any, **settings: Any) -> RecordBatch:
    """Return ``decode_records`` with default arguments."""
    return decode_records(data, **(_DEFAULTS | settings))


def decode_in_steps(data: bytes, enough: int, **settings: Any) -> Iterator[RecordBatch]:
    """Yield the results of ``decode_some`` until no data is left."""
    given = _DEFAULTS | settings
    rest: Any = data
    while rest:
        batch, rest, aborted, _ = decode_some(rest, enough=enough, **given)
        given |= {"fetch_offset": batch.next_offset, "aborted": aborted}
        yield batch


def contents(columns: Columns) -> tuple[Any, ...]:
    """Return every byte of the columns, for comparison."""
    fields = (getattr(columns, name) for name in Columns.__slots__)
    return tuple(
        field if field is None or isinstance(field, int) else bytes(field) for field in fields
    )


def plain(batch: RecordBatch) -> list[Rec]:
    """Return the records as they were written, with absolute offsets."""
    return [
        Rec(r.key, r.value, r.headers, -1 if r.timestamp is None else r.timestamp, r.offset)
        for r in batch
    ]


fields = st.none() | st.binary(max_size=40) | st.binary(min_size=120, max_size=200)
headers = st.lists(
    st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=10)), max_size=3
).map(tuple)
timestamps = st.integers(-1, 2**45)
records = st.lists(
    st.builds(Rec, fields, fields, st.just(()) | headers, timestamps, st.none()),
    min_size=1,
    max_size=20,
)
framings = st.sampled_from(sorted(FRAMINGS))
