"""GSSAPI (RFC 4752) by Kerberos, over the package ``gssapi``.

kafka-python's mechanism takes whatever ticket the environment has, and no other; this one takes a key table and a name as well.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ..errors import HandshakeError

#: In the last message, the one byte that says how what follows is protected, and how long it may be: not at all. TLS does that.
_NO_LAYER, _UNPROTECTED = 1, b"\x01\0\0\0"
#: What the file of a key table begins with.
_KEY_TABLE = b"\x05"


class Kerberos:
    """One authentication by Kerberos. All of it may block: it runs in a thread."""

    def __init__(self, service: str, host: str, principal: str | None = None, keytab: str | None = None) -> None:
        try:
            import gssapi
        except (ImportError, OSError) as error:
            raise HandshakeError("sasl_mechanism='GSSAPI' needs the package gssapi: pip install 'trikafka[gssapi]'") from error
        target = gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service)
        self._context = gssapi.SecurityContext(
            name=target.canonicalize(gssapi.MechType.kerberos), creds=_credentials(gssapi, principal, keytab), usage="initiate"
        )
        self._said_all = False

    def first(self) -> bytes:
        """See :class:`trikafka._wire.sasl.Mechanism`."""
        return bytes(self._context.step() or b"")

    def respond(self, challenge: bytes) -> bytes | None:
        """See :class:`trikafka._wire.sasl.Mechanism`."""
        if self._said_all:
            return None
        if not self._context.complete:
            return bytes(self._context.step(challenge) or b"")
        offered = self._context.unwrap(challenge).message
        if len(offered) != 4 or not offered[0] & _NO_LAYER:
            raise ValueError("the broker wants a security layer of GSSAPI, which Kafka does not have")
        self._said_all = True
        return bytes(self._context.wrap(_UNPROTECTED, False).message)  # no name behind it: to act as who the ticket is of


def _credentials(gssapi: Any, principal: str | None, keytab: str | None) -> Any:
    """Those of the environment (``None``), or of a name, or a key table. The tickets of the latter stay in this process.

    Raises :exc:`HandshakeError`, which names the key table, if nothing can be got with it.
    """
    if principal is None and keytab is None:
        return None
    name = None if principal is None else gssapi.Name(principal, gssapi.NameType.kerberos_principal)
    if keytab is None:
        return gssapi.Credentials(name=name, usage="initiate")
    cache = hashlib.sha256(f"{principal}\0{keytab}".encode()).hexdigest()[:16]  # of all connections that are alike
    store = {"client_keytab": keytab, "ccache": f"MEMORY:trikafka-{cache}"}
    try:
        return gssapi.Credentials(name=name, usage="initiate", store=store)
    except gssapi.exceptions.GSSError as error:  # which says whatever is wrong that there is no ticket, and not where it looked
        who = "" if principal is None else f" for {principal!r} (sasl_kerberos_principal)"
        table = f"{keytab!r} (sasl_kerberos_keytab)"
        why = _fault(keytab) or f"it has no key of that name, or no key distribution centre gave a ticket: {error}"
        raise HandshakeError(f"GSSAPI: there is no ticket{who} by the key table {table}: {why}") from error


def _fault(keytab: str) -> str | None:
    """Why a key table cannot be used, as far as its file tells."""
    kind, separator, path = keytab.partition(":")
    if separator and kind not in ("FILE", "WRFILE"):
        return None  # it is not in a file
    try:
        with open(path if separator else keytab, "rb") as file:
            return None if file.read(1) == _KEY_TABLE else "the file is no key table"
    except OSError as error:
        return error.strerror
