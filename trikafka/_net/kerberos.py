"""GSSAPI (RFC 4752) with Kerberos, over the package ``gssapi``.

kafka-python's mechanism takes any ticket of the environment, and no other; this one also takes a
key table and a name.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from typing import Any

from ..errors import HandshakeError
from ..errors.peer_text import peer_text
from .regular_files import read_regular

#: In the last message, the byte that selects the protection of what follows, and the maximal
#: length: no protection. TLS does that.
_NO_LAYER, _UNPROTECTED = 1, b"\x01\0\0\0"
#: The first byte of a key table file.
_KEY_TABLE = b"\x05"
_CHANGED = "the key was changed at the key distribution centre: a new key table is needed"
#: The base of MIT Kerberos' error codes, and hints for some of them, by their numbers in RFC 4120.
_KERBEROS_ERRORS = 2_529_638_912
_HINTS = {
    6: "the key distribution centre does not know this principal",
    7: "the key distribution centre does not know the brokers by this name: see "
    "sasl_kerberos_service_name",
    24: _CHANGED,
    31: _CHANGED,
    32: "get a new one: kinit",
}


class Kerberos:
    """An authentication by Kerberos.

    All of it may block, so it runs in a thread. A refusal of GSSAPI is a :exc:`HandshakeError`.
    """

    def __init__(
        self, service: str, host: str, principal: str | None = None, keytab: str | None = None
    ) -> None:
        try:
            import gssapi
        except (ImportError, OSError) as error:
            how = "pip install 'trikafka[gssapi]' (from a clone: pip install '.[gssapi]')"
            raise HandshakeError(
                f"sasl_mechanism='GSSAPI' needs the package gssapi: {how}"
            ) from error
        self._gssapi = gssapi
        self._service = f"{service}@{host}"
        self._whose = _Whose(gssapi, principal, keytab)
        target = gssapi.Name(self._service, gssapi.NameType.hostbased_service)
        try:
            credentials = self._whose.credentials()
        except gssapi.exceptions.GSSError as error:
            raise self._whose.without_ticket(error) from error
        self._context = gssapi.SecurityContext(
            name=target.canonicalize(gssapi.MechType.kerberos), creds=credentials, usage="initiate"
        )
        self._said_all = False

    def first(self) -> bytes:
        """Return the first message; see :class:`trikafka._wire.sasl.Mechanism`."""
        return self._step(None)

    def respond(self, challenge: bytes) -> bytes | None:
        """Return the next message; see :class:`trikafka._wire.sasl.Mechanism`."""
        if self._said_all:
            return None
        if not self._context.complete:
            return self._step(challenge)
        offered = self._context.unwrap(challenge).message
        if len(offered) != 4 or not offered[0] & _NO_LAYER:
            raise ValueError(
                "the broker wants a security layer of GSSAPI, which Kafka does not have"
            )
        self._said_all = True
        # Without a name after these bytes the client acts as the owner of the ticket.
        return bytes(self._context.wrap(_UNPROTECTED, False).message)

    def _step(self, challenge: bytes | None) -> bytes:
        try:
            return bytes(self._context.step(challenge) or b"")
        except self._gssapi.exceptions.GSSError as error:
            self._whose.check()
            why = _words(error)
            raise HandshakeError(
                f"GSSAPI: no ticket for the service {self._service!r} by {self._whose.source()}: "
                f"{why}"
            ) from error


class _Whose:
    """The source of this client's tickets.

    GSSAPI's own texts name neither a file nor a principal.
    """

    def __init__(self, gssapi: Any, principal: str | None, keytab: str | None) -> None:
        self._gssapi = gssapi
        self._principal = principal
        self._keytab = keytab
        self._name = (
            None
            if principal is None
            else gssapi.Name(principal, gssapi.NameType.kerberos_principal)
        )

    def credentials(self) -> Any:
        """Return the credentials of a name or a key table; ``None``: those of the environment.

        Tickets of a key table stay in this process.
        """
        if self._keytab is None:
            return (
                None
                if self._name is None
                else self._gssapi.Credentials(name=self._name, usage="initiate")
            )
        # All connections with the same key table and principal share one cache.
        alike = hashlib.sha256(f"{self._principal}\0{self._keytab}".encode()).hexdigest()[:16]
        return self._by_key_table(f"MEMORY:trikafka-{alike}")

    def check(self) -> None:
        """Check whether the key table still gives tickets.

        Raises :exc:`HandshakeError` if it does not. For an expired ticket GSSAPI reports just that,
        and not why the key table has brought no new one.
        """
        if self._keytab is None:
            return
        try:
            self._by_key_table(f"MEMORY:trikafka-{uuid.uuid4()}")
        except self._gssapi.exceptions.GSSError as error:
            raise self.without_ticket(error) from error

    def without_ticket(self, error: Any) -> HandshakeError:
        """Return the error for a start without a ticket."""
        if self._keytab is None:
            return HandshakeError(f"GSSAPI: there is no ticket by {self.source()}: {_words(error)}")
        # Whatever is wrong, the error only reports that there is no ticket, and not where it
        # looked.
        who = (
            "" if self._principal is None else f" for {self._principal!r} (sasl_kerberos_principal)"
        )
        why = _fault(self._keytab) or _words(error)
        return HandshakeError(
            f"GSSAPI: there is no ticket{who} by the key table {self._keytab!r} "
            f"(sasl_kerberos_keytab): {why}"
        )

    def source(self) -> str:
        """Return the source of the tickets, in words."""
        who = (
            "" if self._principal is None else f" of {self._principal!r} (sasl_kerberos_principal)"
        )
        if self._keytab is not None:
            return f"the key table {self._keytab!r} (sasl_kerberos_keytab){who}"
        cache = os.environ.get("KRB5CCNAME")
        table = os.environ.get("KRB5_CLIENT_KTNAME")
        text = (
            "the system's credentials cache"
            if cache is None
            else f"the credentials cache {cache!r} (KRB5CCNAME)"
        )
        return f"{text}{self._owner() or who}" + (
            f" or the key table {table!r} (KRB5_CLIENT_KTNAME)" if table else ""
        )

    def _owner(self) -> str:
        try:
            return f" of '{self._gssapi.Credentials(name=self._name, usage='initiate').name}'"
        except self._gssapi.exceptions.GSSError:
            return ""

    def _by_key_table(self, cache: str) -> Any:
        store = {"client_keytab": self._keytab, "ccache": cache}
        return self._gssapi.Credentials(name=self._name, usage="initiate", store=store)


def _words(error: Any) -> str:
    """Return the text of Kerberos, without GSSAPI's frame around it, and a hint what to do."""
    said = peer_text("; ".join(error.get_all_statuses(error.min_code, False)) or error)
    hint = _HINTS.get((error.min_code & 0xFFFFFFFF) - _KERBEROS_ERRORS)
    return f"{said} ({hint})" if hint else said


def _fault(keytab: str) -> str | None:
    """Return why a key table cannot be used, as far as its file shows."""
    kind, separator, path = keytab.partition(":")
    if separator and kind not in ("FILE", "WRFILE"):
        return None  # the key table is not a file
    try:
        begins = read_regular(path if separator else keytab, 1)
        return None if begins == _KEY_TABLE else "the file is not a key table"
    except OSError as error:
        return error.strerror
