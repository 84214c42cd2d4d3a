"""The bytes of one connection, in and out.

A TCP socket is used directly: Trio's calls let other tasks run at each call, which costs more than
the call. A receive waits until there is something, so tasks take turns there; what a send leaves
over is sent by the one writer. Data to send comes in views, so that a megabyte of records is not
copied behind its header.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Sequence
from typing import Protocol

import trio
from trio.abc import Stream

if sys.platform == "linux":
    import fcntl

    # linux/sockios.h: the bytes of the send buffer that are not on the wire yet.
    _SIOCOUTQNSD = 0x894B

_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)
_MOST_VIEWS = 512  # POSIX systems take 1,024 at a time
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
        data = await self._stream.receive_some(len(view))
        view[: len(data)] = data
        return len(data)

    async def send_all(self, views: Views) -> None:
        """See :class:`Transport`."""
        # A view in any case: error trackers show the arguments of a frame, and plain bytes may be a
        # password.
        await self._stream.send_all(views[0] if len(views) == 1 else memoryview(b"".join(views)))

    def send_now(self, views: Views) -> int:
        """See :class:`Transport`: a stream that is no socket always waits."""
        return 0

    async def aclose(self) -> None:
        """See :class:`Transport`."""
        await _close(self._stream)


async def _close(stream: Stream) -> None:
    with contextlib.suppress(*STREAM_ERRORS):
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
