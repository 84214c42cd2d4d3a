"""Files and folders of an export's destination: durable, and never through a planted link."""
# What is synced, and in which order
# ----------------------------------
#
# A name may survive a power loss without the bytes behind it, and a file without its name. So the
# order is: the file's content, then the folder that holds its name, and for each folder made for it
# that folder's parent. ``write_once`` adds one step: the content goes to another name first and is
# synced, then it is linked to its own. A plan or manifest is therefore whole or absent.
#
# os.link does not replace: of two exports that store the same number, one fails. Where a file
# system has no hard links, a rename has to do, and the lock of the destination keeps other exports
# away.
#
# A destination may be writable by others. So an own folder is refused if it is a symbolic link or
# belongs to another user. A file is opened only as a plain file of this user with one name
# (O_NOFOLLOW, st_nlink): a planted link could otherwise make an export overwrite the user's own
# files.

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

from trikafka import ExportError

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def make_folder(path: Path) -> list[Path]:
    """Make a folder and its missing parents, each synced in its parent.

    Returns:
        The new folders, the innermost first.
    """
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
    """Make an own folder inside an existing one; return whether it was missing.

    Raises:
        ExportError: The folder is a link, or belongs to another user.
    """
    made = False
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o755)
        made = True
        sync(path.parent)
    check_own_folder(path)
    return made


def check_own_folder(path: Path) -> None:
    """Raise :exc:`ExportError` unless ``path`` is a folder of this user, and not a link."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise ExportError(f"{path} is a symbolic link, which an export does not follow; remove it")
    if not stat.S_ISDIR(found.st_mode):
        raise ExportError(f"{path} is not a folder")
    if found.st_uid != os.geteuid():
        raise ExportError(
            f"{path} belongs to another user (id {found.st_uid}); export as that user, or choose "
            "another destination"
        )


def open_own_file(path: Path) -> int:
    """Open an own file for reading and writing; create it if it is missing.

    Raises:
        ExportError: The path is a link, or the file belongs to another user or has other names.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ExportError(
                f"{path} is a symbolic link, which an export does not follow; remove it"
            ) from error
        raise
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid != os.geteuid():
        os.close(file)
        raise ExportError(f"{path} is not a plain file of this user with one name; remove it")
    return file


def is_at(path: Path, file: int) -> bool:
    """Return whether the open file still has that name.

    Raises:
        FileNotFoundError: No file has that name.
    """
    return os.path.samestat(os.lstat(path), os.fstat(file))


def new_file(path: Path) -> None:
    """Create an empty file, for a writer that opens it by name; the name must be free."""
    os.close(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    )


def read_file(path: Path) -> bytes:
    """Return the content of a file that is not a link."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
        return file.read()


def write_once(path: Path, text: str) -> bool:
    """Store a file durably; return False if the name is taken."""
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
    """Move ``source`` to ``target`` unless that exists; return whether it was moved.

    If it was not moved, ``source`` stays.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # The file system has no hard links. The destination's lock keeps other exports away.
        if os.path.lexists(target):
            return False
        os.rename(source, target)
    source.unlink(missing_ok=True)
    return True


def move_once(source: Path, target: Path) -> None:
    """Move ``source`` to ``target``, unless that has been done before.

    Raises:
        ExportError: ``target`` is another file. ``source`` stays.
        FileNotFoundError: Another worker moves ``source`` at this moment, or both are gone.
    """
    if os.path.lexists(target) and not os.path.lexists(source):
        return
    if link(source, target):
        return
    # Both names are of one file if a worker was killed, or is at work, between its two steps. The
    # comparison comes after the link: a foreign file may appear at any time before.
    if not os.path.samestat(os.lstat(source), os.lstat(target)):
        raise ExportError(
            f"{target} exists and was not written by this export: move it away, and export again"
        )
    source.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make a file's content, or a folder's names, survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn errors of the file system into an :exc:`ExportError` that says what was done."""
    try:
        yield
    except OSError as error:
        raise ExportError(f"{what}: {error.strerror or error}") from error
