"""Text and bytes that never appear in a ``repr``."""

from __future__ import annotations

from typing import Any, TypeVar

_HIDDEN = "<secret>"
#: A part of every private key in PEM.
_KEY = "PRIVATE KEY-----"
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
    """Return the value, hidden if it is text or bytes. A list or tuple becomes a hidden list."""
    hidden: Any = value
    if isinstance(value, str):
        # str(value) could be the name of an enum's member.
        hidden = Secret(str.__str__(value))
    elif isinstance(value, bytes | bytearray):
        hidden = SecretBytes(value)
    elif isinstance(value, list | tuple):
        hidden = [secret(part) for part in value]
    return hidden  # type: ignore[no-any-return]


def plain(value: Value) -> Value:
    """Return the text without its wrapper."""
    shown: Any = str.__str__(value) if isinstance(value, Secret) else value
    return shown  # type: ignore[no-any-return]


def holds_secret(value: object) -> bool:
    """Return whether a value that is usually public may contain a secret.

    It may if it has a private key, or both ``:`` and ``@``, as in ``user:password@host``.
    """
    if isinstance(value, bytes | bytearray):
        value = value.decode("latin-1")
    if isinstance(value, str):
        return _KEY in value or ("@" in value and ":" in value)
    return isinstance(value, list | tuple) and any(map(holds_secret, value))
