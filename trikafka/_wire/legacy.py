"""Message formats v0 and v1, through kafka-python's reader, with the checks that it leaves out.

kafka-python cuts a field that reaches beyond its message without a word and decompresses without a bound; here each
message is compared with its declared length, and decompression is ours.
"""

from __future__ import annotations

import struct
from typing import Any

from trikafka._wire import compression
from trikafka._wire._format import MAX_INT32, Section, encode_record

_ENTRY = struct.Struct(">qi")
_LENGTH = struct.Struct(">i")
_ATTRIBUTES = 17
_OVERHEAD = (14, 22)  #: bytes of a message without its key and value, by format
_MAGIC = 16

Row = tuple[int, int, int, bytes | None, bytes | None]


def read_message(message: memoryview, *, check_crcs: bool, limit: int) -> tuple[list[Row], int]:
    """The rows (offset, timestamp, type, key, value) of one entry of a message set, and the bytes decompressed for it.

    Raises ``ValueError`` where it is corrupt. ``message`` holds exactly one entry, from its offset on.
    """
    magic = message[_MAGIC]
    outer = _open(message, magic, check_crcs)
    codec_id = outer.compression_type
    if not codec_id:
        return [_row(outer, message, magic)], 0
    wrapper = bytearray(message)
    wrapper[_ATTRIBUTES] &= ~0x07  # the wrapper's value as it stands, not decompressed
    compressed = _row(_batch(wrapper, magic), wrapper, magic)[4]
    codec = compression.BY_ID.get(codec_id)
    if codec is None or codec.name == "zstd" or compressed is None:
        raise ValueError(f"message format v{magic} cannot hold codec {codec_id}")
    if codec.name == "lz4" and magic == 0:
        compressed = compression.repair_lz4_header(compressed)
    inner = memoryview(codec.decompress(compressed, limit, None)).cast("B")
    rows = [_row(_open(entry, magic, check_crcs, inner=True), entry, magic) for entry in _entries(inner)]
    if not rows:
        raise ValueError("a compressed message holds no messages")
    if magic == 1:
        # Inner offsets are relative to the wrapper's, which is the last one's; 0 is one that no broker has set.
        base = outer.base_offset - rows[-1][0] if outer.base_offset else 0
        kind = outer.timestamp_type
        stamp = _row(_batch(wrapper, magic), wrapper, magic)[1]
        rows = [(base + offset, stamp if kind else time, kind, key, value) for offset, time, _, key, value in rows]
    return rows, len(inner)


def to_section(rows: list[Row], min_offset: int) -> Section:
    """The rows as a section of format v2, so that one code fills the columns. Raises ``ValueError``."""
    base = rows[0][0]
    if base < 0 or rows[-1][0] - base > MAX_INT32:
        raise ValueError("offsets of a compressed message are too far apart")
    kind, stamp = rows[0][2], rows[0][1]
    body = b"".join(encode_record(time, offset - base, key, value) for offset, time, _, key, value in rows)
    return Section(body, 0, len(body), len(rows), base, rows[-1][0] - base, 0, kind, stamp, min_offset)


def _entries(messages: memoryview) -> list[memoryview]:
    entries, pos = [], 0
    while pos < len(messages):
        if len(messages) - pos < _MAGIC + 2:
            raise ValueError("a compressed message set is cut")
        end = pos + _ENTRY.size + _ENTRY.unpack_from(messages, pos)[1]
        if not pos + _MAGIC + 2 <= end <= len(messages):
            raise ValueError("a compressed message set is cut")
        entries.append(messages[pos:end])
        pos = end
    return entries


def _batch(message: memoryview | bytearray, magic: int) -> Any:
    # Imported here, for few topics have such messages still, and kafka-python's reader comes with all of its codecs.
    from kafka.record.legacy_records import LegacyRecordBatch

    return LegacyRecordBatch(message, magic)


def _open(message: memoryview, magic: int, check_crc: bool, inner: bool = False) -> Any:
    if len(message) < _ENTRY.size + _OVERHEAD[magic]:
        raise ValueError("a message is too short")
    if message[_MAGIC] != magic:
        raise ValueError("message formats are mixed within a compressed message")
    batch = _batch(message, magic)
    if inner and batch.compression_type:
        raise ValueError("a compressed message holds another one")
    if check_crc and not batch.validate_crc():
        raise ValueError("checksum mismatch")
    return batch


def _row(batch: Any, message: memoryview | bytearray, magic: int) -> Row:
    try:
        record = next(iter(batch))
    except struct.error:
        raise ValueError("a field reaches beyond its message") from None
    pos = _ENTRY.size + _OVERHEAD[magic] - 8
    for field in (record.key, record.value):
        # What was cut at the end of the message is shorter than its declared length.
        if _LENGTH.unpack_from(message, pos)[0] != (-1 if field is None else len(field)):
            raise ValueError("a field reaches beyond its message")
        pos += 4 + len(field or b"")
    if pos != len(message):
        raise ValueError("a message's length does not match its fields")
    timestamp = -1 if record.timestamp is None else record.timestamp
    return record.offset, timestamp, record.timestamp_type or 0, record.key, record.value
