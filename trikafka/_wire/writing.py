"""Requests written by hand, for the two that carry records: what they share. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ._format import Buffer

_HEADER = struct.Struct(">hhi")
#: From this size on a copy costs more than a piece of its own.
_LARGE = 16_384
_SMALL = [bytes((count + 1,)) for count in range(0x7F)]
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


class RawRequest:
    """Looks to ``_net`` like a message of kafka-python, but gives its frame in pieces. Subclasses name what they are, and write
    their bodies. ``max_version`` is the newest that this one request can be written in, which may depend on what it carries."""

    API_KEY: int
    name: str
    max_version: int
    flexible: int  #: the first version with compact lengths and tags
    response: Any  #: what responses are read as
    records: int = 0  #: how many it carries
    __slots__ = ()

    def expect_response(self) -> bool:
        """Whether the broker responds."""
        return True

    def pieces(self, version: int, correlation_id: int, client_id: str) -> list[Buffer]:
        """The whole frame: what is small in one, what is large as it is, and not to be changed until it is sent."""
        pieces: list[Buffer] = [b"", _HEADER.pack(self.API_KEY, version, correlation_id), text(client_id)]
        if version >= self.flexible:
            pieces.append(b"\x00")
            self._write(pieces, version, compact_text, compact_count, b"\x00")
        else:
            self._write(pieces, version, text, _INT32.pack, b"")
        sizes = list(map(len, pieces))
        pieces[0] = _INT32.pack(sum(sizes))
        return [b"".join(pieces)] if max(sizes) < _LARGE else _joined(pieces)

    def _write(
        self, pieces: list[Buffer], version: int, text: Callable[[str | None], bytes], count: Callable[[int], bytes], tags: bytes
    ) -> None:
        """Add the body: ``text`` and ``count`` write strings and lengths, ``tags`` ends a structure."""
        raise NotImplementedError


def _joined(pieces: list[Buffer]) -> list[Buffer]:
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < _LARGE:
            small.append(piece)
        else:
            joined += (b"".join(small), piece)
            small = []
    return [*joined, b"".join(small)]


@lru_cache(maxsize=1000)
def text(value: str | None) -> bytes:
    """A string with its length in 16 bits. It is the same few names, again and again."""
    if value is None:
        return b"\xff\xff"
    data = value.encode()
    return _INT16.pack(len(data)) + data


@lru_cache(maxsize=1000)
def compact_text(value: str | None) -> bytes:
    """A string with its length in the compact form. It is the same few names, again and again."""
    if value is None:
        return b"\x00"
    data = value.encode()
    return compact_count(len(data)) + data


def compact_count(count: int) -> bytes:
    """A count or length in the compact form: one more, seven bits a byte."""
    if count < len(_SMALL):
        return _SMALL[count]
    count += 1
    out = bytearray()
    while count >= 0x80:
        out.append(count & 0x7F | 0x80)
        count >>= 7
    out.append(count)
    return bytes(out)
