"""A program that exports, and is killed or watched by a test.

Usage: ``exporting_child.py SERVERS TOPIC DESTINATION STAGE [OPTIONS]``.

It prints each step of the export, and stops at ``STAGE`` until it is killed. The stage ``partly``
is the first step of ``writing`` at which some files are done and others are not; ``none`` is never
reached. At the end the program prints the longest time, in milliseconds, for which its Trio loop
did not run although the machine had time for this program.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from pathlib import Path

import trio
from lines_format import LinesFormat

import trikafka
from trikafka import ExportProgress


def is_at(stage: str, step: ExportProgress) -> bool:
    if stage == "partly":
        return step.stage == "writing" and 0 < step.ranges_done < step.ranges_total
    return step.stage == stage


def waited_for_cpu() -> float:
    """Return the seconds for which threads of this process were ready but other programs ran."""
    waited = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):
            waited += int(path.read_text().split()[1])
    return waited / 1e9


async def main(servers: str, topic: str, destination: str, stage: str, options: str = "{}") -> None:
    longest = 0.0

    def tell(step: ExportProgress) -> None:
        print(step.stage, step.ranges_done, step.ranges_total, flush=True)
        if is_at(stage, step):
            print("standing", flush=True)
            signal.pause()

    async def tick() -> None:
        nonlocal longest
        while True:
            before, waited = trio.current_time(), waited_for_cpu()
            await trio.sleep(0.005)
            gap = trio.current_time() - before - 0.005
            if gap > 0.02:
                longest = max(longest, gap - (waited_for_cpu() - waited))

    given = json.loads(options)
    plugins = [LinesFormat()] if given.get("format") == LinesFormat.name else []
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
    print("longest gap", round(longest * 1000))


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
