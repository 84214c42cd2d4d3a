"""Message formats v0 and v1: a single message, or a compressed one with many inside.

Input is hostile: every length is compared with the end of its container, and decompression is
bounded. The inner messages are read piece by piece, since a hundred kilobytes may be a million
messages.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from trikafka._wire import compression
from trikafka._wire._format import MAX_INT32, MAX_INT64, Section, encode_record

_ENTRY = struct.Struct(">qi")
_HEAD = struct.Struct(">qiIbb")  #: offset, size of the rest, checksum, magic, attributes
_LENGTH = struct.Struct(">i")
_STAMP = struct.Struct(">q")
_CODEC, _LOG_APPEND = 0x07, 0x08
_MAGIC = 16
_MAX_OFFSET = MAX_INT64 - 2**31
_FIELDS = (18, 26)  #: the place of the key's length, by format
#: No real producer wrote so many messages into one; a larger number is an attack.
_MOST_MESSAGES = 1_000_000

Row = tuple[int, int, int, bytes | None, bytes | None]


class _Message(NamedTuple):
    offset: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class Messages(bytearray):
    """The decompressed messages of a compressed one.

    Behind ``inner_end`` there may be the bytes that followed the compressed message.
    """

    inner_end: int
    magic: int
    #: The number added to their offsets, and whether ``stamp`` is the timestamp of them all.
    base: int
    appended: bool
    stamp: int
    total: int

    def rows(self, start: int, most: int, check_crcs: bool) -> tuple[list[Row], int]:
        """Return the rows of up to ``most`` messages from ``start`` on, and their end.

        A row is (offset, timestamp, type, key, value). Raises ``ValueError`` where a message is
        corrupt.
        """
        rows: list[Row] = []
        with memoryview(self) as view:
            while start < self.inner_end and len(rows) < most:
                end = start + _ENTRY.size + _ENTRY.unpack_from(view, start)[1]
                offset, attributes, time, key, value = _read(
                    view, start, end, self.magic, check_crcs
                )
                if attributes & _CODEC:
                    raise ValueError("a compressed message holds another one")
                stamp = self.stamp if self.appended else time
                rows.append((self.base + offset, stamp, 1 if self.appended else 0, key, value))
                start = end
        return rows, start

    def followed_by(self, more: memoryview) -> Messages:
        """Append ``more`` to these messages, and return them."""
        self += more
        return self


def read_message(
    message: memoryview,
    *,
    check_crcs: bool,
    limit: int,
    codecs: compression.Codecs = compression.BY_ID,
) -> Row | Messages:
    """Return the row of one entry of a message set, or the messages inside of it.

    ``message`` is exactly one entry, from its offset on. Inner messages have at most ``limit``
    bytes. Raises ``ValueError`` where the entry is corrupt.
    """
    magic = message[_MAGIC]
    offset, attributes, stamp, key, value = _read(message, 0, len(message), magic, check_crcs)
    appended = bool(magic and attributes & _LOG_APPEND)
    codec_id = attributes & _CODEC
    if not codec_id:
        return offset, stamp, 1 if appended else 0, key, value
    codec = codecs.get(codec_id)
    if codec is None or codec.name == "zstd" or value is None:
        raise ValueError(f"message format v{magic} cannot hold codec {codec_id}")
    if codec.name == "lz4" and magic == 0:
        value = compression.repair_lz4_header(value)
    inner = memoryview(codec.decompress(value, limit, None)).cast("B")
    count, last = _walk(inner)
    found = Messages(inner)
    found.inner_end = len(inner)
    found.magic = magic
    found.total = count
    # In v1 inner offsets are relative, and the wrapper has the offset of the last one. A wrapper's
    # offset of 0 was not set by any broker.
    found.base = offset - last if magic and offset else 0
    found.appended = appended
    found.stamp = stamp
    return found


def to_section(rows: list[Row], min_offset: int) -> Section:
    """Return the rows as a section of format v2, so that one code fills the columns.

    Raises ``ValueError`` for impossible offsets.
    """
    base = rows[0][0]
    if max(base, rows[-1][0]) > _MAX_OFFSET:
        raise ValueError("a message has an impossible offset")
    if base < 0 or rows[-1][0] - base > MAX_INT32:
        raise ValueError("offsets of a compressed message are too far apart")
    kind, stamp = rows[0][2], rows[0][1]
    body = b"".join(
        encode_record(time, offset - base, key, value) for offset, time, _, key, value in rows
    )
    return Section(
        body, 0, len(body), len(rows), base, rows[-1][0] - base, 0, kind, stamp, min_offset
    )


def _walk(messages: memoryview) -> tuple[int, int]:
    """Return the number of messages, and the last one's own offset."""
    count = pos = last = 0
    total, least, head = len(messages), _MAGIC + 2, _ENTRY.size
    while pos < total:
        if total - pos < least:
            raise ValueError("a compressed message set is cut")
        last, size = _ENTRY.unpack_from(messages, pos)
        if size < least - head or size > total - pos - head:
            raise ValueError("a compressed message set is cut")
        pos += head + size
        count += 1
        if count > _MOST_MESSAGES:
            raise ValueError(
                f"a compressed message holds more than {_MOST_MESSAGES} messages, the limit"
            )
    if not count:
        raise ValueError("a compressed message holds no messages")
    return count, last


def _read(data: memoryview, start: int, end: int, magic: int, check_crc: bool) -> _Message:
    """Return the message from ``start`` to ``end``."""
    pos = start + _FIELDS[magic]
    if end - pos < 2 * _LENGTH.size:
        raise ValueError("a message is too short")
    offset, _, checksum, its_magic, attributes = _HEAD.unpack_from(data, start)
    if its_magic != magic:
        raise ValueError("message formats are mixed within a compressed message")
    if check_crc and zlib.crc32(data[start + _MAGIC : end]) != checksum:
        raise ValueError("checksum mismatch")
    stamp = _STAMP.unpack_from(data, start + _HEAD.size)[0] if magic else -1
    key, pos = _field(data, pos, end - _LENGTH.size)
    value, pos = _field(data, pos, end)
    if pos != end:
        raise ValueError("a message's length does not match its fields")
    return _Message(offset, attributes, stamp, key, value)


def _field(data: memoryview, pos: int, end: int) -> tuple[bytes | None, int]:
    size = _LENGTH.unpack_from(data, pos)[0]
    pos += _LENGTH.size
    if size == -1:
        return None, pos
    if size < 0 or size > end - pos:
        raise ValueError("a field reaches beyond its message")
    return bytes(data[pos : pos + size]), pos + size
