"""Writers: each call of the producer that takes records, at a pace, with a note of what became of each record."""

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
#: How records fail whose time is up: theirs, or that of records before them on a connection that was lost.
_GIVEN_UP = (DeliveryTimeoutError, OutOfOrderSequenceError)
#: Acks that a writer may leave unawaited.
_BEHIND = 5_000


class Pace:
    """Lets through so many records a second since the start; who was held up catches up."""

    def __init__(self, rate: float, total: int) -> None:
        self._rate, self._left = rate, total
        self._begun = trio.current_time()
        self._passed = 0

    async def turn(self, count: int = 1) -> bool:
        """Wait until ``count`` more may go; false once all have gone."""
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
    """A producer, the topic, and whether that producer may fail records: its ``delivery_timeout_ms`` is short."""

    producer: Producer
    topic: str
    may_fail: bool


class Writer:
    """One task's worth of records through one call of a producer. The topic has the ledger's partitions."""

    def __init__(self, name: str, target: Target, ledger: Ledger, pace: Pace, rng: random.Random, size: int) -> None:
        self._name, self._target = name, target
        self._producer, self._topic = target.producer, target.topic
        self._ledger, self._pace, self._rng, self._size = ledger, pace, rng, size

    def _next(self) -> tuple[Track, int, bytes]:
        track = self._ledger.track(self._name, self._rng.randrange(self._ledger.partitions))
        number = track.begin()
        return track, number, track.value(number, self._size)

    def _failed(self, track: Track, number: int, error: Exception) -> None:
        ledger = self._ledger
        if isinstance(error, _GIVEN_UP) and self._target.may_fail:
            maybe = getattr(error, "maybe_written", True)
            ledger.errors[f"{type(error).__name__}, {'may be written' if maybe else 'not written'}"] += 1
            track.settle(number, Fate.MAYBE if maybe else Fate.NEVER)
        elif isinstance(error, KafkaTimeoutError) and not isinstance(error, DeliveryTimeoutError):  # it was never accepted
            ledger.errors[f"{type(error).__name__} of {error.call}"] += 1
            track.settle(number, Fate.NEVER)
        else:
            ledger.unexpected[f"{track}: {error!r}"] += 1
            track.settle(number, Fate.MAYBE)

    async def send(self) -> None:
        """Records one after the other, each awaited."""
        while await self._pace.turn():
            track, number, value = self._next()
            try:
                metadata = await self._producer.send(self._topic, value, partition=track.partition)
            except TrikafkaError as error:
                self._failed(track, number, error)
            else:
                track.settle(number, Fate.ACKED, metadata.offset)

    async def enqueue(self) -> None:
        """Records handed over without waiting for their outcome, which another task awaits."""

        async def hand_over(track: Track, value: bytes) -> Ack:
            return await self._producer.enqueue(self._topic, value, partition=track.partition)

        await self._with_acks(hand_over)

    async def send_nowait(self) -> None:
        """The same without waiting for room."""

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
        """Tables, each row to a partition of its own choice."""
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
            self._ledger.errors[f"ArrowDeliveryError: {type(cause).__name__}"] += error.failed + error.unknown
        else:
            self._ledger.unexpected[f"{self._name}: {error!r}"] += error.failed + error.unknown
        self._ledger.tables.append(Table(tuple((track, number) for track, number, _ in rows), error.delivered, error.unknown))
        for track, number, _ in rows:
            track.settle(number, Fate.MAYBE)
