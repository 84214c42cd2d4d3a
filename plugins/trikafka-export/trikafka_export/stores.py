"""The store of a destination: a directory, a prefix of an object store, or a folder of HDFS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from trikafka import ConfigurationError, DirectoryStore, ExportStore

from .object_address import HDFS, PREFIX, STORES, ObjectAddress

#: The largest ``max_bytes_per_file`` in an object store. Amazon copies at most 5 GiB at once, and a
#: file may exceed the limit by one batch.
_MOST_BYTES = 4 << 30


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
