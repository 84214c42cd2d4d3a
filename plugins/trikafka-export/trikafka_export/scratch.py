"""A directory for the temporary files of a JVM that was started here.

A JVM that is killed leaves temporary files behind: blocks, artifacts, native libraries. So each JVM
gets a directory of its own, which this process keeps locked while it lives. The process removes the
directory at its end. If it was killed, the next process that calls :func:`make` finds the directory
unlocked and removes it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_PREFIX = "trikafka-spark-"
_LOCK = "owner"


def make() -> Path:
    """Return a new directory for this process; first remove those of processes that have ended."""
    _sweep()
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(directory / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (directory / _LOCK).exists():
                return directory  # the lock stays open as long as the process lives
            os.close(lock)
        # Another process has removed the directory before it was locked.


def remove_at_exit(directory: Path, end_jvm: Callable[[], None]) -> None:
    """At the end of this process call ``end_jvm``, then remove the directory.

    ``end_jvm`` returns when the JVM has ended.
    """
    atexit.register(_remove, directory, end_jvm, os.getpid())


def _remove(directory: Path, end_jvm: Callable[[], None], owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the process that has made the directory
    end_jvm()
    shutil.rmtree(directory, ignore_errors=True)


def _sweep() -> None:
    """Remove the directories whose owners have ended."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # locked, of another user, or just being made
            if not (directory / _LOCK).exists() and time.time() - directory.stat().st_mtime > 60:
                # A JVM that outlived its owner has created the directory again after its removal.
                shutil.rmtree(directory, ignore_errors=True)
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)
