"""A program whose Spark loses its JVM, twice.

Usage: ``losing_java_child.py SERVERS TOPIC DESTINATION``. During each of its first two exports the
JVM is killed when the tasks are sent. The second of them is cancelled as well. The program prints
how each ended. Then it exports again in the same process.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import trio
from pyspark import SparkContext

import trikafka
from trikafka import ExportProgress


async def main(servers: str, topic: str, destination: str) -> None:
    async def export(tell: Callable[[ExportProgress], None]) -> trikafka.ExportResult:
        return await trikafka.export(
            topic,
            destination,
            bootstrap_servers=servers,
            max_records_per_file=500,
            on_progress=tell,
            sink_options={"master": "local[2]", "spark_above": 0},
        )

    async def lose(cancelled: bool) -> None:
        killed = False

        def tell(step: ExportProgress) -> None:
            nonlocal killed
            if step.stage == "writing" and not killed:
                killed = True
                assert SparkContext._gateway is not None
                os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
                if cancelled:
                    scope.cancel()

        with trio.CancelScope() as scope:
            try:
                await export(tell)
            except trikafka.ExportError as error:
                print("ExportError:", error)
        if scope.cancelled_caught:
            print("cancelled")
        print("left:", SparkContext._active_spark_context, SparkContext._gateway)

    await lose(cancelled=False)
    await lose(cancelled=True)
    result = await export(lambda step: None)
    print("rows", result.rows, "resumed", result.resumed)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
