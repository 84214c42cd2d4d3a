"""The compression codecs of record batches, in one table over cramjam.

The framings are those of Kafka's other clients. Nothing lasts but a few :class:`Scratch`.
Decompression takes hostile bytes. It never allocates more than ``limit``, nor more than the codec
could make of the input, and raises ``ValueError`` (:mod:`.records` turns it into
``CorruptRecordError``).
"""

from __future__ import annotations

import struct
import sysconfig
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol

import cramjam

from trikafka.errors import UnsupportedCompressionError

Buffer = bytes | bytearray | memoryview

#: Snappy's framing in Java (the xerial library): a 16-byte header, then blocks, each with its
#: length in front.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024

_LZ4_MAGIC = b"\x04\x22\x4d\x18"


# cramjam does not check whether memory is read-only, so it could overwrite ``bytes``. On a
# free-threaded Python, which shares equal constants between threads, it therefore refuses every
# ``bytes`` and every ``memoryview`` as output, even a writable one. It takes an array of ctypes over
# the same memory. The type of such an array takes 15 µs to make, hence the cache.
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    import ctypes

    @lru_cache(64)
    def _array_type(size: int) -> Any:
        return ctypes.c_char * size

    def _output(view: memoryview) -> Any:
        """Return the memory of ``view`` as cramjam takes it for its output."""
        return _array_type(len(view)).from_buffer(view)

else:

    def _output(view: memoryview) -> Any:
        """Return the memory of ``view`` as cramjam takes it for its output."""
        return view


# A decompressed batch lives only until its records are copied into columns, but the columns that
# are allocated meanwhile live long. With fresh memory for each batch the allocator kept holes
# between them, and a reader's memory grew far beyond its buffer. So one buffer of 2 MiB for each
# decoder at work is borrowed and returned as a whole. What does not fit into it gets memory of its
# own.
#
# At most about two spare ones are kept. ``list.pop`` and ``append`` are atomic, with the GIL and
# without, so threads need no lock.
class Scratch:
    """Reusable memory for decompressed bytes that are read only once.

    With fresh memory for each batch the allocator would keep holes instead.
    """

    __slots__ = ("_used", "_view")
    _SIZE = 2**21
    _spare: ClassVar[list[Scratch]] = []

    def __init__(self) -> None:
        self._view = memoryview(bytearray(self._SIZE))
        self._used = 0

    @classmethod
    def borrow(cls) -> Scratch:
        """Return an empty one. Threads may call this at the same time."""
        try:
            return cls._spare.pop()
        except IndexError:
            return cls()

    def give_back(self) -> None:
        """Return the memory: no view of it is read any more."""
        self._used = 0
        if len(self._spare) < 2:
            self._spare.append(self)

    @property
    def room(self) -> memoryview:
        """The memory that is not taken yet."""
        return self._view[self._used :]

    def take(self, size: int) -> memoryview:
        """Return the first ``size`` bytes of the room."""
        taken = self._view[self._used : self._used + size]
        self._used += size
        return taken


class Codec(NamedTuple):
    """A codec: its name, its id in the attributes of a batch, and its two directions.

    ``compress(data, level)`` returns bytes, or ``data`` itself. ``decompress(data, limit,
    scratch)`` returns at most ``limit`` bytes, in the scratch if it has room, or raises
    ``ValueError``.
    """

    name: str
    id: int
    compress: Callable[[Buffer, int | None], Buffer]
    decompress: Callable[[Buffer, int, Scratch | None], Buffer]


#: The codecs of a client by id: those of :data:`BY_ID`, some perhaps replaced by a plugin's.
Codecs = Mapping[int, Codec]


class CodecImplementation(Protocol):
    """An implementation of one codec that replaces the built-in functions."""

    def compress(self, data: Buffer, level: int | None) -> Buffer:
        """Return ``data`` compressed.

        Args:
            data: the records of one batch.
            level: the compression level; ``None``: the implementation's default.
        """

    def decompress(self, data: Buffer, limit: int) -> Buffer:
        """Return ``data`` decompressed.

        Args:
            data: the compressed records of one batch, which may be hostile.
            limit: the most bytes to return.

        Raises:
            ValueError: ``data`` is corrupt, or has more than ``limit`` bytes.
        """


def replaced(name: str, by: CodecImplementation) -> Codec:
    """Return the codec ``name`` with another implementation."""
    return Codec(
        name, BY_NAME[name].id, by.compress, lambda data, limit, scratch: by.decompress(data, limit)
    )


def codec_named(name: str | Codec) -> Codec:
    """Return the codec that a setting names; a codec is returned as it is.

    Raises :class:`UnsupportedCompressionError`.
    """
    if isinstance(name, Codec):
        return name
    try:
        return BY_NAME[name]
    except KeyError:
        raise UnsupportedCompressionError(
            f"compression_type must be one of {', '.join(BY_NAME)}, not {name!r}"
        ) from None


