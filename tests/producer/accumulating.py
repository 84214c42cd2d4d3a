"""An accumulator with a clock that the test moves; real encoders, no tasks."""

from __future__ import annotations

import random
from typing import Any

from trikafka._state.producer.accumulator import Accumulator, BufferLimits
from trikafka._state.producer.producer_batch import ProducerBatch
from trikafka._state.producer.sequences import Idempotent, NonIdempotent, ProducerIdentity
from trikafka._wire import _implementation
from trikafka._wire.partitioning import BY_MURMUR2, KeyRule
from trikafka._wire.records import decode_records
from trikafka.types import Record, RecordMetadata

Ticket = tuple[ProducerBatch, int, int]


def _parts(made: Any) -> Ticket:
    return made._batch, made._index, made._timestamp


class Waiting:
    """A task that waits for room, and the number of its notifications."""

    def __init__(self) -> None:
        self.notifications = 0

    def set(self) -> None:
        self.notifications += 1


class Bench:
    """An accumulator for topic ``t``, with the time in ``now``."""

    def __init__(
        self,
        *leaders: int | None,
        partitioner: Any = None,
        idempotent: bool = True,
        keys: KeyRule = BY_MURMUR2,
        **limits: Any,
    ) -> None:
        self.now = 0.0
        self.woken: list[int | None] = []
        settings: dict[str, Any] = {
            "batch_size": 400,
            "linger": 1.0,
            "buffer_memory": 10_000,
            "max_request_size": 2_000,
            "delivery_timeout": 60.0,
        }
        self.limits = BufferLimits(**(settings | limits))
        made: Any = type(
            "Made", (_implementation.current.DeliveryHandle,), {"__slots__": (), "parts": _parts}
        )
        self.accumulator: Accumulator[Any] = Accumulator(
            self.limits,
            Idempotent() if idempotent else NonIdempotent(),
            make_encoder=_implementation.current.BatchEncoder,
            handle=made,
            clock=lambda: self.now,
            delay=lambda failures: 0.1 * 2 ** (failures - 1),
            on_work=self.woken.append,
            partitioner=partitioner,
            keys=keys,
            choose=random.Random(7),
        )
        self.accumulator.identified(ProducerIdentity(1000, 0))
        if leaders:
            self.accumulator.update_topic("t", leaders)

    def put(self, value: bytes | None = b"v", **fields: Any) -> Ticket:
        ack = self.accumulator.appender.append(
            "t",
            value,
            fields.get("key"),
            fields.get("headers", ()),
            fields.get("timestamp"),
            fields.get("partition"),
        )
        assert ack is not None
        ticket: Ticket = ack.parts()
        return ticket

    def fill(self, count: int, partition: int = 0) -> list[ProducerBatch]:
        """Add ``count`` batches of one record each to the queue."""
        batches = []
        for number in range(count):
            batches.append(self.put(b"%d" % number, partition=partition)[0])
            self.accumulator.close_open()
        return batches

    def prove(self, partition: int = 0) -> None:
        """Deliver a first batch with number 0. From then on batches may be pipelined."""
        batch = self.fill(1, partition)[0]
        assert self.drain() == [batch]
        self.accumulator.completion.succeeded(batch, 0, None)

    def drain(self, node: int = 0, limit: int = 10_000) -> list[ProducerBatch]:
        return self.accumulator.drain(node, self.now, limit)


def records(batch: ProducerBatch) -> list[Record]:
    """Return the records that a broker would find in the batch."""
    data = batch.to_bytes()
    return list(
        decode_records(
            data,
            topic="t",
            partition=batch.partition,
            fetch_offset=0,
            aborted=None,
            check_crcs=True,
            max_bytes=10**6,
        )
    )


def outcome(ticket: Ticket) -> RecordMetadata:
    batch, index, timestamp = ticket
    batch, index = batch.part(index)
    return batch.metadata(index, timestamp)
