"""What a program hands over to a call of ours, an open client or options, looked at before anything is done with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.secrets import holds_secret
from ..errors import ConfigurationError
from .opens import Opening


def check_client(call: str, given: object, kind: type, rest: str) -> None:
    """Raise :exc:`ConfigurationError`, which shows the right line, unless ``given`` is an open client of this ``kind``.

    ``rest``: the other arguments, as an example shows them, with ``{}`` where the client stands.
    """
    if isinstance(given, kind):
        return
    name = kind.__name__.lower()
    what = "one that is not open yet" if isinstance(given, Opening) and given.opens == f"open_{name}" else shown(given)
    line = f"async with trikafka.open_{name}(...) as {name}: await trikafka.{call}({rest.format(name)})"
    raise ConfigurationError(f"{call}() takes an open {name}, not {what}; write: {line}")


def check_options(given: object) -> None:
    """Raise :exc:`ConfigurationError` unless these can be options of what writes."""
    example = 'a mapping of names to values, such as sink_options={"format": "delta"}'
    if given is not None and not isinstance(given, Mapping):
        what = "a text" if isinstance(given, str) else shown(given)  # which may hold a secret
        raise ConfigurationError(f"sink_options must be {example}, not {what}")
    for name in given or ():
        if not isinstance(name, str):
            raise ConfigurationError(f"sink_options must be {example}: {shown(name)} is no name")


def shown(given: Any) -> str:
    """A value as an error shows it: what it is, where it would be long or may be secret."""
    if isinstance(given, Opening):
        return f"trikafka.{given.opens}(...)"
    if isinstance(given, int | float | None) or (isinstance(given, str) and len(given) < 50 and not holds_secret(given)):
        return repr(given)
    if callable(given):
        return f"the function {getattr(given, '__name__', type(given).__name__)}"
    name = type(given).__name__
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"
