"""A program that exports, and is killed or watched by a test.

Usage: ``exporting_child.py SERVERS TOPIC DESTINATION STAGE [OPTIONS]``.

It prints each step of the export, and stops at ``STAGE`` until it is killed. At the stage
``partly`` some ranges are done; ``none`` is never reached. At the end the program prints the longest
time, in milliseconds, for which its Trio loop did not run although the machine had time for this
program. On a slow processor that is the time that a usual one would have taken.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import trio
from lines_format import LinesFormat

import trikafka
from trikafka import ExportProgress


def stand() -> None:
    """Stop until the program is killed, or gets SIGUSR1 if it blocks that signal."""
    print("standing", flush=True)
    signal.sigwait({signal.SIGUSR1})


def is_at(stage: str, step: ExportProgress) -> bool:
    """Return whether the export has reached the stage."""
    if stage == "partly":
        return step.stage == "writing" and step.ranges_done > 0
    return step.stage == stage


def halt_at_the_first_range() -> None:
    """Halt the thread that has written the first range.

    Some ranges are written then, and the plan is not.
    """
    from trikafka_export import local  # only now: its threads must block SIGUSR1, too

    write, first = local.write_range, threading.Lock()

    def halting(*arguments: Any) -> Any:
        result = write(*arguments)
        if first.acquire(blocking=False):
            stand()
        return result

    vars(local)["write_range"] = halting


class Beats:
    """The times at which a thread of its own ran: without one, the whole process stood still."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=20_000)
        threading.Thread(target=self._run, daemon=True).start()

    def standstill(self, since: float) -> float:
        """Return the longest time without a beat since then, in seconds."""
        times = [since, *(at for at in list(self._times) if at > since), time.monotonic()]
        return max(after - before for before, after in pairwise(times))

    def _run(self) -> None:
        while True:
            self._times.append(time.monotonic())
            time.sleep(0.005)


def waited_for_cpu() -> float:
    """Return the seconds for which threads of this process were ready but other programs ran."""
    waited = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):
            waited += int(path.read_text().split()[1])
    return waited / 1e9


def slowness() -> float:
    """Return how many times slower this processor is than a usual one, at least 1.

    A usual one takes 30 ms for a million turns of a loop.
    """
    least = math.inf
    for _ in range(5):
        begun = time.thread_time()
        for _ in range(1_000_000):
            pass
        least = min(least, time.thread_time() - begun)
    return max(1.0, least / 0.03)


async def main(servers: str, topic: str, destination: str, stage: str, options: str = "{}") -> None:
    longest, beats = 0.0, Beats()

    def tell(step: ExportProgress) -> None:
        print(step.stage, step.ranges_done, step.ranges_total, flush=True)
        if is_at(stage, step):
            stand()

    async def tick() -> None:
        nonlocal longest
        while True:
            before, waited, worked = time.monotonic(), waited_for_cpu(), time.process_time()
            await trio.sleep(0.005)
            gap = time.monotonic() - before - 0.005
            if gap > 0.02:
                # A standstill in which the process worked is a thread that keeps the others out.
                stood = beats.standstill(before) - (time.process_time() - worked)
                longest = max(longest, gap - max(waited_for_cpu() - waited, stood))

    given = json.loads(options)
    plugins = [LinesFormat()] if given.get("format") == LinesFormat.name else []
    if plugins and stage == "partly":
        halt_at_the_first_range()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        result = await trikafka.export(
            topic,
            destination,
            bootstrap_servers=servers,
            group_id=f"group-{topic}",
            max_records_per_file=500,
            on_progress=tell,
            sink_options=given or {"master": "local[2]", "spark_above": 0},
            plugins=plugins,
        )
        nursery.cancel_scope.cancel()
    print("rows", result.rows)
    print("longest gap", round(longest / slowness() * 1000))


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
