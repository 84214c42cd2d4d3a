"""The offset ranges of a query: bound once, when it is planned, and cut into tasks.

All tasks of a query see one state of the topics.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import trikafka
from trikafka import OffsetOutOfRangeError, OffsetRange, TopicPartition, TrikafkaError
from trikafka.errors import topic_missing

from .read_options import EARLIEST, LATEST, Bound, ReadOptions
from .topic_patterns import topic_pattern

#: Seconds for listing the topics, which only improves an error message.
_NAMES_WITHIN = 5
_log = logging.getLogger("trikafka.spark")


class Planned(NamedTuple):
    """A range, and the id (as text) of the topic that it was planned for.

    The id is ``None`` if the brokers have no topic ids.
    """

    wanted: OffsetRange
    topic_id: str | None


def open_reader(options: ReadOptions) -> Any:
    """Return a consumer for look-ups, to be entered."""
    return trikafka.open_consumer(
        **options.settings, group_id=None, enable_auto_commit=False, auto_offset_reset="none"
    )


async def bind_ranges(options: ReadOptions) -> list[Planned]:
    """Ask the cluster for the offsets, and return one range for each partition to read.

    Raises:
        TrikafkaError: Topics or partitions do not exist, or the offsets are not in the log.
    """
    async with open_reader(options) as consumer:
        tps, ids = await find_partitions(consumer, options)
        if not tps:
            _log.warning(
                "subscribePattern %r is found in no topic, so the query has no rows",
                options.pattern,
            )
            return []
        beginnings = await consumer.beginning_offsets(tps)
        ends = await consumer.end_offsets(tps)
        starts = await resolve(consumer, options, "starting", tps, beginnings, ends)
        stops = await resolve(consumer, options, "ending", tps, beginnings, ends)
    return [
        Planned(
            _checked(
                tp, starts[tp], stops[tp], beginnings[tp], ends[tp], options.fail_on_data_loss
            ),
            ids.get(tp.topic),
        )
        for tp in tps
    ]


async def find_partitions(
    consumer: Any, options: ReadOptions, *, gone_is_an_error: bool = True
) -> tuple[list[TopicPartition], dict[str, str | None]]:
    """Return the partitions that the options choose now, sorted, and the ids of their topics.

    The ids are texts.

    Raises:
        TrikafkaError: A topic or a partition does not exist, unless ``gone_is_an_error`` is false.
    """
    if options.pattern is not None:
        pattern = topic_pattern(options.pattern)
        topics = [topic for topic in await consumer.list_topics() if pattern.search(topic)]
    else:
        topics = list(options.subscribe or dict.fromkeys(tp.topic for tp in options.assign))
    ids = await consumer.topic_ids(topics) if topics else {}
    if (
        gone_is_an_error
        and options.pattern is None
        and (gone := [topic for topic in topics if topic not in ids])
    ):
        raise await _no_topic(consumer, gone[0])
    found = [
        TopicPartition(topic, info.partition)
        for topic in ids
        for info in await consumer.partitions_for(topic)
    ]
    there, wanted = set(found), set(options.assign)
    unknown = [str(tp) for tp in options.assign if tp not in there]
    if unknown and gone_is_an_error:
        raise TrikafkaError(f"partitions to read do not exist: {', '.join(unknown)}")
    chosen = [tp for tp in found if tp in wanted] if wanted else found
    return sorted(chosen), {
        topic: None if known is None else str(known) for topic, known in ids.items()
    }


async def _no_topic(consumer: Any, topic: str) -> TrikafkaError:
    """Return the error about a missing topic, with similar names."""
    known: Iterable[str] = ()
    with suppress(TrikafkaError):  # without the permission to list topics, no names are suggested
        known = await consumer.list_topics(timeout=_NAMES_WITHIN)
    return TrikafkaError(topic_missing(topic, known, make=False))


async def resolve(
    consumer: Any,
    options: ReadOptions,
    which: str,
    tps: Sequence[TopicPartition],
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the offsets that the ``starting`` or the ``ending`` bound means now.

    Raises:
        TrikafkaError: The bound names other partitions, or no record is as young as its time.
    """
    bound = options.starting if which == "starting" else options.ending
    _check_named(which, bound, tps)
    if bound.timestamp is not None or bound.timestamps:
        found = await consumer.offsets_for_times({tp: bound.time_of(tp) for tp in tps})
        late = [str(tp) for tp in tps if found.get(tp) is None]
        if late and which == "starting" and options.after_the_last == "error":
            raise TrikafkaError(
                f"no record is at or after the starting timestamp in {', '.join(late)}; set "
                "startingOffsetsByTimestampStrategy to latest to begin at the end there"
            )
        return {
            tp: ends[tp] if found.get(tp) is None else min(int(found[tp].offset), ends[tp])
            for tp in tps
        }
    special = {EARLIEST: beginnings, LATEST: ends}
    wanted = {tp: bound.offsets[tp] if bound.everywhere is None else bound.everywhere for tp in tps}
    return {tp: special[at][tp] if at in special else at for tp, at in wanted.items()}


