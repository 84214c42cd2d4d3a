"""A directory for what a JVM of ours leaves in the temporary directory: blocks, artifacts, native libraries.

A JVM that is killed leaves all of that. So each gets a directory of its own, which is locked for as long as this process
lives, removed at its end, and otherwise by the next process that makes one and finds it without an owner.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PREFIX = "trikafka-spark-"
_LOCK = "owner"


def make() -> Path:
    """Make such a directory for this process, after removing those that nobody owns any more."""
    _sweep()
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(directory / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (directory / _LOCK).exists():
                return directory  # the lock stays open as long as the process lives
            os.close(lock)
        # Another process has swept it away before it was locked.


def remove_at_exit(directory: Path, find_jvm: Callable[[], Any]) -> None:
    """At the end of this process: let the JVM end (``find_jvm`` returns its ``Popen``, if there is one), then remove."""
    atexit.register(_remove, directory, find_jvm, os.getpid())


def _remove(directory: Path, find_jvm: Callable[[], Any], owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the process that has made it
    if (jvm := find_jvm()) is not None:
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            jvm.stdin.close()  # what a JVM of PySpark ends on
            jvm.wait(5)
    shutil.rmtree(directory, ignore_errors=True)


def _sweep() -> None:
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another's, or just being made
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)
