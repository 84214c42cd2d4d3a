"""Fetch responses to columns, and records to the bytes of Produce requests.

This module walks over the batches and decides which count: checksum, compression, control batches,
aborted transactions, offsets below the fetch position. The work on single records is done by
:mod:`._native` or :mod:`._fallback`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from trikafka._checksum import crc32c
from trikafka._wire import _format as f
from trikafka._wire import _implementation, compression, legacy
from trikafka._wire._format import Buffer, Section
from trikafka._wire.columns import Columns, RecordBatch
from trikafka.errors import CorruptRecordError, PluginError

if TYPE_CHECKING:
    from trikafka._wire._fallback import BatchEncoder
else:
    BatchEncoder = _implementation.current.BatchEncoder

__all__ = ["IMPLEMENTATION", "BatchEncoder", "Decoded", "decode_records", "decode_some"]

#: ``"native"`` if the compiled record path is in use, else ``"pure"``.
IMPLEMENTATION: str = _implementation.name_in_use

_MAX_OFFSET = f.MAX_INT64 - 2**31
_ABORT = 0
#: The effort of a step, counted in small plain batches: some milliseconds. A batch that is decided
#: in this module counts as ``_EFFORT`` of them.
_MOST_EFFORT, _EFFORT = 20_000, 40
#: The messages of the old formats that are read in a step, if one compressed message holds them.
_MOST_MESSAGES = 2_000
_CONTROL_KEY = struct.Struct(">hh")

#: The place of the last offset delta in a batch header (format 2).
_LAST_DELTA = slice(23, 27)


class Decoded(NamedTuple):
    """The records decoded, and the bytes of the rest with their aborted transactions.

    ``rest`` is empty if everything was decoded. ``expansion`` is the largest number of bytes so far
    that came out of one compressed byte.
    """

    batch: RecordBatch
    rest: memoryview
    aborted: list[tuple[int, int]] | None
    expansion: float


def first_batch(data: memoryview) -> tuple[int, int, bool]:
    """Return the first batch's length as far as it is here, its format, and if it is compressed."""
    if len(data) < f.HEADER_SIZE:
        return len(data), 2, False
    size = f.LENGTH_END + int.from_bytes(data[8 : f.LENGTH_END], "big")
    magic = data[16]
    attributes = data[22] if magic >= 2 else data[17]
    return min(size, len(data)), magic, attributes & f.CODEC_MASK != 0


def decode_records(
    data: Buffer,
    *,
    topic: str,
    partition: int,
    fetch_offset: int,
    aborted: Sequence[tuple[int, int]] | None,
    check_crcs: bool,
    max_bytes: int,
) -> RecordBatch:
    """Return all records in ``data`` from ``fetch_offset`` on.

    ``data`` is the ``records`` field of a Fetch response; its last batch may be cut off. Control
    batches are left out. Unless ``aborted`` is ``None``, so are the records of these aborted
    transactions, pairs of (producer id, first offset). At most ``max_bytes`` are decompressed at a
    time.

    Records before a corrupt batch are returned; ``next_offset`` is then the begin of the corrupt
    batch. Raises :class:`CorruptRecordError` if there are none, so also if ``data`` has no complete
    batch.
    """
    return decode_some(
        data,
        topic=topic,
        partition=partition,
        fetch_offset=fetch_offset,
        aborted=aborted,
        check_crcs=check_crcs,
        max_bytes=max_bytes,
        enough=f.MAX_INT64,
    ).batch


