"""The measurements of the cases about idle partitions and groups, the same for every client.

Only the standard library is used here.
"""

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

#: Seconds for which an idle consumer settles before it is measured. By then positions are known
#: and fetches have reached their steady state.
SETTLES = 1.0
#: Seconds within which a member must get its first record.
PATIENCE = 240.0
#: The option and the place of two fields in Linux's struct tcp_info: bytes acknowledged, bytes
#: received.
_TCP_INFO, _TCP_BYTES_AT = 11, 120
_TCP_BYTES = struct.Struct("=QQ")


class Idle:
    """The processor time, memory and traffic of this process while it is idle."""

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
        found = {
            "idle_cpu_percent": 100 * window.cpu / window.seconds,
            "assigned_mb": window.idle / 1e6,
        }
        return (
            found
            if self._bytes is None
            else {**found, "idle_bytes_per_second": self._bytes / window.seconds}
        )


def traffic() -> int | None:
    """Return the bytes that this process's TCP connections have carried in both directions.

    The kernel counts them, so the figure means the same for every client, even if its sockets are
    in C. The result is None where the system does not provide the figure.
    """
    if not os.path.isdir("/proc/self/fd"):
        return None
    total = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        # Most descriptors are no sockets, and some have been closed in the meantime.
        with suppress(OSError, struct.error):
            total += _carried(number)
    return total


def _carried(number: int) -> int:
    borrowed = socket.socket(fileno=number)
    try:
        if borrowed.family not in (socket.AF_INET, socket.AF_INET6):
            return 0
        return sum(
            _TCP_BYTES.unpack_from(
                borrowed.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256), _TCP_BYTES_AT
            )
        )
    finally:
        borrowed.detach()


@dataclass
class Member:
    """A member of the group, with the times (s) of its opening and of the arrival of its records.

    The class serves tasks and threads alike, so a caller that waits for the first record polls
    every few milliseconds.
    """

    opened: float = field(default_factory=time.perf_counter)
    arrivals: list[float] = field(default_factory=list)

    def arrived(self) -> None:
        self.arrivals.append(time.perf_counter())

    @property
    def waited_too_long(self) -> bool:
        return not self.arrivals and time.perf_counter() - self.opened > PATIENCE


def group_figures(members: Sequence[Member]) -> dict[str, float]:
    """Return the durations of the first join, the last join, and the others' longest standstill.

    A standstill is a time without a record while the last member joined.
    """
    *others, last = members
    for place, member in enumerate(members, 1):
        if not member.arrivals:
            raise TimeoutError(
                f"member {place} of {len(members)} got no record within {PATIENCE:.0f} s"
            )
    end = max(each.arrivals[-1] for each in members)
    return {
        "join_ms": 1e3 * (others[0].arrivals[0] - others[0].opened),
        "hand_over_ms": 1e3 * (last.arrivals[0] - last.opened),
        "standstill_ms": 1e3 * max(_standstill(each.arrivals, last.opened, end) for each in others),
    }


def _standstill(arrivals: Sequence[float], since: float, end: float) -> float:
    """Return the longest time without a record between ``since`` and ``end``."""
    moments = [since, *(each for each in arrivals if since < each < end), end]
    return max(later - earlier for earlier, later in pairwise(moments))
