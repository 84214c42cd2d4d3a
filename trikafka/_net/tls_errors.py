"""OpenSSL's errors, turned into errors that say what to do."""

from __future__ import annotations

import ssl
from typing import TypeGuard

from ..errors import HandshakeError, KafkaConnectionError, TrikafkaError
from ..errors.peer_text import peer_text
from ..types import Node

# X509_V_ERR_... of OpenSSL
_NOT_YET_VALID = 9
_EXPIRED = 10
_NO_CRL = 3
_CRL_EXPIRED = 12
_REVOKED = 23
_UNKNOWN_AUTHORITY = (18, 19, 20, 21)
_WRONG_NAME = (62, 64)
#: The alerts by which a broker refuses this client's certificate.
_CLIENT_CERTIFICATE = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": (
        "the broker asks for a client certificate (mutual TLS): set ssl_certfile and ssl_keyfile"
    ),
    "SSLV3_ALERT_BAD_CERTIFICATE": (
        "the broker does not accept this client's certificate, or asks for one (ssl_certfile, "
        "ssl_keyfile)"
    ),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": (
        "the broker does not accept this client's certificate (ssl_certfile)"
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this client's certificate (ssl_certfile) has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "this client's certificate (ssl_certfile) was revoked",
    "TLSV1_ALERT_UNKNOWN_CA": (
        "the broker does not know the authority of this client's certificate (ssl_certfile)"
    ),
    "TLSV1_ALERT_ACCESS_DENIED": (
        "the broker grants no access to this client's certificate (ssl_certfile)"
    ),
}
#: OpenSSL's errors about bytes that are not TLS.
_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNEXPECTED_MESSAGE",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
)
#: OpenSSL's errors about versions and ciphers of TLS that the two sides do not share.
_NO_COMMON = (
    "SSLV3_ALERT_HANDSHAKE_FAILURE",
    "TLSV1_ALERT_PROTOCOL_VERSION",
    "UNSUPPORTED_PROTOCOL",
    "NO_SHARED_CIPHER",
    "NO_PROTOCOLS_AVAILABLE",
    "NO_CIPHERS_AVAILABLE",
    "TLSV1_ALERT_INSUFFICIENT_SECURITY",
)


def closed_in_handshake(node: Node) -> TrikafkaError:
    """Return the error for a peer that closed the connection instead of shaking hands.

    A broker that shuts down closes connections so, and so does a port without TLS.
    """
    return KafkaConnectionError(
        f"{node} closed the connection during the TLS handshake; if this happens again, its port "
        "may not speak TLS (security_protocol without SSL), or may want a client certificate "
        "(ssl_certfile)"
    )


def is_wrong_name(error: BaseException) -> bool:
    """Return whether the certificate is good, but for another name than the dialled one."""
    return _is_of_certificate(error) and error.verify_code in _WRONG_NAME


def _is_of_certificate(error: BaseException) -> TypeGuard[ssl.SSLCertVerificationError]:
    """Return whether OpenSSL has refused the broker's certificate.

    An error that Python code raises, such as a stream of the user's ``dial``, has no code, and may
    be about another certificate.
    """
    return isinstance(error, ssl.SSLCertVerificationError) and hasattr(error, "verify_code")


def explain(error: ssl.SSLError, node: Node, names: str | None = None) -> TrikafkaError:
    """Return trikafka's error for an error of OpenSSL.

    ``names`` are the names in the broker's certificate; ``None`` if they are unknown.
    """
    explained = (
        _of_certificate(error, node, names) if _is_of_certificate(error) else _of_peer(error, node)
    )
    explained.__cause__ = error
    return explained


def _of_certificate(
    error: ssl.SSLCertVerificationError, node: Node, names: str | None
) -> TrikafkaError:
    code, said = error.verify_code, error.verify_message
    if is_wrong_name(error):
        named = peer_text(names or "another name")
        what = (
            f"is for {named}, not for {node.host!r}: dial it by such a name, or set "
            "ssl_check_hostname=False"
        )
    elif code == _EXPIRED:
        what = "has expired"
    elif code == _NOT_YET_VALID:
        what = "is not valid yet: is the clock of this machine right?"
    elif code in _UNKNOWN_AUTHORITY:
        what = (
            f"is of an authority that is not trusted ({said}): set ssl_cafile to the authority's "
            "certificate"
        )
    elif code == _REVOKED:
        what = "was revoked (ssl_crlfile)"
    elif code in (_NO_CRL, _CRL_EXPIRED):
        what = (
            f"cannot be checked against ssl_crlfile: {said}; it needs a list (CRL) that is valid "
            "of each authority from this certificate up to the root"
        )
    else:
        what = f"is not accepted: {said}"
    return HandshakeError(f"the certificate of {node} {what}")


def _of_peer(error: ssl.SSLError, node: Node) -> TrikafkaError:
    reason = getattr(error, "reason", None) or ""  # absent if Python code has raised it
    if reason in _CLIENT_CERTIFICATE:
        return HandshakeError(f"{node} ended the TLS handshake: {_CLIENT_CERTIFICATE[reason]}")
    if reason in _NOT_TLS:
        return HandshakeError(
            f"{node} does not speak TLS at this port: use its TLS port, or security_protocol "
            f"without SSL ({_words(reason)})"
        )
    if reason in _NO_COMMON:
        return HandshakeError(
            f"{node} and this client have no TLS version or cipher in common "
            "(ssl_minimum_version, ssl_ciphers), or the broker wants a client certificate "
            f"(ssl_certfile): {_words(reason)}"
        )
    return KafkaConnectionError(f"TLS with {node} failed: {_words(reason) or error}")


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()
