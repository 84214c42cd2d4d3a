"""Text and bytes that are used like any other but never shown: their ``repr`` hides them, wherever they stand.

An error tracker shows the locals of every frame of a traceback, a debugger those of a task: so what is secret is wrapped as soon as
it is known to be, and what is made of it is wrapped again.
"""

from __future__ import annotations

from typing import Any, TypeVar

_HIDDEN = "<secret>"
#: What a private key in PEM has in it.
_KEY = "PRIVATE KEY-----"
Value = TypeVar("Value")


class Secret(str):
    """Text that hides itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _HIDDEN


class SecretBytes(bytes):
    """Bytes that hide themselves."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _HIDDEN


def secret(value: Value) -> Value:
    """The same value, which hides itself if it is text or bytes, or consists of them."""
    hidden: Any = value
    if isinstance(value, str):
        hidden = Secret(value)
    elif isinstance(value, bytes | bytearray):
        hidden = SecretBytes(value)
    elif isinstance(value, list | tuple):
        hidden = [secret(part) for part in value]
    return hidden  # type: ignore[no-any-return]


def plain(value: Value) -> Value:
    """The same text as it was before it was hidden."""
    shown: Any = str.__str__(value) if isinstance(value, Secret) else value
    return shown  # type: ignore[no-any-return]


def holds_secret(value: object) -> bool:
    """Whether there is something secret in what need not have any: a private key, or a name and password before a host."""
    if isinstance(value, bytes | bytearray):
        value = value.decode("latin-1")
    if isinstance(value, str):
        return _KEY in value or ("@" in value and ":" in value)
    return isinstance(value, list | tuple) and any(map(holds_secret, value))


def is_text(value: str) -> bool:
    """Whether it can be sent: text with half a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