def _check_named(which: str, bound: Bound, tps: Sequence[TopicPartition]) -> None:
    """Raise if offsets by partition are not given for exactly the partitions that are read.

    Spark's connector has the same rule.
    """
    named = bound.offsets or bound.timestamps
    if named and set(named) != set(tps):
        option = f"{which}Offsets" if bound.offsets else f"{which}OffsetsByTimestamp"
        strange = [str(tp) for tp in sorted(set(named) - set(tps))]
        missing = [str(tp) for tp in sorted(set(tps) - set(named))]
        parts = [f"unknown or not read: {', '.join(strange)}"] * bool(strange)
        parts += [f"missing: {', '.join(missing)}"] * bool(missing)
        words = " (-2 is the beginning, -1 the end)" if bound.offsets else ""
        raise TrikafkaError(
            f"{option} must name exactly the partitions that are read{words}: {'; '.join(parts)}"
        )


def _checked(
    tp: TopicPartition, start: int, stop: int, beginning: int, end: int, fail_on_data_loss: bool
) -> OffsetRange:
    if start < beginning or start > end or stop > end:
        missing = (
            f"{tp} holds the offsets [{beginning}, {end}), but [{start}, {stop}) were to be read"
        )
        if fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{missing}; set failOnDataLoss=false to read the existing records"
            )
        _log.warning("%s; missing records are skipped (failOnDataLoss is false)", missing)
    elif start > stop:
        reverse = f"the read of {tp} would start at offset {start}, after its end {stop}"
        if fail_on_data_loss:
            raise TrikafkaError(reverse)
        _log.warning("%s; it reads nothing (failOnDataLoss is false)", reverse)
    start = max(start, beginning)
    stop = min(stop, end)
    return OffsetRange(tp.topic, tp.partition, start, max(start, stop))


def plan_tasks(
    ranges: Sequence[OffsetRange], at_least: int | None, most_records: int | None
) -> list[OffsetRange]:
    """Cut ranges into tasks of at most ``most_records`` offsets, and about ``at_least`` tasks.

    An empty range makes no task. Ranges are cut in proportion to their width, so ``at_least`` is a
    hint, as in Spark's connector.
    """
    parts = [one for whole in ranges for one in _cut(whole, _pieces(whole, most_records))]
    if at_least is None or len(parts) >= at_least:
        return parts
    total = sum(part.end - part.start for part in parts)
    small = {part for part in parts if _share(part, total, at_least) == 1}
    rest = sum(part.end - part.start for part in parts if part not in small)
    left = max(1, at_least - len(small))
    return [
        one
        for part in parts
        for one in _cut(part, 1 if part in small else _share(part, rest, left))
    ]


def plan_each(planned: Sequence[Planned], options: ReadOptions) -> list[Planned]:
    """Return the tasks of :func:`plan_tasks`, each with the id of its topic."""
    ids = {one.wanted.topic: one.topic_id for one in planned}
    tasks = plan_tasks(
        [one.wanted for one in planned], options.min_partitions, options.max_records_per_partition
    )
    return [Planned(task, ids[task.topic]) for task in tasks]


def _share(part: OffsetRange, total: int, of: int) -> int:
    # Halves are rounded up, as by Spark's connector; round() takes the even neighbour.
    return max(1, math.floor((part.end - part.start) / total * of + 0.5)) if total else 1


def _pieces(whole: OffsetRange, most: int | None) -> int:
    return 1 if most is None else -(-(whole.end - whole.start) // most)


def _cut(whole: OffsetRange, pieces: int) -> list[OffsetRange]:
    width = whole.end - whole.start
    pieces = min(pieces, width)
    cuts = [whole.start + width * i // pieces for i in range(pieces + 1)] if pieces else []
    return [whole._replace(start=low, end=high) for low, high in pairwise(cuts)]
