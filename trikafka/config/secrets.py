"""Text and bytes that never appear in a ``repr``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

_HIDDEN = "<secret>"
#: The parts of addresses and headers that are secret, as errors of HTTP libraries show them. The
#: first has a bound, so that no text takes long.
_IN_WORDS = (
    (re.compile(r"://\S{0,2000}@"), f"://{_HIDDEN}@"),
    (
        re.compile(
            r"(signature|sig|token|secret|password|assertion|credential)=[^&\s'\"]+", re.IGNORECASE
        ),
        rf"\1={_HIDDEN}",
    ),
    # A plain word is the library's own, as in "Basic authentication required".
    (
        re.compile(r"\b((?i:basic|bearer)) (?![A-Za-z][a-z]{,15}[.,:;!?)]*(?:\s|$))[\w.~+/=-]{8,}"),
        rf"\1 {_HIDDEN}",
    ),
)
#: A part of every private key in PEM.
_KEY = "PRIVATE KEY-----"
#: A header in base64 begins with '{"'.
_WEB_TOKEN = re.compile(r"eyJ[\w-]*\.[\w-]+\.[\w-]*")
#: A private key without its first and last line, as some stores of secrets have it: the first
#: letters are those of a key in DER.
_BARE_KEY = re.compile(r"(?:MII|MIG|MHc|MC4)[A-Za-z0-9+/=\s]{40,}")
Value = TypeVar("Value")


# A secret leaks through places that no one calls "printing a password": an error tracker records
# the locals of every frame of a traceback, a debugger shows those of a task, a log line formats a
# settings object, a dataclass has a generated repr. Hiding a few fields of a few classes cannot
# cover all of these.
#
# So the value itself hides. Secret is a str whose repr() is "<secret>"; str() still returns the
# text. Three rules follow:
#
# * A value is wrapped as soon as it is known to be secret, before any other function receives it.
#   Values of unknown settings are wrapped too, since a misspelt "sasl_plain_pasword" is still a
#   password.
# * Methods of str return plain str. What is derived from a secret (a slice, a decoded line of a
#   properties file) is wrapped again.
# * A function that raises because of a secret first clears its local variables that hold parts of
#   it.
class Secret(str):
    """A text that hides itself in ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _HIDDEN


class SecretBytes(bytes):
    """Bytes that hide themselves in ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _HIDDEN


def secret(value: Value) -> Value:
    """Return the value, hidden if it is text or bytes.

    A list or tuple becomes a list of hidden values, a mapping a ``dict`` of them.
    """
    hidden: Any = value
    if isinstance(value, str):
        # str(value) could be the name of an enum's member.
        hidden = Secret(str.__str__(value))
    elif isinstance(value, bytes | bytearray):
        hidden = SecretBytes(value)
    elif isinstance(value, list | tuple):
        hidden = [secret(part) for part in value]
    elif isinstance(value, Mapping):
        hidden = {name: secret(part) for name, part in value.items()}
    return hidden  # type: ignore[no-any-return]


def plain(value: Value) -> Value:
    """Return the text without its wrapper."""
    shown: Any = str.__str__(value) if isinstance(value, Secret) else value
    return shown  # type: ignore[no-any-return]


def holds_secret(value: object) -> bool:
    """Return whether a value that is usually public may contain a secret.

    It may if it has a private key, with or without its first line, or both ``:`` and ``@``, as in
    ``user:password@host``, or if it is a JSON web token.
    """
    if isinstance(value, bytes | bytearray):
        value = value.decode("latin-1")
    if isinstance(value, str):
        return (
            _KEY in value
            or ("@" in value and ":" in value)
            or _WEB_TOKEN.fullmatch(value.strip()) is not None
            or _BARE_KEY.fullmatch(value.strip()) is not None
        )
    return isinstance(value, list | tuple) and any(map(holds_secret, value))


def redacted(text: str) -> str:
    """Return the text of an error of another library without the secrets in its addresses.

    These are a name and password, the signature of a presigned URL, tokens, and headers for
    ``Authorization``.
    """
    for pattern, instead in _IN_WORDS:
        text = pattern.sub(instead, text)
    return text
