"""What a Python worker of Spark does beside its tasks."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import socket
import stat
from typing import Any


@functools.cache
def settle() -> None:
    """After the first task: leave what is there to stay out of garbage collections. Spark has a worker collect after each task,
    before it gets the next, and to look through all that was imported takes longer than many a task."""
    gc.collect()
    gc.freeze()


def acknowledge() -> None:
    """Tell Spark at once that what it has sent has come, for what it sends next: a task comes as its function and then its
    partition. Spark's end of the socket holds the second back until the first is acknowledged (Nagle), and ours, which has
    nothing to send yet, puts that off for 40 ms. Sockets of other kinds, and other systems than Linux, have nothing to be told."""
    if not hasattr(socket, "TCP_QUICKACK"):
        return
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


class Acknowledging:
    """A base of what is part of a task's function: there it is unpickled between the two."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        acknowledge()
        self.__dict__.update(state)
