"""A worker that copies records by ``process`` or ``run_tasks``.

It ends at SIGTERM, when its parent is gone, or when it is killed.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import trio

import trikafka
from benchmarks.soak import run_worker

#: The line that a worker writes when it copies its first record.
COPYING = "copying"


async def main(
    bootstrap: str, group: str, protocol: Any, worker: str, slot: str, source: str, target: str
) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "group_protocol": protocol,
    }
    settings |= {
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
    }
    if protocol == "classic":
        settings |= {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 300}
    await run_worker(functools.partial(_work, settings, worker, f"{group}-{slot}", source, target))


async def _work(
    settings: dict[str, Any], worker: str, transactional_id: str, source: str, target: str
) -> None:
    producing = {
        "bootstrap_servers": settings["bootstrap_servers"],
        "transaction_timeout_ms": 60_000,
    }
    async with (
        trikafka.open_producer(
            **producing, transactional_id=transactional_id, linger_ms=0
        ) as producer,
        trikafka.open_consumer(source, **settings) as consumer,
    ):
        begun = False

        def begin() -> None:
            nonlocal begun
            if not begun:
                begun = True
                print(COPYING, flush=True)

        async def copy(batch: trikafka.RecordBatch, txn: trikafka.Transaction) -> None:
            for record in batch:
                await producer.enqueue(target, record.value, partition=record.partition % 3)
                begin()

        async def copy_one(record: trikafka.Record) -> None:
            await producer.enqueue(target, record.value, partition=record.partition % 3)
            begin()

        if worker == "process":
            await trikafka.process(consumer, producer, copy, max_records=2_000)
        else:
            await trikafka.run_tasks(consumer, copy_one, producer=producer, concurrency=4)


if __name__ == "__main__":
    trio.run(functools.partial(main, *sys.argv[1:]))
