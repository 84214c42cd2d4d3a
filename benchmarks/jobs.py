"""The orders and results of a measured process, and its measurement of itself.

Only the standard library is used here: every peer pays for this module.

A *job* is one case in one round. Its process connects, opens a :class:`Window`, does the work,
closes the window, and prints an :class:`Outcome`. Work outside of the window is not timed.
"""

from __future__ import annotations

import gc
import json
import random
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

#: The number of different values. They repeat in this order.
DISTINCT = 10_000


@dataclass(frozen=True)
class Job:
    """A case in one round.

    Attributes:
        records: The number of records to move.
        tasks: The number of tasks, consumers or members.
        rate: Records per second.
        seconds: The time to measure, to let the clients settle, or to keep a transaction open.
        target: The topic to which processed records are written.
        connection: Settings to connect with, beside the address, in the client's own names.
    """

    peer: str
    kind: str
    way: str
    bootstrap: str
    topic: str
    partitions: int
    size: int
    compression: str
    records: int
    tasks: int = 0
    rate: int = 0
    seconds: float = 0.0
    target: str = ""
    connection: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> Job:
        return cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def values(self) -> Iterator[bytes]:
        """Return ``records`` values to produce.

        The call itself makes the values, which takes a while. Call it outside of the window.
        """
        return islice(cycle(make_values(self.size)), self.records)


@dataclass
class Outcome:
    """The result of a job.

    Attributes:
        value_bytes: The bytes of all values that the job saw. The runner compares them, so a job
            cannot skip values.
        call: The client's functions that were called.
        settings: The settings that differ from the client's defaults.
        latencies: Seconds.
        figures: Measurements beside rate, processor time and memory. Each name ends with the unit.
    """

    records: int
    value_bytes: int
    window: Window
    call: str
    settings: dict[str, Any]
    latencies: list[float] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        found = {
            "records": self.records,
            "value_bytes": self.value_bytes,
            **self.window.figures(),
            "call": self.call,
            "settings": self.settings,
            "latencies": [round(each, 7) for each in self.latencies],
            "extra": self.extra,
            "figures": self.figures,
        }
        return json.dumps(found)


class Missing(Exception):
    """The client cannot do what the case asks for (yet)."""


class Window:
    """The timed part of a job: wall clock, processor time of all threads, memory of the process."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cpu = 0.0
        self.idle = 0
        self._began = 0.0
        self._cpu_before = 0.0

    def __enter__(self) -> Self:
        gc.collect()
        self.idle = _memory("VmRSS")
        self._cpu_before = _cpu()
        self._began = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu = _cpu() - self._cpu_before

    def figures(self) -> dict[str, float]:
        return {
            "seconds": self.seconds,
            "cpu_seconds": self.cpu,
            "rss_before": self.idle,
            "rss_peak": max(_memory("VmHWM"), self.idle),
        }


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _memory(name: str) -> int:
    """Return a memory figure of this process in bytes.

    ``ru_maxrss`` is only used where /proc is missing: under Linux a new process inherits its
    parent's.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def make_values(size: int) -> list[bytes]:
    """Return distinct values of exactly ``size`` bytes, the same in every process.

    They are JSON lines of sensor readings, and compress as well as such lines do.
    """
    chance = random.Random(size)
    values = []
    for number in range(DISTINCT):
        text = f'{{"id":{number:06d}'
        while len(text) < size:
            text += (
                f',"sensor":"s-{chance.randrange(500):03d}","value":{chance.uniform(-40, 125):.3f}'
            )
        values.append(text[: size - 1].encode() + b"}")
    return values


def stamp() -> bytes:
    """Return the current time as the head of a value."""
    return time.perf_counter_ns().to_bytes(8, "big")


def age(value: bytes) -> float:
    """Return the seconds since a value was stamped in this process."""
    return (time.perf_counter_ns() - int.from_bytes(value[:8], "big")) / 1e9
