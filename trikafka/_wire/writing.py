"""The parts shared by the Produce and Fetch requests, written by hand. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from ._format import Buffer

_HEADER = struct.Struct(">hhi")
#: From this size (bytes) on, a copy costs more than a piece of its own.
_LARGE = 16_384
_SMALL = [bytes((count + 1,)) for count in range(0x7F)]
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


class Form(NamedTuple):
    """The form of a version: how to write a string and a length, and how a structure ends."""

    text: Callable[[str | None], bytes]
    length: Callable[[int], bytes]
    tags: bytes


class RawRequest:
    """A request that returns its frame in pieces, and otherwise looks like kafka-python's.

    Subclasses define the class attributes and write their bodies. ``max_version`` is the newest
    version in which this request can be written, which may depend on its contents.
    """

    API_KEY: int
    name: str
    max_version: int
    flexible: int  #: the first version with compact lengths and tags
    #: The class of its responses. Its ``throttle_position`` is the place of the throttle time in
    #: the body, or ``None`` if the decoder of the response reads that time.
    response: Any
    records: int = 0  #: the number of records in it
    __slots__ = ()

    def expect_response(self) -> bool:
        """Return whether the broker responds."""
        return True

    # A Produce request is mostly record batches, which exist already as bytes. Joining them would
    # copy a megabyte for each request, and again for each attempt. So the frame is a list: header
    # and field bytes are joined up to the next large part, and the transport writes the pieces one
    # after the other. Below ``_LARGE`` a copy is cheaper than another piece to write.
    def pieces(self, version: int, correlation_id: int, client_id: str) -> list[Buffer]:
        """Return the whole frame: small parts joined, large ones as they are.

        Large parts must not change until the request is sent.
        """
        pieces: list[Buffer] = [
            b"",
            _HEADER.pack(self.API_KEY, version, correlation_id),
            text(client_id),
        ]
        if version >= self.flexible:
            pieces.append(b"\x00")
            self._write(pieces, version, _COMPACT)
        else:
            self._write(pieces, version, _PLAIN)
        sizes = list(map(len, pieces))
        pieces[0] = _INT32.pack(sum(sizes))
        return [b"".join(pieces)] if max(sizes) < _LARGE else _joined(pieces)

    def _write(self, pieces: list[Buffer], version: int, form: Form) -> None:
        """Add the body to ``pieces``."""
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
    """Return a string with its length in 16 bits.

    Cached: the same few names occur again and again.
    """
    if value is None:
        return b"\xff\xff"
    data = value.encode()
    return _INT16.pack(len(data)) + data


@lru_cache(maxsize=1000)
def compact_text(value: str | None) -> bytes:
    """Return a string with its length in the compact form.

    Cached: the same few names occur again and again.
    """
    if value is None:
        return b"\x00"
    data = value.encode()
    return compact_count(len(data)) + data


def compact_count(count: int) -> bytes:
    """Return a count or length in the compact form: one more, seven bits a byte."""
    if count < len(_SMALL):
        return _SMALL[count]
    count += 1
    out = bytearray()
    while count >= 0x80:
        out.append(count & 0x7F | 0x80)
        count >>= 7
    out.append(count)
    return bytes(out)


_PLAIN = Form(text, _INT32.pack, b"")
_COMPACT = Form(compact_text, compact_count, b"\x00")
