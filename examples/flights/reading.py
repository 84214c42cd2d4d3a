"""Two consumers of one group that read the topic together; one leaves half way.

Every record is compared with the written one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

import trikafka
from trikafka import Consumer, RebalanceListener, RecordBatch, TopicPartition

from .source import Flights
from .writing import Log

#: The seconds without a new record after which the reading has failed: records are missing.
_PATIENCE = 30.0


@dataclass
class Tally:
    """The records that the group has read so far. Only the tasks of the members write it."""

    flights: Flights
    log: Log
    progress: Callable[[int], None]
    seen: dict[int, bytearray] = field(init=False)
    carriers: Counter[str] = field(default_factory=Counter)
    by_member: Counter[str] = field(default_factory=Counter)
    owned: dict[str, set[int]] = field(default_factory=dict)
    left_with: set[int] = field(default_factory=set)
    taken_over: int = 0
    read: int = 0
    doubled: int = 0
    different: int = 0
    committed: dict[TopicPartition, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seen = {tp.partition: bytearray(end) for tp, end in self.log.ends().items()}

    @property
    def complete(self) -> bool:
        return self.read >= len(self.log.places)

    @property
    def shared(self) -> bool:
        """True if both members have read, and the second also from partitions of the first."""
        return self.by_member["first"] > 0 and self.by_member["second"] > 0 and self.taken_over > 0

    def add(self, member: str, batch: RecordBatch) -> None:
        """Compare each record with the flight that was written at its offset, and count it."""
        numbers = self.log.numbers[batch.partition]
        seen = self.seen[batch.partition]
        flights, carriers = self.flights, self.carriers
        for record in batch:
            if record.offset >= len(seen):
                self.different += 1
                continue
            if seen[record.offset]:
                self.doubled += 1
                continue
            seen[record.offset] = 1
            self.read += 1
            number = numbers[record.offset]
            same = record.value == flights.values[number] and record.key == flights.keys[number]
            if not same or record.timestamp != flights.timestamps[number]:
                self.different += 1
            carriers[(record.key or b"").decode()] += 1
        self.by_member[member] += len(batch)
        if batch.partition in self.left_with:
            self.taken_over += len(batch)
        self.progress(self.read)


class _Ownership(RebalanceListener):
    """A listener that records the partitions of each member.

    Partitions stay paused until both members have some, so that neither member reads ahead.
    """

    def __init__(self, member: str, consumer: Consumer, tally: Tally, both: trio.Event) -> None:
        self._member = member
        self._consumer = consumer
        self._tally = tally
        self._both = both

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        owned = self._tally.owned
        owned.setdefault(self._member, set()).update(tp.partition for tp in partitions)
        if not self._both.is_set():
            self._consumer.pause(partitions)
            if (
                len(owned) == 2
                and all(owned.values())
                and sum(map(len, owned.values())) == len(self._tally.seen)
            ):
                self._both.set()

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._tally.owned[self._member].difference_update(tp.partition for tp in partitions)

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        await self.on_partitions_revoked(partitions)


async def read_with_two(
    servers: str, group: str, flights: Flights, log: Log, progress: Callable[[int], None]
) -> Tally:
    """Read everything in ``log`` with a group of two, and return the tally.

    If no record arrives for 30 s, the reading ends with an incomplete tally.
    """
    tally = Tally(flights, log, progress)
    both = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, tally, nursery.cancel_scope)
        async with trio.open_nursery() as members:
            members.start_soon(_member, "first", servers, group, tally, both)
            members.start_soon(_member, "second", servers, group, tally, both)
        nursery.cancel_scope.cancel()
    async with trikafka.open_consumer(bootstrap_servers=servers, group_id=group) as consumer:
        found = await consumer.committed(log.ends())
    tally.committed = {tp: at.offset for tp, at in found.items() if at is not None}
    return tally


async def _member(name: str, servers: str, group: str, tally: Tally, both: trio.Event) -> None:
    """Read until all is read; the first member leaves after half of its partitions' records.

    The consumer commits the offsets itself: on leaving, and when a partition goes to the other
    member.
    """
    batch_size = max(20, min(2_000, len(tally.flights) // 100))
    settings: trikafka.ConsumerSettings = {
        "bootstrap_servers": servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "max_poll_records": batch_size,
        # A member learns of a rebalance from its next heartbeat. The default interval of 3 s would
        # be most of the time that the reading takes.
        "heartbeat_interval_ms": 500,
    }
    async with trikafka.open_consumer(**settings) as consumer:
        consumer.subscribe([tally.log.topic], _Ownership(name, consumer, tally, both))
        while not both.is_set():
            await consumer.receive_batch(timeout=0.05)
        consumer.resume(consumer.paused())
        share = sum(len(tally.seen[partition]) for partition in tally.owned[name])
        while not tally.complete and not (name == "first" and tally.by_member[name] >= share / 2):
            batch = await consumer.receive_batch(timeout=0.5)
            if batch:
                tally.add(name, batch)
        if name == "first":
            tally.left_with = set(tally.owned[name])


async def _watch(tally: Tally, scope: trio.CancelScope) -> None:
    """End the reading when no new record arrives: records are missing, which the checks report."""
    before = -1
    while before != tally.read:
        before = tally.read
        await trio.sleep(_PATIENCE)
    scope.cancel()
