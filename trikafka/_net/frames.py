"""Frames out of a byte stream, with as few copies as the stream allows. Owned by one connection's reader task.

Small frames are cut out of one reused buffer. A frame larger than what has arrived gets a buffer of its exact size, and the
rest of it is received straight into that.
"""

from __future__ import annotations

import trio
from trio.abc import Stream

from ..errors import ProtocolError

_CHUNK = 65_536


class FrameReader:
    """Reads length-prefixed frames from ``stream``; a frame over ``max_bytes`` is not Kafka's."""

    def __init__(self, stream: Stream, max_bytes: int, peer: str) -> None:
        self._stream, self._max, self._peer = stream, max_bytes, peer
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._buffer = bytearray(_CHUNK)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    async def read(self) -> bytearray | None:
        """Return the next frame without its length, or ``None`` when the peer has closed. Cancellation loses the stream's place.

        Raises :exc:`ProtocolError` for a length that no Kafka answer has, and what the stream raises.
        """
        while self._end - self._start < 4:
            if not await self._fill():
                return None
        size = int.from_bytes(self._view[self._start : self._start + 4], "big", signed=True)
        if not 4 <= size <= self._max:
            head = bytes(self._view[self._start : min(self._end, self._start + 8)])
            raise ProtocolError(
                f"{self._peer} does not speak Kafka's protocol (its first bytes are {head!r}), or needs TLS, or sends answers over"
                f" receive_message_max_bytes ({self._max})"
            )
        self._start += 4
        frame = bytearray(size)
        have = min(size, self._end - self._start)
        frame[:have] = self._view[self._start : self._start + have]
        self._start += have
        if have < size and not await self._receive_into(memoryview(frame)[have:]):
            return None
        return frame

    async def _fill(self) -> bool:
        left = self._end - self._start
        self._view[:left] = bytes(self._view[self._start : self._end])
        self._start, self._end = 0, left
        count = await self._receive_some(self._view[left:])
        self._end += count
        return count > 0

    async def _receive_into(self, view: memoryview) -> bool:
        while view:
            count = await self._receive_some(view)
            if count == 0:
                return False
            view = view[count:]
        return True

    async def _receive_some(self, view: memoryview) -> int:
        if self._socket is not None:
            return await self._socket.recv_into(view)
        data = await self._stream.receive_some(len(view))
        view[: len(data)] = data
        return len(data)
