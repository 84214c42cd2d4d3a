"""What the cases about idle partitions and about groups measure, the same for every client. Standard library alone."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .jobs import Window

#: How long (s) an idle consumer settles before it is looked at: positions are known then, and fetches are what they will be.
SETTLES = 1.0
#: How long (s) a member may take to get its first record.
PATIENCE = 40.0
#: In struct tcp_info of Linux: bytes that were acknowledged, bytes that were received.
_TCP_INFO, _TCP_BYTES_AT = 11, 120
_TCP_BYTES = struct.Struct("=QQ")


class Idle:
    """Processor, memory and traffic of this process while nothing happens."""

    def __init__(self) -> None:
        self._window = Window()
        self._bytes: int | None = None

    def __enter__(self) -> None:
        self._window.__enter__()
        self._bytes = traffic()

    def __exit__(self, *error: Any) -> None:
        after = traffic()
        self._window.__exit__(*error)
        if self._bytes is not None and after is not None:
            self._bytes = after - self._bytes

    def figures(self) -> dict[str, float]:
        window = self._window
        found = {"idle_cpu_percent": 100 * window.cpu / window.seconds, "assigned_mb": window.idle / 1e6}
        return found if self._bytes is None else {**found, "idle_bytes_per_second": self._bytes / window.seconds}


def traffic() -> int | None:
    """Bytes that this process's TCP connections carried so far in both directions; None where the system does not tell.

    Asked of the kernel, so that it counts the same in every client, also in one whose sockets are in C.
    """
    if not os.path.isdir("/proc/self/fd"):
        return None
    total = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError, struct.error):  # most are no sockets, and some are gone by now
            total += _carried(number)
    return total


def _carried(number: int) -> int:
    borrowed = socket.socket(fileno=number)
    try:
        if borrowed.family not in (socket.AF_INET, socket.AF_INET6):
            return 0
        return sum(_TCP_BYTES.unpack_from(borrowed.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256), _TCP_BYTES_AT))
    finally:
        borrowed.detach()


@dataclass
class Member:
    """A member of the group: when it was opened, and when each of its records was in the user's hands (seconds).

    It is the same for tasks and for threads, so whoever waits for its first record looks every few milliseconds.
    """

    opened: float = field(default_factory=time.perf_counter)
    arrivals: list[float] = field(default_factory=list)

    def arrived(self) -> None:
        self.arrivals.append(time.perf_counter())

    @property
    def waited_too_long(self) -> bool:
        return not self.arrivals and time.perf_counter() - self.opened > PATIENCE


def group_figures(members: Sequence[Member]) -> dict[str, float]:
    """What the last member's joining took, and for how long any other one had no record meanwhile."""
    *others, last = members
    for place, member in enumerate(members, 1):
        if not member.arrivals:
            raise TimeoutError(f"member {place} of {len(members)} got no record within {PATIENCE:.0f} s")
    end = max(each.arrivals[-1] for each in members)
    return {
        "join_ms": 1e3 * (others[0].arrivals[0] - others[0].opened),
        "hand_over_ms": 1e3 * (last.arrivals[0] - last.opened),
        "standstill_ms": 1e3 * max(_standstill(each.arrivals, last.opened, end) for each in others),
    }


def _standstill(arrivals: Sequence[float], since: float, end: float) -> float:
    """The longest time without a record between ``since`` and ``end``."""
    moments = [since, *(each for each in arrivals if since < each < end), end]
    return max(later - earlier for earlier, later in pairwise(moments))
