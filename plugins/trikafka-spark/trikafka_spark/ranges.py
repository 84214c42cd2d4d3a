"""From options to offset ranges: bound once, when a query is planned, so that all its tasks see one state of the topics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import trikafka
from trikafka import OffsetOutOfRangeError, OffsetRange, TopicPartition, TrikafkaError

from .options import EARLIEST, LATEST, Bound, ReadOptions


async def bind_ranges(options: ReadOptions) -> list[OffsetRange]:
    """Ask the cluster and return what to read, one range a task. Raises :exc:`trikafka.TrikafkaError`."""
    async with trikafka.open_consumer(**options.settings, enable_auto_commit=False) as consumer:
        tps = await _partitions(consumer, options)
        if not tps:
            return []
        _check_named(options, tps)
        beginnings = await consumer.beginning_offsets(tps)
        ends = await consumer.end_offsets(tps)
        missing = LATEST if options.after_the_last == "latest" else None
        starts = await _resolve(consumer, options.starting, tps, beginnings, ends, missing)
        stops = await _resolve(consumer, options.ending, tps, beginnings, ends, LATEST)
    return plan_tasks(
        [_checked(tp, starts[tp], stops[tp], beginnings[tp], ends[tp], options.fail_on_data_loss) for tp in tps],
        options.min_partitions,
        options.max_records_per_partition,
    )


async def _partitions(consumer: Any, options: ReadOptions) -> list[TopicPartition]:
    if options.pattern is not None:
        pattern = re.compile(options.pattern)
        topics = [topic for topic in await consumer.list_topics() if pattern.fullmatch(topic)]
    else:
        topics = list(options.subscribe or dict.fromkeys(tp.topic for tp in options.assign))
    found: list[TopicPartition] = []
    for topic in sorted(topics):
        infos = await consumer.partitions_for(topic)
        if not infos:
            raise TrikafkaError(f"topic {topic!r} does not exist")
        found.extend(TopicPartition(topic, info.partition) for info in infos)
    unknown = [str(tp) for tp in options.assign if tp not in found]
    if unknown:
        raise TrikafkaError(f"partitions to read do not exist: {', '.join(unknown)}")
    return sorted(options.assign or found)


def _check_named(options: ReadOptions, tps: Sequence[TopicPartition]) -> None:
    """As in Spark's connector, offsets given by partition must be given for exactly the partitions that are read."""
    for name, bound in (("starting", options.starting), ("ending", options.ending)):
        by_partition = bound.offsets or bound.timestamps
        if by_partition and set(by_partition) != set(tps):
            wrong = sorted(str(tp) for tp in set(by_partition) ^ set(tps))
            raise TrikafkaError(f"the {name} offsets must name exactly the partitions that are read; look at {', '.join(wrong)}")


async def _resolve(
    consumer: Any,
    bound: Bound,
    tps: Sequence[TopicPartition],
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    after_the_last: int | None,
) -> dict[TopicPartition, int]:
    times = dict.fromkeys(tps, bound.timestamp) if bound.timestamp is not None else bound.timestamps
    if times:
        found = await consumer.offsets_for_times(times)
        late = [str(tp) for tp in tps if found.get(tp) is None]
        if late and after_the_last is None:
            raise TrikafkaError(f"no record is as young as the starting timestamp in {', '.join(late)}")
        return {tp: ends[tp] if found.get(tp) is None else int(found[tp].offset) for tp in tps}
    special = {EARLIEST: beginnings, LATEST: ends}
    wanted = {tp: bound.offsets[tp] if bound.everywhere is None else bound.everywhere for tp in tps}
    return {tp: special[at][tp] if at in special else at for tp, at in wanted.items()}


def _checked(tp: TopicPartition, start: int, stop: int, beginning: int, end: int, fail_on_data_loss: bool) -> OffsetRange:
    if fail_on_data_loss and (start < beginning or start > end or stop > end):
        raise OffsetOutOfRangeError(
            f"{tp} holds the offsets [{beginning}, {end}), but [{start}, {stop}) are to be read; "
            "set failOnDataLoss to false to read what is there"
        )
    start, stop = max(start, beginning), min(stop, end)
    return OffsetRange(tp.topic, tp.partition, start, max(start, stop))


def plan_tasks(ranges: Sequence[OffsetRange], at_least: int | None, most_records: int | None) -> list[OffsetRange]:
    """Cut ranges into tasks of at most ``most_records`` offsets, and further until there are about ``at_least`` tasks.

    Empty ranges make no task. Cuts are in proportion to the width, so ``at_least`` is a hint, as in Spark's connector.
    """
    parts = [one for whole in ranges for one in _cut(whole, _pieces(whole, most_records))]
    if at_least is None or len(parts) >= at_least:
        return parts
    total = sum(part.end - part.start for part in parts)
    return [one for part in parts for one in _cut(part, max(1, round((part.end - part.start) / total * at_least)))]


def _pieces(whole: OffsetRange, most: int | None) -> int:
    return 1 if most is None else -(-(whole.end - whole.start) // most)


def _cut(whole: OffsetRange, pieces: int) -> list[OffsetRange]:
    width = whole.end - whole.start
    pieces = min(pieces, width)
    cuts = [whole.start + width * i // pieces for i in range(pieces + 1)] if pieces else []
    return [whole._replace(start=low, end=high) for low, high in pairwise(cuts)]
