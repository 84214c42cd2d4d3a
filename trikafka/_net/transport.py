"""How the bytes of one connection come and go.

A TCP socket is asked itself: Trio's calls give other tasks a turn at each call, which costs more than the call. A receive waits
until there is something, so the tasks take turns there; what a send leaves over is waited for by the one writer. What is sent comes
in views, so that a megabyte of records is not copied once more to stand behind its header.
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

    _SIOCOUTQNSD = 0x894B  # linux/sockios.h: how much of the send buffer is not on the wire yet

_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)
_MOST_VIEWS = 512  # POSIX systems take 1,024 at a time
Views = Sequence[memoryview]
#: What a stream raises that is gone.
STREAM_ERRORS = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


def without(views: Views, count: int) -> Views:
    """The views without their first ``count`` bytes."""
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[index + 1 :]]
        count -= len(view)
    return ()


class Transport(Protocol):
    """One reader and one writer use it. What they raise when the peer or the stream is gone is Trio's or an ``OSError``."""

    async def receive_into(self, view: memoryview) -> int:
        """Wait for bytes and put them into ``view``; return how many, 0 at the end. A checkpoint."""

    async def send_all(self, views: Views) -> None:
        """Send everything. Cancelled: nobody knows how much went."""

    def send_now(self, views: Views) -> int:
        """Send what goes without a wait; return how many bytes that were."""

    @property
    def prompt(self) -> bool:
        """Whether :meth:`send_now` is of use."""

    @property
    def pending(self) -> bool:
        """Whether bytes that count as sent wait for the next :meth:`send_all`."""

    @property
    def backlog(self) -> int:
        """How many bytes the system has taken and not sent: nobody takes more just now. 0 where it does not tell."""

    async def aclose(self) -> None:
        """Close the stream at once. Raises nothing that a stream raises."""


class SocketTransport:
    """Over TCP, the socket itself."""

    prompt, pending = True, False

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
        if sys.platform != "linux":
            return 0
        count = bytearray(4)
        with contextlib.suppress(OSError, ValueError):  # it is closed
            fcntl.ioctl(self._socket, _SIOCOUTQNSD, count)
        return int.from_bytes(count, sys.byteorder)

    async def aclose(self) -> None:
        """See :class:`Transport`. The descriptor is the stream's."""
        self._socket.detach()
        await _close(self._stream)


class StreamTransport:
    """Over any stream, by its own calls."""

    prompt, pending, backlog = False, False, 0

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def receive_into(self, view: memoryview) -> int:
        """See :class:`Transport`."""
        data = await self._stream.receive_some(len(view))
        view[: len(data)] = data
        return len(data)

    async def send_all(self, views: Views) -> None:
        """See :class:`Transport`."""
        # A view in any case: an error tracker shows the bytes that a frame was called with, and these may be a password.
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
    """The quickest way to use ``stream``; a subclass of Trio's may do something of its own with the bytes."""
    if type(stream) is trio.SocketStream and stream.socket.fileno() >= 0:  # one that is closed says so at the first call
        return SocketTransport(stream)
    if type(stream) is trio.SSLStream and type(stream.transport_stream) is trio.SocketStream:
        _fill_freely(stream.transport_stream)
    return StreamTransport(stream)


def _fill_freely(stream: trio.SocketStream) -> None:
    """Let the system take as much as its buffer holds, as it comes.

    Trio has it take no more than 16 KiB beyond what is on the wire, so that who sends can still change his mind. Requests go in
    order, whatever comes after them, and the broker reads what is there while this program does something else: with so little in
    the buffer the two take turns, and a megabyte of records is eight turns of both.
    """
    with contextlib.suppress(OSError, AttributeError):  # where there is no such option, or none that can be set; 0: as it was
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 0)
