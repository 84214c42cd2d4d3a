"""The SASL mechanisms that need no library: PLAIN, SCRAM, OAUTHBEARER. No I/O.

A mechanism is an object for one authentication. ``first()`` returns the client's first message,
``respond(challenge)`` the answer to the broker's message, ``None`` when the authentication is
complete. It raises :exc:`ValueError` for a broker that fails the mechanism's checks.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Protocol

from ..config.extensions import wrong_extension
from ..errors.peer_text import peer_text

#: RFC 7677 asks for at least 4,096. Above the maximum here a password would cost minutes.
LEAST_ITERATIONS, MOST_ITERATIONS = 4_096, 1_000_000
_QUICK = 20_000  # iterations that take some milliseconds
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class Mechanism(Protocol):
    """The client's side of one authentication."""

    def first(self) -> bytes:
        """Return the client's first message."""

    def respond(self, challenge: bytes) -> bytes | None:
        """Return the client's next message; ``None``: the authentication is complete.

        Raises :exc:`ValueError`, whose text has no secret.
        """


class Plain:
    """PLAIN (RFC 4616): the password in clear text, so for encrypted connections only."""

    def __init__(self, username: str, password: str) -> None:
        if "\0" in username or "\0" in password:
            raise ValueError("PLAIN cannot carry a null character in a name or a password")
        self._username = username
        self._password = password

    def first(self) -> bytes:
        """Return the name and the password."""
        return f"\0{self._username}\0{self._password}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """Return ``None``: the authentication is complete."""
        return None


class Scram:
    """SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677).

    The password does not leave this process. ``respond`` to the broker's first message takes as
    long as the broker's number of iterations requires, about 1 ms for 4,096.

    With ``token`` the name and the password are those of a delegation token (KIP-48).
    """

    def __init__(
        self,
        mechanism: str,
        username: str,
        password: str,
        nonce: str | None = None,
        *,
        token: bool = False,
    ) -> None:
        self._hash = _HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}" + (",tokenauth=true" if token else "")
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        """Return the client's name and nonce."""
        return f"n,,{self._bare}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """Return the client's proof; ``None`` once the broker's signature is verified."""
        if self._server_signature is None:
            return self._prove(challenge.decode())
        fields = _fields(challenge.decode())
        if "e" in fields:
            raise ValueError(f"the broker said: {peer_text(fields['e'])}")
        if not hmac.compare_digest(_decoded(fields, "v"), self._server_signature):
            raise ValueError("the broker does not know the password (its signature is wrong)")
        return None

    def _prove(self, challenge: str) -> bytes:
        fields = _fields(challenge)
        nonce = fields.get("r", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ValueError("the broker's nonce does not begin with the client's")
        count = fields.get("i", "")
        iterations = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0
        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
            raise ValueError(
                f"the broker asks for {peer_text(count)!r} iterations; {LEAST_ITERATIONS} to "
                f"{MOST_ITERATIONS} are accepted"
            )
        salt = _decoded(fields, "s")
        if not salt:
            raise ValueError("the broker's salt is empty")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},{challenge},{without_proof}".encode()
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), message)
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


def is_token(text: str) -> bool:
    """Return whether a text can be a token: not empty, and without blanks and control characters."""
    return bool(text) and text.isascii() and not any(character <= " " for character in text)


class OAuthBearer:
    """OAUTHBEARER (RFC 7628) with extensions (KIP-342)."""

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        if not is_token(token):
            raise ValueError("a token is text without spaces and control characters")
        if wrong := wrong_extension(extensions):
            raise ValueError(wrong)
        #: The token, which hides itself if the caller's does.
        self.token = token
        self._extensions = extensions

    def first(self) -> bytes:
        """Return the token and the extensions."""
        pairs = "".join(f"{name}={value}\1" for name, value in self._extensions.items())
        return f"n,,\1auth=Bearer {self.token}\1{pairs}\1".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """Return the acknowledgement of a refusal; ``None`` if the challenge is empty.

        A challenge with content is a refusal, which the client has to acknowledge before the broker
        fails.
        """
        return b"\1" if challenge else None


def takes_long(challenge: bytes) -> bool:
    """Return whether responding takes so long that it needs a thread.

    That is so for SCRAM with more iterations than usual.
    """
    count = next((part[2:] for part in challenge.split(b",") if part[:2] == b"i="), b"")
    return count.isdigit() and len(count) < 10 and int(count) > _QUICK


def make_password_mechanism(
    mechanism: str, username: str, password: str, *, token: bool = False
) -> Mechanism:
    """Return the PLAIN or SCRAM mechanism of this name."""
    makers: dict[str, Callable[[], Mechanism]] = {"PLAIN": lambda: Plain(username, password)}
    return makers.get(mechanism, lambda: Scram(mechanism, username, password, token=token))()


def _fields(message: str) -> dict[str, str]:
    """Return the attributes of a SCRAM message by their letters.

    Raises :exc:`ValueError` for ``m=``, an extension that a client without it must not ignore (RFC
    5802, section 5.1: none is defined yet), and for a duplicate attribute: two readers could
    believe different ones.
    """
    fields: dict[str, str] = {}
    for part in message.split(","):
        if part[1:2] != "=":
            continue
        if part[0] == "m":
            raise ValueError(
                "the broker asks for an extension of SCRAM (m=), of which there are none"
            )
        if part[0] in fields:
            raise ValueError(f"the broker's message has {part[0]!r} twice")
        fields[part[0]] = part[2:]
    return fields


def _decoded(fields: Mapping[str, str], name: str) -> bytes:
    try:
        return base64.b64decode(fields[name], validate=True)
    except (KeyError, ValueError):
        raise ValueError(f"the broker's message has no valid {name!r}") from None
