"""An export's operations on an object store, over ``obstore``.

``put_new`` and ``swap`` are conditional writes (``If-None-Match: *``, ``If-Match``): of all
attempts one succeeds.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PreconditionError,
    UnknownConfigurationKeyError,
)
from obstore.store import from_url

from trikafka import ConfigurationError
from trikafka.errors.peer_text import peer_text

from .cut_responses import DELAYS, is_cut, uncut, wait_after
from .object_address import ObjectAddress, ObjectStoreError
from .objects import Found, Objects

#: The metadata of a data file with the name that it was staged under. A copy keeps it, so a file
#: of this export can be distinguished from any other of the same name.
MARK = "trikafka"
_RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
#: The waits (seconds) before a new object is written again that met another write.
_DELAYS = (0.05, 0.1, 0.2, 0.4, 0.8)
#: A conditional write whose response was lost after more seconds than this is not sent again.
_SHORT = 5.0
#: The number of objects in one response to a listing.
_PAGE = 1_000
#: The errors of stores that know the headers of conditional writes but do not implement them.
_UNKNOWN = re.compile("not.?implemented|not.?supported", re.IGNORECASE)
_QUERY = re.compile(r"(https?://[^\s?]+)\?\S+")


class StoreObjects(Objects):
    """A destination in an object store."""

    def __init__(self, address: ObjectAddress) -> None:
        self.title = address.url
        # The values are secrets, so the frames of an error do not show them.
        config: Any = dict(address.config)
        client: Any = dict(address.client)
        try:
            keys: Any = address.keys
            self._store: Any = from_url(
                address.url,
                config=config,
                client_options=client,
                retry_config=_RETRIES,
                credential_provider=keys,
            )
        except UnknownConfigurationKeyError as error:
            name = re.search(r"key: '([^']*)'", str(error))
            raise ConfigurationError(
                f"unknown option 'store.{name[1] if name else '?'}' of {address.url}"
            ) from None
        except (BaseError, ValueError) as error:
            raise ConfigurationError(f"{address.url} cannot be used: {_line(error)}") from None

    def probe(self, name: str) -> datetime | None:
        """Try conditional writes with an object of that name, and remove it.

        Returns:
            The time by the store's clock, or ``None`` where conditional writes are not honoured.
        """
        begin, swap = self.begin, self.swap
        try:
            first = begin(name, b"1")
            second = None if begin(name, b"2") or not first else swap(name, b"3", first)
            if second and swap(name, b"4", first) is None and self.read(name) == b"3":
                return self.look(name).modified
        except OSError as error:
            if not _UNKNOWN.search(str(error)):
                raise
        finally:
            with contextlib.suppress(OSError):
                self.remove([name])
        return None

    def put_new(self, name: str, body: bytes) -> bool:
        """Write an object unless one of that name exists; return whether it was written."""
        return self._conditional(name, body, "create") is not None

    def begin(self, name: str, body: bytes) -> Any:
        """Write an object unless it exists.

        Returns:
            Its version, or ``None`` if it exists.
        """
        return self._conditional(name, body, "create")

    def swap(self, name: str, body: bytes, version: Any) -> Any:
        """Replace an object if it still has this version; return its new version, or ``None``."""
        return self._conditional(name, body, version)

    def _conditional(self, name: str, body: bytes, mode: Any) -> Any:
        delays = list(_DELAYS)
        after_loss = iter(DELAYS)
        while True:
            began = time.monotonic()
            try:
                with _explained(self.title, name):
                    return _version(
                        obstore.put(self._store, name, body, mode=mode, use_multipart=False)
                    )
            except (AlreadyExistsError, PreconditionError):
                there, version = self._own(name, body)
                if there or mode != "create":
                    return version
                # Amazon answers 409 to a write during another write of the same object, which may
                # fail. obstore reports an existing object then.
                if not delays:
                    raise ObjectStoreError(
                        f"{self.title}/{name}: the store refuses the write because of another "
                        "write of this object, which does not end"
                    ) from None
                time.sleep(delays.pop(0))
            except ObjectStoreError as error:
                is_short = time.monotonic() - began < _SHORT
                _, version = self._own(name, body)
                if version is not None:
                    return version
                # obstore does not send this write again. If the store still carries it out, the
                # repetition is refused, and `_own` finds the first one. The cause of an error that
                # hides a signature is only in its context.
                cause = error.__context__ or error
                delay = next(after_loss, None) if is_short and is_cut(cause) else None
                if delay is None:
                    raise
                time.sleep(delay)

    def _own(self, name: str, body: bytes) -> tuple[bool, Any]:
        """Return whether an object exists, and its version if it has this body.

        A conditional write whose response was lost fails when it is repeated; see :mod:`.objects`.
        """
        try:
            body_there, found = self.current(name)
        except FileNotFoundError:
            return False, None
        return True, found.version if body_there == body else None

    def read(self, name: str) -> bytes:
        """Return the body of an object."""
        return self.current(name)[0]

    def current(self, name: str) -> tuple[bytes, Found]:
        """Return the body of an object, and its version."""

        def get() -> tuple[bytes, Found]:
            got = obstore.get(self._store, name)
            return bytes(got.bytes()), _found(got.meta)

        with _explained(self.title, name):
            return uncut(get)

    def look(self, name: str) -> Found:
        """Return the size, time and version of an object without reading its body."""
        return self._looked(name)[0]

    def _looked(self, name: str) -> tuple[Found, str | None]:
        """Return the same as :meth:`look`, and the name that the object was staged under."""
        with _explained(self.title, name):
            got = obstore.get(self._store, name, options={"head": True})
            return _found(got.meta), got.attributes.get(MARK)

    def upload(self, name: str, path: Path) -> None:
        """Write a file's bytes as an object, which appears whole."""
        attributes = {MARK: Path(name).name}
        with _explained(self.title, name):
            uncut(
                lambda: obstore.put(
                    self._store, name, path, attributes=attributes, max_concurrency=4
                )
            )

    def publish(self, source: str, target: str, size: int) -> None:
        """Copy a staged object, with its mark, to its final name; the copy appears whole."""
        if self._stands(source, target, size):
            return
        try:
            with _explained(self.title, source):
                uncut(lambda: obstore.copy(self._store, source, target))
        except FileNotFoundError:
            # Another worker may have published the object, and its staged one is removed.
            if not self._stands(source, target, size):
                raise

    def _stands(self, source: str, target: str, size: int) -> bool:
        """Return whether the object was published before, under ``target``.

        Raises:
            FileExistsError: Another object has the name.
        """
        try:
            found, mark = self._looked(target)
        except FileNotFoundError:
            return False
        if (mark, found.size) != (Path(source).name, size):
            raise FileExistsError(f"{self.title}/{target} is another object")
        return True

    def names(self, below: str = "") -> Iterator[str]:
        """Return the names of all objects below a prefix."""
        seen: set[str] = set()  # a listing that was cut begins again
        delays = iter(DELAYS)
        with _explained(self.title, below):
            while True:
                try:
                    for page in obstore.list(self._store, below or None):
                        for name in [each["path"] for each in page]:
                            if name not in seen:
                                seen.add(name)
                                yield name
                    return
                except BaseError as error:
                    wait_after(error, delays, is_cut)

    def first_names(self, folder: str) -> list[str]:
        """Return the names directly in a folder, in order, as far as one request lists them."""
        with _explained(self.title, folder):
            page: Any = uncut(
                lambda: next(iter(obstore.list(self._store, folder, chunk_size=_PAGE)), ())
            )
            return [
                name
                for each in page
                if "/" not in (name := each["path"].removeprefix(f"{folder}/"))
            ]

    def folder(self, name: str) -> tuple[list[str], list[str]]:
        """Return the names of the objects and of the folders directly in a folder."""
        with _explained(self.title, name):
            found = uncut(lambda: obstore.list_with_delimiter(self._store, name))
            return [Path(each["path"]).name for each in found["objects"]], [
                Path(each).name for each in found["common_prefixes"]
            ]

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects. Those that do not exist are skipped."""
        names = list(names)
        with _explained(self.title, "objects"):
            try:
                if names:
                    uncut(lambda: obstore.delete(self._store, names))
            except FileNotFoundError:
                # Some stores refuse to delete a missing object, and the others may still stand.
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        uncut(partial(obstore.delete, self._store, name))

    def remove_folder(self, name: str) -> None:
        """Remove all objects below a prefix."""
        self.remove(list(self.names(name)))

    def part(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes of an object from ``start`` to before ``end``."""
        with _explained(self.title, name):
            return bytes(obstore.get_range(self._store, name, start=start, end=end))


