"""Which store a destination is in: a directory, or a prefix of an object store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from trikafka import ConfigurationError, DirectoryStore, ExportStore

from .object_address import PREFIX, SCHEMES, ObjectAddress

#: A store copies no larger object at once (Amazon's limit is 5 GiB), and a file may end a batch beyond ``max_bytes_per_file``.
_MOST_BYTES = 4 << 30


def store_of(destination: str, options: Mapping[str, Any]) -> tuple[ExportStore, dict[str, Any]]:
    """The store, and the options that are not its own. Raises :exc:`ConfigurationError`."""
    if urlsplit(destination).scheme.lower() not in SCHEMES:
        return DirectoryStore(DirectoryStore.directory_of(destination)), dict(options)
    own = {name: value for name, value in options.items() if name.startswith(PREFIX)}
    address = ObjectAddress.of(destination, own)
    rest = {name: value for name, value in options.items() if name not in own}
    if str(rest.get("max_bytes_per_file", "")).isdigit() and int(rest["max_bytes_per_file"]) > _MOST_BYTES:
        raise ConfigurationError(f"max_bytes_per_file must be at most {_MOST_BYTES} in an object store, which copies files whole")
    from .object_store import ObjectStore  # needs a package of its own

    return ObjectStore(address), rest
