"""A program that abandons the plan of a killed export, and is killed itself.

Usage: ``abandoning_child.py TOPIC DESTINATION MOMENT OPTIONS``. It stops at the moment as
``committing_child.py`` does. No broker is contacted.
"""

from __future__ import annotations

import json
import signal
import sys

import trio
from committing_child import halt
from exporting_child import is_at, stand

import trikafka
from trikafka import ExportProgress, TrikafkaError


async def main(topic: str, destination: str, moment: str, options: str) -> None:
    given = json.loads(options)
    halt(given["format"], moment)

    def tell(step: ExportProgress) -> None:
        if is_at(moment, step):
            stand()

    where = {"bootstrap_servers": "127.0.0.1:1", "sink_options": given}
    try:
        async with trikafka.open_exporter(
            topic, destination, on_progress=tell, **where
        ) as exporter:
            result = await exporter.abandon()
        print("done", result.rows, len(result.carried))
    except TrikafkaError as error:
        print(type(error).__name__, error)
    print("ended", flush=True)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    trio.run(main, *sys.argv[1:])