# Decoding in steps. A fetch may hold megabytes in a few kilobytes of compressed batches. Decoding
# all of them at once would take long, and need memory for all of it. So a step ends after about
# ``enough`` bytes or some milliseconds, and the reader delivers its records before the next step.
#
# Decompressed bytes are read only once, to fill the columns. They go into a ``Scratch`` that is
# reused: with fresh memory for each batch the allocator keeps holes, and a reader's memory grows
# beyond its buffer.
#
# A fault in a later batch is not reported by this step: the records before it are valid, and are
# delivered first. The step that begins with the faulty batch raises.
def decode_some(
    data: Buffer,
    *,
    topic: str,
    partition: int,
    fetch_offset: int,
    aborted: Sequence[tuple[int, int]] | None,
    check_crcs: bool,
    max_bytes: int,
    enough: int,
    codecs: compression.Codecs = compression.BY_ID,
) -> Decoded:
    """Return the first records in ``data``, as :func:`decode_records` does, and the rest.

    No further batch is begun in these cases:

    - ``enough`` bytes were decompressed, or 500 batches walked over (for the compiled part, 20,000
      if they are plain, and at most 8 MB);
    - the batch is compressed, has more than an eighth of ``enough`` bytes, and is not expected to
      fit;
    - the batch cannot be read, or exceeds ``max_bytes``: a corrupt one is reported when it is the
      first.

    The rest can be passed to this function again, from ``batch.next_offset`` on.
    """
    scan = _Scan(
        memoryview(data).cast("B"), fetch_offset, aborted, check_crcs, max_bytes, enough, codecs
    )
    try:
        scan.scan()
        fields, failed, reason = _implementation.current.fill(scan.sections)
    finally:
        scan.sections.clear()
        if scan.scratch is not None:
            scan.scratch.give_back()
    position, problem = scan.position, scan.problem
    if failed >= 0:
        position, problem = failed, f.REASONS[reason]
    if problem and position <= fetch_offset:
        raise CorruptRecordError(
            problem, topic, partition, position, _batch_at(scan.view, fetch_offset)
        )
    columns = Columns(*fields)
    if columns.header_name_data is not None:
        _repair_names(columns)
    batch = RecordBatch(topic, partition, columns, position, scan.leader_epoch)
    rest = scan.rest if scan.rest is not None else scan.view[scan.reached :]
    return Decoded(
        batch, rest[len(rest) :] if problem else rest, scan.still_aborted(), scan.expansion
    )


def _batch_at(view: memoryview, offset: int) -> memoryview:
    """Return the bytes of the batch that holds ``offset``, by the batches' headers.

    If the headers lead nowhere, return the rest.
    """
    at = 0
    while len(view) - at > _LAST_DELTA.stop:
        size = int.from_bytes(view[at + 8 : at + 12], "big", signed=True) + 12
        base = int.from_bytes(view[at : at + 8], "big", signed=True)
        last = base + int.from_bytes(
            view[at + _LAST_DELTA.start : at + _LAST_DELTA.stop], "big", signed=True
        )
        if size <= _LAST_DELTA.stop or at + size > len(view):
            break
        if last >= offset or view[at + 16] < 2:  # the old formats have no such field
            return view[at : at + size]
        at += size
    return view[at:]


