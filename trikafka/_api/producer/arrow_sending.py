"""A table on its way into a topic: checked as a whole, then encoded piece by piece.

The accumulator holds the records as if they had been sent one by one. The objects here belong to
one call of ``Producer.send_arrow``, or of ``Producer.enqueue_arrow`` and the ack that it returns.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from ..._managers.producer.outcomes import settled
from ..._net.deadlines import RunningCall, run_call
from ..._net.signal import Signal
from ..._state.producer.producer_batch import ProducerBatch
from ..._state.producer.queues import RowGroup
from ..._wire import _implementation
from ..._wire.column_rows import ColumnRows
from ..._wire.columns import Columns, arrow_is_loaded
from ...config import ProducerConfig
from ...errors import ArrowDeliveryError, ConfigurationError, TrikafkaError
from ...interfaces import ProduceManager, RowsBatch, TableRows, TakenRows
from ...types import PartitionDelivery, TopicPartition
from ..client.service import Service
from .waiting import current

if TYPE_CHECKING:
    from ..._wire.arrow import ArrowRows

#: The bytes of a piece of a table, which is handled between two checkpoints. Copying it takes about
#: a millisecond.
_PIECE_BYTES = 1 << 20
#: No bound: where rows are only checked, their bytes do not count.
_MOST_BYTES = sys.maxsize
#: With this many requests in flight the brokers are busy while this many bytes are encoded. With
#: fewer requests, the batches are sent sooner.
_BUSY, _WHEN_BUSY, _WHEN_IDLE = 2, 1 << 20, 1 << 18
#: The rows of a piece: all in compiled code, or each looked at by Python.
_PIECE_ROWS, _PIECE_ROWS_PURE = 16_384, 512


@dataclass(frozen=True, slots=True)
class ArrowDelivery:
    """A table that was delivered.

    Attributes:
        rows: The number of rows.
        partitions: The rows and offsets, by partition.
    """

    rows: int
    partitions: Mapping[TopicPartition, PartitionDelivery]


async def open_rows(
    data: Any, limiter: trio.CapacityLimiter, **names: Any
) -> ArrowRows | ColumnRows:
    """Return the table as rows to send; ``ColumnRows`` are such rows already.

    Data that is not a pyarrow object is converted in a thread: a query may run for its results. The
    first table of a program is converted there, too, because the import takes 30 ms and more.

    Raises :exc:`ConfigurationError`, ``ImportError`` without pyarrow, and the errors of the
    conversion. When cancelled, waits for the thread.
    """
    if isinstance(data, ColumnRows):
        return data
    if arrow_is_loaded():
        import pyarrow

        if isinstance(data, pyarrow.Table | pyarrow.RecordBatch):
            return _make_rows(data, names)
    return await trio.to_thread.run_sync(_make_rows, data, names, limiter=limiter)


def _make_rows(data: Any, names: dict[str, Any]) -> ArrowRows:
    try:
        from ..._wire.arrow import ArrowRows
    except ImportError as error:
        how = "pip install 'trikafka[arrow]' (from a clone: pip install '.[arrow]')"
        raise ImportError(f"to send a table needs pyarrow: {how}") from error
    return ArrowRows(data, **names)


class ArrowSending:
    """A table on its way into a topic."""

    def __init__(
        self,
        manager: ProduceManager,
        config: ProducerConfig,
        topic: str,
        rows: ArrowRows | ColumnRows,
        joins: Callable[[], None],
        *,
        call: str,
        awaited: bool,
        asks: bool,
    ) -> None:
        self._manager = manager
        self._fairness = current.fairness
        self._accumulator = manager.accumulator
        self.call = call  # the call's name, for errors
        self._joins = joins  # raises once the transaction of the table takes no more
        self._config = config
        self._topic = topic
        self._rows = rows
        self._count = len(rows)
        self._tally = _Tally(claimed=awaited)
        self._at = 0  # the row to take next
        self._used = self._accumulator.used  # when the senders last ran
        # ``asks``: a function chooses partitions, and is called for each row.
        slowly = _implementation.name_in_use != "native" or asks
        self._piece_rows = _PIECE_ROWS_PURE if slowly else _PIECE_ROWS
        self._looked_at = _PIECE_BYTES if slowly or not rows.shared else _MOST_BYTES

    @property
    def accepted(self) -> int:
        """The number of rows that were accepted."""
        return self._tally.accepted

    async def accept(self) -> bool:
        """Put the table into batches; return whether all rows were accepted.

        If not, :meth:`outcome` raises the reason.
        """
        tally = self._tally
        if not self._count:
            return True
        await self._know(self._rows.partition)
        # Two passes. The first looks at every row (types, sizes, timestamps, partitions) and sends
        # nothing: a table with a bad row is refused as a whole, and the error names the row. The
        # second encodes piece by piece, with a checkpoint between two: neither the table's size nor
        # a full buffer holds the event loop. The first batches are on their way while later rows
        # are still encoded.
        #
        # After the first accepted row an error is no longer raised here: rows are on their way, so
        # the error must wait for their outcomes (ArrowDeliveryError counts them).
        await self._check()
        try:
            await self._put()
        except (TrikafkaError, trio.ClosedResourceError) as error:
            if not tally.accepted:
                raise
            tally.fail(error, self._at)
        except trio.Cancelled:
            tally.abandon()
            raise
        # Otherwise the acks of many tables would keep all these tables in memory.
        self._rows.release()
        return tally.error is None

    async def outcome(self) -> ArrowDelivery:
        """Stop the lingering of the table's batches; return when each row has its outcome.

        Raises :exc:`ArrowDeliveryError`.
        """
        tally = self._tally
        tally.claim()
        self._manager.flush_batches(tally.waiting)
        try:
            for batch in list(tally.waiting):
                await _settled(batch)
                tally.gather()  # one by one, while the brokers work on the next
        except trio.Cancelled:
            tally.abandon()
            raise
        if tally.error is not None:
            raise ArrowDeliveryError(
                self._topic,
                self._count,
                tally.delivered,
                tally.unknown,
                tally.error,
                tally.row,
                tally.partitions,
            ) from tally.error
        return ArrowDelivery(self._count, dict(tally.partitions))

    @property
    def done(self) -> bool:
        """True once each row has its outcome."""
        self._tally.gather()
        return not self._tally.waiting

    async def _check(self) -> None:
        """Check every row before the first is sent.

        Raises :exc:`ConfigurationError`, :exc:`RecordTooLargeError`.
        """
        most = -1
        pieces: Iterator[tuple[int, Any]] = self._rows.pieces(self._piece_rows, self._looked_at)
        for first, piece in pieces:
            await self._fairness.checkpoint()
            unfit = _implementation.current.find_unfit(
                self._rows.columns(piece, 0), self._accumulator.largest
            )
            if unfit is not None:
                row, size = unfit
                if size >= 0:
                    raise self._accumulator.too_large(self._topic, size, f"row {first + row}")
                raise ConfigurationError(
                    f"row {first + row}: a timestamp must be milliseconds since the epoch, at "
                    "least 0"
                )
            partitions = self._rows.partitions(piece)
            most = max(most, max(partitions, default=-1) if partitions is not None else -1)
        if most >= 0:
            await self._know(most)

    async def _put(self) -> None:
        """Put every row into a batch, up to the first that fails."""
        pieces: Iterator[tuple[int, Any]] = self._rows.pieces(self._piece_rows, _PIECE_BYTES)
        for first, piece in pieces:
            await self._fairness.checkpoint()
            columns = self._rows.columns(piece, time.time_ns() // 1_000_000)
            partitions = (
                self._rows.partition
                if self._rows.partition is not None
                else self._rows.partitions(piece)
            )
            await self._know(self._rows.partition)
            for group in self._manager.split_rows(
                self._topic, columns, partitions, self._rows.keyed
            ):
                position = group.start
                while position < group.stop:
                    self._at = first + _row(group, position)
                    await self._fairness.checkpoint()
                    taken = self._extend(columns, group, position) or await self._wait(
                        columns, group, position
                    )
                    last = first + _row(group, taken.next - 1)
                    self._tally.add(taken, taken.next - position, self._at, last)
                    position = taken.next
                    self._tally.gather()
                    if self._tally.error is not None:
                        return
                    await self._let_send()

    async def _let_send(self) -> None:
        """Let the senders run when they have something to send.

        A broker that waits while more is encoded loses the time.
        """
        enough = _WHEN_IDLE if self._manager.requests_in_flight < _BUSY else _WHEN_BUSY
        self._used = min(self._used, self._accumulator.used)
        if self._accumulator.used - self._used >= enough:
            await trio.lowlevel.checkpoint()
            self._used = self._accumulator.used

    def _extend(
        self, columns: Columns, group: TableRows, position: int, admitted: bool = False
    ) -> TakenRows | None:
        if self._manager.closed:
            raise trio.ClosedResourceError("this producer is closed")
        self._joins()
        return self._manager.extend(self._topic, columns, group, position, admitted)

    async def _wait(self, columns: Columns, group: TableRows, position: int) -> TakenRows:
        """Wait for room, and take rows.

        Raises :exc:`KafkaTimeoutError` if none could be taken for ``max_block_ms``.
        """

        async def attempt(call: RunningCall) -> TakenRows:
            if not self._manager.knows(self._topic, group.partition):
                await self._learn(call, group.partition)
            call.blame(
                TrikafkaError(f"no room in buffer_memory ({self._config.buffer_memory} bytes)")
            )
            return await call.wait(
                lambda: self._manager.wait_for_room(take, self._topic, group.partition), 0.0
            )

        def take() -> TakenRows | None:
            return self._extend(columns, group, position, admitted=True)

        return await run_call(
            self.call, attempt, config=self._config, timeout=self._config.max_block_ms / 1000
        )

    async def _know(self, partition: int | None) -> None:
        """Make sure that the topic, and the partition, are known.

        Raises as ``Producer.enqueue``.
        """
        if not self._manager.knows(self._topic, partition):
            limit = self._config.max_block_ms / 1000
            await run_call(
                self.call,
                lambda call: self._learn(call, partition),
                config=self._config,
                timeout=limit,
            )

    async def _learn(self, call: RunningCall, partition: int | None) -> None:
        await call.step(
            f"metadata of {self._topic!r}", lambda: self._manager.learn(self._topic, partition)
        )


class ArrowAck:
    """The future outcome of a table, from :meth:`Producer.enqueue_arrow`.

    A failure that no task waits for is logged.
    """

    __slots__ = ("_home", "_sending")

    def __init__(self, sending: ArrowSending, home: Service) -> None:
        self._sending = sending
        self._home = home

    def __repr__(self) -> str:
        return (
            f"<trikafka.ArrowAck {self._sending.accepted} rows "
            f"{'done' if self.done else 'waiting'}>"
        )

    @property
    def done(self) -> bool:
        """True once the outcome of each row is known; then :meth:`wait` returns at once."""
        return self._sending.done

    async def wait(self) -> ArrowDelivery:
        """Wait until all rows are delivered; they linger no longer.

        Any number of tasks may wait, any number of times.

        Returns:
            The rows and offsets, by partition.

        Raises:
            ArrowDeliveryError: A row failed. The error has the number of delivered rows; it is
                raised once each row has its outcome.
            IllegalStateError: This is another Trio run than the producer's.

        When cancelled, the delivery goes on.
        """
        await trio.lowlevel.checkpoint()
        self._home.check()
        return await self._sending.outcome()


class _Tally:
    """The outcomes of the accepted rows.

    ``waiting`` holds their batches without an outcome. ``claimed``: a task waits for the outcome,
    so a failure need not be logged.
    """

    def __init__(self, *, claimed: bool) -> None:
        self._claimed = claimed
        self.accepted = 0
        self.delivered = 0
        self.unknown = 0
        self.error: Exception | None = None
        #: The first row that failed; ``None``: not known.
        self.row: int | None = None
        self._least = math.inf  # the first row that may have failed
        self.partitions: dict[TopicPartition, PartitionDelivery] = {}
        #: The table's spans of records, by batch: records of other calls may lie between. The last
        #: two numbers are the rows of the first and the last record.
        self.waiting: dict[ProducerBatch | RowsBatch, list[tuple[int, int, int, int]]] = {}

    def add(self, taken: TakenRows, count: int, row: int, last: int) -> None:
        """Record that ``count`` more rows, from ``row`` to ``last``, are in a batch."""
        batch, first = taken.batch, taken.first
        if self._claimed:
            _claim(batch)
        spans = self.waiting.setdefault(batch, [])
        if spans and spans[-1][1] == first:
            first, _, row, _ = spans.pop()
        spans.append((first, taken.first + count, row, last))
        self.accepted += count

    def claim(self) -> None:
        """Record that a task waits from now on."""
        if not self._claimed:
            self._claimed = True
            for batch, spans in self.waiting.items():
                for leaf, _, _, _ in _leaves(batch, spans[0][0], spans[-1][1]):
                    if not leaf.settled:
                        _claim(leaf)

    def abandon(self) -> None:
        """Have failures logged: the task that waited was cancelled."""
        for batch, spans in self.waiting.items():
            for leaf, _, _, _ in _leaves(batch, spans[0][0], spans[-1][1]):
                if isinstance(leaf, ProducerBatch):
                    leaf.unclaim()

    def fail(self, error: Exception, row: int, *, certain: bool = True) -> None:
        """Record that a row failed; if not ``certain``, it was that row or a later one.

        The first error counts, and the smallest row.
        """
        self.error = self.error or error
        if row < self._least or (certain and row == self._least):
            self._least = row
            self.row = row if certain else None

    def gather(self) -> None:
        """Take the outcomes of the oldest batches, as far as they are known."""
        while self.waiting:
            batch = next(iter(self.waiting))
            if not batch.settled and not (isinstance(batch, ProducerBatch) and batch.parts):
                return
            spans = self.waiting[batch]
            leaves = [
                (span[2] + skipped, not skipped or not _has_gaps(span), leaf, first, last)
                for span in spans
                for leaf, first, last, skipped in _leaves(batch, *span[:2])
            ]
            if not all(leaf.settled for _, _, leaf, _, _ in leaves):
                return
            del self.waiting[batch]
            for each in leaves:
                self._add_result(*each)

    def _add_result(
        self, row: int, certain: bool, batch: ProducerBatch | RowsBatch, start: int, stop: int
    ) -> None:
        if (error := batch.error) is not None:
            self.fail(error, row, certain=certain)
            self.unknown += stop - start if batch.maybe_written else 0
            return
        self.delivered += stop - start
        first = last = None
        if (base_offset := batch.base_offset) is not None:
            first, last = base_offset + start, base_offset + stop - 1
        before = self.partitions.get(batch.place)
        if before is not None:
            first = first if before.first_offset is None else before.first_offset
            last = before.last_offset if last is None else last
            self.partitions[batch.place] = PartitionDelivery(
                before.rows + stop - start, first, last
            )
        else:
            self.partitions[batch.place] = PartitionDelivery(stop - start, first, last)


def _row(group: TableRows, position: int) -> int:
    """Return the row of a piece at a position of a group; a plugin's groups do not say it."""
    if isinstance(group, RowGroup):
        return position if group.rows is None else int(group.rows[position])
    return 0


