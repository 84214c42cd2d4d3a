"""Trust stores in Java's own format, JKS, read without a package.

The layout, big-endian: magic, version, number of entries; for each entry a tag, an alias, a date,
and either a trusted certificate or a private key with its chain; at the end a SHA-1 digest over the
password, a fixed phrase and everything before the digest. Trusted certificates are not encrypted:
the password only proves that the file is whole.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
import struct

from ..errors import ConfigurationError

MAGIC = b"\xfe\xed\xfe\xed"
#: The words that say how to convert an unsupported store.
CONVERT = (
    "keytool -importkeystore -srckeystore FILE -destkeystore client.p12 -deststoretype PKCS12 "
    "converts it into a PKCS12 store, which trikafka reads"
)
_PHRASE = b"Mighty Aphrodite"
_DIGEST_SIZE = 20
_KEY_ENTRY, _TRUSTED_ENTRY = 1, 2
_DAMAGED = "the JKS store is damaged or incomplete"


def certificates(content: bytes, password: str | None) -> str:
    """Return the trusted certificates of a JKS store as PEM.

    As in Java, the digest is checked only if there is a password.

    Raises:
        ConfigurationError: The password is wrong, the store is damaged, or the store holds a
            private key or no certificate. The caller names the setting.
    """
    body = content[:-_DIGEST_SIZE]
    digest = content[-_DIGEST_SIZE:]
    if password is not None:
        # UTF-16 has surrogate pairs where Java's two-byte characters have them.
        salted = password.encode("utf-16-be", "surrogatepass") + _PHRASE + body
        if not hmac.compare_digest(hashlib.sha1(salted, usedforsecurity=False).digest(), digest):
            raise ConfigurationError(
                "the JKS store cannot be opened: its password is wrong, or the file is damaged"
            )
    found: list[bytes] = []
    try:
        _read_entries(_Cursor(body), found)
    except (struct.error, EOFError) as error:
        raise ConfigurationError(_DAMAGED) from error
    if not found:
        raise ConfigurationError("the JKS store holds no certificates")
    return "".join(map(ssl.DER_cert_to_PEM_cert, found))


class _Cursor:
    """A position in the content. A length is checked against the bytes left before it is used."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def ended(self) -> bool:
        """True at the end of the content."""
        return self._at == len(self._content)

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes. Raises EOFError if fewer are left."""
        if size > len(self._content) - self._at:
            raise EOFError(f"{size} bytes at {self._at}")
        self._at += size
        return self._content[self._at - size : self._at]

    def number(self) -> int:
        """Return the next four bytes as a number."""
        return int(struct.unpack(">I", self.take(4))[0])

    def text(self) -> bytes:
        """Return the bytes of the next text, without decoding them."""
        return self.take(struct.unpack(">H", self.take(2))[0])


def _read_entries(cursor: _Cursor, found: list[bytes]) -> None:
    cursor.take(len(MAGIC))
    version = cursor.number()
    if version not in (1, 2):
        raise ConfigurationError(f"the JKS store has version {version}; versions 1 and 2 are read")
    for _ in range(cursor.number()):  # a number that is too high ends in EOFError
        tag = cursor.number()
        cursor.text()  # alias
        cursor.take(8)  # date
        if tag == _KEY_ENTRY:
            raise ConfigurationError(
                "the JKS store holds a private key, and of the type JKS trikafka reads only trust "
                f"stores; {CONVERT}"
            )
        if tag != _TRUSTED_ENTRY:
            raise ConfigurationError(_DAMAGED)
        kind = cursor.text() if version == 2 else b"X.509"
        if kind != b"X.509":
            raise ConfigurationError("the JKS store holds a certificate that is not X.509")
        found.append(cursor.take(cursor.number()))
    if not cursor.ended:
        raise ConfigurationError(_DAMAGED)
