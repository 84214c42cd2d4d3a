"""CRC-32C without a compiler.

In Python a byte takes 100 ns, so that the checksum would cost more than all else. But the framed format of Snappy has the CRC-32C
of each 64 KiB before they were compressed, in a disguise that is taken off with two operations; and cramjam, which is there for the
codecs, writes that at hundreds of megabytes a second. What it compressed is thrown away.
"""

from __future__ import annotations

from functools import cache

import cramjam

Buffer = bytes | bytearray | memoryview

_POLYNOMIAL = 0x82F63B78
_FRAME = 65536  #: the most that one frame holds before it is compressed
_MASK, _ALL = 0xA282EAD8, 0xFFFFFFFF
_STREAM_HEAD = 10


def crc32c(data: Buffer, crc: int = 0) -> int:
    """The CRC-32C of ``data``; with ``crc``, which is that of what stands before it, of both together."""
    view = memoryview(data).cast("B")
    first = len(view) % _FRAME  # so that all that follow are whole, and sums are moved past one length alone
    if first:
        crc = _past(crc, first) ^ _sums(view[:first])[0]
    if len(view) > first:
        for one in _sums(view[first:]):
            crc = _past(crc, _FRAME) ^ one
    return crc


def _sums(data: memoryview) -> list[int]:
    """The checksum of each frame's content."""
    frames = memoryview(cramjam.snappy.compress(data))
    at, found = _STREAM_HEAD, []
    while at < len(frames):
        masked = int.from_bytes(frames[at + 4 : at + 8], "little") - _MASK & _ALL
        found.append((masked << 15 | masked >> 17) & _ALL)
        at += 4 + int.from_bytes(frames[at + 1 : at + 4], "little")
    return found


def _past(crc: int, zeros: int) -> int:
    """What becomes of a checksum when as many bytes follow that have the checksum 0: it is multiplied by x to the 8 n."""
    return _product(crc, _power(zeros)) if crc else 0


@cache
def _square(times: int) -> int:
    """x to the power of 8 · 2^times."""
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
    """Of two polynomials over GF(2), modulo that of CRC-32C; the highest bit is the lowest power."""
    product = 0
    while other:
        if other & 0x80000000:
            product ^= one
        other = other << 1 & _ALL
        one = one >> 1 ^ (_POLYNOMIAL if one & 1 else 0)
    return product
