"""A worker: concurrent records, each key in order, retries, dead letters, commits, an orderly stop.

See docs/tasks.md.
"""

import json
import os
import signal

import trio

import trikafka

SERVERS = os.environ.get("KAFKA", "localhost:9092")


async def handle(record: trikafka.Record) -> None:
    order = json.loads(record.value or b"null")  # what cannot be read goes to orders.dead
    await trio.sleep(0.05)  # your work
    print(record.partition, record.offset, order["customer"], order["item"], flush=True)


async def main() -> None:
    settings: trikafka.ConsumerSettings = {
        "bootstrap_servers": SERVERS,
        "group_id": "worker",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,  # run_tasks commits
    }
    async with (
        trikafka.open_producer(bootstrap_servers=SERVERS) as producer,
        trikafka.open_consumer("orders", **settings) as consumer,
    ):
        await trikafka.run_tasks(
            consumer,
            handle,
            concurrency=8,
            retry=trikafka.RetryPolicy(ConnectionError, attempts=13),  # for about a minute
            producer=producer,
            dead_letter="orders.dead",
            topics={"orders.dead": trikafka.NewTopic(1)},
            stop_on=[signal.SIGTERM, signal.SIGINT],
        )
    print("stopped in order", flush=True)


if __name__ == "__main__":
    trio.run(main)
