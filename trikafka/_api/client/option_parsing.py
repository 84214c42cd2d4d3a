"""Checks of the clients and options that a program passes to a call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...config.secrets import holds_secret
from ...config.text import is_utf8, plain_text
from ...errors import ConfigurationError
from .opens import Unopened


def check_client(call: str, given: object, kind: type, rest: str) -> None:
    """Raise unless an argument is an open client.

    Args:
        call: The name of the function that takes the client.
        given: The argument.
        kind: The class that it must have, such as :class:`trikafka.Consumer`.
        rest: The arguments of the call as an example for the error, with ``{}`` for the client.

    Raises:
        ConfigurationError: ``given`` is something else. The error shows the right line.
    """
    if isinstance(given, kind):
        return
    name = kind.__name__.lower()
    if f"{type(given).__module__}.".startswith("trikafka.aio."):
        raise ConfigurationError(
            f"{call}() takes an open {name} of trikafka, and this is one of trikafka.aio: use "
            f"trikafka.aio.{call}()"
        )
    what = (
        "one that is not open yet"
        if isinstance(given, Unopened) and given.opens == f"open_{name}"
        else shown(given)
    )
    line = (
        f"async with trikafka.open_{name}(...) as {name}: await "
        f"trikafka.{call}({rest.format(name)})"
    )
    raise ConfigurationError(f"{call}() takes an open {name}, not {what}; write: {line}")


def names_of(what: str, names: Iterable[str]) -> list[str]:
    """Return the checked names, each once. Raises :exc:`ConfigurationError`."""
    if isinstance(names, str | bytes):
        raise ConfigurationError(
            f"{what} must be a collection of names, not the text {names!r}; write [{names!r}]"
        )
    if not isinstance(names, Iterable):
        raise ConfigurationError(f"{what} must be a collection of names, not {names!r}")
    # Names are checked before they are compared: a value that is not text may have no hash.
    found = list(names)
    for name in found:
        if not is_name(name):
            raise ConfigurationError(f"{what} must be names, not {name!r}")
    return list(dict.fromkeys(map(plain_text, found)))


def is_name(value: object) -> bool:
    """Return whether the value is a text that is not empty and that UTF-8 can encode."""
    return isinstance(value, str) and bool(value) and is_utf8(value)


def shown(given: Any) -> str:
    """Return an argument as an error shows it: its kind, if it is long or may be secret.

    Args:
        given: The argument.
    """
    if isinstance(given, Unopened):
        return f"{given.package}.{given.opens}(...)"
    if isinstance(given, int | float | None) or (
        isinstance(given, str) and len(given) < 50 and not holds_secret(given)
    ):
        return repr(given)
    if callable(given):
        return f"the function {getattr(given, '__name__', type(given).__name__)}"
    name = type(given).__name__
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"
