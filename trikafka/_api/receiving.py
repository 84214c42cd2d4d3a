"""How records reach the user from all partitions together: a fair merge over the readers. Owned by the consumer.

Every receive is a sign of life (``max_poll_interval_ms``), tells the partitions that it delivered from that the user came back,
and runs the rebalance listeners. It never loses a record when it is cancelled (see :mod:`trikafka._api.reader`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio

from .._managers.listener_invoker import RebalanceListenerInvoker
from .._managers.poll_timer import PollTimer
from .._net.signal import Signal
from .._state.assignment import AssignedPartition, Assignment
from .._state.fetch_buffer import FetchBuffer
from .._state.progress import Cursor
from .._wire.columns import RecordBatch
from ..config import ConsumerConfig
from ..types import Record, TopicPartition
from .reader import Decoder, PartitionReader
from .turns import TURN, record_iterator

_BUSY = "somebody is receiving from this consumer already: another task, or the receive that runs this rebalance listener"
Until = Mapping[TopicPartition, int]
Ready = tuple[PartitionReader, RecordBatch]


class Readers:
    """The readers of the assigned partitions, made when they are first needed."""

    def __init__(self, config: ConsumerConfig, buffer: FetchBuffer) -> None:
        self._buffer, self._decoder = buffer, Decoder(config)
        self._readers: dict[AssignedPartition, PartitionReader] = {}

    def of(self, partition: AssignedPartition) -> PartitionReader:
        """The reader of a partition."""
        reader = self._readers.get(partition)
        if reader is None:
            reader = self._readers[partition] = PartitionReader(partition, self._buffer, self._decoder)
        return reader

    def keep(self, assignment: Assignment) -> None:
        """Partitions came or went."""
        mine = set(assignment)
        self._readers = {partition: reader for partition, reader in self._readers.items() if partition in mine}


class ReceiveTurn:
    """Who may receive: one at a time, nobody while the consumer is closed to it, and nobody beside streams."""

    def __init__(self, claim: Callable[[], None]) -> None:
        self._claim_records = claim
        self._taken = False
        self._closed_to: str | None = None

    def close(self, why: str | None) -> None:
        """Let no receive begin, because of ``why`` (``None``: from now on they may)."""
        self._closed_to = why

    def check(self) -> None:
        """Raises :exc:`trio.BusyResourceError` if no receive may begin now."""
        if self._taken:
            raise trio.BusyResourceError(_BUSY)
        if self._closed_to is not None:
            raise trio.BusyResourceError(self._closed_to)

    def claim(self) -> None:
        """As :meth:`check`, and raises if others read the partitions now."""
        self.check()
        self._claim_records()

    def __enter__(self) -> None:
        self._taken = True

    def __exit__(self, *_: object) -> None:
        self._taken = False


class Receiver:
    """Delivers records of the assigned partitions, in turns. One task at a time.

    ``check`` raises what the user has to know before anything is delivered, ``claim`` if others read the partitions now.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        assignment: Assignment,
        buffer: FetchBuffer,
        readers: Readers,
        invoker: RebalanceListenerInvoker,
        poll_timer: PollTimer,
        arrived: Signal,
        check: Callable[[], None],
        claim: Callable[[], None],
    ) -> None:
        self._max_poll_records = config.max_poll_records
        self._assignment, self._buffer, self._readers = assignment, buffer, readers
        self._invoker, self._poll_timer, self._check = invoker, poll_timer, check
        self._arrived = arrived  # there may be something to receive
        self._turn = ReceiveTurn(claim)
        self._in_hand: list[AssignedPartition] = []  # what the user was handed records of, the last time
        self._reader: PartitionReader | None = None  # of the batch that is being delivered record by record
        self._cursor: Cursor | None = None
        self._last_yield = 0.0
        self.records = record_iterator(self.record)

    def stop(self, why: str | None) -> None:
        """Let no receive begin, because of ``why`` (``None``: from now on they may)."""
        self._turn.close(why)

    # One by one.

    async def record(self) -> Record:
        """The next record; waits for it. Raises as :meth:`batch`. The whole way, which ``records`` shortens where it can."""
        cursor = self._cursor
        if cursor is not None:
            now = trio.current_time()
            if now - self._last_yield >= TURN:
                self._poll_timer.polled(now)
                await trio.lowlevel.checkpoint()
                self._turn_begun()
            else:
                await trio.lowlevel.checkpoint_if_cancelled()
            if cursor.live and not self._invoker.pending:
                self.records.follow(cursor)
                return cursor.take()
        while True:
            ready = await self._next(float("inf"), None)
            if ready is not None:
                return self._begin_records(*ready)

    def record_nowait(self) -> Record:
        """The next record if it is buffered. Raises :exc:`trio.WouldBlock` if not, or if a rebalance has to be served first."""
        self._turn.claim()
        cursor, now = self._cursor, trio.current_time()
        if cursor is not None:
            self._poll_timer.polled(now)
            if cursor.live and not self._invoker.pending:
                return cursor.take()
        self._begin(now)
        self._release()
        self._assignment.limit(None)
        if not self._invoker.pending and (ready := self._next_nowait()) is not None:
            return self._begin_records(*ready)
        raise trio.WouldBlock

    def _begin_records(self, reader: PartitionReader, batch: RecordBatch) -> Record:
        self._reader, self._cursor = reader, reader.begin_records(batch)
        self._in_hand.append(reader.partition)
        self._buffer.count_delivered(batch.nbytes)
        self.records.follow(self._cursor)
        return self._cursor.take()

    def _turn_begun(self) -> float:
        """The others had their turn; what time it is."""
        self._last_yield = trio.current_time()
        self.records.turn_begun()
        return self._last_yield

    def news(self) -> None:
        """Something concerns the whole consumer, a posted rebalance, say: the next record goes the whole way."""
        self.records.follow(None)

    def _release(self) -> None:
        """Put what is left of the batch that is delivered record by record back into the buffer."""
        reader, self._reader, self._cursor = self._reader, None, None
        self.records.follow(None)
        if reader is not None:
            reader.release()

    # By batch.

    async def batch(
        self, timeout: float | None, until: Until | None = None, stop: Callable[[], bool] | None = None
    ) -> RecordBatch | None:
        """The next batch, or ``None`` past ``timeout`` (seconds; ``None``: wait) or when ``stop`` says so.

        With ``until`` only of its partitions, and only what stands before its offsets.
        """
        deadline = float("inf") if timeout is None else trio.current_time() + timeout
        ready = await self._next(deadline, until, stop)
        return None if ready is None else self._deliver(*ready)

    async def gather(
        self, until: Until | None, stop: Callable[[], bool] | None, max_rows: int, max_bytes: int
    ) -> list[RecordBatch]:
        """The next batch, as :meth:`batch` waits for it, and what is buffered beside it; empty when ``stop`` says so.

        Only the wait can be cancelled: what has been delivered must not be lost.
        """
        batch = await self.batch(None, until, stop)
        if batch is None:
            return []
        batches = [batch]
        rows, size, last_yield = len(batch), batch.nbytes, trio.current_time()
        with self._turn, trio.CancelScope(shield=True):
            while rows < max_rows and size < max_bytes and (further := await self._further()) is not None:
                batches.append(further)
                rows, size = rows + len(further), size + further.nbytes
                if trio.current_time() - last_yield >= TURN:
                    await trio.lowlevel.checkpoint()
                    last_yield = trio.current_time()
        return batches

    async def _further(self) -> RecordBatch | None:
        """A further batch, if one is buffered, to go with those just delivered: these do not count as processed by it."""
        while not self._invoker.pending and (partition := self._buffer.next_partition()) is not None:
            reader = self._readers.of(partition)
            before = partition.ticket
            if (batch := await reader.further_batch()) is not None:
                return self._deliver(reader, batch)
            if partition.ticket != before:  # something corrupt, for the next receive to raise
                return None
        return None

    def batch_nowait(self) -> RecordBatch:
        """The next batch if it is buffered. Raises :exc:`trio.WouldBlock`."""
        self._turn.claim()
        self._begin(trio.current_time())
        self._release()
        self._assignment.limit(None)
        if not self._invoker.pending and (ready := self._next_nowait()) is not None:
            return self._deliver(*ready)
        raise trio.WouldBlock

    def _deliver(self, reader: PartitionReader, batch: RecordBatch) -> RecordBatch:
        self._in_hand.append(reader.partition)
        batch = reader.deliver(batch, self._max_poll_records)
        self._buffer.count_delivered(batch.nbytes)
        return batch

    # The common path.

    async def _next(self, deadline: float, until: Until | None, stop: Callable[[], bool] | None = None) -> Ready | None:
        """Serve what is to be served, and take the next batch that holds a record; ``None`` at the deadline or stop."""
        if stop is not None or not self._buffer.empty:  # else it waits, which gives the others their turn
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        now = self._turn_begun()
        try:
            self._turn.claim()
            self._begin(now)
        except Exception:  # it comes again at the next call: whoever makes that at once must not keep others from running
            await trio.lowlevel.cancel_shielded_checkpoint()
            raise
        with self._turn:
            self._assignment.receive_begun()
            try:
                self._release()
                return await self._take(now, deadline, until, stop)
            finally:
                self._assignment.receive_ended()
                self._poll_timer.polled(trio.current_time())

    async def _take(self, now: float, deadline: float, until: Until | None, stop: Callable[[], bool] | None) -> Ready | None:
        while True:
            if now - self._last_yield >= TURN:  # there may be much that holds no record
                await trio.lowlevel.checkpoint()
                self._turn_begun()
            await self._invoker.invoke(deadline)
            self._check()
            self._assignment.limit(until)
            if stop is not None and stop():
                return None
            if (partition := self._buffer.next_partition()) is not None:
                reader = self._readers.of(partition)
                if (batch := await reader.next_batch()) is not None:
                    return reader, batch
                now = trio.current_time()
            elif await self._wait(deadline):
                now = self._turn_begun()
            else:
                return None

    async def _wait(self, deadline: float) -> bool:
        """Wait until there may be something; False past the deadline. The user is there meanwhile."""
        with self._poll_timer.waiting():
            if deadline == float("inf"):
                await self._arrived.wait()
                return True
            with trio.move_on_at(deadline) as scope:
                await self._arrived.wait()
            return not scope.cancelled_caught

    def _next_nowait(self) -> Ready | None:
        while (partition := self._buffer.next_partition()) is not None:
            reader = self._readers.of(partition)
            if (batch := reader.next_batch_nowait()) is not None:
                return reader, batch
        return None

    def give_up(self) -> None:
        """Somebody else reads the partitions from now on: put back what is under way. The user has come back."""
        self._turn.check()
        self._release()
        self._begin(trio.current_time())
        self._buffer.begin()

    def _begin(self, now: float) -> None:
        """The user came back: what he was handed before is processed."""
        self._poll_timer.polled(now)
        self._check()
        self._buffer.begin()
        in_hand, self._in_hand = self._in_hand, []
        for partition in in_hand:
            partition.came_back()
