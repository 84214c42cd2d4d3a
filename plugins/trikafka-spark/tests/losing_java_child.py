"""A program whose Spark loses its JVM.

Usage: ``losing_java_child.py SERVERS TOPIC DESTINATION MOMENT``. During its first export the JVM is
killed when the tasks are sent. At the moment ``cancelled`` (the other is ``writing``) the export is
cancelled as well. The program prints how that ended. Then it exports again in the same process.
"""

from __future__ import annotations

import os
import signal
import sys

import trio
from pyspark import SparkContext

import trikafka
from trikafka import ExportProgress


async def main(servers: str, topic: str, destination: str, moment: str) -> None:
    killed = False
    scope = trio.CancelScope()

    def tell(step: ExportProgress) -> None:
        nonlocal killed
        if step.stage == "writing" and not killed:
            killed = True
            assert SparkContext._gateway is not None
            os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
            if moment == "cancelled":
                scope.cancel()

    async def export() -> trikafka.ExportResult:
        return await trikafka.export(
            topic,
            destination,
            bootstrap_servers=servers,
            max_records_per_file=500,
            on_progress=tell,
            sink_options={"master": "local[2]", "spark_above": 0},
        )

    with scope:
        try:
            await export()
        except trikafka.ExportError as error:
            print("ExportError:", error)
    if scope.cancelled_caught:
        print("cancelled")
    print("left:", SparkContext._active_spark_context, SparkContext._gateway)
    result = await export()
    print("rows", result.rows, "resumed", result.resumed)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
