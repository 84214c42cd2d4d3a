"""TLS on top of another transport: OpenSSL works on memory, the transport carries the bytes.

Bytes are decrypted directly into the reader's memory. Data to send is encrypted in slices, so that
a large request does not stop the event loop. Ciphertext that the socket has not accepted yet is
kept here, and is sent first.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Any

import trio

from ..types import Node
from .tickets import Resumption
from .tls_errors import explain
from .transport import STREAM_ERRORS, Transport, Views, without

# Why memory (MemoryBIO), and not `trio.SSLStream` or a wrapped socket. A connection writes a
# request in the step that makes it, without waiting (`Transport.send_now`), and receives into
# memory that the caller chose. A stream of Trio's can do neither: its calls are `async`, and it
# returns new bytes for each receive, which would be copied into the frame. With OpenSSL on memory,
# encrypting and decrypting are plain function calls, and the bytes go through the same plain
# transport as without TLS. So frames, throttles, expiry and backlog have one implementation.
#
# The price is kept small: ciphertext is read in pieces of 256 KiB, and plaintext is written in
# slices of that size with a checkpoint in between.

#: The most bytes of ciphertext that are received at a time.
_RECEIVE = 262_144
#: The bytes of plaintext that are encrypted at a time, which takes about 0.1 ms.
_SLICE = 262_144
#: Views with fewer bytes are joined, because each write to OpenSSL makes TLS records of its own.
_SMALL = 16_384


class TlsTransport:
    """A TLS connection over another transport. Call :meth:`handshake` first.

    ``resumption`` offers a ticket of an earlier connection to the same address, and keeps a new one
    for the next. Without it the handshake is always a full one.
    """

    def __init__(
        self,
        inner: Transport,
        context: ssl.SSLContext,
        node: Node,
        resumption: Resumption | None = None,
    ) -> None:
        self._inner = inner
        self._node = node
        self._resumption = resumption
        # How often this has waited for bytes since the handshake, until the ticket is kept.
        self._rests = 0
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        offered = None if resumption is None else resumption.session
        # A dot at the end makes a name absolute in DNS. Names in certificates and in TLS's
        # extension for them (RFC 6066) have none.
        name = node.host.removesuffix(".")
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname=name, session=offered
        )
        self._received = memoryview(bytearray(_RECEIVE))
        self._unsent: Views = ()  # ciphertext
        self._flushing = False
        self._drained = False  # nothing can be decrypted before more ciphertext has come

    @property
    def prompt(self) -> bool:
        """See :class:`Transport`."""
        return self._inner.prompt

    @property
    def pending(self) -> bool:
        """See :class:`Transport`."""
        return bool(self._unsent) or self._inner.pending

    @property
    def backlog(self) -> int:
        """See :class:`Transport`."""
        return self._inner.backlog

    def peer_names(self) -> str | None:
        """Return the names in the peer's certificate."""
        certificate = self._tls.getpeercert() or {}
        names = certificate.get("subjectAltName") or [
            pair for part in certificate.get("subject", ()) for pair in part
        ]
        return ", ".join(repr(pair[1]) for pair in names) or None

    @property
    def resumed(self) -> bool:
        """True if the handshake resumed the session of an earlier connection."""
        return bool(self._tls.session_reused)

    async def handshake(self) -> None:
        """Complete the TLS handshake.

        Raises:
            ssl.SSLError: OpenSSL refuses the peer's certificate or protocol.
            EOFError: The peer has closed the connection.
            Exception: The error of the inner transport.
        """
        resumption = self._resumption
        try:
            await self._shake_hands()
        except BaseException as error:
            self._resumption = None
            if resumption is not None:
                resumption.failed(cancelled=not isinstance(error, Exception))
            raise
        if resumption is not None:
            resumption.succeeded(resumed=self.resumed)
            if self._tls.version() != "TLSv1.3":
                # A broker's network threads do not share sessions of an older version, and such a
                # session gives weaker guarantees. So these are not kept.
                self._resumption = None

    async def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._receive()
                if self._incoming.eof and not self._incoming.pending:
                    raise EOFError(
                        "the peer closed the connection during the TLS handshake"
                    ) from None
            except ssl.SSLError:
                with trio.move_on_after(1), contextlib.suppress(*STREAM_ERRORS):
                    # Sends the alert, so that the broker's log has the reason, too.
                    await self._flush()
                raise
            else:
                await self._flush()
                return

    async def receive_into(self, view: memoryview) -> int:
        """See :class:`Transport`."""
        while True:
            # If OpenSSL needs more ciphertext it raises an exception, which takes as long as
            # decrypting a record. So it is not asked again before more has come.
            count = None if self._drained else self._read(view)
            if count is not None:
                return count
            if self._resumption is not None:
                await self._rest()
            await self._receive()

    async def _rest(self) -> None:
        """Keep the broker's ticket, but not before the third wait for bytes."""
        # The ticket arrives before the first response. Reading it costs half a millisecond, because
        # Python serializes and parses the session. So the first responses are handled before. By
        # the third wait other tasks have run, and the broker has its next request.
        self._rests += 1
        if self._rests > 2:
            await trio.lowlevel.checkpoint()
            self._keep_ticket()

    def _keep_ticket(self) -> None:
        resumption = self._resumption
        self._resumption = None
        if resumption is not None:
            resumption.store(self._tls.session)

    def _read(self, view: memoryview) -> int | None:
        """Decrypt the ciphertext that has come; return the number of bytes.

        0: the stream has ended. ``None``: nothing can be decrypted yet.
        """
        total = 0
        while total < len(view):
            try:
                count: Any = self._tls.read(len(view) - total, view[total:])
            except ssl.SSLWantReadError:
                self._drained = True
                return total or None
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return total  # a killed broker sends no close_notify
            # With TLS 1.3 a broker refuses the client's certificate only after the handshake.
            except ssl.SSLError as error:
                raise explain(error, self._node) from error
            if not count:
                return total
            total += count
        return total

    async def _receive(self) -> None:
        count = await self._inner.receive_into(self._received)
        self._drained = False
        if count:
            self._incoming.write(self._received[:count])
        else:
            self._incoming.write_eof()

    async def send_all(self, views: Views) -> None:
        """See :class:`Transport`."""
        await self._flush()
        while views:
            views = without(views, self._encrypt(views))
            await self._flush()
            await trio.lowlevel.checkpoint()  # encrypting takes time

    def send_now(self, views: Views) -> int:
        """See :class:`Transport`. Bytes count as sent once they are encrypted."""
        if self._flushing:
            return 0
        if self._unsent:
            self._unsent = without(self._unsent, self._inner.send_now(self._unsent))
            if self._unsent:
                return 0
        count = self._encrypt(views)
        self._unsent = without(self._unsent, self._inner.send_now(self._unsent))
        return count

    def _encrypt(self, views: Views) -> int:
        """Encrypt a slice; return its number of plaintext bytes."""
        count = 0
        small: list[memoryview] = []
        for view in views:
            if len(view) < _SMALL:
                small.append(view)
                count += len(view)
            else:
                self._write_joined(small)
                part = view[: max(_SMALL, _SLICE - count)]
                self._tls.write(part)
                count += len(part)
                if len(part) < len(view):
                    break
            if count >= _SLICE:
                break
        self._write_joined(small)
        self._unsent = [memoryview(self._outgoing.read())]
        return count

    def _write_joined(self, views: list[memoryview]) -> None:
        if views:
            self._tls.write(b"".join(views))
            views.clear()

    async def _flush(self) -> None:
        if self._outgoing.pending:
            self._unsent = [*self._unsent, memoryview(self._outgoing.read())]
        if self._unsent:
            self._flushing = True
            try:
                await self._inner.send_all(self._unsent)
            finally:
                self._flushing = False
            self._unsent = ()

    async def aclose(self) -> None:
        """See :class:`Transport`."""
        # A response has arrived, so the ticket has, too.
        if self._rests > 1:
            self._keep_ticket()
        await self._inner.aclose()
