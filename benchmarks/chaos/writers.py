"""Writers: each call of the producer that takes records, with the outcome of each record."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pyarrow as pa
import trio

from trikafka import (
    Ack,
    ArrowDeliveryError,
    DeliveryTimeoutError,
    KafkaTimeoutError,
    OutOfOrderSequenceError,
    Producer,
    TrikafkaError,
)

from .ledger import Fate, Ledger, Table, Track

#: Rows of a table.
_ROWS = 1_000
#: Errors of expired records: the record itself expired, or records before it on a connection that
#: was lost.
_GIVEN_UP = (DeliveryTimeoutError, OutOfOrderSequenceError)
#: The most acks that a writer leaves unawaited.
_BEHIND = 5_000


class Pace:
    """A limit of records per second since the start. A writer that was blocked may catch up."""

    def __init__(self, rate: float, total: int) -> None:
        self._rate = rate
        self._left = total
        self._begun = trio.current_time()
        self._passed = 0

    async def turn(self, count: int = 1) -> bool:
        """Wait until ``count`` more records may be sent; return False if none are left."""
        if self._left <= 0:
            return False
        self._left -= count
        due = self._begun + self._passed / self._rate
        self._passed += count
        if due - trio.current_time() > 0.001:
            await trio.sleep_until(due)
        return True


@dataclass(frozen=True, slots=True)
class Target:
    """A producer and a topic.

    ``may_fail`` is True if the producer's ``delivery_timeout_ms`` is short, so that records may
    expire.
    """

    producer: Producer
    topic: str
    may_fail: bool


class Writer:
    """A task that sends records by one call of a producer.

    The topic has the ledger's partitions.
    """

    def __init__(
        self, name: str, target: Target, ledger: Ledger, pace: Pace, rng: random.Random, size: int
    ) -> None:
        self._name = name
        self._target = target
        self._producer = target.producer
        self._topic = target.topic
        self._ledger = ledger
        self._pace = pace
        self._rng = rng
        self._size = size

    def _next(self) -> tuple[Track, int, bytes]:
        track = self._ledger.track(self._name, self._rng.randrange(self._ledger.partitions))
        number = track.begin()
        return track, number, track.value(number, self._size)

    def _failed(self, track: Track, number: int, error: Exception) -> None:
        ledger = self._ledger
        # An error without `maybe_written` guarantees that the record is not in the log.
        maybe = bool(getattr(error, "maybe_written", False))
        if isinstance(error, _GIVEN_UP) and self._target.may_fail:
            ledger.errors[
                f"{type(error).__name__}, {'may be written' if maybe else 'not written'}"
            ] += 1
            track.settle(number, Fate.MAYBE if maybe else Fate.NEVER)
        elif isinstance(error, KafkaTimeoutError) and not isinstance(error, DeliveryTimeoutError):
            # The producer never accepted the record.
            ledger.errors[f"{type(error).__name__} of {error.call}"] += 1
            track.settle(number, Fate.NEVER)
        else:
            ledger.unexpected[f"{track}: {error!r}"] += 1
            track.settle(number, Fate.MAYBE if maybe else Fate.NEVER)

    async def send(self) -> None:
        """Send records one after another, and await each."""
        while await self._pace.turn():
            track, number, value = self._next()
            try:
                metadata = await self._producer.send(self._topic, value, partition=track.partition)
            except TrikafkaError as error:
                self._failed(track, number, error)
            else:
                track.settle(number, Fate.ACKED, metadata.offset)

    async def enqueue(self) -> None:
        """Enqueue records without waiting for their outcomes, which another task awaits."""

        async def hand_over(track: Track, value: bytes) -> Ack:
            return await self._producer.enqueue(self._topic, value, partition=track.partition)

        await self._with_acks(hand_over)

    async def send_nowait(self) -> None:
        """Do the same without waiting for room in the buffer."""

        async def hand_over(track: Track, value: bytes) -> Ack:
            while True:
                try:
                    ack = self._producer.send_nowait(self._topic, value, partition=track.partition)
                except trio.WouldBlock:
                    await trio.sleep(0.005)
                else:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                    return ack

        await self._with_acks(hand_over)

    async def _with_acks(self, hand_over: Callable[[Track, bytes], Awaitable[Ack]]) -> None:
        to_await, acks = trio.open_memory_channel[tuple[Track, int, Ack]](_BEHIND)

        async def collect() -> None:
            async for track, number, ack in acks:
                try:
                    metadata = await ack.wait()
                except TrikafkaError as error:
                    self._failed(track, number, error)
                else:
                    track.settle(number, Fate.ACKED, metadata.offset)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect)
            async with to_await:
                while await self._pace.turn():
                    track, number, value = self._next()
                    try:
                        ack = await hand_over(track, value)
                    except TrikafkaError as error:
                        self._failed(track, number, error)
                    else:
                        await to_await.send((track, number, ack))

    async def send_arrow(self) -> None:
        """Send tables, with a partition for each row."""
        while await self._pace.turn(_ROWS):
            rows = [self._next() for _ in range(_ROWS)]
            table = pa.table(
                {
                    "value": pa.array([value for _, _, value in rows], pa.binary()),
                    "partition": pa.array([track.partition for track, _, _ in rows], pa.int32()),
                }
            )
            try:
                await self._producer.send_arrow(self._topic, table)
            except TrikafkaError as error:
                self._table_failed(rows, error)
            else:
                for track, number, _ in rows:
                    track.settle(number, Fate.ACKED)

    def _table_failed(self, rows: list[tuple[Track, int, bytes]], error: TrikafkaError) -> None:
        if not isinstance(error, ArrowDeliveryError):  # no row was accepted
            for track, number, _ in rows:
                self._failed(track, number, error)
            return
        cause = error.error
        if isinstance(cause, (*_GIVEN_UP, KafkaTimeoutError)) and self._target.may_fail:
            self._ledger.errors[f"ArrowDeliveryError: {type(cause).__name__}"] += (
                error.failed + error.unknown
            )
        else:
            self._ledger.unexpected[f"{self._name}: {error!r}"] += error.failed + error.unknown
        self._ledger.tables.append(
            Table(
                tuple((track, number) for track, number, _ in rows), error.delivered, error.unknown
            )
        )
        for track, number, _ in rows:
            track.settle(number, Fate.MAYBE)
