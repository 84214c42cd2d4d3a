"""Files and folders of an export's destination: made durably, never through a link that somebody has planted.

A folder of ours is refused when it is a symbolic link or belongs to another user, and a file is opened only as a plain file of
ours with one name. What was written survives a power loss once its file, its folder and each folder made for it in its
parent are synced, in that order.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

from ..errors import ExportError

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def make_folder(path: Path) -> list[Path]:
    """Make a folder and its parents where they are missing, each synced in its parent. Returns those made, the innermost first."""
    missing: list[Path] = []
    made: list[Path] = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            made.insert(0, folder)
        sync(folder.parent)
    return made


def make_own_folder(path: Path) -> bool:
    """Make a folder of ours below one that is there; return whether it was missing.

    Raises :exc:`ExportError` if it is a link or another user's.
    """
    made = False
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o755)
        made = True
        sync(path.parent)
    check_own_folder(path)
    return made


def check_own_folder(path: Path) -> None:
    """Raise :exc:`ExportError` unless ``path`` is a folder, not a link to one, that belongs to this user."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise ExportError(f"{path} is a symbolic link, which an export does not follow; remove it")
    if not stat.S_ISDIR(found.st_mode):
        raise ExportError(f"{path} is not a folder")
    if found.st_uid != os.geteuid():
        raise ExportError(f"{path} belongs to another user (id {found.st_uid}); export as that user, or choose another destination")


def open_own_file(path: Path) -> int:
    """Open a file of ours for reading and writing, making it where it is missing. Raises :exc:`ExportError` for a link."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ExportError(f"{path} is a symbolic link, which an export does not follow; remove it") from error
        raise
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid != os.geteuid():
        os.close(file)
        raise ExportError(f"{path} is not a plain file of this user with one name; remove it")
    return file


def is_at(path: Path, file: int) -> bool:
    """Whether the open file has that name, still. Raises FileNotFoundError where nothing has."""
    return os.path.samestat(os.lstat(path), os.fstat(file))


def new_file(path: Path) -> None:
    """Make an empty file that was not there, for a writer that opens it by its name."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644))


def read_file(path: Path) -> bytes:
    """Read a whole file, which must not be a link."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
        return file.read()


def write_once(path: Path, text: str) -> bool:
    """Store a file durably under a name that is free; say whether it was."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")
    try:
        with open(aside, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        stored = link(aside, path)
        sync(path.parent)
        return stored
    finally:
        aside.unlink(missing_ok=True)


def link(source: Path, target: Path) -> bool:
    """Move ``source`` to ``target`` unless that exists; say whether it was moved. Either way ``source`` is gone."""
    try:
        os.link(source, target, follow_symlinks=False)
        moved = True
    except FileExistsError:
        moved = False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        moved = not os.path.lexists(target)  # a file system without hard links; the lock keeps other exports away
        if moved:
            os.rename(source, target)
    source.unlink(missing_ok=True)
    return moved


def move_once(source: Path, target: Path) -> None:
    """Move ``source`` to ``target``, which may have been done before. Raises :exc:`ExportError` if that is another file."""
    if os.path.lexists(target):
        if not os.path.lexists(source):
            return
        if not os.path.samestat(os.lstat(source), os.lstat(target)):
            raise ExportError(f"{target} is there and was not written by this export; move it away, the export goes on then")
    link(source, target)


def sync(path: Path) -> None:
    """Have a file's content, or a folder's names, survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Errors of the file system as an :exc:`ExportError` that says what was being done."""
    try:
        yield
    except OSError as error:
        raise ExportError(f"{what}: {error.strerror or error}") from error
