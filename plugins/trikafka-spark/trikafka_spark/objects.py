"""The few calls to an object store that an export is made of, each atomic there, over ``obstore``.

``put_new`` and ``swap`` are conditional writes (``If-None-Match: *``, ``If-Match``): of all who try, one succeeds. A request that
was sent twice, because its response got lost, finds its own body and has succeeded; so no two writers may put the same body.
"""

from __future__ import annotations

import contextlib
import io
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError, UnknownConfigurationKeyError
from obstore.store import from_url

from trikafka import ConfigurationError

from .object_address import ObjectAddress, ObjectStoreError

A = TypeVar("A")
B = TypeVar("B")
#: Metadata of a data file: the name it was staged under. A copy keeps it, so that ours is known from somebody else's.
MARK = "trikafka"
_RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
#: So many objects a store tells of in one response to a listing.
_PAGE = 1_000
#: Requests at a time of one of us.
_TOGETHER = 16
_QUERY = re.compile(r"(https?://[^\s?]+)\?\S+")


@dataclass(frozen=True, slots=True)
class Found:
    """An object that is there. ``version`` is what :meth:`Objects.swap` wants."""

    size: int
    modified: datetime
    version: Any
    mark: str | None = None


class Objects:
    """One destination. Everything blocks; any thread may call. Raises OSError: FileNotFoundError, or :exc:`ObjectStoreError`."""

    def __init__(self, address: ObjectAddress) -> None:
        self.title = address.url
        config: Any = dict(address.config)  # whose values hide themselves also in the frames of an error
        client: Any = dict(address.client)
        try:
            keys: Any = address.keys
            self._store: Any = from_url(
                address.url, config=config, client_options=client, retry_config=_RETRIES, credential_provider=keys
            )
        except UnknownConfigurationKeyError as error:
            name = re.search(r"key: '([^']*)'", str(error))
            raise ConfigurationError(f"unknown option 'store.{name[1] if name else '?'}' of {address.url}") from None
        except (BaseError, ValueError) as error:
            raise ConfigurationError(f"{address.url} cannot be used: {_line(error)}") from None

    def put_new(self, name: str, body: bytes) -> Any:
        """Write an object unless there is one of that name; return its version, or ``None`` where there is one."""
        return self._conditional(name, body, "create")

    def swap(self, name: str, body: bytes, version: Any) -> Any:
        """Replace an object if it is still of that version; return its new version, or ``None``."""
        return self._conditional(name, body, version)

    def _conditional(self, name: str, body: bytes, mode: Any) -> Any:
        try:
            with _told(self.title, name):
                return _version(obstore.put(self._store, name, body, mode=mode, use_multipart=False))
        except (AlreadyExistsError, PreconditionError):
            return self._own(name, body)
        except ObjectStoreError:
            if (version := self._own(name, body)) is not None:
                return version
            raise

    def _own(self, name: str, body: bytes) -> Any:
        """The version of an object, if it has this body."""
        try:
            body_there, found = self.read(name)
        except FileNotFoundError:
            return None
        return found.version if body_there == body else None

    def read(self, name: str) -> tuple[bytes, Found]:
        """A whole object."""
        with _told(self.title, name):
            got = obstore.get(self._store, name)
            return bytes(got.bytes()), _found(got)

    def look(self, name: str) -> Found:
        """What there is to know of an object without reading it."""
        with _told(self.title, name):
            return _found(obstore.get(self._store, name, options={"head": True}))

    def upload(self, name: str, path: Path, mark: str) -> None:
        """Write a file's bytes as an object, which appears whole."""
        with _told(self.title, name):
            obstore.put(self._store, name, path, attributes={MARK: mark}, max_concurrency=4)

    def copy(self, source: str, target: str) -> None:
        """Have the store copy an object, which appears whole. Raises FileNotFoundError when there is no source."""
        with _told(self.title, source):
            obstore.copy(self._store, source, target)

    def names(self, below: str = "") -> Iterator[tuple[str, datetime]]:
        """All objects below a prefix, with the times at which they were written."""
        with _told(self.title, below):
            for page in obstore.list(self._store, below or None):
                for each in page:
                    yield each["path"], each["last_modified"]

    def first_names(self, folder: str) -> list[str]:
        """The names of what is directly in a folder, as far as one request tells, in their order."""
        with _told(self.title, folder):
            page: Any = next(iter(obstore.list(self._store, folder, chunk_size=_PAGE)), ())
            return [name for each in page if "/" not in (name := each["path"].removeprefix(f"{folder}/"))]

    def folder(self, name: str) -> tuple[list[str], list[str]]:
        """The names of the objects and of the folders directly below a folder."""
        with _told(self.title, name):
            found = obstore.list_with_delimiter(self._store, name)
            return [Path(each["path"]).name for each in found["objects"]], [Path(each).name for each in found["common_prefixes"]]

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; those that are not there any more are fine."""
        with _told(self.title, "objects"), contextlib.suppress(FileNotFoundError):
            if names := list(names):
                obstore.delete(self._store, names)

    def part(self, name: str, start: int, end: int) -> bytes:
        """Some bytes of an object."""
        with _told(self.title, name):
            return bytes(obstore.get_range(self._store, name, start=start, end=end))


class ObjectReader(io.RawIOBase):
    """An object as a file that can be read here and there: for Parquet's footers."""

    def __init__(self, objects: Objects, name: str) -> None:
        self._objects, self._name = objects, name
        self.length = objects.look(name).size
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The place in it."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another place."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.length}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read what fits."""
        end = min(self._at + len(buffer), self.length)
        if end <= self._at:
            return 0
        part = self._objects.part(self._name, self._at, end)
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


def together(function: Callable[[A], B], each: Iterable[A]) -> list[B]:
    """Call ``function`` for each, several at a time; raises the first error. The threads do not hold up the end of the process."""
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

    threads = [threading.Thread(target=work, name="trikafka-objects", daemon=True) for _ in items[1:_TOGETHER]]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(items))]


@lru_cache(maxsize=8)
def _kept(url: str, config: tuple[tuple[str, str], ...], client: tuple[tuple[str, Any], ...], keys: Any) -> Objects:
    return Objects(ObjectAddress(url, dict(config), dict(client), keys=keys))


def objects_at(address: ObjectAddress) -> Objects:
    """The destination, with the connections that this process has to it."""
    return _kept(address.url, tuple(sorted(address.config.items())), tuple(sorted(address.client.items())), address.keys)


def _found(got: Any) -> Found:
    meta = got.meta
    return Found(meta["size"], meta["last_modified"], _version(meta), got.attributes.get(MARK))


def _version(meta: Any) -> dict[str, str]:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}


@contextlib.contextmanager
def _told(title: str, name: str) -> Iterator[None]:
    """Errors as one line. The store's own has a dozen, and the signature of a request may stand in them: then it is not chained."""
    try:
        yield
    except (AlreadyExistsError, PreconditionError):
        raise
    except FileNotFoundError as error:
        text = str(error)
        if "NoSuchBucket" in text or "ContainerNotFound" in text:
            raise ObjectStoreError(f"there is no such bucket: {title}") from None
        raise FileNotFoundError(f"{title}/{name} is not there") from None
    except (BaseError, OSError) as error:
        raise ObjectStoreError(f"{title}/{name}: {_line(error)}") from (None if _QUERY.search(str(error)) else error)


def _line(error: BaseException) -> str:
    """What an error of obstore says, without a request's query, which may be signed."""
    text = _QUERY.sub(r"\1", str(error))
    status = re.search(r"status code: (\d+ [A-Za-z ]+)", text)
    if status is None:
        system = re.findall(r'message: "([^"]+)"', text)  # the kernel's word, at the end of a long chain
        first = text.partition("\n")[0].strip() or type(error).__name__
        return f"{first} ({system[-1]})" if system else first
    code = re.search(r"<Code>([^<]*)</Code>(?:\s*<Message>([^<]*)</Message>)?", text)
    said = "" if code is None else f" ({code[1]}: {code[2]})" if code[2] else f" ({code[1]})"
    advice = "; look at the credentials, and at what they may do there" if status[1].startswith(("401", "403")) else ""
    return f"the store says {status[1].strip()}{said}{advice}"
