"""An export's operations on HDFS, over ``hdfs-native``.

That package is a client of HDFS's own protocol, without Java and without libhdfs.
"""

# How a rename replaces conditional writes
# ----------------------------------------
#
# HDFS has no conditional writes. Its rename is one step of the name node: it fails if the new name
# exists, and if the old name does not. Everything here is built on that:
#
# * An object that is written once is written aside and renamed.
# * An object that changes is a folder ``name.cell``, the cell. The cell has a file with the body of
#   the current version, and an empty file ``at-VERSION`` that points to it. A swap writes a new
#   body beside the old one, and renames the empty file to the new version. Of two swaps from the
#   same version, the second finds that file gone. In a removed cell there is nothing to rename, so
#   no swap creates it again.
# * A data file is staged in the plan's work folder and renamed to its name.
#
# The response to a rename may be lost; ``hdfs-native`` then repeats the request, and the repetition
# finds nothing under the old name. So after a failed rename the new name decides: if it exists with
# our content, the rename was done.
#
# A closed file may look empty for a moment
# -----------------------------------------
#
# A name node with dfs.namenode.file.close.num-committed-allowed above 0 lets a writer close a file
# before a data node has reported its last block. Until the report, the locations of the blocks have
# the file's length without that block, and 0 for a small file. Java's client asks a data node for
# the rest; hdfs-native does not. The file's status has the whole length. So a reader compares the
# two, and opens the file again until they agree.

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from hdfs_native import Client, WriteOptions

from trikafka import ConfigurationError
from trikafka.errors.peer_text import peer_text

from .object_address import ObjectAddress, ObjectStoreError
from .objects import Found, Objects

A = TypeVar("A")
_CELL = ".cell"
_AT = "at-"
#: The prefix of files before they get their name. An export removes old ones, like old probes.
_ASIDE = "_trikafka/probe-"
_AT_ONCE = 4 << 20
#: The limit (seconds) of one call: hdfs-native itself waits without a limit for a silent name node.
_ANSWER_LIMIT = 120.0
#: The limit (seconds) of the wait for the report of a file's last block, and the time between two
#: looks. A data node reports at once, or with its heartbeat each 3 s.
_REPORT_LIMIT, _REPORT_PAUSE = 30.0, 0.02
_FOLDER_MODE = 0o755
#: An error of hdfs-native without a Python class of its own: the Java class, and the message before
#: the stack trace.
_SAID = re.compile(
    r'^\w*RPCError\("(?:[\w$]+\.)*([\w$]+)", "((?:[^"\\]|\\.)*?)(?:\\n.*)?"\)$', re.DOTALL
)


