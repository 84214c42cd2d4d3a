"""Frames out of a byte stream, with as few copies as the stream allows. Owned by one connection's reader task.

Small frames are cut out of one reused buffer. Large ones are received straight into memory of the record path's pool, which is used
again once nobody looks at it any more: fresh memory costs the kernel more than the bytes that go into it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from .._wire import _implementation
from ..errors import DamagedResponseError, ProtocolError
from .bounds import LEAST
from .transport import Transport

_CHUNK = 65_536
_INT32 = struct.Struct(">i")
#: What a port for TLS says to whoever does not speak it.
_ALERT_OF_TLS = b"\x15\x03"


class FrameReader:
    """Reads length-prefixed frames from ``transport``; a frame over ``max_bytes`` is not Kafka's.

    ``excess`` is asked of each large one what is wrong with its length, in words that follow the peer's name; ``None``: nothing.
    """

    def __init__(
        self, transport: Transport, max_bytes: int, peer: str, excess: Callable[[int], str | None] = lambda size: None
    ) -> None:
        self._transport, self._max, self._peer, self._excess = transport, max_bytes, peer, excess
        self._buffer = bytearray(_CHUNK)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    async def read(self) -> memoryview | None:
        """Return the next frame without its length, or ``None`` when the peer has closed. Cancellation loses the stream's place.

        The frame's memory is the caller's as long as a view of it lives.

        Raises :exc:`ProtocolError` for a length that no response of Kafka has, :exc:`DamagedResponseError` for one that is too much
        for this response, and what the stream raises.
        """
        while self._end - self._start < 4:
            if not await self._fill():
                return None
        (size,) = _INT32.unpack_from(self._buffer, self._start)
        if not 4 <= size <= self._max:
            head = bytes(self._view[self._start : min(self._end, self._start + 8)])
            if head.startswith(_ALERT_OF_TLS):
                raise ProtocolError(
                    f"{self._peer} does not speak Kafka's protocol as it is spoken, but needs TLS: set security_protocol to 'SSL',"
                    f" or with SASL to 'SASL_SSL' (its first bytes are {head!r})"
                )
            raise ProtocolError(
                f"{self._peer} does not speak Kafka's protocol (its first bytes are {head!r}), or needs TLS, or sends responses"
                f" over receive_message_max_bytes ({self._max})"
            )
        if size > LEAST and (wrong := self._excess(size)) is not None:
            raise DamagedResponseError(f"{self._peer} {wrong}")
        start = self._start + 4
        if size < _CHUNK:
            _implementation.current.trim_memory()  # the rush is over, if there was one
            if start + size <= self._end:
                self._start = start + size
                return memoryview(self._buffer[start : self._start])
        frame = _implementation.current.writable_memory(size)
        have = min(size, self._end - start)
        frame[:have] = self._view[start : start + have]
        self._start = start + have
        if have < size and not await self._receive_into(frame[have:]):
            return None
        return frame

    async def _fill(self) -> bool:
        left = self._end - self._start
        if left:
            self._view[:left] = bytes(self._view[self._start : self._end])
        self._start, self._end = 0, left
        count = await self._transport.receive_into(self._view[left:] if left else self._view)
        self._end += count
        return count > 0

    async def _receive_into(self, view: memoryview) -> bool:
        while view:
            count = await self._transport.receive_into(view)
            if count == 0:
                return False
            view = view[count:]
        return True
