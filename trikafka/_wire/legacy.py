"""Message formats v0 and v1: a single message, or a compressed one with many inside.

Any length may be wrong, even on purpose. So each one is compared with the end of its container, and
decompression is bounded. Inner messages are read in steps, because a hundred kilobytes may
decompress to a million messages.
"""

from __future__ import annotations

import struct
import zlib

from trikafka._wire import compression
from trikafka._wire._format import MAX_INT32, MAX_INT64, Section, encode_record

_ENTRY = struct.Struct(">qi")
#: By format: offset, size of the rest, checksum, magic, attributes, and in v1 the timestamp.
_HEADS = (struct.Struct(">qiIbb"), struct.Struct(">qiIbbq"))
_LENGTH = struct.Struct(">i")
_CODEC, _LOG_APPEND = 0x07, 0x08
_MAGIC = 16
_MAX_OFFSET = MAX_INT64 - 2**31
#: No real producer wrote so many messages into one; a larger number is an attack.
_MOST_MESSAGES = 1_000_000

#: Offset, timestamp, type of the timestamp (1: the time of the append), key and value.
Row = tuple[int, int, int, bytes | None, bytes | None]


class Messages(bytearray):
    """The decompressed messages of a compressed one.

    After ``inner_end`` a reader may append the bytes that followed the compressed message.
    """

    inner_end: int
    magic: int
    #: The number to add to their offsets.
    base: int
    #: The time of the append, which is the timestamp of all; ``None``: each has its own.
    stamp: int | None
    total: int

    def rows(self, start: int, most: int, check_crcs: bool) -> tuple[list[Row], int]:
        """Return up to ``most`` rows from ``start`` on, and their end; ``ValueError``: corrupt."""
        rows: list[Row] = []
        with memoryview(self) as view:
            while start < self.inner_end and len(rows) < most:
                end = start + _ENTRY.size + _ENTRY.unpack_from(view, start)[1]
                attributes, row = _read(view, start, end, self.magic, check_crcs)
                offset, time, _, key, value = row
                if attributes & _CODEC:
                    raise ValueError("a compressed message holds another one")
                stamp, kind = (time, 0) if self.stamp is None else (self.stamp, 1)
                rows.append((self.base + offset, stamp, kind, key, value))
                start = end
        return rows, start


def read_message(
    message: memoryview,
    *,
    check_crcs: bool,
    limit: int,
    codecs: compression.Codecs,
) -> Row | Messages:
    """Return the row of ``message``, one entry of a message set, or the messages inside it.

    ``limit``: the most bytes of these. Raises ``ValueError`` if the entry is corrupt.
    """
    magic = message[_MAGIC]
    attributes, row = _read(message, 0, len(message), magic, check_crcs)
    codec_id = attributes & _CODEC
    if not codec_id:
        return row
    offset, stamp, appended, _, value = row
    codec = codecs.get(codec_id)
    if codec is None or codec.name == "zstd" or value is None:
        raise ValueError(f"message format v{magic} cannot hold codec {codec_id}")
    if codec.name == "lz4" and magic == 0:
        value = compression.repair_lz4_header(value)
    inner = memoryview(codec.decompress(value, limit, None)).cast("B")
    found = Messages(inner)
    found.total, last = _walk(inner)
    found.inner_end = len(inner)
    found.magic = magic
    # In v1 inner offsets are relative, and the wrapper has the offset of the last one. If the
    # wrapper's offset is 0, no broker has set it.
    found.base = offset - last if magic and offset else 0
    found.stamp = stamp if appended else None
    return found


def to_section(rows: list[Row], min_offset: int) -> Section:
    """Return the rows as a section of format v2. Raises ``ValueError`` for impossible offsets."""
    base, stamp, kind, _, _ = rows[0]
    last = rows[-1][0]
    if max(base, last) > _MAX_OFFSET:
        raise ValueError("a message has an impossible offset")
    if base < 0 or last - base > MAX_INT32:
        raise ValueError("offsets of a compressed message are too far apart")
    body = b"".join(
        encode_record(time, offset - base, key, value) for offset, time, _, key, value in rows
    )
    return Section(body, 0, len(body), len(rows), base, last - base, 0, kind, stamp, min_offset)


def _walk(messages: memoryview) -> tuple[int, int]:
    """Return the number of messages, and the last one's own offset."""
    count = pos = last = 0
    least = _HEADS[0].size - _ENTRY.size
    while pos < len(messages) and count <= _MOST_MESSAGES:
        room = len(messages) - pos - _ENTRY.size
        last, size = _ENTRY.unpack_from(messages, pos) if room >= least else (0, 0)
        if not least <= size <= room:
            raise ValueError("a compressed message set is cut")
        pos += _ENTRY.size + size
        count += 1
    if not 0 < count <= _MOST_MESSAGES:
        raise ValueError(f"a compressed message must hold 1 to {_MOST_MESSAGES} messages")
    return count, last


def _read(data: memoryview, start: int, end: int, magic: int, check_crc: bool) -> tuple[int, Row]:
    """Return the attributes and the row of one message. In v0 the timestamp is -1."""
    pos = start + _HEADS[magic].size
    if end - pos < 2 * _LENGTH.size:
        raise ValueError("a message is too short")
    offset, _, checksum, its_magic, attributes, *times = _HEADS[magic].unpack_from(data, start)
    if its_magic != magic:
        raise ValueError("message formats are mixed within a compressed message")
    if check_crc and zlib.crc32(data[start + _MAGIC : end]) != checksum:
        raise ValueError("checksum mismatch")
    key, pos = _field(data, pos, end - _LENGTH.size)
    value, pos = _field(data, pos, end)
    if pos != end:
        raise ValueError("a message's length does not match its fields")
    appended = 1 if magic and attributes & _LOG_APPEND else 0
    return attributes, (offset, times[0] if times else -1, appended, key, value)


def _field(data: memoryview, pos: int, end: int) -> tuple[bytes | None, int]:
    size = _LENGTH.unpack_from(data, pos)[0]
    pos += _LENGTH.size
    if size == -1:
        return None, pos
    if size < 0 or size > end - pos:
        raise ValueError("a field reaches beyond its message")
    return bytes(data[pos : pos + size]), pos + size
