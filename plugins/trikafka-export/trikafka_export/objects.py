"""The operations on a store that an export needs, each of them atomic.

:mod:`.obstore_objects` implements them for object stores, :mod:`.hdfs_objects` for HDFS.

There are two kinds of small objects. ``put_new`` and ``read`` are for those that are written once.
``begin``, ``current`` and ``swap`` are for those that change: of all swaps on the same version one
succeeds.
"""

# Why no two writers may write the same body
# ------------------------------------------
#
# The response to a request may be lost, so a client repeats the request. The repetition of a
# conditional write fails if the first one was carried out. The implementations read the object
# then: if it has our own body, our write was the one that succeeded. That conclusion is wrong if
# another writer uses the same body, so each body has an id or a count that its writer alone uses.

from __future__ import annotations

import io
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from trikafka.toolkit import with_others

from .object_address import HDFS, ObjectAddress

A = TypeVar("A")
B = TypeVar("B")
#: The most requests at a time of one call of :func:`together`.
_TOGETHER = 16


@dataclass(frozen=True, slots=True)
class Found:
    """An object that exists. ``version`` is the argument of :meth:`Objects.swap`."""

    size: int
    modified: datetime
    version: Any


class Objects(ABC):
    """A destination in a store.

    All methods block, and any thread may call them. They raise OSError: FileNotFoundError, or
    :exc:`.object_address.ObjectStoreError`.
    """

    title: str

    @abstractmethod
    def probe(self, name: str) -> datetime | None:
        """Try the operations that an export needs, with an object of this name, and remove it.

        Returns:
            The time by the store's clock, or ``None`` where conditional writes are not honoured.
        """

    @abstractmethod
    def put_new(self, name: str, body: bytes) -> bool:
        """Write an object unless one of that name exists; return whether it was written."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the body of an object."""

    @abstractmethod
    def begin(self, name: str, body: bytes) -> Any:
        """Write an object that will change, unless it exists.

        Returns:
            Its version, or ``None`` if it exists.
        """

    @abstractmethod
    def current(self, name: str) -> tuple[bytes, Found]:
        """Return the body and the version of an object that changes."""

    @abstractmethod
    def swap(self, name: str, body: bytes, version: Any) -> Any:
        """Replace an object if it still has this version; return its new version, or ``None``."""

    @abstractmethod
    def look(self, name: str) -> Found:
        """Return the size, time and version of an object without reading its body."""

    @abstractmethod
    def upload(self, name: str, path: Path) -> None:
        """Write a file's bytes as a staged object."""

    @abstractmethod
    def publish(self, source: str, target: str, size: int) -> None:
        """Make a staged object appear whole under its final name, unless that was done before.

        Raises:
            FileNotFoundError: The object has neither name.
            FileExistsError: Another object, or one of another size, has the final name.
        """

    @abstractmethod
    def names(self, below: str = "") -> Iterator[str]:
        """Return the names of all objects below a folder."""

    @abstractmethod
    def first_names(self, folder: str) -> list[str]:
        """Return the names directly in a folder, in order, as far as one request lists them."""

    @abstractmethod
    def folder(self, name: str) -> tuple[list[str], list[str]]:
        """Return the names of the objects and of the folders directly in a folder."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove objects. Those that do not exist are skipped."""

    @abstractmethod
    def remove_folder(self, name: str) -> None:
        """Remove all objects below a folder."""

    @abstractmethod
    def part(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes of an object from ``start`` to before ``end``."""


class ObjectReader(io.RawIOBase):
    """An object as a seekable file, for the footers of Parquet files."""

    def __init__(self, objects: Objects, name: str) -> None:
        self._objects = objects
        self._name = name
        self.length = objects.look(name).size
        self._at = 0

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another position, and return it."""
        self._at = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.length}[whence]
        )
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read from the position into the buffer; return the number of bytes."""
        end = min(self._at + len(buffer), self.length)
        if end <= self._at:
            return 0
        part = self._objects.part(self._name, self._at, end)
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


def together(function: Callable[[A], B], each: Iterable[A]) -> list[B]:
    """Call ``function`` for each item, several at a time; return the results in order.

    The first error ends the calls and is raised. The threads are daemons, so they do not delay the
    end of the process.
    """
    items = list(each)
    results: dict[int, B] = {}
    errors: list[BaseException] = []
    waiting = iter(enumerate(items))
    taking = threading.Lock()

    def work() -> None:
        while not errors:
            with taking:
                index, item = next(waiting, (-1, None))
            if index < 0:
                return
            try:
                results[index] = function(item)  # type: ignore[arg-type]
            except BaseException as error:
                errors.append(error)

    threads = [
        threading.Thread(target=work, name="trikafka-objects", daemon=True)
        for _ in items[1:_TOGETHER]
    ]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise with_others(errors[0], errors)
    return [results[index] for index in range(len(items))]


def _opened(
    url: str, config: tuple[tuple[str, str], ...], client: tuple[tuple[str, Any], ...], keys: Any
) -> Objects:
    address = ObjectAddress(url, dict(config), dict(client), keys=keys)
    if url.startswith(f"{HDFS}://"):
        from .hdfs_objects import HdfsObjects  # needs a package of its own

        return HdfsObjects(address)
    from .obstore_objects import StoreObjects  # and so does this

    return StoreObjects(address)


# A client has threads, and a fork has none of its parent's. So a fork gets clients of its own. And
# it must never drop its parent's: a client that is dropped waits for its threads to end, here for
# ever. One cache for all processes would drop the oldest once it is full. So each process has one,
# and a fork keeps its parent's as it is.
@cache
def _clients_of(pid: int) -> Callable[..., Objects]:
    """Return the cache of a process: it opens a destination at its first use."""
    return lru_cache(maxsize=8)(_opened)


def objects_at(address: ObjectAddress) -> Objects:
    """Return the destination, with the connections that this process already has to it.

    A fork gets connections of its own.
    """
    return _clients_of(os.getpid())(
        address.url,
        tuple(sorted(address.config.items())),
        tuple(sorted(address.client.items())),
        address.keys,
    )
