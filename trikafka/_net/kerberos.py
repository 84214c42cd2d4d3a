"""GSSAPI (RFC 4752) by Kerberos, over the package ``gssapi``.

kafka-python's mechanism takes whatever ticket the environment has, and no other; this one takes a key table and a name as well.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from typing import Any

from ..errors import HandshakeError

#: In the last message, the one byte that says how what follows is protected, and how long it may be: not at all. TLS does that.
_NO_LAYER, _UNPROTECTED = 1, b"\x01\0\0\0"
#: What the file of a key table begins with.
_KEY_TABLE = b"\x05"
_CHANGED = "the key was changed at the key distribution centre: a new key table is needed"
#: What MIT's Kerberos begins to count its errors by, and what some of them mean: RFC 4120 has the numbers.
_KERBEROS_ERRORS = 2_529_638_912
_HINTS = {
    6: "the key distribution centre does not know this principal",
    7: "the key distribution centre does not know the brokers by this name: see sasl_kerberos_service_name",
    24: _CHANGED,
    31: _CHANGED,
    32: "get a new one: kinit",
}


class Kerberos:
    """One authentication by Kerberos. All of it may block: it runs in a thread. What GSSAPI refuses is a :exc:`HandshakeError`."""

    def __init__(self, service: str, host: str, principal: str | None = None, keytab: str | None = None) -> None:
        try:
            import gssapi
        except (ImportError, OSError) as error:
            how = "pip install 'trikafka[gssapi]' (from a clone: pip install '.[gssapi]')"
            raise HandshakeError(f"sasl_mechanism='GSSAPI' needs the package gssapi: {how}") from error
        self._gssapi, self._service, self._whose = gssapi, f"{service}@{host}", _Whose(gssapi, principal, keytab)
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
        """See :class:`trikafka._wire.sasl.Mechanism`."""
        return self._step(None)

    def respond(self, challenge: bytes) -> bytes | None:
        """See :class:`trikafka._wire.sasl.Mechanism`."""
        if self._said_all:
            return None
        if not self._context.complete:
            return self._step(challenge)
        offered = self._context.unwrap(challenge).message
        if len(offered) != 4 or not offered[0] & _NO_LAYER:
            raise ValueError("the broker wants a security layer of GSSAPI, which Kafka does not have")
        self._said_all = True
        return bytes(self._context.wrap(_UNPROTECTED, False).message)  # no name behind it: to act as who the ticket is of

    def _step(self, challenge: bytes | None) -> bytes:
        try:
            return bytes(self._context.step(challenge) or b"")
        except self._gssapi.exceptions.GSSError as error:
            self._whose.check()
            why = _words(error)
            raise HandshakeError(f"GSSAPI: no ticket for the service {self._service!r} by {self._whose.source()}: {why}") from error


class _Whose:
    """Where this client's tickets come from: what GSSAPI says of them names neither a file nor whom it was about."""

    def __init__(self, gssapi: Any, principal: str | None, keytab: str | None) -> None:
        self._gssapi, self._principal, self._keytab = gssapi, principal, keytab
        self._name = None if principal is None else gssapi.Name(principal, gssapi.NameType.kerberos_principal)

    def credentials(self) -> Any:
        """Those of the environment (``None``), or of a name, or a key table. The tickets of the latter stay in this process."""
        if self._keytab is None:
            return None if self._name is None else self._gssapi.Credentials(name=self._name, usage="initiate")
        alike = hashlib.sha256(f"{self._principal}\0{self._keytab}".encode()).hexdigest()[:16]  # of all connections that are
        return self._by_key_table(f"MEMORY:trikafka-{alike}")

    def check(self) -> None:
        """See whether the key table is good for a ticket still. Raises :exc:`HandshakeError` if it is not.

        Of a ticket that has expired GSSAPI says just that, and not why the key table has brought no new one.
        """
        if self._keytab is None:
            return
        try:
            self._by_key_table(f"MEMORY:trikafka-{uuid.uuid4()}")
        except self._gssapi.exceptions.GSSError as error:
            raise self.without_ticket(error) from error

    def without_ticket(self, error: Any) -> HandshakeError:
        """What to say when there is none to begin with."""
        if self._keytab is None:
            return HandshakeError(f"GSSAPI: there is no ticket by {self.source()}: {_words(error)}")
        # The error says whatever is wrong that there is no ticket, and not where it looked.
        who = "" if self._principal is None else f" for {self._principal!r} (sasl_kerberos_principal)"
        why = _fault(self._keytab) or _words(error)
        return HandshakeError(f"GSSAPI: there is no ticket{who} by the key table {self._keytab!r} (sasl_kerberos_keytab): {why}")

    def source(self) -> str:
        """Where tickets come from, in words."""
        who = "" if self._principal is None else f" of {self._principal!r} (sasl_kerberos_principal)"
        if self._keytab is not None:
            return f"the key table {self._keytab!r} (sasl_kerberos_keytab){who}"
        cache, table = os.environ.get("KRB5CCNAME"), os.environ.get("KRB5_CLIENT_KTNAME")
        text = "the system's credentials cache" if cache is None else f"the credentials cache {cache!r} (KRB5CCNAME)"
        return f"{text}{self._owner() or who}" + (f" or the key table {table!r} (KRB5_CLIENT_KTNAME)" if table else "")

    def _owner(self) -> str:
        try:
            return f" of '{self._gssapi.Credentials(name=self._name, usage='initiate').name}'"
        except self._gssapi.exceptions.GSSError:
            return ""

    def _by_key_table(self, cache: str) -> Any:
        store = {"client_keytab": self._keytab, "ccache": cache}
        return self._gssapi.Credentials(name=self._name, usage="initiate", store=store)


def _words(error: Any) -> str:
    """What Kerberos says, without GSSAPI's frame around it, and what to do."""
    said = "; ".join(error.get_all_statuses(error.min_code, False)) or str(error)
    hint = _HINTS.get((error.min_code & 0xFFFFFFFF) - _KERBEROS_ERRORS)
    return f"{said} ({hint})" if hint else said


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
