"""Deleted offsets of planned ranges, found before they are read.

For exports that may continue without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import trio

import trikafka
from trikafka import Consumer, OffsetRange, TopicPartition, TrikafkaError
from trikafka.interfaces import LostRange, PlannedRange

_REASON = "deleted from the log before it was exported"
#: The existing part of each range (``None``: nothing), and its lost offsets.
Reads = dict[PlannedRange, tuple[OffsetRange | None, tuple[LostRange, ...]]]


def whole(ranges: Sequence[PlannedRange]) -> Reads:
    """Return all of each range. Reading fails where offsets are deleted."""
    return {
        each: (OffsetRange(each.topic, each.partition, each.start, each.end), ()) for each in ranges
    }


async def what_is_there(
    ranges: Sequence[PlannedRange], settings: Mapping[str, Any]
) -> tuple[Reads, dict[PlannedRange, Exception]]:
    """Return the existing part of each range, and the errors of partitions without a response."""
    spans: dict[TopicPartition, tuple[int, int]] = {}
    errors: dict[TopicPartition, Exception] = {}

    async def ask(consumer: Consumer, tp: TopicPartition) -> None:
        try:
            spans[tp] = (
                (await consumer.beginning_offsets([tp]))[tp],
                (await consumer.end_offsets([tp]))[tp],
            )
        except TrikafkaError as error:
            errors[tp] = error

    own = {**settings, "group_id": None, "enable_auto_commit": False, "auto_offset_reset": "none"}
    async with trikafka.open_consumer(**own) as consumer, trio.open_nursery() as nursery:
        for tp in {planned.tp for planned in ranges}:
            nursery.start_soon(ask, consumer, tp)
    reads = {planned: cut(planned, *spans[planned.tp]) for planned in ranges if planned.tp in spans}
    return reads, {planned: errors[planned.tp] for planned in ranges if planned.tp in errors}


def cut(
    planned: PlannedRange, beginning: int, end: int
) -> tuple[OffsetRange | None, tuple[LostRange, ...]]:
    """Return the part of a range within ``beginning <= offset < end``, and the lost rest."""
    first, last = max(planned.start, beginning), min(planned.end, end)
    if first >= last:
        return None, (LostRange(*planned.tp, planned.start, planned.end, _REASON),)
    gaps = [(planned.start, first), (last, planned.end)]
    lost = tuple(LostRange(*planned.tp, low, high, _REASON) for low, high in gaps if low < high)
    return OffsetRange(*planned.tp, first, last), lost
