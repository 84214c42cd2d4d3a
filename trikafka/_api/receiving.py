"""How records reach the user: from the fetch buffer, decoded, one by one or by batch. Owned by the consumer.

A record leaves the buffer only in the synchronous step after the last checkpoint, so a cancelled receive loses nothing. Every
receive is a sign of life (``max_poll_interval_ms``), marks what was handed out before as done, and serves rebalances.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import trio

from .._managers.fetch import Fetcher
from .._managers.heartbeat import Heartbeats
from .._managers.rendezvous import Rendezvous
from .._state.fetch_buffer import Chunk
from .._state.subscription import Mode, PartitionState, Subscription
from .._wire.columns import RecordBatch
from .._wire.records import IMPLEMENTATION, decode_some, first_batch
from ..config import ConsumerConfig
from ..errors import CorruptRecordError, IllegalStateError
from ..types import Record, TopicPartition

#: Iteration over buffered records lets other tasks run at least this often (seconds).
_BREATH = 0.001
#: Bytes that are decoded within about 5 ms, and so in the event loop.
_QUICK = 5 * 2**20 if IMPLEMENTATION == "native" else 50_000
#: Bytes of which twice as many are decompressed and decoded within about 5 ms; only one batch by itself may come to more.
_ENOUGH = 2**20 if IMPLEMENTATION == "native" else 50_000
_NOTHING = RecordBatch.empty()

Until = Mapping[TopicPartition, int]
Ready = tuple[PartitionState, RecordBatch]


class Receiver:
    """Hands out records of the assigned partitions. One task at a time."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription,
        fetcher: Fetcher,
        rendezvous: Rendezvous,
        heartbeats: Heartbeats | None,
        check: Callable[[], None],
    ) -> None:
        self._config, self._subscription, self._fetcher = config, subscription, fetcher
        self._rendezvous, self._heartbeats, self._check = rendezvous, heartbeats, check
        self._limiter = trio.CapacityLimiter(1)  # of the thread that decodes what would hold up the loop
        self._busy = False
        self.leaving = False  # unsubscribe is under way
        self._expansion = 4.0  # how many bytes of records a compressed byte makes, at the most of late
        self._until: Until | None = None  # the limits that are set on the partitions
        self._state: PartitionState | None = None  # of the batch that is being handed out record by record
        self._epoch = 0
        self._batch = _NOTHING
        self._records: Iterator[Record] = iter(())
        self._index = self._count = 0
        self._breathed = 0.0
        self.deadline = float("inf")  # of the receive under way; rebalance work done inside it looks at this

    # One by one.

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        """The next record; waits for it. Raises as :meth:`batch`."""
        if self._state is not None:
            now = trio.current_time()
            if now - self._breathed >= _BREATH:
                self._breathed = now
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.checkpoint_if_cancelled()
            if self._until is not None:
                self._limit(None)
            if self._rendezvous.pending is None and (record := self._step(now)) is not None:
                return record
        while True:
            ready = await self._next(float("inf"), None)
            if ready is not None:
                self._hold(*ready)
                if (record := self._step(trio.current_time())) is not None:
                    return record

    def record_nowait(self) -> Record:
        """The next record if it is buffered. Raises :exc:`trio.WouldBlock` if not, or if a rebalance has to be served first."""
        now = trio.current_time()
        self._claim()
        self._limit(None)
        if self._rendezvous.pending is None and (record := self._step(now)) is not None:
            return record
        self._begin(now)
        if self._rendezvous.pending is None and (ready := self._take_nowait()) is not None:
            self._hold(*ready)
            if (record := self._step(now)) is not None:
                return record
        raise trio.WouldBlock

    def _step(self, now: float) -> Record | None:
        """Hand out the next record of the held batch. Every record goes through here: it is written for speed."""
        state = self._state
        if state is None:
            return None
        if state.epoch != self._epoch or state.paused or state.revoking or state.limit is not None:
            self._release()
            return None
        if self._heartbeats is not None:
            self._heartbeats.last_poll = now
        record = next(self._records)
        state.done = state.position
        self._index = index = self._index + 1
        if index == self._count:
            state.position = self._batch.next_offset
            self._let_go()
        else:
            state.position = record[2] + 1  # its offset
        return record

    def _hold(self, state: PartitionState, batch: RecordBatch) -> None:
        self._state, self._epoch, self._batch, self._index, self._count = state, state.epoch, batch, 0, len(batch)
        self._records = iter(batch)
        self._fetcher.buffer.hand_out(batch.nbytes)
        _note_epoch(state, batch)

    def _let_go(self) -> None:
        self._state, self._batch, self._records = None, _NOTHING, iter(())

    def _release(self) -> None:
        """Put what is left of the held batch back into the buffer."""
        state = self._state
        if state is not None:
            if state.epoch == self._epoch:
                self._fetcher.buffer.put_back(state, self._batch[self._index :])
            self._let_go()

    # By batch.

    async def batch(
        self, timeout: float | None, until: Until | None = None, stop: Callable[[], bool] | None = None
    ) -> RecordBatch | None:
        """The next batch, or ``None`` past ``timeout`` (seconds; ``None``: wait) or when ``stop`` says so.

        With ``until`` only of its partitions, and only what stands before its offsets.
        """
        deadline = float("inf") if timeout is None else trio.current_time() + timeout
        ready = await self._next(deadline, until, stop)
        return None if ready is None else self._hand_out(*ready)

    async def gather(
        self, until: Until | None, stop: Callable[[], bool] | None, max_rows: int, max_bytes: int
    ) -> list[RecordBatch]:
        """The next batch, as :meth:`batch` waits for it, and what is buffered beside it; empty when ``stop`` says so.

        Only the wait can be cancelled: what has been handed out must not be lost.
        """
        batch = await self.batch(None, until, stop)
        if batch is None:
            return []
        batches = [batch]
        rows, size, breathed = len(batch), batch.nbytes, trio.current_time()
        self._busy = True
        try:
            with trio.CancelScope(shield=True):
                while rows < max_rows and size < max_bytes and (further := await self._more()) is not None:
                    batches.append(further)
                    rows, size = rows + len(further), size + further.nbytes
                    if trio.current_time() - breathed >= _BREATH:
                        await trio.lowlevel.checkpoint()
                        breathed = trio.current_time()
        finally:
            self._busy = False
        return batches

    async def _more(self) -> RecordBatch | None:
        """A further batch, if one is buffered, to go with those just handed out: these do not count as done by it."""
        while self._rendezvous.pending is None and (chunk := self._fetcher.buffer.take()) is not None:
            batch = await self._decode(chunk)
            if isinstance(batch, CorruptRecordError):
                if not chunk.stale:
                    chunk.state.refetch(chunk.state.position or 0)  # met again, and raised, by the next receive
                    self._fetcher.wake.notify()
                return None
            if (ready := self._accept(chunk, batch)) is not None:
                return self._hand_out(*ready)
        return None

    def batch_nowait(self) -> RecordBatch:
        """The next batch if it is buffered. Raises :exc:`trio.WouldBlock`."""
        self._claim()
        self._limit(None)
        self._begin(trio.current_time())
        if self._rendezvous.pending is None:
            self._release()
            if (ready := self._take_nowait()) is not None:
                return self._hand_out(*ready)
        raise trio.WouldBlock

    def _hand_out(self, state: PartitionState, batch: RecordBatch) -> RecordBatch:
        most = self._config.max_poll_records
        if most is not None and len(batch) > most:
            self._fetcher.buffer.put_back(state, batch[most:])
            batch = batch[:most]
        state.position = batch.next_offset
        self._fetcher.buffer.hand_out(batch.nbytes)
        _note_epoch(state, batch)
        return batch

    # The common path.

    async def _next(self, deadline: float, until: Until | None, stop: Callable[[], bool] | None = None) -> Ready | None:
        """Serve what is to be served, and take the next batch that holds a record; ``None`` at the deadline or stop."""
        if stop is not None or not self._fetcher.buffer.empty:  # else it waits, which gives the others their turn
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        breathed = now = trio.current_time()
        try:
            self._claim()
            self._begin(now)
        except Exception:  # it comes again at the next call: whoever makes that at once must not keep others from running
            await trio.lowlevel.cancel_shielded_checkpoint()
            raise
        self._busy = self._subscription.receiving = True
        self.deadline = deadline
        try:
            self._release()
            while True:
                if now - breathed >= _BREATH:  # there may be much that holds no record
                    await trio.lowlevel.checkpoint()
                    breathed = trio.current_time()
                await self._rendezvous.serve()
                self._check_all()
                self._limit(until)
                if stop is not None and stop():
                    return None
                if (chunk := self._fetcher.buffer.take()) is not None:
                    if (ready := self._accept(chunk, await self._decode(chunk))) is not None:
                        return ready
                    now = trio.current_time()
                elif await self._wait(deadline):
                    breathed = now = trio.current_time()
                else:
                    return None
        finally:
            self._busy = self._subscription.receiving = False
            self.deadline = float("inf")
            if self._heartbeats is not None:
                self._heartbeats.polled()

    async def _wait(self, deadline: float) -> bool:
        """Wait until there may be something; False past the deadline. The user is there meanwhile."""
        if self._heartbeats is not None:
            self._heartbeats.waiting += 1
        try:
            if deadline == float("inf"):
                await self._fetcher.arrived.wait()
                return True
            with trio.move_on_at(deadline) as scope:
                await self._fetcher.arrived.wait()
            return not scope.cancelled_caught
        finally:
            if self._heartbeats is not None:
                self._heartbeats.waiting -= 1
                self._heartbeats.polled()

    def _claim(self) -> None:
        if self._busy:
            raise trio.BusyResourceError("another task is receiving from this consumer already")
        if self.leaving:
            raise trio.BusyResourceError("unsubscribe() is under way")

    def _begin(self, now: float) -> None:
        """The user came back: what was handed out before is done."""
        if self._heartbeats is not None:
            self._heartbeats.last_poll = now
        self._check_all()
        self._fetcher.buffer.begin()
        for state in self._subscription.partitions.values():
            state.done = state.position

    def _check_all(self) -> None:
        self._check()
        if self._subscription.mode is Mode.NONE:
            raise IllegalStateError("there is nothing to receive: subscribe() or assign() first")

    def _limit(self, until: Until | None) -> None:
        """Hand out, and fetch, only what stands before the offsets of ``until`` (``None``: no limits)."""
        if until is None and self._until is None:
            return
        changed, self._until = until is not self._until, until
        for tp, state in self._subscription.partitions.items():
            state.limit = None if until is None else until.get(tp, 0)
        if changed:
            self._fetcher.wake.notify()

    def _take_nowait(self) -> Ready | None:
        while (chunk := self._fetcher.buffer.take()) is not None:
            if (ready := self._accept(chunk, self._decode_now(chunk))) is not None:
                return ready
        return None

    async def _decode(self, chunk: Chunk) -> RecordBatch | CorruptRecordError:
        if chunk.batch is not None or self._is_quick(chunk.records):
            batch = self._decode_now(chunk, most=4 * _ENOUGH)
            if not isinstance(batch, CorruptRecordError) or not first_batch(chunk.records)[2]:
                return batch  # else it may be only that much more came out of it than was to be expected
        with trio.CancelScope(shield=True):  # the chunk has left the buffer: it must not be lost
            batch = await trio.to_thread.run_sync(self._decode_now, chunk, limiter=self._limiter)
        return batch  # noqa: RET504

    def _is_quick(self, records: memoryview) -> bool:
        """Whether what :meth:`_decode_now` does next will take less than 5 ms."""
        size, magic, compressed = first_batch(records)
        if magic < 2:
            return len(records) <= _QUICK // 80 and not compressed  # by kafka-python's code
        return size * self._expansion <= 2 * _ENOUGH if compressed else len(records) <= _QUICK

    def _decode_now(self, chunk: Chunk, most: int | None = None) -> RecordBatch | CorruptRecordError:
        if chunk.batch is not None:
            return chunk.batch
        state, limit = chunk.state, self._config.receive_message_max_bytes
        try:
            decoded = decode_some(
                chunk.records,
                topic=state.tp.topic,
                partition=state.tp.partition,
                fetch_offset=state.position or 0,
                aborted=chunk.aborted,
                check_crcs=self._config.check_crcs,
                max_bytes=min(most or limit, limit),
                enough=_ENOUGH,
            )
            self._expansion = max(decoded.expansion, self._expansion * 0.9, 1.0)
            if decoded.rest:
                chunk.rest = Chunk(state, chunk.epoch, decoded.rest, decoded.aborted, chunk.end)
            return decoded.batch
        except CorruptRecordError as error:
            return error

    def _accept(self, chunk: Chunk, batch: RecordBatch | CorruptRecordError) -> Ready | None:
        """Book a decoded chunk; return what of it is to be handed out now, the rest goes back."""
        state, buffer = chunk.state, self._fetcher.buffer
        if buffer.awaited or not state.fetchable:
            self._fetcher.wake.notify()
        if chunk.stale:
            return None
        if isinstance(batch, CorruptRecordError):
            state.refetch(state.position or 0)  # and so never skipped; the user may seek past it
            raise batch
        if chunk.rest is not None:
            buffer.put_first(chunk.rest)
        elif state.fetch_offset < 0 and chunk.batch is None:
            state.fetch_offset = batch.next_offset
        elif chunk.end is not None and batch.next_offset < chunk.end:
            state.refetch(batch.next_offset)  # something corrupt follows: it is met at the head of the next fetch
        if not batch:
            _pass_over(state, max(state.position or 0, batch.next_offset))
            return None
        if not state.usable:  # paused, or to be given up, while it was decoded
            buffer.put_back(state, batch)
            return None
        if state.limit is not None and batch.next_offset > state.limit:
            whole, batch = batch, batch.head(state.limit)
            if rest := whole[len(batch) :]:
                buffer.put_back(state, rest)
            if not batch:
                _pass_over(state, state.limit)
                return None
        return state, batch


def _pass_over(state: PartitionState, offset: int) -> None:
    """Move over what holds no record. That is done at once, unless the user still holds records from before it."""
    if state.done == state.position:
        state.done = offset
    state.position = offset


def _note_epoch(state: PartitionState, batch: RecordBatch) -> None:
    epoch = batch.leader_epoch
    if epoch is not None and epoch >= 0:
        state.leader_epoch = epoch
