"""The destination of an export: its text, its options, its store, and the plugin that has its sink.

A store is a directory, a prefix of an object store, or a folder of HDFS.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from trikafka import ConfigurationError, PluginError
from trikafka.config.secrets import holds_secret, secret
from trikafka.hooks import first_answer, load_plugins
from trikafka.interfaces import Sink
from trikafka.toolkit import shown

from .directory_store import DirectoryStore
from .guarded import GuardedSink
from .object_address import HDFS, PREFIX, STORES, ObjectAddress
from .store import ExportStore

#: The largest ``max_bytes_per_file`` in an object store. Amazon copies at most 5 GiB at once, and a
#: file may exceed the limit by one batch.
_MOST_BYTES = 4 << 30
#: Parts of an option's name that mark its value as secret.
_SECRET_WORDS = ("auth", "password", "secret", "token")
#: Prefixes of options that are passed to a store or a catalog.
_LEADING = (PREFIX, "catalog.")


def find_sink(destination: str, options: Mapping[str, Any], plugins: Iterable[object] = ()) -> Sink:
    """Return a plugin's sink for the destination.

    Raises:
        PluginError: No plugin has a sink for it.
        ConfigurationError: An option is not valid.
    """
    if not destination.strip():
        raise ConfigurationError(
            "the destination of an export is empty; write '.' for the current folder"
        )
    scheme = scheme_of(destination)
    plugins = tuple(plugins)
    try:
        found = first_answer(
            load_plugins(plugins),
            "trikafka_sink",
            Sink,
            scheme=scheme,
            options={**options, "destination": destination},
            plugins=plugins,
        )
    except PluginError as error:
        # A wrong sink option is not the plugin's fault.
        if isinstance(error.__cause__, ConfigurationError):
            raise error.__cause__ from None
        raise
    if found is None:
        raise PluginError(f"no plugin writes exports to {scheme!r} destinations")
    plugin, sink = found
    is_own = type(sink).__module__.partition(".")[0] == __package__
    guarded: Sink = sink if is_own else cast("Sink", GuardedSink(plugin, sink))
    return guarded


def path_of(destination: str | os.PathLike[str]) -> str:
    """Return the destination as text; a path object always becomes a folder's path.

    Raises:
        ConfigurationError: The destination is neither a text nor a path of text.
    """
    where = os.fspath(destination) if isinstance(destination, str | os.PathLike) else destination
    if not isinstance(where, str):
        raise ConfigurationError(
            "the destination must be a path or an address, such as '/data/flights', not "
            f"{shown(where)}"
        )
    # The text of Path("./shop.flights") is "shop.flights", which could be the name of a table. So
    # "./" is put back.
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

    Only a sink knows for sure which of its options are secret, and there is no sink yet. So the
    names and the values are judged.

    Raises:
        ConfigurationError: The options are not a mapping of names to values.
    """
    _check_options(options)

    def is_secret(name: str, value: Any) -> bool:
        may_be = name.startswith(_LEADING) or any(word in name.lower() for word in _SECRET_WORDS)
        return isinstance(value, str) and (may_be or holds_secret(value))

    return {
        name: secret(value) if is_secret(name, value) else value
        for name, value in (options or {}).items()
    }


def _check_options(given: object) -> None:
    example = 'a mapping of names to values, such as sink_options={"name": "value"}'
    if given is not None and not isinstance(given, Mapping):
        what = "a text" if isinstance(given, str) else shown(given)  # a text may hold a secret
        raise ConfigurationError(f"sink_options must be {example}, not {what}")
    for name in given or ():
        if not isinstance(name, str):
            raise ConfigurationError(f"sink_options must be {example}: {shown(name)} is not a name")
        if name == "destination":
            raise ConfigurationError(
                "destination is an argument of its own, and no option of the sink"
            )


def store_of(destination: str, options: Mapping[str, Any]) -> tuple[ExportStore, dict[str, Any]]:
    """Return the store of a destination, and the options that are not the store's.

    Raises:
        ConfigurationError: The destination or an option of its store is not valid.
    """
    scheme = urlsplit(destination).scheme.lower()
    if scheme not in STORES:
        return DirectoryStore(DirectoryStore.directory_of(destination)), dict(options)
    own = {name: value for name, value in options.items() if name.startswith(PREFIX)}
    address = ObjectAddress.of(destination, own)
    rest = {name: value for name, value in options.items() if name not in own}
    largest = str(rest.get("max_bytes_per_file", ""))
    if scheme != HDFS and largest.isdigit() and int(largest) > _MOST_BYTES:
        raise ConfigurationError(
            f"max_bytes_per_file must be at most {_MOST_BYTES} in an object store, which copies "
            "files whole"
        )
    from .object_store import ObjectStore  # needs a package of its own

    return ObjectStore(address), rest
