"""The way from a fresh stream to a broker to one that is secured as the settings require."""

from __future__ import annotations

import contextlib
import math
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio
from trio.abc import Stream

from ..config import ClientConfig
from ..errors import KafkaConnectionError, TrikafkaError
from ..types import Node
from .session import Authenticate
from .tickets import Resumption
from .tls import TlsTransport
from .tls_context import TlsContexts
from .tls_errors import closed_in_handshake, explain, is_wrong_name
from .transport import Transport, transport_of

if TYPE_CHECKING:
    from .auth import MechanismFactory, SaslAuthenticator

Dial = Callable[[str, int], Awaitable[Stream]]


class Security:
    """The TLS and SASL of one client.

    ``offered`` is a plugin's mechanism, if ``sasl_mechanism`` names one.
    """

    def __init__(self, config: ClientConfig, offered: MechanismFactory | None = None) -> None:
        self._config = config
        self._contexts = TlsContexts(config) if config.uses_tls else None
        self.authenticate: Authenticate | None = None
        self._authenticator: SaslAuthenticator | None = None
        if config.uses_sasl:
            from .auth import SaslAuthenticator  # loads modules that no other client needs

            self._authenticator = SaslAuthenticator(config, offered)
            self.authenticate = self._authenticator

    async def check(self) -> None:
        """Read the files that the settings name.

        Raises :exc:`ConfigurationError` for files that cannot be used.
        """
        await self.refresh()
        if self._authenticator is not None:
            await self._authenticator.check()

    async def refresh(self, limit: float = math.inf) -> None:
        """Load the files of TLS if they have changed.

        Files that were loaded before stay in use if that takes longer than ``limit`` seconds.
        Raises :exc:`ConfigurationError` if they cannot be used, and were not loaded before.
        """
        if self._contexts is not None:
            await self._contexts.refresh(limit)

    async def connect(self, dial: Dial, node: Node) -> Transport:
        """Dial, and shake hands if the settings require TLS.

        Raises what ``dial`` raises, :exc:`HandshakeError`, :exc:`KafkaConnectionError`.
        """
        transport = transport_of(await dial(node.host, node.port))
        if self._contexts is None:
            return transport
        try:
            context = await self._contexts.context()
            tickets = self._contexts.tickets
            resumption = None if tickets is None else tickets.begin(node.host, node.port)
            tls = _secured(transport, context, node, resumption)
            await tls.handshake()
        except BaseException as error:
            with trio.CancelScope(shield=True):
                await transport.aclose()
            if isinstance(error, EOFError | ConnectionResetError | BrokenPipeError):
                raise closed_in_handshake(node) from error
            if isinstance(error, ssl.SSLError):
                names = await self._names(dial, node) if is_wrong_name(error) else None
                raise explain(error, node, names) from error
            raise
        return tls

    async def _names(self, dial: Dial, node: Node) -> str | None:
        """Return the names in the broker's certificate, for an error's text.

        They are asked for by another connection, which sends nothing: not even this client's
        certificate, which is for the dialled name alone. Whatever fails there hides no error.
        """
        if self._contexts is None or self._config.ssl_context is not None:
            return None
        names: str | None = None
        with contextlib.suppress(
            OSError, EOFError, trio.BrokenResourceError, trio.TooSlowError, TrikafkaError
        ):
            context = await self._contexts.nameless()
            transport = transport_of(await dial(node.host, node.port))
            try:
                tls = _secured(transport, context, node)
                await tls.handshake()
                names = tls.peer_names()
            finally:
                with trio.CancelScope(shield=True):
                    await transport.aclose()
        return names


def _secured(
    transport: Transport,
    context: ssl.SSLContext,
    node: Node,
    resumption: Resumption | None = None,
) -> TlsTransport:
    """Return a TLS connection over ``transport``, before its handshake.

    The host may be any text, of a setting or of a broker, and a dial function reaches any.

    Raises:
        KafkaConnectionError: OpenSSL takes no such name, so no certificate could be checked for it.
    """
    try:
        return TlsTransport(transport, context, node, resumption)
    except (TypeError, ValueError):  # an empty name, a leading dot, a null character, a long part
        pass
    raise KafkaConnectionError(
        f"cannot connect to {node}: TLS cannot check a certificate for {node.host!r}, which is "
        "neither a host name nor an address"
    )
