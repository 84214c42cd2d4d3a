"""Settings of a Python worker of Spark, beside its tasks."""

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
    """Exempt the objects that exist after the first task from garbage collections.

    Spark has a worker collect garbage after each task, before the next one starts. To look through
    all imported modules takes longer than many a task.
    """
    gc.collect()
    gc.freeze()


def acknowledge() -> None:
    """Acknowledge at once the data that Spark has sent, so that Spark sends the rest."""
    # A task arrives as its function and then its partition. Spark's end of the socket holds the
    # second back until the first is acknowledged (Nagle's algorithm). This end has nothing to send
    # yet, so the kernel would delay the acknowledgement for 40 ms. Sockets of other kinds, and
    # other systems than Linux, need nothing.
    if not hasattr(socket, "TCP_QUICKACK"):
        return
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


class Acknowledging:
    """The base of objects in a task's function, which acknowledge their arrival.

    Such an object is unpickled between the arrival of the function and of the partition.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        acknowledge()
        self.__dict__.update(state)
