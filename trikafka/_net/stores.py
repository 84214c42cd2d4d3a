"""Key stores in PKCS #12, and trust stores in PKCS #12 and JKS, turned into PEM in memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ..config.secrets import SecretBytes, secret
from ..errors import ConfigurationError
from . import jks

#: The first bytes of Java's own formats.
_JCEKS = b"\xce\xce\xce\xce"
_OF_JAVA = (jks.MAGIC, _JCEKS)
#: The first bytes of DER: a sequence of more than 127 bytes. The second byte does not occur in
#: ASCII text.
_DER = tuple(bytes([0x30, 0x80 | length]) for length in range(5))
#: The object identifier of an encrypted private key in a PKCS12 store, which is itself not
#: encrypted.
_SHROUDED_KEY = bytes.fromhex("060b2a864886f70d010c0a0102")
_log = logging.getLogger("trikafka.brokers")


def is_store(content: bytes) -> bool:
    """Return whether a file's content is a store, and not PEM."""
    return content.startswith((*_DER, *_OF_JAVA))


def authorities(content: bytes, password: str | None) -> str:
    """Return the certificates of a trust store as PEM.

    Raises:
        ConfigurationError: The store cannot be read, or holds no certificate. The caller names the
            setting.
    """
    if content.startswith(jks.MAGIC):
        return jks.certificates(content, password)
    _, certificate, more = _load(content, password)
    found = [one for one in (certificate, *more) if one is not None]
    if not found:
        raise ConfigurationError("the PKCS12 store holds no certificates")
    return _pem(found)


def identity(content: bytes, password: str | None) -> str:
    """Return a key store's private key, its certificate and the chain as PEM, which hides itself.

    Raises:
        ConfigurationError: The store cannot be read, or holds no private key. The caller names the
            setting.
    """
    from cryptography.hazmat.primitives import serialization

    key, certificate, more = _load(content, password)
    if key is None or certificate is None:
        raise ConfigurationError("the PKCS12 store holds no private key with a certificate")
    if content.count(_SHROUDED_KEY) > 1:
        # Java's client chooses by the authorities that the broker names, OpenSSL has one key.
        _log.warning(
            "the PKCS12 store of ssl_certfile holds several private keys: that of %s is used; "
            "export the one that is meant into a store of its own",
            certificate.subject.rfc4514_string(),
        )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret(SecretBytes(text).decode() + _pem(_chain(certificate, more)))


def _load(content: bytes, password: str | None) -> tuple[Any, Any, list[Any]]:
    if content.startswith(_OF_JAVA):
        kind = "JCEKS" if content.startswith(_JCEKS) else "JKS"
        raise ConfigurationError(
            f"a store of type {kind}: trikafka reads PEM and PKCS12, and trust stores of "
            f"type JKS; {jks.CONVERT}"
        )
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except (ImportError, OSError) as error:
        raise ConfigurationError(
            "a PKCS12 store needs the package cryptography: pip install 'trikafka[crypto]' (from "
            "a clone: pip install '.[crypto]')"
        ) from error
    store, wrong = None, ""
    try:
        store = pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except ValueError as error:
        wrong = str(error).lower()  # raised below: the error's frames hold the password
    if store is None:
        if "password" in wrong or "mac" in wrong:
            given = "wrong" if password else "missing"
            raise ConfigurationError(f"the PKCS12 store cannot be opened: its password is {given}")
        raise ConfigurationError("neither PEM nor a PKCS12 store that can be read")
    more = [one.certificate for one in store.additional_certs]
    return store.key, None if store.cert is None else store.cert.certificate, more


def _chain(certificate: Any, others: Sequence[Any]) -> list[Any]:
    """Return the certificate and its issuers in the order that TLS 1.2 requires.

    A store may have them in any order.
    """
    chain = [certificate]
    left = list(others)
    while True:
        last = chain[-1]
        issuer = next((one for one in left if one.subject == last.issuer and one != last), None)
        if issuer is None:
            return chain
        left.remove(issuer)
        chain.append(issuer)


def _pem(certificates: Sequence[Any]) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return "".join(one.public_bytes(Encoding.PEM).decode() for one in certificates)