def _found(meta: Any) -> Found:
    return Found(meta["size"], meta["last_modified"], _version(meta))


def _version(meta: Any) -> dict[str, str]:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}


@contextlib.contextmanager
def _explained(title: str, name: str) -> Iterator[None]:
    """Raise errors of the store with a message of one line.

    The store's own message has a dozen lines. If it has a request's signature, the error is not
    chained.
    """
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
        raise ObjectStoreError(f"{title}/{name}: {_line(error)}") from (
            None if _QUERY.search(str(error)) else error
        )


def _line(error: BaseException) -> str:
    """Return an error of obstore in one line, without the query (signature) of a request."""
    return peer_text(_words(error))


def _words(error: BaseException) -> str:
    text = _QUERY.sub(r"\1", str(error))
    status = re.search(r"status code: (\d+ [A-Za-z ]+)", text)
    if status is None:
        # The system's error is at the end of a long chain of causes.
        system = re.findall(r'message: "([^"]+)"', text)
        first = text.partition("\n")[0].strip() or type(error).__name__
        return f"{first} ({system[-1]})" if system else first
    code = re.search(r"<Code>([^<]*)</Code>(?:\s*<Message>([^<]*)</Message>)?", text)
    said = "" if code is None else f" ({code[1]}: {code[2]})" if code[2] else f" ({code[1]})"
    advice = (
        "; check the credentials and their permissions"
        if status[1].startswith(("401", "403"))
        else ""
    )
    return f"the store responded {status[1].strip()}{said}{advice}"