def _has_gaps(span: tuple[int, int, int, int]) -> bool:
    """Return whether rows of other partitions lie between those of a span.

    Rows keep their order, so a span without gaps has as many rows as records.
    """
    start, stop, row, last = span
    return last - row != stop - start - 1


async def _settled(batch: ProducerBatch | RowsBatch) -> None:
    if isinstance(batch, ProducerBatch):
        await settled(batch)
    else:
        await batch.wait()


def _claim(batch: ProducerBatch | RowsBatch) -> None:
    """Keep the failure of a batch, which is raised here, out of the log.

    A plugin's batches log nothing.
    """
    if isinstance(batch, ProducerBatch):
        batch.claim(Signal)


def _leaves(
    batch: ProducerBatch | RowsBatch, start: int, stop: int, skipped: int = 0
) -> Iterator[tuple[ProducerBatch | RowsBatch, int, int, int]]:
    """Yield the batches of these records after splits.

    Each has its span, and the number of these records that are before it.
    """
    if not isinstance(batch, ProducerBatch) or not batch.parts:
        yield batch, start, stop, skipped
        return
    offset = 0
    for part in batch.parts:
        first = max(start - offset, 0)
        last = min(stop - offset, part.count)
        if first < last:
            yield from _leaves(part, first, last, skipped)
            skipped += last - first
        offset += part.count
