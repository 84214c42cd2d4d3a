"""Records of a topic in a database, exactly once: the offset is stored with the results.

``KAFKA=broker:9092 python examples/to_database.py`` copies the topic ``greetings`` to results.db. A
group shares the partitions; Kafka's commits are not needed. A member that lost a partition without
noticing may write a batch that the next owner also writes. The primary key refuses the second.
"""

import os
import sqlite3
from collections.abc import Collection

import trio

import trikafka

database = sqlite3.connect("results.db", check_same_thread=False)
database.execute(
    "create table if not exists results (topic, partition, offset, value, "
    "primary key (topic, partition, offset))"
)
database.execute(
    "create table if not exists offsets (topic, partition, next, primary key (topic, partition))"
)


def store(batch: trikafka.RecordBatch) -> None:
    with database:  # one transaction
        rows = [(r.topic, r.partition, r.offset, r.value) for r in batch]
        database.executemany("insert into results values (?, ?, ?, ?)", rows)
        database.execute(
            "replace into offsets values (?, ?, ?)",
            (batch.topic, batch.partition, batch.next_offset),
        )


class FromDatabase(trikafka.RebalanceListener):
    def __init__(self, consumer: trikafka.Consumer) -> None:
        self.consumer = consumer

    async def on_partitions_assigned(self, partitions: Collection[trikafka.TopicPartition]) -> None:
        for tp in partitions:
            row = database.execute(
                "select next from offsets where topic = ? and partition = ?", tp
            ).fetchone()
            if row is not None:
                self.consumer.seek(tp, row[0])


async def main() -> None:
    settings: trikafka.ConsumerSettings = {
        "bootstrap_servers": os.environ.get("KAFKA", "localhost:9092"),
        "group_id": "sqlite",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    async with trikafka.open_consumer(**settings) as consumer:
        consumer.subscribe(["greetings"], FromDatabase(consumer))
        async for batch in consumer.batches():
            await trio.to_thread.run_sync(store, batch)  # sqlite3 blocks; other tasks go on
            print("stored", batch.partition, batch.next_offset, flush=True)


try:
    trio.run(main)
except* KeyboardInterrupt:  # Ctrl-C; the block was left before it comes here
    pass
