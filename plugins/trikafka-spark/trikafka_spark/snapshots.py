"""The offset ranges of a data frame, bound once for all processes in which Spark plans."""

# Why a file, and not module state
# --------------------------------
#
# Spark plans a data source in Python processes of its own. A data frame that occurs twice in one
# action, as in a self join, is planned twice, in two processes at the same time. If each asked
# Kafka for the ends, the two branches would see different records. The processes share no memory,
# so they meet at a file: its name is a token of the data frame, and its lock makes the second
# process wait for the first. The folder belongs to this user alone, since a file of another user
# could make a query read other records.

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trikafka import OffsetRange, TrikafkaError

from .range_planning import Planned

#: The age (seconds) at which files are removed. Spark keeps the ranges that it has planned, so no
#: query needs them for that long.
_KEPT = 86_400.0
#: The last byte of a file. A disk may have been full, or the process killed, while it was written.
_WHOLE = b"\n"


def shared(token: str, bind: Callable[[], list[Planned]]) -> list[Planned]:
    """Return the ranges of this token: those of the first call of ``bind``.

    If ``bind`` raises, the error is raised, and the next call binds.
    """
    with _locked(token) as descriptor:
        text = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        if text.endswith(_WHOLE):
            return [
                Planned(OffsetRange(*wanted), topic_id) for wanted, topic_id in json.loads(text)
            ]
        planned = bind()
        text = json.dumps(planned).encode() + _WHOLE
        os.ftruncate(descriptor, 0)
        written = 0
        while written < len(text):
            written += os.pwrite(descriptor, text[written:], written)
        return planned


@contextmanager
def _locked(name: str) -> Iterator[int]:
    """Yield the descriptor of a file that is open and locked."""
    folder = _folder()
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder / name, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _folder() -> Path:
    # Not a name that .scratch clears.
    folder = Path(tempfile.gettempdir(), f"trikafka-snapshots-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise TrikafkaError(f"{folder} is not a folder that only this user can access: remove it")
    for old in folder.iterdir():
        with suppress(FileNotFoundError):  # another process clears as well
            if old.lstat().st_mtime < time.time() - _KEPT:
                old.unlink()
    return folder