def _too_large(size: int, limit: int) -> ValueError:
    return ValueError(f"decompresses to {size} bytes or more, over the limit of {limit}")


class _Grower:
    """Decompression into a buffer of a guessed size, then larger ones up to the limit.

    cramjam has no bounded "decompress", only "into this buffer", and its error does not distinguish
    "too small" from "corrupt". So a failure is final once the buffer is as large as allowed. The
    guess learns from the last success.
    """

    def __init__(self, into: Callable[[Buffer, Any], int], most_per_byte: int) -> None:
        self._into = into
        self._most_per_byte = most_per_byte
        self._ratio = 4.0

    def __call__(
        self, data: Buffer, limit: int, scratch: Scratch | None, known_size: int | None = None
    ) -> Buffer:
        if not len(data):
            raise ValueError("compressed data is empty")
        # One byte over the limit distinguishes output of exactly ``limit`` bytes from a bomb.
        ceiling = min(limit + 1, len(data) * self._most_per_byte + 1024)
        size = (int(len(data) * self._ratio * 1.25) if known_size is None else known_size) + 1024
        size = min(size, ceiling)
        if scratch is not None and len(room := scratch.room[:ceiling]) >= size:
            try:
                written = self._into(data, _output(room))
                return self._learned(scratch.take(written), data, limit)
            except cramjam.DecompressionError:
                pass  # too small, or corrupt: the attempt with memory of its own decides
        while True:
            out = bytearray(size)
            try:
                written = self._into(data, out)
                break
            except cramjam.DecompressionError as error:
                if size > limit:
                    raise ValueError(
                        f"{error}, or decompresses to more than the limit of {limit} bytes"
                    ) from None
                if size >= ceiling:
                    raise ValueError(str(error)) from None
                size = min(size * 4, ceiling)
        return self._learned(memoryview(out)[:written], data, limit)

    def _learned(self, found: memoryview, data: Buffer, limit: int) -> memoryview:
        if len(found) > limit:
            raise _too_large(len(found), limit)
        self._ratio = min(max(1.0, len(found) / len(data)), 64.0)
        return found


_gunzip = _Grower(cramjam.gzip.decompress_into, 1_032)
_unlz4 = _Grower(cramjam.lz4.decompress_into, 255)
_unzstd = _Grower(cramjam.zstd.decompress_into, 32_768)


def _compress_none(data: Buffer, level: int | None) -> Buffer:
    return data


def _decompress_none(data: Buffer, limit: int, scratch: Scratch | None) -> Buffer:
    if len(data) > limit:
        raise _too_large(len(data), limit)
    return data


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.gzip.compress(data, level=6 if level is None else level))


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))


def _decompress_gzip(data: Buffer, limit: int, scratch: Scratch | None) -> Buffer:
    # The last four bytes are the size of the (last) member's content; a wrong one only costs
    # another attempt.
    return _gunzip(data, limit, scratch, int.from_bytes(data[-4:], "little"))


def _decompress_zstd(data: Buffer, limit: int, scratch: Scratch | None) -> Buffer:
    return _unzstd(data, limit, scratch, _zstd_content_size(data))


def _zstd_content_size(data: Buffer) -> int | None:
    """Return the size that the first frame's header promises, if any.

    A wrong size only costs another attempt.
    """
    if len(data) < 6 or bytes(data[:4]) != b"\x28\xb5\x2f\xfd":
        return None
    descriptor = data[4]
    width = (1 if descriptor & 0x20 else 0, 2, 4, 8)[descriptor >> 6]
    start = 5 + (0 if descriptor & 0x20 else 1) + (0, 1, 2, 4)[descriptor & 3]
    if not width or len(data) < start + width:
        return None
    return int.from_bytes(data[start : start + width], "little") + (256 if width == 2 else 0)


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    """Compress into an LZ4 frame of independent blocks, the only kind that Java reads.

    Level 1 is the fast mode, as in Java.
    """
    # cramjam's one-shot function links the blocks, so its compressor object is used for the slower
    # levels. In the fast mode the frame is assembled here from single blocks: cramjam's own way
    # takes half as long again, because of copies.
    if level is not None and level > 1:
        compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    view = memoryview(data)
    most = (
        len(_LZ4_HEAD)
        + sum(
            4 + _lz4_bound(min(_LZ4_BLOCK, len(view) - start))
            for start in range(0, len(view), _LZ4_BLOCK)
        )
        + 4
    )
    scratch = Scratch.borrow()
    try:
        out = scratch.room if most <= len(scratch.room) else memoryview(bytearray(most))
        return bytes(out[: _write_lz4(view, out)])
    finally:
        scratch.give_back()


def _lz4_bound(size: int) -> int:
    """Return the largest size of a compressed block, as LZ4 defines it."""
    return size + size // 255 + 16


