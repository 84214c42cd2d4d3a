"""From a partition of a ShareFetch response to acquired records. No I/O.

A response has whole batches of the log, which may hold records that this member has not acquired.
Acquired offsets may be without a record.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..._wire.columns import RecordBatch
from ..._wire.compression import Codecs
from ..._wire.records import IMPLEMENTATION, decode_some, first_batch
from ..._wire.share import AckType, AcquiredRange, ShareFetchedPartition
from ...errors import CorruptRecordError
from ...types import TopicPartition

#: The bytes that are decoded in about 5 ms, and so in the event loop.
_QUICK = 5 * 2**20 if IMPLEMENTATION == "native" else 50_000
#: The header of a batch: its base offset, its length and the delta of its last offset.
_BASE = slice(0, 8)
_LENGTH = slice(8, 12)
_DELTA = slice(23, 27)
_MAX = 2**63 - 1


class Piece(NamedTuple):
    """A part of what was acquired: consecutive records, or offsets without records.

    ``verdict`` is the acknowledgement of offsets that cannot be delivered; ``None`` for records.
    """

    offsets: Sequence[int] | memoryview
    counts: int | array[int]
    records: RecordBatch | None
    verdict: AckType | None = None


class Pieces(NamedTuple):
    """All that was acquired of one partition, and the faults found in its records."""

    pieces: list[Piece]
    errors: list[CorruptRecordError]


def is_quick(part: ShareFetchedPartition) -> bool:
    """Return whether the records are decoded in a few milliseconds."""
    size = len(part.records)
    return size <= (_QUICK // 4 if first_batch(part.records)[2] else _QUICK)


def pieces_of(
    part: ShareFetchedPartition, tp: TopicPartition, *, check_crcs: bool, most: int, codecs: Codecs
) -> Pieces:
    """Decode the records of a partition, and find those that were acquired.

    Args:
        part: The partition of the response.
        tp: The partition's name.
        check_crcs: Check the checksum of each batch.
        most: The most bytes that a batch may decompress to.
        codecs: The codecs by their ids.
    """
    ranges = sorted(part.acquired)
    found = Pieces([], [])
    if not ranges:
        return found
    position, last = ranges[0].first, ranges[-1].last
    left = ranges
    view = part.records

    def decode(view: memoryview, position: int) -> RecordBatch:
        return decode_some(
            view,
            topic=tp.topic,
            partition=tp.partition,
            fetch_offset=position,
            aborted=None,
            check_crcs=check_crcs,
            max_bytes=most,
            enough=_MAX,
            codecs=codecs,
        ).batch

    while left and view:
        try:
            batch = decode(view, position)
        except CorruptRecordError as error:
            found.errors.append(error)
            if (extent := _extent(view, position)) is None:
                break
            end, view = extent
            bad, left = _split(left, end)
            found.pieces.extend(_all(bad, AckType.REJECT))
            position = end
            continue
        mine, left = _split(left, batch.next_offset)
        found.pieces.extend(_records_of(batch, mine))
        if batch.next_offset <= position or batch.next_offset > last:
            break
        position = batch.next_offset
        view = _from(view, position)
    # Offsets whose records are not in the response: another attempt may bring them.
    found.pieces.extend(_all(left, AckType.RELEASE))
    return found


def _split(
    ranges: list[AcquiredRange], end: int
) -> tuple[list[AcquiredRange], list[AcquiredRange]]:
    """Return the parts of the ranges before ``end``, and the others."""
    before = [each._replace(last=min(each.last, end - 1)) for each in ranges if each.first < end]
    after = [each._replace(first=max(each.first, end)) for each in ranges if each.last >= end]
    return before, after


def _all(ranges: list[AcquiredRange], verdict: AckType) -> Iterator[Piece]:
    for first, last, count in ranges:
        yield Piece(range(first, last + 1), count, None, verdict)


def _records_of(batch: RecordBatch, ranges: list[AcquiredRange]) -> Iterator[Piece]:
    offsets = batch.offsets
    begins = ends = 0  # of the records that are collected
    counts: array[int] = array("h")

    def collected() -> Piece:
        records = batch[begins:ends]
        same = counts.count(counts[0]) == len(counts)
        return Piece(records.offsets, counts[0] if same else counts, records)

    for first, last, count in ranges:
        start = bisect_left(offsets, first)
        stop = bisect_right(offsets, last)
        if stop > start:
            if counts and start != ends:
                yield collected()
                counts = array("h")
            if not counts:
                begins = start
            counts.extend((count,) * (stop - start))
            ends = stop
        if stop - start < last - first + 1:
            there = set(offsets[start:stop])
            gaps = [offset for offset in range(first, last + 1) if offset not in there]
            yield Piece(gaps, count, None, AckType.GAP)
    if counts:
        yield collected()


def _extent(view: memoryview, position: int) -> tuple[int, memoryview] | None:
    """Return the offset after the first batch that reaches ``position``, and what follows it.

    ``None`` if the headers lead nowhere.
    """
    while len(view) >= _DELTA.stop:
        base = int.from_bytes(view[_BASE], "big", signed=True)
        size = int.from_bytes(view[_LENGTH], "big", signed=True) + _LENGTH.stop
        delta = int.from_bytes(view[_DELTA], "big", signed=True)
        if size <= _DELTA.stop or size > len(view) or delta < 0 or base < 0:
            return None
        view = view[size:]
        if base + delta >= position:
            return base + delta + 1, view
    return None


def _from(view: memoryview, position: int) -> memoryview:
    """Return the batches that reach ``position`` or lie behind it."""
    rest = view
    while (extent := _extent(rest, -_MAX)) is not None and extent[0] <= position:
        rest = extent[1]
    return rest
