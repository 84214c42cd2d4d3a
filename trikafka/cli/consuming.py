"""The work of ``trikafka consume``.

A record that was not printed is never committed, however the command ends.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click
import trio

from .._api.consumer.consumer import Consumer
from .._api.consumer.opening import open_consumer
from .._net.gather import with_background
from .._wire.columns import RecordBatch
from ..errors import AdminErrors, IllegalStateError, TrikafkaError
from ..errors.counts import counted
from ..types import PartitionInfo, TopicPartition
from .admin import no_topic
from .output import Keep, Output
from .partly import fail_later, led, no_leader, without_leader
from .progress import Meter, meter, warn
from .record_lines import OutputFormat
from .running import Stop
from .start import At, Start, check_come, place

#: Seconds after which a member of a group checks whether it has reached the end, if no record
#: arrives.
_LOOK = 0.2
#: Seconds to wait for partitions after joining. The consumer group protocol (KIP-848) assigns them
#: after the join.
_ASSIGNED_WITHIN = 5.0
#: Seconds to wait for the leader of a partition that has none: an election takes less.
_ELECTED_WITHIN = 5.0
#: The fewest records between two offsets that the count of ``--from -N`` remembers.
_BETWEEN_MARKS = 1_000


@dataclass(frozen=True, slots=True)
class ConsumePlan:
    """The records to print."""

    topics: tuple[str, ...]
    partitions: frozenset[int]
    group: str | None
    start: Start | None
    until_end: bool
    count: int | None
    form: OutputFormat
    keep: Keep | None = None
    until_time: int | None = None  # milliseconds since the epoch


class Consuming:
    """One run of the command."""

    def __init__(self, settings: dict[str, Any], plan: ConsumePlan) -> None:
        self._settings = settings
        self._plan = plan
        self._output: Output
        self._printed = 0
        self._seen = 0
        self._lost: set[TopicPartition] = set()  # without a leader when the reading begins
        # Of a member's partitions: since when one is known to have no leader, and the last look.
        self._leaderless: dict[TopicPartition, float] = {}
        self._asked = -math.inf
        self._meter: Meter = lambda done, total=None, text=None: None

    async def main(self, stop: Stop) -> None:
        """Print until the end, the count, a signal, or until the reader of the output has gone."""
        gone = False
        self._output = Output()

        async def watch() -> None:
            nonlocal gone
            await self._output.broken()
            gone = True
            scope.cancel()

        async with open_consumer(**self._settings) as consumer:
            with stop.here(), trio.CancelScope() as scope:
                await with_background([watch], lambda: self._consume(consumer))
        if gone:
            raise BrokenPipeError

    async def _consume(self, consumer: Consumer) -> None:
        places = await self._places(consumer)
        if self._plan.group is None:
            await self._read(consumer, places)
        else:
            self._subscribe(consumer)
            with self._showing(None):
                await self._follow(consumer)

    async def _places(self, consumer: Consumer) -> list[TopicPartition]:
        """Return the partitions to read.

        A command that ends by itself waits a few seconds for a missing leader. Then it leaves the
        partition out, and fails when it has read the others.

        Raises:
            click.ClickException: A topic or partition does not exist, or no other partition is
                wanted than one without a leader.
            AdminErrors: None of several partitions has a leader.
        """
        wait = _ELECTED_WITHIN if self._ends_by_itself and self._plan.group is None else 0
        patient_until = trio.current_time() + wait
        while True:
            known = {topic: await self._wanted(consumer, topic) for topic in self._plan.topics}
            lost = without_leader(known)
            if not lost or trio.current_time() >= patient_until:
                break
            await trio.sleep(_LOOK)
            await consumer.topic_ids(sorted(known))  # asks; partitions_for() returns what is known
        places = [
            TopicPartition(topic, info.partition)
            for topic, infos in known.items()
            for info in infos
        ]
        if self._plan.group is not None:
            return places
        self._lost = lost
        if self._ends_by_itself:
            return led(places, known)
        others_first = self._is_simple and len(lost) < len(places)
        _warn_of_lost(lost, "the others are read first" if others_first else "the command waits")
        return places

    async def _wanted(self, consumer: Consumer, topic: str) -> list[PartitionInfo]:
        """Return the partitions of a topic that the command is to read."""
        infos = {info.partition: info for info in await consumer.partitions_for(topic)}
        if not infos and not self._settings.get("allow_auto_create_topics"):
            raise await no_topic(self._settings, topic)
        missing = self._plan.partitions - infos.keys()
        if missing:
            raise click.ClickException(
                f"topic {topic!r} has {counted(len(infos), 'partition')}, and no partition "
                f"{min(missing)}"
            )
        return [infos[number] for number in sorted(self._plan.partitions or infos)]

    @property
    def _ends_by_itself(self) -> bool:
        return self._plan.until_end or self._plan.until_time is not None

    @property
    def _is_simple(self) -> bool:
        """True if the client itself finds the start of a partition, once it has a leader."""
        start = self._plan.start
        return start is None or start.at in (At.BEGINNING, At.END)

    async def _ends(
        self, consumer: Consumer, places: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the offsets that ``--until-end`` reads up to."""
        return await consumer.end_offsets(places)

    async def _firsts(
        self, consumer: Consumer, places: Collection[TopicPartition], time: int
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of each partition's first record from ``time`` on."""
        found = await consumer.offsets_for_times(dict.fromkeys(places, time))
        return {tp: None if first is None else first.offset for tp, first in found.items()}

    async def _limits(
        self, consumer: Consumer, places: Collection[TopicPartition]
    ) -> dict[TopicPartition, int] | None:
        """Return the offsets to read up to; ``None``: the reading goes on."""
        time = self._plan.until_time
        if time is None and not self._plan.until_end:
            return None
        ends = await self._ends(consumer, places)
        firsts = {} if time is None else await self._firsts(consumer, places, time)
        return {
            tp: end if (first := firsts.get(tp)) is None else min(end, first)
            for tp, end in ends.items()
        }

    # Without a group.

    async def _read(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        start = self._plan.start or Start(At.BEGINNING)
        later = self._lost.intersection(places) if self._is_simple else set()
        now = [tp for tp in places if tp not in later]
        begins = await consumer.beginning_offsets(now)
        ends = await consumer.end_offsets(now)
        times = (
            await consumer.offsets_for_times(dict.fromkeys(places, start.value))
            if start.at is At.TIME
            else {}
        )
        check_come(start, times.values())
        limits = await self._limits(consumer, places)
        consumer.assign(places)
        if later and start.at is At.END:
            consumer.seek_to_end(later)
        offsets: dict[TopicPartition, int] = {}
        for tp in now:
            found = times.get(tp)
            at_time = found.offset if found is not None else None
            offsets[tp] = place(start, begins[tp], ends[tp], at_time, partial(_warn_of, tp))
        if start.at is At.LAST and start.value:
            with meter(
                f"counting {', '.join(self._plan.topics)}", "records", beside_output=True
            ) as counting:
                offsets = await _last(consumer, start.value, begins, offsets, ends, counting)
        total = 0
        for tp, offset in offsets.items():
            consumer.seek(tp, offset)
            total += max(0, limits[tp] - offset) if limits else 0
        with self._showing(total if limits else None):
            async for batch in consumer.batches(until=limits):
                if await self._take(consumer, batch):
                    return

    # As a member of a group.

    async def _follow(self, consumer: Consumer) -> None:
        ends: dict[TopicPartition, int] = {}
        hopes_until = trio.current_time() + _ASSIGNED_WITHIN
        while True:
            batch = await consumer.receive_batch(timeout=_LOOK if self._plan.until_end else None)
            if batch and await self._take(consumer, batch):
                return
            # A busy coordinator may admit the member late.
            if consumer.assignment() or consumer.statistics().state != "stable":
                hopes_until = trio.current_time() + _ASSIGNED_WITHIN
            elif trio.current_time() < hopes_until:
                continue
            if self._plan.until_end and await self._at_end(consumer, ends):
                return

    def _subscribe(self, consumer: Consumer) -> None:
        consumer.subscribe(self._plan.topics)

    async def _at_end(self, consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
        """Return whether all assigned partitions are read up to their end at assignment."""
        seen = consumer.statistics()
        if seen.state != "stable":
            return False
        now = trio.current_time()
        unknown = consumer.assignment() - ends.keys()
        if unknown - self._leaderless.keys() or (unknown and now >= self._asked + _LOOK):
            self._asked = now
            there = await self._led(consumer, unknown)
            ends.update(await self._ends(consumer, there))
            self._leaderless = {tp: self._leaderless.get(tp, now) for tp in unknown - there}
        lost = {
            tp
            for tp, since in self._leaderless.items()
            if tp in unknown and now >= since + _ELECTED_WITHIN
        }
        positions = (
            (position, ends.get(tp)) for tp, position in seen.positions.items() if tp not in lost
        )
        if not all(
            position is not None and end is not None and position >= end
            for position, end in positions
        ):
            return False
        if lost:
            failures = {str(tp): TrikafkaError(no_leader(str(tp))) for tp in sorted(lost)}
            fail_later(AdminErrors.of(failures, dict.fromkeys(map(str, ends))))
        return True

    async def _led(
        self, consumer: Consumer, places: Collection[TopicPartition]
    ) -> set[TopicPartition]:
        """Return those of the partitions that have a leader."""
        topics = sorted({tp.topic for tp in places})
        if self._leaderless:  # partitions_for() would return what is known since then
            await consumer.topic_ids(topics)
        known = {topic: await consumer.partitions_for(topic) for topic in topics}
        return set(places) - without_leader(known)

    # Printing.

    async def _take(self, consumer: Consumer, batch: RecordBatch) -> bool:
        """Print a batch; return whether the requested count is reached.

        The consumer seeks back to the first record that was not printed.
        """
        self._output.begin()
        plan = self._plan
        try:
            left = None if plan.count is None else plan.count - self._printed
            await self._output.write(batch, plan.form, plan.keep, left)
        finally:
            done = self._output.written
            self._printed += self._output.printed
            self._seen += done
            if done < len(batch):
                with suppress(IllegalStateError):
                    consumer.seek(TopicPartition(batch.topic, batch.partition), batch.offsets[done])
        self._meter(self._seen)
        return self._printed == plan.count

    @contextmanager
    def _showing(self, total: int | None) -> Iterator[None]:
        with meter(
            ", ".join(self._plan.topics), "records", total, beside_output=True
        ) as self._meter:
            yield


@dataclass(slots=True)
class _Count:
    """The records of a range of offsets. ``marks``: some offsets and the records before each."""

    records: int = 0
    marks: list[tuple[int, int]] = field(default_factory=list)

    def add(self, batch: RecordBatch) -> None:
        if not self.marks or self.records - self.marks[-1][1] >= _BETWEEN_MARKS:
            self.marks.append((batch.offsets[0], self.records))
        self.records += len(batch)


# Not each offset has a record: markers of transactions have offsets, and compaction leaves gaps. So
# the records before the end are counted, in ranges before one another that become longer until
# there are enough. The last range may have too many. Its first ones are skipped by the marks, which
# take less memory than all offsets would.
async def _last(
    consumer: Consumer,
    count: int,
    begins: Mapping[TopicPartition, int],
    offsets: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    counting: Meter,
) -> dict[TopicPartition, int]:
    """Return the offset of the record in each partition that has ``count - 1`` others behind it.

    Args:
        consumer: The partitions are assigned to it.
        count: The number of records.
        begins: The beginnings of the partitions.
        offsets: The first offsets to look at, ``count`` before the end.
        ends: The ends of the partitions.
        counting: Shows the records that were counted.
    """
    found = dict(offsets)
    for tp, offset in found.items():  # or the others would be fetched from their beginning
        consumer.seek(tp, offset)
    # A log of at most `count` offsets is printed from its beginning, without a count.
    ranges = {tp: (offset, ends[tp]) for tp, offset in found.items() if offset > begins[tp]}
    known = dict.fromkeys(ranges, 0)
    inexact: dict[TopicPartition, tuple[int, int, int]] = {}
    while ranges:
        counts = await _counted(consumer, ranges, counting, sum(known.values()))
        wider = {}
        for tp, (low, high) in ranges.items():
            known[tp] += counts[tp].records
            excess = known[tp] - count
            found[tp] = low
            if excess > 0:
                inexact[tp] = _near(counts[tp], excess, high)
            elif excess < 0 and low > begins[tp]:
                wider[tp] = (max(begins[tp], ends[tp] - 8 * (ends[tp] - low)), low)
        ranges = wider
    return found | await _exact(consumer, inexact)


async def _counted(
    consumer: Consumer,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    counting: Meter,
    before: int,
) -> dict[TopicPartition, _Count]:
    """Return the count of each range; ``before``: the records that were counted already."""
    counts = {tp: _Count() for tp in ranges}
    for tp, (low, _) in ranges.items():
        consumer.seek(tp, low)
    async for batch in consumer.batches(until={tp: high for tp, (_, high) in ranges.items()}):
        counts[TopicPartition(batch.topic, batch.partition)].add(batch)
        before += len(batch)
        counting(before)
    return counts


def _near(count: _Count, skipped: int, high: int) -> tuple[int, int, int]:
    """Return the mark before a record, the records between, and the offset of the next mark.

    Args:
        count: The count of the record's range.
        skipped: The records of the range before this one.
        high: The end of the range.
    """
    at = bisect_right(count.marks, skipped, key=lambda mark: mark[1]) - 1
    offset, before = count.marks[at]
    beyond = count.marks[at + 1][0] if at + 1 < len(count.marks) else high
    return offset, skipped - before, beyond


async def _exact(
    consumer: Consumer, near: Mapping[TopicPartition, tuple[int, int, int]]
) -> dict[TopicPartition, int]:
    """Return the offsets of records, each given as :func:`_near` returns it."""
    if not near:
        return {}
    found = {}
    left = {}
    for tp, (offset, between, _) in near.items():
        consumer.seek(tp, offset)
        found[tp] = offset
        left[tp] = between
    async for batch in consumer.batches(until={tp: beyond for tp, (_, _, beyond) in near.items()}):
        tp = TopicPartition(batch.topic, batch.partition)
        if 0 <= left[tp] < len(batch):
            found[tp] = batch.offsets[left[tp]]
        left[tp] -= len(batch)
    return found


def _warn_of_lost(lost: Collection[TopicPartition], then: str) -> None:
    if lost:
        have = "has" if len(lost) == 1 else "have"
        warn(f"{', '.join(map(str, sorted(lost)))} {have} no leader at the moment: {then}")


def _warn_of(tp: TopicPartition, text: str) -> None:
    warn(f"{tp} {text}")
