"""The bytes of one connection, in and out, and the frames in them.

A TCP socket is used directly: Trio's calls let other tasks run at each call, which costs more than
the call. A receive waits until there is something, so tasks take turns there; what a send leaves
over is sent by the one writer. Both ways copy as little as the stream allows:

* Data to send comes in views, so that a megabyte of records is not copied behind its header.
* Small frames that arrive are copied out of one buffer, which is used again. Large frames are
  received directly into memory from a pool, which takes the memory back once no view of it is
  alive. Fresh memory would cost more time in the kernel than the bytes that are received into it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import trio
from trio.abc import Stream

from .._wire import _implementation
from ..config.secrets import redacted
from ..errors import DamagedResponseError, ProtocolError, TrikafkaError
from .bounds import LEAST

if sys.platform == "linux":
    import fcntl

    # linux/sockios.h: the bytes of the send buffer that are not on the wire yet.
    _SIOCOUTQNSD = 0x894B

_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)
_MOST_VIEWS = 512  # POSIX systems take 1,024 at a time
_CHUNK = 65_536  # the buffer of small frames
_INT32 = struct.Struct(">i")
#: The first bytes from a TLS port to a client without TLS.
_ALERT_OF_TLS = b"\x15\x03"
#: The exceptions of a bug in a stream, which each further connection would raise.
_BUGS = (AttributeError, NameError, TypeError, trio.BusyResourceError)
Views = Sequence[memoryview]
#: The errors of a stream that is gone.
STREAM_ERRORS = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


def without(views: Views, count: int) -> Views:
    """Return the views without their first ``count`` bytes."""
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[index + 1 :]]
        count -= len(view)
    return ()


class Transport(Protocol):
    """The stream of one connection, with one reader and one writer.

    Errors of a peer or stream that is gone are Trio's or an ``OSError``.
    """

    async def receive_into(self, view: memoryview) -> int:
        """Wait for bytes and put them into ``view``; return how many, 0 at the end.

        A checkpoint.
        """

    async def send_all(self, views: Views) -> None:
        """Send everything. On cancellation it is unknown how much was sent."""

    def send_now(self, views: Views) -> int:
        """Send what goes without a wait; return the number of bytes."""

    @property
    def prompt(self) -> bool:
        """True if :meth:`send_now` is of use."""

    @property
    def pending(self) -> bool:
        """True if bytes that count as sent wait for the next :meth:`send_all`."""

    @property
    def backlog(self) -> int:
        """The bytes that the system has taken and not sent yet; 0 where that is unknown.

        While there are some, the network takes no more.
        """

    async def aclose(self) -> None:
        """Close the stream at once. Raises nothing that a stream raises."""


class SocketTransport:
    """A transport over TCP that uses the socket itself."""

    prompt = True
    pending = False

    def __init__(self, stream: trio.SocketStream) -> None:
        _fill_freely(stream)
        self._stream = stream
        mine = stream.socket
        self._socket = socket.socket(mine.family, mine.type, mine.proto, fileno=mine.fileno())
        self._socket.setblocking(False)

    async def receive_into(self, view: memoryview) -> int:
        """See :class:`Transport`."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv_into(view)
            except BlockingIOError:
                continue

    async def send_all(self, views: Views) -> None:
        """See :class:`Transport`."""
        while views:
            await trio.lowlevel.wait_writable(self._socket)
            views = without(views, self.send_now(views))

    def send_now(self, views: Views) -> int:
        """See :class:`Transport`."""
        try:
            if len(views) == 1 or not hasattr(self._socket, "sendmsg"):
                return self._socket.send(views[0], _FLAGS)
            return self._socket.sendmsg(views[:_MOST_VIEWS], (), _FLAGS)
        except BlockingIOError:
            return 0

    @property
    def backlog(self) -> int:
        """See :class:`Transport`."""
        # What the kernel has not put on the wire yet (SIOCOUTQNSD), not all that is unacknowledged
        # (SIOCOUTQ): bytes on their way say nothing of whether the network takes more. A producer
        # asks before it sends a third request ahead, see `Senders._held_until`. The kernel's buffer
        # may be filled to the brim (`_fill_freely`), so its own limit for unsent bytes
        # (TCP_NOTSENT_LOWAT) is no longer a bound.
        if sys.platform != "linux":
            return 0
        count = bytearray(4)
        with contextlib.suppress(OSError, ValueError):  # the socket is closed
            fcntl.ioctl(self._socket, _SIOCOUTQNSD, count)
        return int.from_bytes(count, sys.byteorder)

    async def aclose(self) -> None:
        """See :class:`Transport`. The descriptor is the stream's."""
        self._socket.detach()
        await _close(self._stream)


class StreamTransport:
    """A transport over any stream, by its own calls."""

    prompt = False
    pending = False
    backlog = 0

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def receive_into(self, view: memoryview) -> int:
        """See :class:`Transport`."""
        with _as_broken():
            data = await self._stream.receive_some(len(view))
        view[: len(data)] = data
        return len(data)

    async def send_all(self, views: Views) -> None:
        """See :class:`Transport`."""
        # A view in any case: error trackers show the arguments of a frame, and plain bytes may be a
        # password.
        with _as_broken():
            await self._stream.send_all(
                views[0] if len(views) == 1 else memoryview(b"".join(views))
            )

    def send_now(self, views: Views) -> int:
        """See :class:`Transport`: a stream that is not a socket always waits."""
        return 0

    async def aclose(self) -> None:
        """See :class:`Transport`."""
        await _close(self._stream)


@contextmanager
def _as_broken() -> Iterator[None]:
    """Raise what a stream of the user's ``dial`` raises as Trio's error for a broken stream.

    Streams of proxies and tunnels have exceptions of their own. Raised as they are, they would end
    the client, though the next connection may work. A closed stream counts as broken, too: this
    client has not closed it. Errors that only a bug raises stay.
    """
    try:
        yield
    except (trio.BrokenResourceError, OSError, TrikafkaError, *_BUGS):
        raise
    except Exception as error:
        what = redacted(f"{type(error).__name__}: {error}")
        raise trio.BrokenResourceError(f"its stream failed: {what}") from error


async def _close(stream: Stream) -> None:
    # Whatever a stream raises here, it is not used any more.
    with contextlib.suppress(Exception):
        await trio.aclose_forcefully(stream)


def transport_of(stream: Stream) -> Transport:
    """Return the quickest transport for ``stream``.

    A subclass of Trio's streams may treat the bytes in its own way, so it is not bypassed.
    """
    # A closed stream raises at the first call.
    if type(stream) is trio.SocketStream and stream.socket.fileno() >= 0:
        return SocketTransport(stream)
    if type(stream) is trio.SSLStream and type(stream.transport_stream) is trio.SocketStream:
        _fill_freely(stream.transport_stream)
    return StreamTransport(stream)


def _fill_freely(stream: trio.SocketStream) -> None:
    """Let the system take as much as its buffer holds.

    By default Trio lets it take no more than 16 KiB beyond what is on the wire, so that a sender
    can still change what it sends. Requests go in order whatever comes after them, and the broker
    reads while this program does something else. With so little in the buffer the two take turns,
    and a megabyte of records takes eight turns of both.
    """
    # The option may be missing, or refuse to be set. 0 restores the system's default.
    with contextlib.suppress(OSError, AttributeError):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 0)


class FrameReader:
    """A reader of length-prefixed frames from ``transport``; the connection's reader task owns it.

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
