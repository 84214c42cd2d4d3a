"""The destination of exports and batches: its options, and the plugin that has a sink for it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..config.secrets import holds_secret, secret
from ..errors import ConfigurationError, PluginError
from ..hooks import call_first, load_plugins
from ..interfaces import Sink
from .client.option_parsing import check_options, shown

#: Parts of an option's name that mark its value as secret.
_SECRET_WORDS = ("auth", "password", "secret", "token")
#: Prefixes of options that are passed to a store or a catalog.
_LEADING = ("store.", "catalog.")


def find_sink(
    destination: str, options: Mapping[str, Any], plugins: Iterable[object] = (), shape: type = Sink
) -> Any:
    """Return a plugin's sink of this ``shape`` (a Protocol) for the destination.

    Raises :exc:`PluginError` if no plugin has one.
    """
    if not destination.strip():
        raise ConfigurationError(
            "the destination of an export is empty; write '.' for the current folder"
        )
    scheme = scheme_of(destination)
    plugins = tuple(plugins)
    try:
        sink = call_first(
            load_plugins(plugins),
            "trikafka_sink",
            shape,
            scheme=scheme,
            options={**options, "destination": destination},
            plugins=plugins,
        )
    except PluginError as error:
        # A wrong sink option is not the plugin's fault.
        if isinstance(error.__cause__, ConfigurationError):
            raise error.__cause__ from None
        raise
    if sink is None:
        install = (
            "; install trikafka-export, which writes files and tables (from a clone: pip install "
            "./plugins/trikafka-export)"
        )
        also = (
            install if scheme in ("file", "s3", "s3a", "gs", "az", "abfs", "abfss", "hdfs") else ""
        )
        raise PluginError(f"no plugin writes exports to {scheme!r} destinations{also}")
    return sink


def path_of(destination: str | os.PathLike[str]) -> str:
    """Return the destination as text; a path object always becomes a folder's path.

    Raises :exc:`ConfigurationError`.
    """
    where = os.fspath(destination) if isinstance(destination, str | os.PathLike) else destination
    if not isinstance(where, str):
        raise ConfigurationError(
            "the destination must be a path or an address, such as '/data/flights', not "
            f"{shown(where)}"
        )
    # Path("./shop.flights") drops its first letters, and without them the text may be a table's
    # name.
    return (
        os.path.join(os.curdir, where)
        if where is not destination and where == os.path.basename(where)
        else where
    )


def scheme_of(destination: str) -> str:
    """Return the scheme of an address; ``file`` for a path."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", destination)
    return match[1].lower() if match else "file"


def hidden_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of the options in which possible secrets hide themselves.

    The sink knows more of its options, but is not asked yet.
    """
    check_options(options)

    def is_secret(name: str, value: Any) -> bool:
        told = name.startswith(_LEADING) or any(word in name.lower() for word in _SECRET_WORDS)
        return isinstance(value, str) and (told or holds_secret(value))

    return {
        name: secret(value) if is_secret(name, value) else value
        for name, value in (options or {}).items()
    }