class HdfsObjects(Objects):
    """A destination in HDFS."""

    def __init__(self, address: ObjectAddress) -> None:
        self.title = address.url
        parts = urlsplit(address.url)
        self._root = PurePosixPath("/", unquote(parts.path).strip("/"))
        options = dict(address.client)
        # The user of the process that opened the export; Spark's workers may have another one.
        if user := options.pop("user", None):
            os.environ["HADOOP_USER_NAME"] = user
        try:
            self._client = Client(f"hdfs://{parts.netloc}", dict(address.config), **options)
        except (RuntimeError, OSError, ValueError, TypeError) as error:
            if "No NameNode hosts" in str(error):
                raise ConfigurationError(
                    f"{address.url} cannot be used: {parts.netloc!r} has no port, so it names a "
                    "service whose name nodes must be configured: by the hdfs-site.xml in "
                    f"HADOOP_CONF_DIR, or store.dfs.ha.namenodes.{parts.netloc} and "
                    f"store.dfs.namenode.rpc-address.{parts.netloc}.NAME; or write "
                    "hdfs://HOST:PORT"
                ) from None
            raise ConfigurationError(f"{address.url} cannot be used: {_line(error)}") from None

    def _path(self, name: str) -> str:
        return str(self._root / name)

    def probe(self, name: str) -> datetime | None:
        """Write a file, remove it, and return the time of the name node.

        Renames need no probe: every HDFS has them.
        """
        path = self._path(name)
        with self._said(name):
            self._write(path, [b"1"])
        try:
            return self.look(name).modified
        finally:
            with contextlib.suppress(OSError):
                self.remove([name])

    # --- what is written once ---

    def put_new(self, name: str, body: bytes) -> bool:
        """Write a file aside, and rename it unless one of that name exists."""
        return self._renamed_aside(
            name, name, lambda aside: self._write(aside, [body]), lambda: self.read(name) == body
        )

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        with self._said(name):
            return self._read(self._path(name))

    # --- what changes ---

    def begin(self, name: str, body: bytes) -> Any:
        """Make a cell aside, and rename it unless one of that name exists."""
        version = str(uuid.uuid4())

        def make(aside: str) -> None:
            self._write(f"{aside}/{version}", [body])
            self._write(f"{aside}/{_AT}{version}", [])

        done = self._renamed_aside(
            name, name + _CELL, make, lambda: self.current(name)[1].version == version
        )
        return version if done else None

    def current(self, name: str) -> tuple[bytes, Found]:
        """Return the body and the version of the current version of a cell."""
        cell = self._path(name + _CELL)
        while True:
            with self._said(name):
                there = {PurePosixPath(each.path).name: each for each in self._listing(cell)}
                version = next(
                    (each.removeprefix(_AT) for each in there if each.startswith(_AT)), None
                )
                if version is None or version not in there:
                    raise OSError("its last version is lost")
                try:
                    body = self._read(f"{cell}/{version}")
                except FileNotFoundError:
                    # A swap came between the listing and the read; or the cell was removed, which
                    # the next listing reports.
                    continue
                return body, _found(there[version], version)

    def swap(self, name: str, body: bytes, version: Any) -> Any:
        """Write the body of a new version, and make it the current one."""
        cell = self._path(name + _CELL)
        new = str(uuid.uuid4())
        try:
            with self._said(name):
                try:
                    self._write(f"{cell}/{new}", [body], create_parent=False)
                except (OSError, RuntimeError):
                    self._delete(f"{cell}/{new}")  # a lock is tried again every few seconds
                    raise
                _within(self._client.rename, f"{cell}/{_AT}{version}", f"{cell}/{_AT}{new}")
        except FileNotFoundError:
            if not self._is_there(f"{cell}/{_AT}{new}"):
                self._delete(f"{cell}/{new}")
                return None
        except ObjectStoreError:
            if not self._is_there(f"{cell}/{_AT}{new}"):
                raise
        self._delete(f"{cell}/{version}")
        return new

    # --- data files ---

    def look(self, name: str) -> Found:
        """Return the size and time of a file without reading it."""
        with self._said(name):
            return _found(_within(self._client.get_file_info, self._path(name)), None)

    def upload(self, name: str, path: Path) -> None:
        """Write a file, which is whole when this returns."""
        with path.open("rb", buffering=0) as file, self._said(name):
            self._write(self._path(name), iter(lambda: file.read(_AT_ONCE), b""))

    def publish(self, source: str, target: str, size: int) -> None:
        """Rename a staged file to its final name."""
        staged = self._path(source)
        final = self._path(target)
        for last in (False, True):
            try:
                with self._said(source):
                    _within(self._client.rename, staged, final)
                return
            except FileNotFoundError:
                # The staged file was renamed before, or the folder of the new name is missing.
                if self._is_there(final):
                    if self.look(target).size != size:
                        raise FileExistsError(f"{self.title}/{target} is another file") from None
                    return
                if last:
                    raise
                with self._said(target):
                    _within(
                        self._client.mkdirs, str(PurePosixPath(final).parent), _FOLDER_MODE, True
                    )
            except ObjectStoreError:
                if self._is_there(staged) or not self._is_there(final):
                    raise
                return

    # --- folders ---

    def names(self, below: str = "") -> Iterator[str]:
        """Return the names of all files below a folder."""
        return iter(
            sorted(
                self._relative(each.path)
                for each in self._list(below, recursive=True)
                if not each.isdir
            )
        )

    def first_names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        return self.folder(folder)[0]

    def folder(self, name: str) -> tuple[list[str], list[str]]:
        """Return the names of the files and cells, and of the folders, directly in a folder."""
        files: list[str] = []
        folders: list[str] = []
        for each in self._list(name, recursive=False):
            found = PurePosixPath(each.path).name
            is_folder = each.isdir and not found.endswith(_CELL)
            (folders if is_folder else files).append(
                found.removesuffix(_CELL) if each.isdir else found
            )
        return sorted(files), sorted(folders)

    def _list(self, name: str, *, recursive: bool) -> list[Any]:
        """List a folder; one that is not there is empty.

        hdfs-native ends a recursive listing with an error if a folder vanishes below. Another
        process may remove what it has left aside, so each folder is listed by itself.
        """
        try:
            with self._said(name):
                found = self._listing(self._path(name))
        except FileNotFoundError:
            return []
        if recursive:
            below = [self._relative(each.path) for each in found if each.isdir]
            found += (each for folder in below for each in self._list(folder, recursive=True))
        return found

    def _listing(self, path: str) -> list[Any]:
        found: list[Any] = _within(lambda: list(self._client.list_status(path, False)))
        return found

    def _relative(self, path: str) -> str:
        return str(PurePosixPath(path).relative_to(self._root))

    def remove(self, names: Iterable[str]) -> None:
        """Remove files and cells. Those that do not exist are skipped."""
        for name in names:
            with self._said(name):
                if not _within(self._client.delete, self._path(name)):
                    _within(self._client.delete, self._path(name + _CELL), True)

    def remove_folder(self, name: str) -> None:
        """Remove a folder with everything in it."""
        with self._said(name):
            _within(self._client.delete, self._path(name), True)

    def part(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes of a file from ``start`` to before ``end``."""

        def read() -> bytes:
            return bytes(self._opened(self._path(name), end).read_range(start, end - start))

        with self._said(name):
            return _within(read)

    # --- the client's calls ---

    def _renamed_aside(
        self, name: str, target: str, make: Callable[[str], None], is_own: Callable[[], bool]
    ) -> bool:
        """Create something aside and rename it; return whether it has the new name now.

        Args:
            name: The name in errors.
            target: The new name.
            make: Creates the file or cell at the path that it gets.
            is_own: Returns whether the object under the new name is the one made here.
        """
        aside = self._path(f"{_ASIDE}{uuid.uuid4()}")
        path = self._path(target)
        try:
            with self._said(name):
                make(aside)
                try:
                    _within(self._client.rename, aside, path)
                except FileNotFoundError:
                    if self._is_there(aside):  # the new folder is missing
                        _within(
                            self._client.mkdirs, str(PurePosixPath(path).parent), _FOLDER_MODE, True
                        )
                        _within(self._client.rename, aside, path)
                    else:  # a repeated request finds nothing left to be renamed
                        return _or_false(is_own)
                return True
        except FileNotFoundError:
            # It was repeated after the folder was made, or what was written aside is gone.
            if self._is_there(aside) or not _or_false(is_own):
                raise
            return True
        except FileExistsError:
            return _or_false(is_own)
        except ObjectStoreError:
            if self._is_there(aside) or not _or_false(is_own):
                raise
            return True
        finally:
            self._delete(aside)

    def _write(self, path: str, parts: Iterable[bytes], *, create_parent: bool = True) -> None:
        # No two writes have the same path. So if the file exists, this request has created it: the
        # first response was lost, and hdfs-native has repeated the request. Only then may it be
        # replaced, because a late request must not empty a file that has been written meanwhile.
        try:
            file = self._created(path, overwrite=False, create_parent=create_parent)
        except FileExistsError:
            file = self._created(path, overwrite=True, create_parent=create_parent)
        try:
            for part in parts:
                _within(file.write, part)
        finally:
            _within(file.close)

    def _created(self, path: str, *, overwrite: bool, create_parent: bool) -> Any:
        options = WriteOptions(overwrite=overwrite, create_parent=create_parent)
        return _within(self._client.create, path, options)

    def _read(self, path: str) -> bytes:
        def read() -> bytes:
            length = self._client.get_file_info(path).length
            return bytes(self._opened(path, length).read())

        return _within(read)

    def _opened(self, path: str, length: int) -> Any:
        """Open a file of at least ``length`` bytes once its last block is reported.

        Raises :exc:`TimeoutError` if no data node reports the block.
        """
        limit = time.monotonic() + _REPORT_LIMIT
        while len(file := self._client.read(path)) < length:
            if time.monotonic() > limit:
                raise TimeoutError(
                    f"only {len(file):,} of {length:,} bytes can be read: no data node has "
                    f"reported the last block for {_REPORT_LIMIT:.0f} s"
                )
            time.sleep(_REPORT_PAUSE)
        return file

    def _is_there(self, path: str) -> bool:
        try:
            with self._said(path):
                _within(self._client.get_file_info, path)
        except FileNotFoundError:
            return False
        return True

    def _delete(self, path: str) -> None:
        """Remove a file or cell that nothing refers to.

        Errors are ignored: a leftover does no harm.
        """
        with contextlib.suppress(OSError), self._said(path):
            _within(self._client.delete, path, True)

    @contextlib.contextmanager
    def _said(self, name: str) -> Iterator[None]:
        """Raise errors with a message of one line, without Java's stack trace."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.title}/{name} is not there") from None
        except FileExistsError:
            raise FileExistsError(f"{self.title}/{name} is there already") from None
        except (OSError, RuntimeError, NotImplementedError) as error:
            raise ObjectStoreError(f"{self.title}/{name}: {_line(error)}") from error


def _within(function: Callable[..., A], *given: Any) -> A:
    """Call a function in a thread of its own, and raise TimeoutError if it does not return in time.

    Such a thread stays until the system ends its connection. It is a daemon, so it does not delay
    the end of the process.
    """
    results: list[A] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function(*given))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="trikafka-hdfs", daemon=True)
    thread.start()
    thread.join(_ANSWER_LIMIT)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no response for {_ANSWER_LIMIT:.0f} s")
    return results[0]


def _or_false(is_own: Callable[[], bool]) -> bool:
    try:
        return is_own()
    except FileNotFoundError:
        return False


def _found(status: Any, version: str | None) -> Found:
    modified = datetime.fromtimestamp(status.modification_time / 1000, UTC)
    return Found(status.length, modified, version)


def _line(error: BaseException) -> str:
    text = str(error)
    if (said := _SAID.match(text)) is not None:
        return peer_text(f"{said[1]}: {said[2]}")
    return peer_text(text.partition("\n")[0].strip() or type(error).__name__)
