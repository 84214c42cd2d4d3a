"""TLS on top of another transport: OpenSSL works on memory, and the bytes come and go as without it.

Decrypted bytes go straight into the reader's memory. What is to be sent is encrypted in slices, so that a large request does
not hold up the loop; ciphertext that the socket has not taken is kept here, and goes first.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Any

import trio

from ..types import Node
from .tls_errors import explain
from .transport import STREAM_ERRORS, Transport, Views, without

#: Ciphertext taken from the socket at a time.
_RECEIVE = 262_144
#: Plaintext encrypted at a time: a tenth of a millisecond or so.
_SLICE = 262_144
#: Views that are smaller are joined: each write to OpenSSL makes records of its own.
_SMALL = 16_384


class TlsTransport:
    """One TLS connection. Make it, then :meth:`handshake`."""

    def __init__(self, inner: Transport, context: ssl.SSLContext, node: Node) -> None:
        self._inner, self._node = inner, node
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=node.host)
        self._received = memoryview(bytearray(_RECEIVE))
        self._unsent: Views = ()  # ciphertext
        self._flushing = False

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
        """The names that the peer's certificate is for."""
        certificate = self._tls.getpeercert() or {}
        names = certificate.get("subjectAltName") or [pair for part in certificate.get("subject", ()) for pair in part]
        return ", ".join(repr(pair[1]) for pair in names) or None

    async def handshake(self) -> None:
        """Shake hands. Raises :exc:`ssl.SSLError`, what the inner transport raises, and ``EOFError`` if the peer closes."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._receive()
                if self._incoming.eof and not self._incoming.pending:
                    raise EOFError("the peer closed the connection during the TLS handshake") from None
            except ssl.SSLError:
                with trio.move_on_after(1), contextlib.suppress(*STREAM_ERRORS):
                    await self._flush()  # the alert: so the broker's log says why as well
                raise
            else:
                await self._flush()
                return

    async def receive_into(self, view: memoryview) -> int:
        """See :class:`Transport`."""
        while True:
            count = self._read(view)
            if count is not None:
                return count
            await self._receive()

    def _read(self, view: memoryview) -> int | None:
        """Decrypt what is there: how many bytes, 0 at the end, ``None`` if there is nothing yet."""
        total = 0
        while total < len(view):
            try:
                count: Any = self._tls.read(len(view) - total, view[total:])
            except ssl.SSLWantReadError:
                return total or None
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return total  # brokers that are killed do not say goodbye
            except ssl.SSLError as error:  # with TLS 1.3 also that the broker wants another certificate
                raise explain(error, self._node) from error
            if not count:
                return total
            total += count
        return total

    async def _receive(self) -> None:
        count = await self._inner.receive_into(self._received)
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
            await trio.lowlevel.checkpoint()  # encrypting is work

    def send_now(self, views: Views) -> int:
        """See :class:`Transport`: what was encrypted counts as sent."""
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
        """Encrypt a slice; return how many bytes of plaintext that were."""
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
        await self._inner.aclose()
