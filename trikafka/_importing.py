"""The import of trikafka's modules at their first use: by one thread at a time."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Why a lock beside those of Python
# ---------------------------------
#
# Python has a lock for each module. A thread that imports `a.b` holds the lock of `a.b` while `a` is
# imported, and a thread that imports `a` holds that of `a` while its body imports `a.b`. If two
# threads do so at once, Python sees the deadlock, and one of them gets an error or a module that is
# half made. So modules that are imported because a name was used, or a client opened, are imported
# under one lock. It may be held twice by one thread: `trikafka.tasks` uses public names.
#
# A thread that imports one of our modules by itself, such as `trikafka.tasks.plan`, holds that
# module's lock and uses public names. The thread with our lock may wait for that module. So such a
# thread does not wait here: it goes on without the lock, as if there were none. Threads that import
# nothing of ours hold nothing that the other thread needs. They wait, up to a limit.
_lock = threading.RLock()
#: Seconds. All modules together take half a second, and several on a busy machine.
_LIMIT = 10.0


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep other threads from entering such a block, if that is possible."""
    lock = _lock
    held = lock.acquire(blocking=False)
    if not held and not _imports_ours():
        held = lock.acquire(timeout=_LIMIT)
    try:
        yield
    finally:
        if held:
            lock.release()


def _imports_ours() -> bool:
    """Return whether this thread is in the body of one of trikafka's modules."""
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name == "<module>" and name.startswith("trikafka."):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _after_fork() -> None:
    """Forget in a fork that a thread of the parent holds the lock."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
