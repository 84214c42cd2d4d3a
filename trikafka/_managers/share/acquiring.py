"""From a partition of a ShareFetch response to acquired records. No I/O.

A response has whole batches of the log, which may hold records that this member has not acquired.
Acquired offsets may be without a record.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..._checksum import crc32c
from ..._wire.columns import RecordBatch
from ..._wire.compression import Codecs
from ..._wire.records import IMPLEMENTATION, decode_some, first_batch
from ..._wire.share import AckType, AcquiredRange, ShareFetchedPartition
from ...errors import CorruptRecordError
from ...types import TopicPartition

#: The bytes that are decoded in about 5 ms, and so in the event loop.
_QUICK = 5 * 2**20 if IMPLEMENTATION == "native" else 50_000
#: The header of a batch: its base offset, its length, its format, its checksum and the delta of its
#: last offset.
_BASE = slice(0, 8)
_LENGTH = slice(8, 12)
_FORMAT = 16
_CRC = slice(17, 21)
_DELTA = slice(23, 27)
#: The first format with batches. Before it came single messages, whose checksum has another place.
_BATCHES = 2
_MAX = 2**63 - 1


class Piece(NamedTuple):
    """A part of what was acquired: consecutive records, or offsets without records.

    ``verdict`` is the acknowledgement of offsets that cannot be delivered; ``None`` for records.
    ``size`` is the number of bytes that the records keep in memory.
    """

    offsets: Sequence[int] | memoryview
    counts: int | array[int]
    records: RecordBatch | None
    verdict: AckType | None = None
    size: int = 0


class Fault(NamedTuple):
    """A batch that could not be read, and the acknowledgement of its records."""

    error: CorruptRecordError
    verdict: AckType


class Pieces(NamedTuple):
    """All that was acquired of one partition, and the faults found in its records."""

    pieces: list[Piece]
    faults: list[Fault]


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
            extent = _extent(view, position)
            # A batch with the right checksum is what its producer wrote. This client cannot read
            # it, but another member may: one with a higher receive_message_max_bytes, or with
            # another codec. A rejection would take the records from all members for ever.
            damaged = extent is not None and not _is_intact(extent.batch)
            verdict = AckType.REJECT if damaged else AckType.RELEASE
            found.faults.append(Fault(error, verdict))
            if extent is None:
                break
            bad, left = _split(left, extent.end)
            found.pieces.extend(_all(bad, verdict))
            position = extent.end
            view = extent.rest
            continue
        mine, left = _split(left, batch.next_offset)
        pieces = list(_records_of(batch, mine))
        # A slice keeps the bytes of its whole batch, and shares them with the batch's other slices.
        slices = sum(each.records is not None for each in pieces)
        share = batch._columns.kept_nbytes // max(1, slices)
        found.pieces.extend(
            each if each.records is None else each._replace(size=share) for each in pieces
        )
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
    kinds: set[int] = set()

    def collected() -> Piece:
        records = batch[begins:ends]
        return Piece(records.offsets, counts[0] if len(kinds) == 1 else counts, records)

    for first, last, count in ranges:
        start = bisect_left(offsets, first)
        stop = bisect_right(offsets, last)
        if stop > start:
            if counts and start != ends:
                yield collected()
                counts = array("h")
                kinds = set()
            if not counts:
                begins = start
            # Thousands of records have one count. An array is repeated without a look at each.
            counts += array("h", (count,)) * (stop - start)
            kinds.add(count)
            ends = stop
        if stop - start < last - first + 1:
            there = set(offsets[start:stop])
            gaps = [offset for offset in range(first, last + 1) if offset not in there]
            yield Piece(gaps, count, None, AckType.GAP)
    if counts:
        yield collected()


class _Extent(NamedTuple):
    """One batch, the offset after it, and the batches behind it."""

    end: int
    rest: memoryview
    batch: memoryview


def _extent(view: memoryview, position: int) -> _Extent | None:
    """Return the first batch that reaches ``position``; ``None`` if the headers lead nowhere."""
    while len(view) > _CRC.stop:
        base = int.from_bytes(view[_BASE], "big", signed=True)
        size = int.from_bytes(view[_LENGTH], "big", signed=True) + _LENGTH.stop
        # A message of an older format has its own offset, or the last of those compressed in it.
        is_batch = view[_FORMAT] >= _BATCHES
        delta = int.from_bytes(view[_DELTA], "big", signed=True) if is_batch else 0
        least = _DELTA.stop if is_batch else _CRC.stop
        if size <= least or size > len(view) or delta < 0 or base < 0:
            return None
        batch = view[:size]
        view = view[size:]
        if base + delta >= position:
            return _Extent(base + delta + 1, view, batch)
    return None


def _is_intact(batch: memoryview) -> bool:
    """Return whether the checksum of a batch is right; False for older formats."""
    crc = int.from_bytes(batch[_CRC], "big")
    return batch[_FORMAT] == _BATCHES and crc32c(batch[_CRC.stop :]) == crc


def _from(view: memoryview, position: int) -> memoryview:
    """Return the batches that reach ``position`` or lie behind it."""
    rest = view
    while (extent := _extent(rest, -_MAX)) is not None and extent.end <= position:
        rest = extent.rest
    return rest
