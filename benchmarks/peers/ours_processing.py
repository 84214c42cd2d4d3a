"""trikafka: process(), with a handler that writes by send_nowait() or by send_arrow().

The first writes each record, the second each batch as a table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

import trikafka
from trikafka import Producer, RecordBatch, TopicPartition, Transaction

from .. import tuning
from ..jobs import Job, Outcome, Window
from .ours import run

Handler = Callable[[RecordBatch, Transaction], Awaitable[object]]


def one_by_one(producer: Producer, target: str) -> Handler:
    async def handle(batch: RecordBatch, txn: Transaction) -> None:
        send_nowait = producer.send_nowait
        for record in batch:
            try:
                send_nowait(target, record.value)
            except trio.WouldBlock:
                await producer.enqueue(target, record.value)

    return handle


def as_tables(producer: Producer, target: str) -> Handler:
    # The client imports modules for its first table. Imports are not timed.
    RecordBatch.empty().to_arrow()

    async def handle(batch: RecordBatch, txn: Transaction) -> None:
        await producer.send_arrow(target, batch.to_arrow().select(["value"]), value="value")

    return handle


class _Counting:
    """A handler that counts records, and ends the run when enough of them are committed.

    They are committed when a handler of the next transaction is called.
    """

    def __init__(self, handler: Handler, enough: int, scope: trio.CancelScope) -> None:
        self._handler = handler
        self._enough = enough
        self._scope = scope
        self._last: Transaction | None = None
        self.count = 0

    async def __call__(self, batch: RecordBatch, txn: Transaction) -> None:
        if txn is not self._last and self.count >= self._enough:
            self._scope.cancel()
            await trio.lowlevel.checkpoint()
        self._last = txn
        await self._handler(batch, txn)
        self.count += len(batch)


async def process(job: Job, make: Callable[[Producer, str], Handler], call: str) -> Outcome:
    reading, writing = tuning.trikafka_processing(job.target, job.compression)
    where: Any = {"bootstrap_servers": job.bootstrap, **job.connection}
    async with (
        trikafka.open_producer(**where, **writing) as producer,
        trikafka.open_consumer(**where, **reading) as consumer,
    ):
        places = [TopicPartition(job.topic, number) for number in range(job.partitions)]
        await consumer.end_offsets(places)
        await producer.partitions_for(job.target)
        with Window() as window, trio.CancelScope() as scope:
            consumer.assign(places)
            handler = _Counting(make(producer, job.target), job.records, scope)
            await trikafka.process(
                consumer, producer, handler, max_records=job.records, commit_interval=job.seconds
            )
    count = handler.count
    return Outcome(
        count, count * job.size, window, call, {**reading, **writing}, extra={"written": count}
    )


WAYS = {
    ("process", "one"): run(lambda job: process(job, one_by_one, "process(), send_nowait()")),
    ("process", "arrow"): run(lambda job: process(job, as_tables, "process(), send_arrow()")),
}
