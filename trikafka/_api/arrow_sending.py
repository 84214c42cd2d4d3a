"""A table on its way into a topic: checked as a whole, put into batches piece by piece, and its outcomes gathered.

The records themselves are the accumulator's, as if they had been sent one by one. What is here belongs to one call of
``Producer.send_arrow``, or of ``Producer.enqueue_arrow`` and the ack that it returns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import trio

from .._managers.outcomes import settled, waiters_of
from .._net.deadlines import Call, run_call
from .._state.producer_batch import ProducerBatch
from .._state.table_rows import RowGroup, Taken
from .._wire import _implementation
from .._wire.columns import Columns, arrow_is_loaded
from ..config import ProducerConfig
from ..errors import ArrowDeliveryError, ConfigurationError, TrikafkaError
from ..interfaces import ProduceManager
from ..types import TopicPartition
from .waiting import fairness, within

if TYPE_CHECKING:
    from .._wire.arrow import Rows

#: A piece of a table: what is worked on between two checkpoints. Its bytes are copied in a millisecond or so.
_PIECE_BYTES = 1 << 20
#: No bound: of what is only looked at, the bytes do not count.
_MOST_BYTES = sys.maxsize
#: So many requests in flight keep the brokers busy while so many bytes are encoded; with fewer, what is there is sent sooner.
_BUSY, _WHEN_BUSY, _WHEN_IDLE = 2, 1 << 20, 1 << 18
#: Its rows, where all of them pass through compiled code, and where Python looks at each.
_PIECE_ROWS, _PIECE_ROWS_PURE = 16_384, 512


@dataclass(frozen=True, slots=True)
class PartitionDelivery:
    """Rows written to one partition. The offsets are those of the first and the last, and ``None`` where the broker does not
    tell (``acks=0``); records of others may lie between."""

    rows: int
    first_offset: int | None
    last_offset: int | None


@dataclass(frozen=True, slots=True)
class ArrowDelivery:
    """A table that was delivered: how many rows, and where they are."""

    rows: int
    partitions: Mapping[TopicPartition, PartitionDelivery]


async def open_rows(data: Any, limiter: trio.CapacityLimiter, **names: Any) -> Rows:
    """The table as rows to send. What is no pyarrow object is converted in a thread: a query may run for its results.

    So is the first table: what is imported for it takes 30 ms and more. Raises :exc:`ConfigurationError`, ``ImportError`` without
    pyarrow, and what the conversion raises. Cancellation waits for it.
    """
    if arrow_is_loaded():
        import pyarrow

        if isinstance(data, pyarrow.Table | pyarrow.RecordBatch):
            return _make_rows(data, names)
    return await trio.to_thread.run_sync(_make_rows, data, names, limiter=limiter)


def _make_rows(data: Any, names: dict[str, Any]) -> Rows:
    try:
        from .._wire.arrow import Rows
    except ImportError as error:
        how = "pip install 'trikafka[arrow]' (from a clone: pip install '.[arrow]')"
        raise ImportError(f"to send a table needs pyarrow: {how}") from error
    return Rows(data, **names)


class ArrowSending:
    """One table on its way."""

    def __init__(
        self,
        manager: ProduceManager,
        config: ProducerConfig,
        topic: str,
        rows: Rows,
        joins: Callable[[], None],
        *,
        call: str,
        awaited: bool,
    ) -> None:
        self._manager, self._accumulator = manager, manager.accumulator
        self.call = call  # its name, for errors
        self._joins = joins  # raises once the transaction that the table is for takes no more
        self._config, self._topic = config, topic
        self._rows, self._count = rows, len(rows)
        self._tally = _Tally(claimed=awaited)
        self._used = self._accumulator.used  # when the senders were let run
        slowly = _implementation.name_in_use != "native" or config.partitioner != "default"
        self._piece_rows = _PIECE_ROWS_PURE if slowly else _PIECE_ROWS
        self._looked_at = _PIECE_BYTES if slowly or not rows.shared else _MOST_BYTES

    @property
    def accepted(self) -> int:
        """How many rows are on their way, or have been."""
        return self._tally.accepted

    async def accept(self) -> bool:
        """Put the table into batches. Returns whether all of it has been accepted; if not, :meth:`outcome` raises why."""
        tally = self._tally
        if not self._count:
            return True
        await self._know(self._rows.partition)
        await self._check()
        try:
            await self._put()
        except (TrikafkaError, trio.ClosedResourceError) as error:
            if not tally.accepted:
                raise
            tally.fail(error)
        self._rows.release()  # else whoever keeps the acks of many tables would keep all of these in memory
        return tally.error is None

    async def outcome(self) -> ArrowDelivery:
        """Let nothing of the table linger; return when each row has its outcome. Raises :exc:`ArrowDeliveryError`."""
        tally = self._tally
        tally.claim()
        self._manager.hurry(tally.waiting)
        for batch in list(tally.waiting):
            await settled(batch)
            tally.gather()  # one by one, while the brokers work on the next
        if tally.error is not None:
            raise ArrowDeliveryError(self._topic, self._count, tally.delivered, tally.unknown, tally.error) from tally.error
        return ArrowDelivery(self._count, dict(tally.partitions))

    @property
    def done(self) -> bool:
        """Whether each row has its outcome."""
        self._tally.gather()
        return not self._tally.waiting

    async def _check(self) -> None:
        """Look at every row before the first is sent. Raises :exc:`ConfigurationError`, :exc:`RecordTooLargeError`."""
        most = -1
        for first, piece in self._rows.pieces(self._piece_rows, self._looked_at):
            await fairness.take()
            unfit = _implementation.current.find_unfit(self._rows.columns(piece, 0), self._accumulator.largest)
            if unfit is not None:
                row, size = unfit
                if size >= 0:
                    raise self._accumulator.too_large(self._topic, size, f"row {first + row}")
                raise ConfigurationError(f"row {first + row}: a timestamp must be milliseconds since the epoch, at least 0")
            partitions = self._rows.partitions(piece)
            most = max(most, max(partitions, default=-1) if partitions is not None else -1)
        if most >= 0:
            await self._know(most)

    async def _put(self) -> None:
        """Put every row into a batch, or as many as can be until one fails."""
        for _, piece in self._rows.pieces(self._piece_rows, _PIECE_BYTES):
            await fairness.take()
            columns = self._rows.columns(piece, time.time_ns() // 1_000_000)
            partitions = self._rows.partition if self._rows.partition is not None else self._rows.partitions(piece)
            await self._know(self._rows.partition)
            for group in self._manager.split_rows(self._topic, columns, partitions, self._rows.keyed):
                position = group.start
                while position < group.stop:
                    await fairness.take()
                    taken = self._extend(columns, group, position) or await self._wait(columns, group, position)
                    self._tally.add(taken, taken.next - position)
                    position = taken.next
                    self._tally.gather()
                    if self._tally.error is not None:
                        return
                    await self._let_send()

    async def _let_send(self) -> None:
        """Let the senders run when there is something for them: a broker that waits while more is encoded loses the time."""
        enough = _WHEN_IDLE if self._manager.requests_in_flight < _BUSY else _WHEN_BUSY
        self._used = min(self._used, self._accumulator.used)
        if self._accumulator.used - self._used >= enough:
            await trio.lowlevel.checkpoint()
            self._used = self._accumulator.used

    def _extend(self, columns: Columns, group: RowGroup, position: int, admitted: bool = False) -> Taken | None:
        if self._manager.closed:
            raise trio.ClosedResourceError("this producer is closed")
        self._joins()
        return cast("Taken | None", self._manager.extend(self._topic, columns, group, position, admitted))

    async def _wait(self, columns: Columns, group: RowGroup, position: int) -> Taken:
        """Wait for room and take rows. Raises :exc:`KafkaTimeoutError` if none could be taken for ``max_block_ms``."""

        async def attempt(call: Call) -> Taken:
            if not self._manager.knows(self._topic, group.partition):
                await self._learn(call, group.partition)
            call.blame(TrikafkaError(f"no room in buffer_memory ({self._config.buffer_memory} bytes)"))
            return await within(call, 0.0, lambda: self._manager.wait_for_room(take, self._topic, group.partition))

        def take() -> Taken | None:
            return self._extend(columns, group, position, admitted=True)

        return await run_call(self.call, attempt, config=self._config, timeout=self._config.max_block_ms / 1000)

    async def _know(self, partition: int | None) -> None:
        """Make sure that the topic, and the partition, are known. Raises as ``Producer.enqueue``."""
        if not self._manager.knows(self._topic, partition):
            limit = self._config.max_block_ms / 1000
            await run_call(self.call, lambda call: self._learn(call, partition), config=self._config, timeout=limit)

    async def _learn(self, call: Call, partition: int | None) -> None:
        await call.step(f"metadata of {self._topic!r}", lambda: self._manager.learn(self._topic, partition))


class ArrowAck:
    """The promise of a table's outcome, from :meth:`Producer.enqueue_arrow`. A failure that nobody waits for is logged."""

    __slots__ = ("_sending",)

    def __init__(self, sending: ArrowSending) -> None:
        self._sending = sending

    def __repr__(self) -> str:
        return f"<trikafka.ArrowAck {self._sending.accepted} rows {'done' if self.done else 'waiting'}>"

    @property
    def done(self) -> bool:
        """Whether the outcome of each row is known; then :meth:`wait` does not block."""
        return self._sending.done

    async def wait(self) -> ArrowDelivery:
        """Wait until all rows are delivered; they linger no more. Any number of tasks may wait, any number of times.

        Raises :exc:`ArrowDeliveryError` with the number of rows that were delivered, once each row has its outcome.
        Cancellation: the rows stay on their way.
        """
        await trio.lowlevel.checkpoint()
        return await self._sending.outcome()


