"""The class-data archive of a folder of jars: what a JVM maps into its memory when it starts, in place of finding,
reading and checking some thousand classes. Owns what is named `classes-*` where it is kept: of Kafka beside its jars.

Java itself looks whether an archive fits it and the jars, and does without one that does not; but one that is damaged
or cut off is the end of it. So an archive is written aside, tried, renamed together with its hash, and compared with
that by each process that comes to use it. Whatever goes wrong here costs the gain, never a start.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import BrokerError
from .java import version_text

#: An archive has some 50 MB; a disk that is nearly full is left what it has.
_ROOM = 500_000_000
#: Attempts that have come to nothing; then it is not tried again.
_ATTEMPTS = 3
_FILE, _HASH = "classes.jsa", "classes.sha256"
_WRITE, _USE = "-XX:ArchiveClassesAtExit=", "-XX:SharedArchiveFile="
# Java tells of an archive that it does not use on its standard output, which belongs to the program.
_QUIET = ("-Xlog:cds*=off", "-Xlog:cds*=off:stderr")


@dataclass(frozen=True)
class Jars:
    """The folder of jars, the class path that they are used by, and the directory in which their archives are kept."""

    folder: Path
    class_path: str
    kept: Path


def writing_options(file: Path) -> list[str]:
    """The JVM options of a process that writes an archive of its classes when it ends (SIGTERM is such an end)."""
    return [*_QUIET, f"{_WRITE}{file}"]


def using_options(file: Path | None, given: Sequence[str]) -> list[str]:
    """The JVM options of a process that uses the archive; none without one, and where others are `given`."""
    return [] if file is None or concerns(given) else [*_QUIET, f"{_USE}{file}"]


def concerns(options: Sequence[str]) -> bool:
    """Whether JVM options have to do with class-data archives already."""
    return any(option.startswith((_WRITE, _USE, "-Xshare")) for option in options)


def prepare(java: Path, jars: Jars, write: Callable[[Path], None], report: Callable[[], None]) -> Path | None:
    """The archive of these jars for this Java, written by `write` if there is none yet; None if it has to go without.

    That is so while another process is at it, where nothing can be written, where it has failed thrice, and for a Java
    of another kind than OpenJDK's. `write` gets the path of a file to write, and its `BrokerError` is such a failure.
    When it is cancelled nothing is left.
    """
    if "OpenJ9" in version_text(java):
        return None
    place = jars.kept / f"classes-{_fingerprint(java, jars)}"
    if _is_whole(place):
        return place / _FILE
    with contextlib.suppress(OSError), _attempt(place.with_suffix(".attempts")) as allowed:
        if allowed and not _is_whole(place):
            aside_prefix = f".{place.name}-"  # others may be writing meanwhile, for other Javas
            for leftover in (place, *jars.kept.glob(f"{aside_prefix}*")):  # damaged, or of one that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            report()
            with tempfile.TemporaryDirectory(prefix=aside_prefix, dir=jars.kept) as aside:
                (made := Path(aside, "made")).mkdir()
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
    known = file.stat()
    return _hash_of(file, known.st_ino, known.st_size, known.st_mtime_ns)


@functools.lru_cache
def _hash_of(file: Path, inode: int, size: int, changed: int) -> str:
    with file.open("rb") as archive:
        return hashlib.file_digest(archive, "sha256").hexdigest()


def _write_aside(java: Path, class_path: str, aside: Path, write: Callable[[Path], None]) -> None:
    """Raises `OSError` when it comes to nothing."""
    try:
        write(aside)
        command = [str(java), *_QUIET, f"{_USE}{aside}", "-Xshare:on", "-cp", class_path, "-version"]
        subprocess.run(command, capture_output=True, timeout=60, check=True)
    except (BrokerError, subprocess.SubprocessError) as error:
        raise OSError(f"the archive was not written: {error}") from error


def _fingerprint(java: Path, jars: Jars) -> str:
    """Of all that Java compares, the jars in the order in which it finds them."""
    parts = [version_text(java), jars.class_path]
    for name in os.listdir(jars.folder):  # noqa: PTH208
        known = (jars.folder / name).stat()
        parts.append(f"{name} {known.st_size} {known.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _attempt(path: Path) -> Iterator[bool]:
    """Whether it may be tried now; nobody else tries meanwhile. The file has a byte for each failure."""
    with path.open("ab", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        place = os.statvfs(path)
        allowed = os.fstat(file.fileno()).st_size < _ATTEMPTS and place.f_bavail * place.f_frsize > _ROOM
        try:
            yield allowed
        except OSError:
            file.write(b"x")
            raise
