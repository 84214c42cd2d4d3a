"""Frames out of a byte stream, with as few copies as the stream allows. Owned by one connection's reader task.

Small frames are cut out of one reused buffer. Large ones are received straight into buffers that are used again once nobody
looks at them any more: fresh memory costs the kernel more than the bytes that go into it.
"""

from __future__ import annotations

from ..errors import ProtocolError
from .transport import Transport

_CHUNK = 65_536
#: Frames from this size on are received into buffers that are used again; their sizes are multiples of this.
_LARGE = 262_144
_MOST_LARGE = 16


class FrameReader:
    """Reads length-prefixed frames from ``transport``; a frame over ``max_bytes`` is not Kafka's."""

    def __init__(self, transport: Transport, max_bytes: int, peer: str) -> None:
        self._transport, self._max, self._peer = transport, max_bytes, peer
        self._buffer = bytearray(_CHUNK)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._large: list[bytearray] = []  # in use or to be used again

    async def read(self) -> memoryview | None:
        """Return the next frame without its length, or ``None`` when the peer has closed. Cancellation loses the stream's place.

        The frame's memory is the caller's as long as a view of it lives.

        Raises :exc:`ProtocolError` for a length that no response of Kafka has, and what the stream raises.
        """
        while self._end - self._start < 4:
            if not await self._fill():
                return None
        size = int.from_bytes(self._view[self._start : self._start + 4], "big", signed=True)
        if not 4 <= size <= self._max:
            head = bytes(self._view[self._start : min(self._end, self._start + 8)])
            raise ProtocolError(
                f"{self._peer} does not speak Kafka's protocol (its first bytes are {head!r}), or needs TLS, or sends responses"
                f" over receive_message_max_bytes ({self._max})"
            )
        self._start += 4
        frame = memoryview(self._take_large(size) if size >= _LARGE else self._take_small(size))[:size]
        have = min(size, self._end - self._start)
        frame[:have] = self._view[self._start : self._start + have]
        self._start += have
        if have < size and not await self._receive_into(frame[have:]):
            return None
        return frame

    def _take_small(self, size: int) -> bytearray:
        self._large.clear()  # the rush is over, if there was one
        return bytearray(size)

    def _take_large(self, size: int) -> bytearray:
        """A buffer that nobody looks at, not much larger than asked for; the others that are free are let go."""
        free = [buffer for buffer in self._large if _is_free(buffer)]
        fitting = (buffer for buffer in free if size <= len(buffer) <= 2 * size + _LARGE)
        chosen = next(fitting, None) or bytearray(-(-size // _LARGE) * _LARGE)
        free_ids = set(map(id, free))
        in_use = [buffer for buffer in self._large if id(buffer) not in free_ids]
        self._large = [*in_use[1 - _MOST_LARGE :], chosen]
        return chosen

    async def _fill(self) -> bool:
        left = self._end - self._start
        if left:
            self._view[:left] = bytes(self._view[self._start : self._end])
        self._start, self._end = 0, left
        count = await self._transport.receive_into(self._view[left:])
        self._end += count
        return count > 0

    async def _receive_into(self, view: memoryview) -> bool:
        while view:
            count = await self._transport.receive_into(view)
            if count == 0:
                return False
            view = view[count:]
        return True


def _is_free(buffer: bytearray) -> bool:
    """Whether no view of the buffer lives: only then it can change its size."""
    try:
        buffer.pop()
    except BufferError:
        return False
    buffer.append(0)
    return True
