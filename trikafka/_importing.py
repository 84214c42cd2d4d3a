"""The import of trikafka's modules at their first use: by one thread at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Why a lock beside those of Python
# ---------------------------------
#
# Python has a lock for each module. Whoever imports `a.b` holds the lock of `a.b` while `a` is
# imported, and whoever imports `a` holds that of `a` while its body imports `a.b`. Where two
# threads do so at once, Python sees the deadlock, and one of them gets an error or a module that is
# half made. So modules that are imported because a name was used, or a client opened, are imported
# under one lock. It may be held twice by one thread: `trikafka.tasks` uses public names.
#
# A thread that imports one of the modules by itself, such as `trikafka.tasks.plan`, may wait here
# for a thread that waits for that module. So no thread waits for longer than a limit. Then it goes
# on without the lock.
_lock = threading.RLock()
#: Seconds. All modules together take half a second, and several on a busy machine.
_LIMIT = 10.0


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep other threads from entering such a block, if that is possible."""
    lock = _lock
    held = lock.acquire(timeout=_LIMIT)
    try:
        yield
    finally:
        if held:
            lock.release()


def _after_fork() -> None:
    """Forget in a fork that a thread of the parent holds the lock."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