class _Tally:
    """What has become of the rows that were accepted. ``waiting`` are their batches that have no outcome yet.

    ``claimed``: somebody waits for the outcome, so a failure need not be logged.
    """

    def __init__(self, *, claimed: bool) -> None:
        self._claimed = claimed
        self.accepted = self.delivered = self.unknown = 0
        self.error: Exception | None = None
        self.partitions: dict[TopicPartition, PartitionDelivery] = {}
        #: For each batch the spans of its records that are the table's: others may have put theirs between.
        self.waiting: dict[ProducerBatch, list[tuple[int, int]]] = {}

    def add(self, taken: Taken, count: int) -> None:
        """``count`` more rows are in a batch."""
        batch, first = taken.batch, taken.first
        if self._claimed:
            waiters_of(batch)
        spans = self.waiting.setdefault(batch, [])
        if spans and spans[-1][1] == first:
            first = spans.pop()[0]
        spans.append((first, taken.first + count))
        self.accepted += count

    def claim(self) -> None:
        """From now on somebody waits."""
        if not self._claimed:
            self._claimed = True
            for batch, spans in self.waiting.items():
                for leaf, _, _ in _leaves(batch, spans[0][0], spans[-1][1]):
                    if not leaf.settled:
                        waiters_of(leaf)

    def fail(self, error: Exception) -> None:
        """Something went wrong; the first error counts."""
        self.error = self.error or error

    def gather(self) -> None:
        """Take the outcomes of the oldest batches, as far as they are there."""
        while self.waiting:
            batch = next(iter(self.waiting))
            if not batch.settled and not batch.outcome.parts:
                return
            spans = self.waiting[batch]
            leaves = [leaf for start, stop in spans for leaf in _leaves(batch, start, stop)]
            if not all(leaf.settled for leaf, _, _ in leaves):
                return
            del self.waiting[batch]
            for leaf in leaves:
                self._take(*leaf)

    def _take(self, batch: ProducerBatch, start: int, stop: int) -> None:
        if batch.outcome.error is not None:
            self.fail(batch.outcome.error)
            self.unknown += stop - start if batch.unknown else 0
            return
        self.delivered += stop - start
        first = last = None
        if batch.outcome.base_offset is not None:
            first, last = batch.outcome.base_offset + start, batch.outcome.base_offset + stop - 1
        before = self.partitions.get(batch.place)
        if before is not None:
            first = first if before.first_offset is None else before.first_offset
            last = before.last_offset if last is None else last
            self.partitions[batch.place] = PartitionDelivery(before.rows + stop - start, first, last)
        else:
            self.partitions[batch.place] = PartitionDelivery(stop - start, first, last)


def _leaves(batch: ProducerBatch, start: int, stop: int) -> Iterator[tuple[ProducerBatch, int, int]]:
    """The batches that the records from ``start`` to ``stop`` are in after splits, and which of those they are."""
    if not batch.outcome.parts:
        yield batch, start, stop
        return
    offset = 0
    for part in batch.outcome.parts:
        first, last = max(start - offset, 0), min(stop - offset, part.count)
        if first < last:
            yield from _leaves(part, first, last)
        offset += part.count
