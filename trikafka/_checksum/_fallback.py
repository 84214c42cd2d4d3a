"""CRC-32C without a compiled part of our own."""

# Why a compressor computes the checksum
# --------------------------------------
#
# In plain Python a byte takes 100 ns, so the checksum would cost more than all other work. But
# Snappy's framed format has the CRC-32C of each 64 KiB of its input, masked by an addition and a
# rotation that are easily undone. cramjam is installed for the codecs anyway, and writes that
# format at hundreds of megabytes a second. The compressed data are discarded.
#
# The sums of the frames are then combined. A CRC is a remainder of polynomials over GF(2), so the
# sum of two parts is the sum of the first part, moved past the length of the second, XORed with the
# sum of the second. ``_past`` moves a sum past n bytes by multiplying it with x^(8n).

from __future__ import annotations

from functools import cache

import cramjam

Buffer = bytes | bytearray | memoryview

_POLYNOMIAL = 0x82F63B78
_FRAME = 65536  #: the most that one frame holds before it is compressed
_MASK, _ALL = 0xA282EAD8, 0xFFFFFFFF
_STREAM_HEAD = 10


def crc32c(data: Buffer, crc: int = 0) -> int:
    """Return the CRC-32C of ``data``, or of ``data`` after the bytes with the checksum ``crc``."""
    view = memoryview(data).cast("B")
    # The short frame comes first, so all others are moved past the same length, which is cached.
    first = len(view) % _FRAME
    if first:
        crc = _past(crc, first) ^ _sums(view[:first])[0]
    if len(view) > first:
        for one in _sums(view[first:]):
            crc = _past(crc, _FRAME) ^ one
    return crc


def _sums(data: memoryview) -> list[int]:
    """Return the checksum of each frame's content."""
    frames = memoryview(cramjam.snappy.compress(data))
    at, found = _STREAM_HEAD, []
    while at < len(frames):
        masked = int.from_bytes(frames[at + 4 : at + 8], "little") - _MASK & _ALL
        found.append((masked << 15 | masked >> 17) & _ALL)
        at += 4 + int.from_bytes(frames[at + 1 : at + 4], "little")
    return found


def _past(crc: int, zeros: int) -> int:
    """Return the checksum after ``zeros`` more bytes: the old one times x^(8 ``zeros``)."""
    return _product(crc, _power(zeros)) if crc else 0


@cache
def _square(times: int) -> int:
    """Return x^(8 · 2^times)."""
    if times == 0:
        return 0x80000000 >> 8  # bit 31 is x to the 0
    half = _square(times - 1)
    return _product(half, half)


def _power(zeros: int) -> int:
    power, times = 0x80000000, 0
    while zeros:
        if zeros & 1:
            power = _product(power, _square(times))
        zeros >>= 1
        times += 1
    return power


def _product(one: int, other: int) -> int:
    """Return the product of two polynomials over GF(2), modulo that of CRC-32C.

    The highest bit is the lowest power.
    """
    product = 0
    while other:
        if other & 0x80000000:
            product ^= one
        other = other << 1 & _ALL
        one = one >> 1 ^ (_POLYNOMIAL if one & 1 else 0)
    return product
