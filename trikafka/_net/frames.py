"""Frames from a byte stream, with as few copies as the stream allows.

The reader task of a connection owns the reader. Small frames are copied out of one buffer, which is
used again. Large frames are received directly into memory from a pool, which takes the memory back
once no view of it is alive. Fresh memory would cost more time in the kernel than the bytes that are
received into it.
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
#: The first bytes from a TLS port to a client without TLS.
_ALERT_OF_TLS = b"\x15\x03"


class FrameReader:
    """A reader of length-prefixed frames from ``transport``.

    Args:
        transport: The stream.
        max_bytes: The largest length of a frame that is accepted.
        peer: The broker's name, for errors.
        excess: Called with the length of each large frame. It returns what is wrong with this
            length, in words that can follow the peer's name, or ``None``.
    """

    def __init__(
        self,
        transport: Transport,
        max_bytes: int,
        peer: str,
        excess: Callable[[int], str | None] = lambda size: None,
    ) -> None:
        self._transport = transport
        self._max = max_bytes
        self._peer = peer
        self._excess = excess
        self._first = True  # no frame has come yet
        self._buffer = bytearray(_CHUNK)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0

    async def read(self) -> memoryview | None:
        """Return the next frame without its length, or ``None`` when the peer has closed.

        The frame's memory is not used again while a view of it is alive. After a cancellation the
        reader cannot be used any more, because a part of a frame may be lost.

        Raises:
            DamagedResponseError: No response of Kafka has such a length, or the response to this
                request cannot be so long.
            ProtocolError: The first bytes of the peer are a TLS alert.
            Exception: The error of the stream.
        """
        # One call of the kernel receives all small frames that have arrived into a buffer of 64
        # KiB. Each frame is copied out, because the buffer is used again. A frame of 64 KiB or
        # more, or one that has not arrived as a whole, gets memory of its own as soon as its length
        # is known, and the rest of it is received there without a copy. The record batches of a
        # Fetch response are slices of that memory until they are decoded.
        #
        # The length is checked before any memory is allocated for it. The first check is against
        # `receive_message_max_bytes`; it also finds peers that are not Kafka. Above 128 KiB there
        # is a second one, against what the request asked for (`bounds`). Without it, a damaged
        # length would make the client allocate memory for bytes that never come.
        while self._end - self._start < 4:
            if not await self._fill():
                return None
        (size,) = _INT32.unpack_from(self._buffer, self._start)
        if not 4 <= size <= self._max:
            raise self._not_a_length(size)
        self._first = False
        if size > LEAST and (wrong := self._excess(size)) is not None:
            raise DamagedResponseError(f"{self._peer} {wrong}")
        start = self._start + 4
        if size < _CHUNK:
            _implementation.current.trim_memory()  # small frames again: return pooled memory
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

    def _not_a_length(self, size: int) -> ProtocolError:
        """Return the error for a frame that cannot have ``size`` bytes.

        If it is the first frame, the peer may not be a Kafka broker, or may need TLS. After a good
        frame, the stream is damaged: the connection is lost, and the broker may have carried out
        requests in flight.
        """
        if not self._first:
            return DamagedResponseError(
                f"{self._peer} sent a response of {size:,} bytes; a response has 4 to "
                f"{self._max:,} (receive_message_max_bytes)"
            )
        head = bytes(self._view[self._start : min(self._end, self._start + 8)])
        if head.startswith(_ALERT_OF_TLS):
            return ProtocolError(
                f"{self._peer} does not speak Kafka's protocol without TLS: "
                "set security_protocol to 'SSL', or with SASL to 'SASL_SSL' (its first bytes are "
                f"{head!r})"
            )
        return DamagedResponseError(
            f"{self._peer} does not speak Kafka's protocol (its first bytes are {head!r}), or "
            f"needs TLS, or sends responses over receive_message_max_bytes ({self._max})"
        )

    async def _fill(self) -> bool:
        left = self._end - self._start
        if left:
            self._view[:left] = bytes(self._view[self._start : self._end])
        self._start = 0
        self._end = left
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
