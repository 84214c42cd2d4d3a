"""The SASL mechanisms that need no library: PLAIN, SCRAM, OAUTHBEARER. No I/O.

A mechanism is an object for one authentication: ``first()`` is what it says first, ``respond(challenge)`` what it says to what the
broker says, ``None`` when it is satisfied. It raises :exc:`ValueError` for a broker that it does not believe.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Protocol

#: RFC 7677 asks for 4,096 at least. Above the most that is taken here a password costs minutes.
LEAST_ITERATIONS, MOST_ITERATIONS = 4_096, 1_000_000
_QUICK = 20_000  # iterations: so many take some milliseconds
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class Mechanism(Protocol):
    """One authentication."""

    def first(self) -> bytes:
        """What the client says first."""

    def respond(self, challenge: bytes) -> bytes | None:
        """What it says next; ``None``: it is done. Raises :exc:`ValueError`, whose text holds no secret."""


class Plain:
    """PLAIN (RFC 4616): the password as it is, so for encrypted connections only."""

    def __init__(self, username: str, password: str) -> None:
        if "\0" in username or "\0" in password:
            raise ValueError("PLAIN cannot carry a null character in a name or a password")
        self._username, self._password = username, password

    def first(self) -> bytes:
        """See :class:`Mechanism`."""
        return f"\0{self._username}\0{self._password}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """See :class:`Mechanism`."""
        return None


class Scram:
    """SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the password does not leave this process.

    ``respond`` to the broker's first message takes as long as the broker's number of iterations asks for, about 1 ms for 4,096.
    """

    def __init__(self, mechanism: str, username: str, password: str, nonce: str | None = None) -> None:
        self._hash = _HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        """See :class:`Mechanism`."""
        return f"n,,{self._bare}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """See :class:`Mechanism`."""
        if self._server_signature is None:
            return self._prove(challenge.decode())
        fields = _fields(challenge.decode())
        if "e" in fields:
            raise ValueError(f"the broker said: {fields['e']}")
        if not hmac.compare_digest(_decoded(fields, "v"), self._server_signature):
            raise ValueError("the broker does not know the password (its signature is wrong)")
        return None

    def _prove(self, challenge: str) -> bytes:
        fields = _fields(challenge)
        nonce = fields.get("r", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ValueError("the broker did not take up the client's nonce")
        count = fields.get("i", "")
        iterations = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0
        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
            raise ValueError(f"the broker asks for {count!r} iterations; {LEAST_ITERATIONS} to {MOST_ITERATIONS} are taken")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, _decoded(fields, "s"), iterations)
        client_key = self._hmac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},{challenge},{without_proof}".encode()
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), message)
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


class OAuthBearer:
    """OAUTHBEARER (RFC 7628) with extensions (KIP-342)."""

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        if not token or not token.isascii() or any(character <= " " for character in token):
            raise ValueError("a token is text without spaces and control characters")
        if "auth" in extensions or any("\1" in part for pair in extensions.items() for part in pair):
            raise ValueError("an extension cannot be called 'auth' or hold \\x01")
        self._token, self._extensions = token, extensions

    def first(self) -> bytes:
        """See :class:`Mechanism`."""
        pairs = "".join(f"{name}={value}\1" for name, value in self._extensions.items())
        return f"n,,\1auth=Bearer {self._token}\1{pairs}\1".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """See :class:`Mechanism`. A challenge is a refusal, which the client has to acknowledge before the broker fails."""
        return b"\1" if challenge else None


def takes_long(challenge: bytes) -> bool:
    """Whether to respond to this takes so long that it is for a thread: SCRAM, with more iterations than usual."""
    count = next((part[2:] for part in challenge.split(b",") if part[:2] == b"i="), b"")
    return count.isdigit() and len(count) < 10 and int(count) > _QUICK


def make_password_mechanism(mechanism: str, username: str, password: str) -> Mechanism:
    """PLAIN or one of SCRAM."""
    makers: dict[str, Callable[[], Mechanism]] = {"PLAIN": lambda: Plain(username, password)}
    return makers.get(mechanism, lambda: Scram(mechanism, username, password))()


def _fields(message: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in message.split(",") if part[1:2] == "="}


def _decoded(fields: Mapping[str, str], name: str) -> bytes:
    try:
        return base64.b64decode(fields[name], validate=True)
    except (KeyError, ValueError):
        raise ValueError(f"the broker's message has no valid {name!r}") from None