def _write_lz4(view: memoryview, out: memoryview) -> int:
    """Write a frame of independent blocks to ``out``; return its number of bytes."""
    end = len(_LZ4_HEAD)
    out[:end] = _LZ4_HEAD
    for start in range(0, len(view), _LZ4_BLOCK):
        block = view[start : start + _LZ4_BLOCK]
        begin = end + 4
        limit = end + 4 + _lz4_bound(len(block))
        size = cramjam.lz4.compress_block_into(
            block, _output(out[begin:limit]), mode="fast", store_size=False
        )
        if size >= len(block):  # the highest bit marks a block that is not compressed
            size = len(block)
            out[begin : begin + size] = block
            out[end:begin] = (size | 1 << 31).to_bytes(4, "little")
        else:
            out[end:begin] = size.to_bytes(4, "little")
        end = begin + size
    out[end : end + 4] = bytes(4)
    return end + 4


def repair_lz4_header(data: Buffer) -> bytes:
    """Return the LZ4 frame with a correct header checksum.

    Message format v0 was written with a wrong one (KAFKA-3160).
    """
    if len(data) < 7 or bytes(data[:4]) != _LZ4_MAGIC:
        raise ValueError("not an LZ4 frame")
    end = 4 + 2 + (8 if data[4] & 0x08 else 0)
    if len(data) <= end:
        raise ValueError("LZ4 frame is cut in its header")
    checksum = _xxh32_short(bytes(data[4:end])) >> 8 & 0xFF
    return bytes(data[:end]) + bytes([checksum]) + bytes(data[end + 1 :])


def _xxh32_short(data: bytes) -> int:
    """Return xxHash32 (seed 0) of fewer than 16 bytes."""
    mask = 0xFFFFFFFF
    prime_1 = 2654435761
    prime_2 = 2246822519
    prime_3 = 3266489917
    prime_4 = 668265263
    prime_5 = 374761393
    state = prime_5 + len(data)
    pos = 0
    while pos + 4 <= len(data):
        state = state + int.from_bytes(data[pos : pos + 4], "little") * prime_3 & mask
        state = ((state << 17 | state >> 15) & mask) * prime_4 & mask
        pos += 4
    for byte in data[pos:]:
        state = state + byte * prime_5 & mask
        state = ((state << 11 | state >> 21) & mask) * prime_1 & mask
    state = (state ^ state >> 15) * prime_2 & mask
    state = (state ^ state >> 13) * prime_3 & mask
    return state ^ state >> 16


#: Format 1, independent blocks, no checksum but the header's; blocks of at most 64 KiB, as in
#: Java's client.
_LZ4_DESCRIPTOR = bytes((0x60, 0x40))
_LZ4_HEAD = _LZ4_MAGIC + _LZ4_DESCRIPTOR + bytes((_xxh32_short(_LZ4_DESCRIPTOR) >> 8 & 0xFF,))
_LZ4_BLOCK = 65_536


def _compress_snappy(data: Buffer, level: int | None) -> bytes:
    view = memoryview(data)
    blocks = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        blocks += (len(block).to_bytes(4, "big"), block)
    return b"".join(blocks)


def _decompress_snappy(data: Buffer, limit: int, scratch: Scratch | None) -> Buffer:
    """Decompress both framings: raw (librdkafka and most others) and xerial blocks (Java)."""
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, limit)
    out = bytearray()
    pos = len(_XERIAL_HEADER)
    if len(view) < pos:
        raise ValueError("snappy header is cut")
    while pos < len(view):
        end = pos + 4 + int.from_bytes(view[pos : pos + 4], "big")
        if len(view) - pos < 4 or end > len(view):
            raise ValueError("snappy block is cut")
        out += _decompress_snappy_block(view[pos + 4 : end], limit - len(out))
        pos = end
    return out


def _decompress_snappy_block(block: memoryview, limit: int) -> Buffer:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > limit:
            raise _too_large(size, limit)
        if size > len(block) * 64:  # a copy element of 2 or 3 bytes makes at most 64
            raise ValueError(f"snappy block of {len(block)} bytes claims {size}")
        out = bytearray(size)
        written = cramjam.snappy.decompress_raw_into(block, out)
    except cramjam.DecompressionError as error:
        raise ValueError(str(error)) from None
    return out if written == size else memoryview(out)[:written]


#: Encoders that have this one keep their bytes, without a call for each batch.
NONE = Codec("none", 0, _compress_none, _decompress_none)
CODECS = (
    NONE,
    Codec("gzip", 1, _compress_gzip, _decompress_gzip),
    Codec("snappy", 2, _compress_snappy, _decompress_snappy),
    Codec("lz4", 3, _compress_lz4, _unlz4),
    Codec("zstd", 4, _compress_zstd, _decompress_zstd),
)
BY_NAME = {codec.name: codec for codec in CODECS}
BY_ID = {codec.id: codec for codec in CODECS}
