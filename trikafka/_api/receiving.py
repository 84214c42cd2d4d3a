"""How records reach the user: from the fetch buffer, decoded, one by one or by batch. Owned by the consumer.

A record leaves the buffer only in the synchronous step after the last checkpoint, so a cancelled receive loses nothing. Every
receive is a sign of life (``max_poll_interval_ms``), marks what was handed out before as done, and serves rebalances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import trio

from .._managers.fetch import Fetcher
from .._managers.heartbeat import Heartbeats
from .._managers.rendezvous import Rendezvous
from .._state.fetch_buffer import Chunk
from .._state.subscription import PartitionState, Subscription
from .._wire.columns import RecordBatch
from .._wire.records import IMPLEMENTATION, decode_records
from ..config import ConsumerConfig
from ..errors import CorruptRecordError
from ..types import Record, TopicPartition

#: Iteration over buffered records lets other tasks run at least this often (seconds).
_BREATH = 0.001
#: Bytes that are decoded within about 5 ms, and so in the event loop: plain, and compressed.
_QUICK = (4_000_000, 400_000) if IMPLEMENTATION == "native" else (50_000, 20_000)


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
        self._state: PartitionState | None = None  # of the batch that is being handed out record by record
        self._epoch = 0
        self._batch = RecordBatch.empty()
        self._records: Iterator[Record] = iter(())
        self._index = 0
        self._breathed = 0.0
        self.deadline = float("inf")  # of the receive under way; rebalance work done inside it looks at this

    # One by one.

    async def record(self) -> Record:
        """The next record; waits for it. Raises as :meth:`batch`."""
        now = trio.current_time()
        if now - self._breathed >= _BREATH:
            self._breathed = now
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        if self._rendezvous.pending is None and (record := self._step(now)) is not None:
            return record
        while True:
            batch = await self._next(float("inf"), None)
            if batch is not None:
                self._hold(batch)
                if (record := self._step(trio.current_time())) is not None:
                    return record

    def record_nowait(self) -> Record:
        """The next record if it is buffered. Raises :exc:`trio.WouldBlock` if not, or if a rebalance has to be served first."""
        now = trio.current_time()
        self._begin(now)
        if self._rendezvous.pending is None:
            if (record := self._step(now)) is not None:
                return record
            while (batch := self._take_nowait()) is not None:
                self._hold(batch)
                if (record := self._step(now)) is not None:
                    return record
        raise trio.WouldBlock

    def _step(self, now: float) -> Record | None:
        """Hand out the next record of the held batch."""
        state = self._state
        if state is None:
            return None
        if state.epoch != self._epoch or not state.usable:
            self._let_go()
            return None
        if self._heartbeats is not None:
            self._heartbeats.last_poll = now
        record = next(self._records, None)
        if record is None:
            state.done = state.position = self._batch.next_offset
            self._let_go()
            return None
        state.done = state.position
        self._index += 1
        state.position = record.offset + 1
        return record

    def _hold(self, batch: RecordBatch) -> None:
        state = self._subscription.partitions[TopicPartition(batch.topic, batch.partition)]
        self._state, self._epoch, self._batch, self._index = state, state.epoch, batch, 0
        self._records = iter(batch)

    def _let_go(self) -> None:
        state, self._state = self._state, None
        if state is not None and state.paused and state.epoch == self._epoch and state.position is not None:
            state.jump(state.position)  # paused in the middle: the rest is fetched again after resume
        self._batch, self._records, self._index = RecordBatch.empty(), iter(()), 0

    # By batch.

    async def batch(self, timeout: float | None, stop: Callable[[], bool] | None = None) -> RecordBatch | None:
        """The next batch, or ``None`` past ``timeout`` (seconds; ``None``: wait) or when ``stop`` says so."""
        await trio.lowlevel.checkpoint()
        deadline = float("inf") if timeout is None else trio.current_time() + timeout
        batch = self._held() if self._rendezvous.pending is None else None
        if batch is None:
            batch = await self._next(deadline, stop)
        return None if batch is None else self._hand_out(batch)

    def batch_nowait(self) -> RecordBatch:
        """The next batch if it is buffered. Raises :exc:`trio.WouldBlock`."""
        self._begin(trio.current_time())
        batch = None
        if self._rendezvous.pending is None:
            batch = self._held() or self._take_nowait()
        if batch is None:
            raise trio.WouldBlock
        return self._hand_out(batch)

    def _held(self) -> RecordBatch | None:
        """What is left of a batch that was begun."""
        state, batch, index = self._state, self._batch, self._index
        if state is None or state.epoch != self._epoch or not state.usable:
            self._let_go()
            return None
        self._begin(trio.current_time())
        self._state = None
        self._let_go()
        rest = batch[index:] if state.limit is None else batch[index:].head(state.limit)
        return rest or None

    def _hand_out(self, batch: RecordBatch) -> RecordBatch:
        state = self._subscription.partitions[TopicPartition(batch.topic, batch.partition)]
        most = self._config.max_poll_records
        if most is not None and len(batch) > most:
            self._hold(batch)
            self._index = most
            for _ in range(most):
                next(self._records)
            batch = batch[:most]
        state.position = batch.next_offset
        if batch.leader_epoch is not None and batch.leader_epoch >= 0:
            state.leader_epoch = batch.leader_epoch
        return batch

    # The common path.

    async def _next(self, deadline: float, stop: Callable[[], bool] | None) -> RecordBatch | None:
        """Serve what is to be served, and take the next batch that holds a record; ``None`` at the deadline or stop."""
        if self._busy:
            raise trio.BusyResourceError("another task is receiving from this consumer already")
        self._busy, self.deadline = True, deadline
        if self._heartbeats is not None:
            self._heartbeats.waiting += 1
        try:
            self._begin(trio.current_time())
            while True:
                await self._rendezvous.serve()
                self._check()
                if stop is not None and stop():
                    return None
                if (chunk := self._fetcher.buffer.take()) is not None:
                    batch = await self._decode(chunk)
                    if batch is not None:
                        return batch
                    continue
                with trio.move_on_at(deadline) as scope:
                    await self._fetcher.arrived.wait()
                if scope.cancelled_caught:
                    return None
        finally:
            self._busy, self.deadline = False, float("inf")
            if self._heartbeats is not None:
                self._heartbeats.waiting -= 1
                self._heartbeats.polled()

    def _begin(self, now: float) -> None:
        """The user came back: what was handed out before is done."""
        self._check()
        if self._heartbeats is not None:
            self._heartbeats.last_poll = now
        for state in self._subscription.partitions.values():
            state.done = state.position

    def _take_nowait(self) -> RecordBatch | None:
        while (chunk := self._fetcher.buffer.take()) is not None:
            batch = self._taken(chunk, self._decode_now(chunk))
            if batch is not None:
                return batch
        return None

    async def _decode(self, chunk: Chunk) -> RecordBatch | None:
        if _is_quick(chunk.records):
            return self._taken(chunk, self._decode_now(chunk))
        with trio.CancelScope(shield=True):  # the chunk has left the buffer: it must not be lost
            decoded = await trio.to_thread.run_sync(self._decode_now, chunk, limiter=self._limiter)
        return self._taken(chunk, decoded)

    def _decode_now(self, chunk: Chunk) -> RecordBatch | CorruptRecordError:
        state = chunk.state
        try:
            return decode_records(
                chunk.records,
                topic=state.tp.topic,
                partition=state.tp.partition,
                fetch_offset=state.position or 0,
                aborted=chunk.aborted,
                check_crcs=self._config.check_crcs,
                max_bytes=self._config.receive_message_max_bytes,
            )
        except CorruptRecordError as error:
            return error

    def _taken(self, chunk: Chunk, batch: RecordBatch | CorruptRecordError) -> RecordBatch | None:
        """Book a decoded chunk; return it if it holds records that are still wanted."""
        state = chunk.state
        self._fetcher.wake.notify()
        if chunk.stale:
            return None
        if isinstance(batch, CorruptRecordError):
            state.jump(state.position or 0)  # it is fetched again, and never skipped; the user may seek past it
            raise batch
        if state.fetch_offset < 0:
            state.fetch_offset = batch.next_offset
        if state.limit is not None:
            batch = batch.head(state.limit)
        if not batch:
            state.done = state.position = max(state.position or 0, batch.next_offset)
            return None
        return batch


def _is_quick(records: memoryview) -> bool:
    compressed = len(records) > 22 and records[22] & 0x07 != 0
    return len(records) <= _QUICK[compressed]
