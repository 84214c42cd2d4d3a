"""What a measured process gets and gives, and how it measures itself. Standard library alone: every peer pays for this module.

A *job* is one case in one round. Its process connects, opens a :class:`Window`, does the work, closes it, and prints an
:class:`Outcome`. What stands outside of the window is not timed.
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

#: A value repeats after so many others.
DISTINCT = 10_000


@dataclass(frozen=True)
class Job:
    """One case in one round. ``records`` is how many to move; what follows is for the ways that need it.

    ``tasks``: tasks, consumers or members; ``rate``: records a second; ``seconds``: how long to measure, to let things settle, or
    to keep a transaction open; ``target``: the topic that is written to what is read from the other; ``connection``: what it
    takes to connect beside the address, in the client's own names.
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
        """``records`` values to produce. Made when this is called, which takes a while: not in the window."""
        return islice(cycle(make_values(self.size)), self.records)


@dataclass
class Outcome:
    """What a job did. ``value_bytes`` counts the bytes of the values that it saw, so that nothing can be skipped.

    ``call`` is what was called; ``settings`` are those that differ from the client's defaults; ``latencies`` are in seconds;
    ``figures`` are what the kind measures beside rate, processor and memory, each with its unit at the end of its name.
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
        self.seconds = self.cpu = 0.0
        self.idle = 0
        self._began = self._cpu_before = 0.0

    def __enter__(self) -> Self:
        gc.collect()
        self.idle = _memory("VmRSS")
        self._cpu_before = _cpu()
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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
    """Bytes of this process. Not ``ru_maxrss`` where it can be helped: Linux lets a new process inherit its parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def make_values(size: int) -> list[bytes]:
    """Distinct values of exactly ``size`` bytes, the same ones everywhere: JSON lines of readings, which compress as such do."""
    chance = random.Random(size)
    values = []
    for number in range(DISTINCT):
        text = f'{{"id":{number:06d}'
        while len(text) < size:
            text += f',"sensor":"s-{chance.randrange(500):03d}","value":{chance.uniform(-40, 125):.3f}'
        values.append(text[: size - 1].encode() + b"}")
    return values


def stamp() -> bytes:
    """The time now, as the head of a value."""
    return time.perf_counter_ns().to_bytes(8, "big")


def age(value: bytes) -> float:
    """Seconds since a value was stamped in this process."""
    return (time.perf_counter_ns() - int.from_bytes(value[:8], "big")) / 1e9
