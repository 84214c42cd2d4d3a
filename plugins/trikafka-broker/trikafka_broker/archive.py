"""The class-data archive of a folder of jars.

A JVM that starts with an archive maps it into memory. Otherwise it has to find, read and verify
some thousand classes. This module owns the entries `classes-*` in the folders where archives are
kept; those of Kafka are beside its jars.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import BrokerError
from .java import version_text

#: Free bytes that the disk must have. An archive has about 50 MB.
_ROOM = 500_000_000
#: Failed attempts to write an archive after which no further one is made for some time (seconds): a
#: machine that was too busy for it may not be so tomorrow.
_ATTEMPTS, _PAUSE = 3, 86_400
_FILE, _HASH = "classes.jsa", "classes.sha256"
_WRITE = "-XX:ArchiveClassesAtExit="
_USE = "-XX:SharedArchiveFile="
# Java reports an unused archive on its standard output, which belongs to the program.
_QUIET = ("-Xlog:cds*=off", "-Xlog:cds*=off:stderr")


@dataclass(frozen=True)
class Jars:
    """A folder of jars, its class path, and the directory of its archives."""

    folder: Path
    class_path: str
    kept: Path


def writing_options(file: Path) -> list[str]:
    """Return the JVM options of a process that writes an archive at its end, also after SIGTERM."""
    return [*_QUIET, f"{_WRITE}{file}"]


def using_options(file: Path | None, given: Sequence[str]) -> list[str]:
    """Return the JVM options of a process that uses the archive.

    The list is empty without an archive, or if the options in `given` concern archives already.
    """
    return [] if file is None or concerns(given) else [*_QUIET, f"{_USE}{file}"]


def concerns(options: Sequence[str]) -> bool:
    """Return whether JVM options concern class-data archives."""
    return any(option.startswith((_WRITE, _USE, "-Xshare")) for option in options)


# Java checks whether an archive fits the JVM and the jars, and ignores one that does not. But a JVM
# crashes if the archive is damaged or incomplete. So an archive is written to a temporary folder,
# tried by a JVM, and renamed together with its hash. Each process compares the hash before use.
#
# An archive only saves time. So a failure here makes a start slower, and never makes it fail.
def prepare(
    java: Path, jars: Jars, write: Callable[[Path], None], report: Callable[[], None]
) -> Path | None:
    """Return the archive of these jars for this Java; write it if there is none.

    Return None if there is no archive: another process is writing it, the disk cannot be written or
    is nearly full, three attempts have failed and the last one less than a day ago, or the Java is
    OpenJ9. A cancelled call leaves no part of an archive behind.

    Args:
        java: The Java executable.
        jars: The jars and the place of their archives.
        write: Writes the archive to the given path. Its `BrokerError` counts as a failed attempt.
        report: Called once before the archive is written.
    """
    if "OpenJ9" in version_text(java):
        return None
    place = jars.kept / f"classes-{_fingerprint(java, jars)}"
    if _is_whole(place):
        return place / _FILE
    with contextlib.suppress(OSError), _attempt(place.with_suffix(".attempts")) as allowed:
        if allowed and not _is_whole(place):
            aside_prefix = f".{place.name}-"  # archives of other Javas have other names
            # a damaged archive, and the leftovers of killed processes
            for leftover in (place, *jars.kept.glob(f"{aside_prefix}*")):
                shutil.rmtree(leftover, ignore_errors=True)
            report()
            with tempfile.TemporaryDirectory(prefix=aside_prefix, dir=jars.kept) as aside:
                made = Path(aside, "made")
                made.mkdir()
                _write_aside(java, jars.class_path, made / _FILE, write)
                (made / _HASH).write_text(_hash(made / _FILE))
                made.rename(place)
    return place / _FILE if _is_whole(place) else None


def _is_whole(place: Path) -> bool:
    try:
        return _hash(place / _FILE) == (place / _HASH).read_text()
    except OSError:
        return False


def _hash(file: Path) -> str:
    status = file.stat()
    return _hash_of(file, status.st_ino, status.st_size, status.st_mtime_ns)


@functools.lru_cache
def _hash_of(file: Path, inode: int, size: int, modified_ns: int) -> str:
    """Return the hash of a file. The other arguments tell apart its states in the cache."""
    with file.open("rb") as archive:
        return hashlib.file_digest(archive, "sha256").hexdigest()


def _write_aside(java: Path, class_path: str, aside: Path, write: Callable[[Path], None]) -> None:
    """Write an archive and let a JVM try it. Raise `OSError` if either fails."""
    try:
        write(aside)
        command = [
            str(java),
            *_QUIET,
            f"{_USE}{aside}",
            "-Xshare:on",
            "-cp",
            class_path,
            "-version",
        ]
        subprocess.run(command, capture_output=True, timeout=60, check=True)
    except (BrokerError, subprocess.SubprocessError) as error:
        raise OSError(f"the archive was not written: {error}") from error


def _fingerprint(java: Path, jars: Jars) -> str:
    """Return a hash of all that Java compares: its own version, the class path and each jar."""
    parts = [version_text(java), jars.class_path]
    for name in os.listdir(jars.folder):
        status = (jars.folder / name).stat()
        parts.append(f"{name} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _attempt(path: Path) -> Iterator[bool]:
    """Yield whether an attempt is allowed now, and exclude other processes during it.

    The file has one byte for each failed attempt.
    """
    with path.open("ab", buffering=0) as file:
        locked = False
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        if not locked:
            yield False
            return
        notes = os.fstat(file.fileno())
        if notes.st_size >= _ATTEMPTS and time.time() - notes.st_mtime > _PAUSE:
            file.truncate(0)
        disk = os.statvfs(path)
        allowed = (
            os.fstat(file.fileno()).st_size < _ATTEMPTS and disk.f_bavail * disk.f_frsize > _ROOM
        )
        try:
            yield allowed
        except OSError:
            file.write(b"x")
            raise