class _Scan:
    """A walk over the batches. ``problem`` is the reason if it ended early.

    ``reached`` is the number of bytes walked over: all of them, unless there was enough before.
    """

    __slots__ = (
        "aborted",
        "aborting",
        "budget",
        "check_crcs",
        "codecs",
        "effort",
        "enough",
        "enough_for_all",
        "expansion",
        "large",
        "leader_epoch",
        "position",
        "problem",
        "reached",
        "rest",
        "scratch",
        "sections",
        "view",
    )

    def __init__(
        self,
        view: memoryview,
        fetch_offset: int,
        aborted: Sequence[tuple[int, int]] | None,
        check_crcs: bool,
        max_bytes: int,
        enough: int,
        codecs: compression.Codecs,
    ) -> None:
        self.codecs = codecs
        self.view = view
        self.position = fetch_offset
        self.check_crcs = check_crcs
        self.budget = max_bytes
        self.enough = enough
        self.large = enough // 8
        self.enough_for_all = enough == f.MAX_INT64
        self.reached = 0
        self.effort = 0
        self.expansion = 0.0
        # Transactions not begun yet, the earliest last; None: read_uncommitted.
        self.aborted = (
            None
            if aborted is None
            else sorted(((first, pid) for pid, first in aborted), reverse=True)
        )
        self.aborting: set[int] = set()
        self.leader_epoch: int | None = None
        self.sections: list[Section] = []
        self.problem: str | None = None
        self.scratch: compression.Scratch | None = None
        #: The bytes left over, if they are not simply the end of the view.
        self.rest: memoryview | None = None

    def scan(self) -> None:
        pos = 0
        total = len(self.view)
        try:
            pos = self._go_on_within()
            while self.rest is None and total - (pos := self._walk(pos)) > f.LENGTH_END + 4:
                length = int.from_bytes(self.view[pos + 8 : pos + f.LENGTH_END], "big", signed=True)
                if length < 14:
                    raise ValueError(f"a batch claims a length of {length} bytes")
                end = pos + f.LENGTH_END + length
                if end > total:
                    break
                if pos and self._is_enough(pos, end):
                    self.reached = pos
                    return
                try:
                    self._batch(pos, end)
                except (ValueError, PluginError):
                    if pos == 0 or self.enough_for_all:
                        raise
                    self.reached = pos
                    return
                pos = end
                self.effort += _EFFORT
            if pos == 0 and total and self.rest is None:
                raise ValueError(f"{total} bytes without one complete batch")
        except ValueError as error:
            self.problem = str(error)
        self.reached = total

    def _walk(self, start: int) -> int:
        """Walk over batches that need no decision, all at once; return the end of the walk."""
        most = _MOST_EFFORT if self.enough_for_all else _MOST_EFFORT - self.effort
        if self.enough <= 0 or most <= 0:
            return start
        end, self.position, epoch, walked, run = _implementation.current.walk(
            self.view,
            start,
            self.position,
            check_crcs=self.check_crcs,
            most=most,
            committed=self.aborted is not None,
            first_abort=self.aborted[-1][0] if self.aborted else None,
            aborting=self.aborting,
        )
        self.effort += walked
        if epoch >= 0:
            self.leader_epoch = epoch
        if run is not None:
            self.sections.append(run)
        return end

    def _is_enough(self, start: int, end: int) -> bool:
        """Return whether to leave the batch from ``start`` to ``end`` for the next step."""
        if self.enough_for_all:
            return False
        if self.enough <= 0 or self.effort >= _MOST_EFFORT:
            return True
        attributes = self.view[start + (22 if self.view[start + 16] >= 2 else 17)]
        if end - start <= self.large or attributes & f.CODEC_MASK == 0:
            return False
        # The expansion of earlier batches is the best guess for this one, if there are any.
        return not self.expansion or (end - start) * max(1.0, self.expansion) > self.enough

    def still_aborted(self) -> list[tuple[int, int]] | None:
        """Return the aborted transactions that continue, or begin, after the walk."""
        if self.aborted is None:
            return None
        return [(pid, 0) for pid in self.aborting] + [(pid, first) for first, pid in self.aborted]

    def _batch(self, start: int, end: int) -> None:
        magic = self.view[start + 16]
        if magic == 2:
            self._batch_v2(start, end)
        elif magic < 2:
            self._message(start, end)
        else:
            raise ValueError(f"unknown message format v{magic}")

    def _batch_v2(self, start: int, end: int) -> None:
        view = self.view
        if end - start < f.HEADER_SIZE:
            raise ValueError("a batch is shorter than its header")
        base, _, epoch, _, crc, attributes, last_delta, first_time, max_time, pid, _, _, count = (
            f.HEADER.unpack_from(view, start)
        )
        if not 0 <= base <= _MAX_OFFSET or last_delta < 0:
            raise ValueError("a batch has impossible offsets")
        last = base + last_delta
        if last < self.position and not (self.aborted is not None and attributes & f.CONTROL):
            return
        if self.check_crcs and crc32c(view[start + f.CRC_START : end]) != crc:
            raise ValueError("checksum mismatch")
        if not self._hidden(base, last, attributes, pid, start, end, count):
            data, begin = self._payload(attributes & f.CODEC_MASK, start, end)
            self.sections.append(
                Section(
                    data,
                    begin,
                    len(data) if begin == 0 else end,
                    count,
                    base,
                    last_delta,
                    first_time,
                    1 if attributes & f.LOG_APPEND else 0,
                    max_time,
                    self.position,
                )
            )
        if epoch >= 0:
            self.leader_epoch = epoch
        self.position = max(self.position, last + 1)

    def _payload(self, codec_id: int, start: int, end: int) -> tuple[Buffer, int]:
        """Return the bytes with the records and where those begin.

        The bytes are the view itself, or decompressed ones (the records begin at 0 then).
        """
        if codec_id == 0:
            return self.view, start + f.HEADER_SIZE
        codec = self.codecs.get(codec_id)
        if codec is None:
            raise ValueError(f"unknown compression codec {codec_id}")
        if self.scratch is None and not self.enough_for_all:
            self.scratch = compression.Scratch.borrow()
        data = codec.decompress(self.view[start + f.HEADER_SIZE : end], self.budget, self.scratch)
        self.budget -= len(data)
        self.enough -= len(data)
        self.expansion = max(self.expansion, len(data) / (end - start))
        return data, 0

    def _hidden(
        self, base: int, last: int, attributes: int, pid: int, start: int, end: int, count: int
    ) -> bool:
        """Return whether the batch is a control batch or belongs to an aborted transaction."""
        if self.aborted is None:
            return bool(attributes & f.CONTROL)
        while self.aborted and self.aborted[-1][0] <= last:
            self.aborting.add(self.aborted.pop()[1])
        if attributes & f.CONTROL:
            if pid in self.aborting and self._control_type(attributes, start, end, count) == _ABORT:
                self.aborting.discard(pid)
            return True
        return bool(attributes & f.TRANSACTIONAL) and pid in self.aborting

    def _control_type(self, attributes: int, start: int, end: int, count: int) -> int | None:
        data, begin = self._payload(attributes & f.CODEC_MASK, start, end)
        stop = len(data) if begin == 0 else end
        section = Section(data, begin, stop, count, 0, f.MAX_INT32, 0, 0, 0, 0)
        fields, failed, reason = _implementation.current.fill([section])
        if failed >= 0:
            raise ValueError(f.REASONS[reason])
        key = bytes(fields[5])
        if len(key) < _CONTROL_KEY.size:
            raise ValueError("a control batch without a marker")
        marker: int = _CONTROL_KEY.unpack_from(key)[1]
        return marker

    def _message(self, start: int, end: int) -> None:
        """Read one entry of a message set of format v0 or v1."""
        found = legacy.read_message(
            self.view[start:end], check_crcs=self.check_crcs, limit=self.budget, codecs=self.codecs
        )
        if not isinstance(found, legacy.Messages):
            self._add_rows([found])
            return
        self.budget -= found.inner_end
        self.enough -= found.inner_end
        if start and found.total > _MOST_MESSAGES and not self.enough_for_all:
            raise ValueError("it is to be read in steps of its own")
        at = self._part_of(found, 0)
        if at < found.inner_end:
            found += self.view[end:]
            self.rest = memoryview(found)[at:]

    def _part_of(self, messages: legacy.Messages, start: int) -> int:
        """Read as many messages of a compressed one as fit into a step; return their end."""
        most = messages.total if self.enough_for_all else _MOST_MESSAGES
        rows, end = messages.rows(start, most, self.check_crcs)
        self._add_rows(rows)
        self.effort += _MOST_EFFORT * len(rows) // _MOST_MESSAGES
        return end

    def _add_rows(self, rows: list[legacy.Row]) -> None:
        self.sections.append(legacy.to_section(rows, self.position))
        self.position = max(self.position, rows[-1][0] + 1)

    def _go_on_within(self) -> int:
        """Continue in a compressed message of the old formats where the last step ended.

        Returns the number of bytes read; 0 if the last step did not end in one.
        """
        messages = self.view.obj
        if (
            not isinstance(messages, legacy.Messages)
            or (start := len(messages) - len(self.view)) >= messages.inner_end
        ):
            return 0
        end = self._part_of(messages, start)
        if end < messages.inner_end:
            self.rest = self.view[end - start :]
        return end - start


def _are_whole(data: bytes, offsets: memoryview) -> bool:
    """Return whether the names are valid UTF-8, as a whole and so each of them.

    No boundary between names may be inside a character.
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    end = len(data)
    return not any(0x80 <= data[offset] < 0xC0 for offset in offsets if offset < end)


def _repair_names(columns: Columns) -> None:
    """Make every header name valid UTF-8, with U+FFFD for invalid bytes, as in Java."""
    data = bytes(columns.header_name_data or b"")
    offsets = columns.header_name_offsets
    assert offsets is not None
    if data.isascii() or _are_whole(data, offsets):
        return
    names = [
        data[offsets[i] : offsets[i + 1]].decode("utf-8", "replace").encode()
        for i in range(len(offsets) - 1)
    ]
    bounds = [0]
    for name in names:
        bounds.append(bounds[-1] + len(name))
    columns.rename_headers(
        memoryview(struct.pack(f"{len(bounds)}i", *bounds)).cast("i"), b"".join(names)
    )
