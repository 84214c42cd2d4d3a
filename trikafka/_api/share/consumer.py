"""The share consumer: a queue of records that many members share (KIP-932)."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

import trio

from ..._state.group.member import MemberState
from ..._state.share.acquired import AcquiredRecords
from ..._state.share.buffer import Resolved
from ..._state.share.session import Slice
from ..._wire import _implementation
from ..._wire.share import AckType
from ...config import ShareConsumerConfig
from ...errors import AcknowledgementError, LockLostError
from ...errors.copies import again
from ...types import Key, TopicPartition, Value
from ..client.deserializing import AwaitedBatch
from ..client.metering import MeteredClient
from ..client.service import Exit
from .delivery import Delivery, ShareBatch
from .health import ShareConsumerHealth, ShareConsumerStatistics, share_health, share_statistics
from .parts import ShareParts

_log = logging.getLogger("trikafka.share")
#: Receives from the buffer let other tasks run at least this often (seconds).
_TURN = 0.001
Item = TypeVar("Item")
#: What is taken from the buffer: acquired records, and which of them.
Popped = TypeVar("Popped", bound=tuple[AcquiredRecords, *tuple[Any, ...]])


class ShareConsumer(MeteredClient, Generic[Key, Value]):
    """A member of a share group: :func:`trikafka.open_share_consumer` opens one.

    ``async for delivery in queue`` iterates over the records that the group gives to this member.
    Several tasks may receive at the same time; each record goes to one of them.
    """

    def __init__(self, parts: ShareParts) -> None:
        self._parts = parts
        self._metrics = parts.metrics
        self._deserializers = parts.deserializers
        self._awaits = parts.deserializers is not None and parts.deserializers.are_async
        self._buffer = parts.core.buffer
        self._now = parts.core.now
        self._goes_on = parts.core.goes_on
        self._turn_ends = -math.inf  # by the core's clock
        self._keep_until = math.inf  # until when what is received in this turn is renewed
        self._longest = parts.config.max_processing_ms / 1000
        self._closing = False
        core = parts.core
        now = None if parts.core.own_clock else parts.core.now
        deliver = self._deliver if parts.deserializers is not None else None
        native = _implementation.current
        turn = native.Turn(_TURN, core.current_task, now)
        self._deliveries = native.DeliveryIterator(
            self.receive, turn, core.buffer, parts, Delivery, deliver
        )

    @property
    def config(self) -> ShareConsumerConfig:
        """The settings."""
        return self._parts.config

    @property
    def is_closed(self) -> bool:
        """True once closing has begun: nothing is received any more."""
        return self._closing or self._parts.closed

    @property
    def member_id(self) -> str:
        """The member's id in its group."""
        return self._parts.membership.member_id

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions from which this member gets records, as far as their names are known."""
        return self._parts.assignment()

    def __aiter__(self) -> AsyncIterator[Delivery[Key, Value]]:
        return self._deliveries

    async def receive(self) -> Delivery[Key, Value]:
        """Return the next record; wait until there is one.

        Raises:
            trio.ClosedResourceError: The share consumer is closed.
            CorruptRecordError: Records are damaged, and are rejected. Or their checksum is right,
                and only this client cannot read them (they decompress to more than
                ``receive_message_max_bytes``): then they are released. The next call goes on.
            DeserializationError: A record cannot be deserialized. It is released.
            UnsupportedVersionError: The brokers have no share groups.
            AuthorizationError: The member was refused, as by :exc:`AuthenticationError` and
                :exc:`GroupFullError`. One receive raises that; the member tries again.
            TrikafkaError: The member cannot go on.

        When cancelled, no record is lost: the next receive returns it.
        """
        # Within a turn of 1 ms a record that is at hand is delivered without a checkpoint, and the
        # errors and the other states that _next looks at have their effect at the turn's end. A
        # record that the close, or the member's leaving, has given back is not at hand any more.
        delivery = self._deliveries.at_hand()
        if delivery is not None:
            at_hand: Delivery[Key, Value] = delivery
            return at_hand
        if self._now() < self._turn_ends and self._goes_on():
            delivery = self._pop_delivery()
            if delivery is not None:
                return delivery
        if self._awaits:
            return await self._next_awaited(self._pop_awaited)
        return await self._next(self._pop_delivery)

    __anext__ = receive

    async def batches(self) -> AsyncIterator[ShareBatch[Key, Value]]:
        """Iterate over batches: records of one partition that were acquired together.

        Raises as :meth:`receive`.
        """
        while True:
            yield await self.receive_batch()

    async def receive_batch(self) -> ShareBatch[Key, Value]:
        """Return the next batch of one partition's records; wait until there is one.

        Raises as :meth:`receive`.
        """
        if self._awaits:
            return await self._next_awaited(self._pop_awaited_batch)
        return await self._next(self._pop_batch)

    def receive_nowait(self) -> Delivery[Key, Value]:
        """Return the next record if one is buffered.

        Raises :exc:`trio.WouldBlock` if not, or until :meth:`wait_receivable` has awaited its async
        deserializers; else as :meth:`receive`.
        """
        return self._next_nowait(self._pop_awaited if self._awaits else self._pop_delivery)

    def receive_batch_nowait(self) -> ShareBatch[Key, Value]:
        """Return the next batch if records are buffered.

        Raises as :meth:`receive_nowait`.
        """
        return self._next_nowait(self._pop_awaited_batch if self._awaits else self._pop_batch)

    async def wait_receivable(self) -> bool:
        """Wait until a record is buffered, or an error for a receive; return True.

        Async deserializers are awaited here.

        Raises as :meth:`receive`. When cancelled, nothing is lost: this takes no record.
        """
        core = self._parts.core
        await trio.lowlevel.checkpoint()
        self._check()
        core.holdings.receives(trio.current_time())
        while True:
            self._check()
            if self._awaits:
                if self._buffer.resolved() is not None:
                    return True
                await self._resolve()
                continue
            if self._buffer:
                return True
            self._received(trio.current_time())
            core.wake.notify()
            with core.poll_timer.waiting():
                await core.deliver.wait()

    async def flush(self) -> None:
        """Send every acknowledgement made so far; return when the brokers have taken them.

        There is no limit of its own: an acknowledgement without an outcome fails at the end of its
        lock. When cancelled, those on their way go on, and :meth:`Delivery.acknowledged` has their
        outcome.

        Raises:
            AcknowledgementError: One of them failed.
            LockLostError: One of them came too late.
        """
        await trio.lowlevel.checkpoint()
        self._parts.home.check()
        waiting = self._parts.waiting()
        await self._parts.fetcher.flush()
        for acquired, start, stop in waiting:
            for index in range(start, stop):
                error = acquired.error(index)
                if isinstance(error, AcknowledgementError | LockLostError):
                    raise again(error)

    def health(self) -> ShareConsumerHealth:
        """Return the health of the share consumer, for probes and alerts.

        Another thread calls it by :func:`trio.from_thread.run_sync`.
        """
        self._check_run()
        return share_health(self._parts)

    def statistics(self) -> ShareConsumerStatistics:
        """Return a snapshot of the counters and states."""
        self._check_run()
        return share_statistics(self._parts)

    def __repr__(self) -> str:
        return f"<trikafka.ShareConsumer of group {self._parts.config.group_id!r}>"

    # --- receiving ---

    async def _next(self, pop: Callable[[], Item | None]) -> Item:
        core = self._parts.core
        # Only once for each call of the program. The loop below also runs after each response of a
        # fetch, which does not show that the program is quick.
        core.holdings.receives(trio.current_time())
        while True:
            # A record leaves the buffer in the step after the last checkpoint, so a cancelled
            # receive takes none.
            over = core.now() >= self._turn_ends
            if over:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.checkpoint_if_cancelled()
            self._check()
            self._received(trio.current_time())
            # Only here: the other receives of a turn count on what this one has noted.
            if over and not self._awaits:
                self._turn_ends = core.now() + _TURN
                self._deliveries.turn_begun(self._keep_until)
            item = pop()
            if item is not None:
                core.holdings.receives(trio.current_time())
                return item
            core.wake.notify()  # nothing is buffered any more: the smallest fetch helps
            with core.poll_timer.waiting():
                await core.deliver.wait()

    def _next_nowait(self, pop: Callable[[], Item | None]) -> Item:
        self._check()
        self._received(trio.current_time())
        self._parts.core.holdings.receives(trio.current_time())
        item = pop()
        if item is None:
            self._parts.core.wake.notify()
            raise trio.WouldBlock
        return item

    def _received(self, now: float) -> None:
        """Record that the program receives; a stale member joins again."""
        core = self._parts.core
        self._keep_until = now + self._longest
        core.poll_timer.polled(now)
        if core.member.state is MemberState.STALE:
            core.returned.notify()

    def _check_run(self) -> None:
        """Raise in another Trio run or thread, unless the consumer is closed."""
        if not self._parts.closed:
            self._parts.home.check()

    def _check(self) -> None:
        if self._parts.closed:
            raise trio.ClosedResourceError("the share consumer is closed")
        self._parts.home.check()
        if (fatal := self._parts.membership.fatal) is not None:
            raise again(fatal)
        if (refusal := self._parts.core.member.pop_refusal()) is not None:
            raise again(refusal)

    def _pop_delivery(self) -> Delivery[Key, Value] | None:
        found = self._popped(self._buffer.pop_record)
        return None if found is None else self._deliver(*found)

    # An interrupt between the two lines would leave records whose locks are renewed without an end.
    @trio.lowlevel.enable_ki_protection
    def _popped(self, pop: Callable[[], Popped | None]) -> Popped | None:
        """Take records from the buffer; limit how long they are held if nothing becomes of them."""
        if (found := pop()) is not None:
            self._keep(found[0])
        return found

    def _deliver(self, acquired: AcquiredRecords, index: int, record: Any) -> Delivery[Key, Value]:
        if self._deserializers is not None:
            try:
                record = self._deserializers.apply(record)
            except BaseException:  # an interrupt, too: nothing else would release the record
                acquired.decide(index, index + 1, bytes((AckType.RELEASE,)))
                raise
        return Delivery(self._parts, acquired, index, record)

    def _pop_batch(self) -> ShareBatch[Key, Value] | None:
        found = self._popped(self._buffer.pop_run)
        return None if found is None else ShareBatch(self._parts, *found)

    # --- async deserializers ---
    #
    # The functions are called before anything is delivered. What they have returned waits in the
    # buffer, for the next receive of any task: a receive that is cut loses neither a record nor a
    # result, and takes no delivery of a record's limit.

    async def _next_awaited(self, pop: Callable[[], Item | None]) -> Item:
        await trio.lowlevel.checkpoint()
        while True:
            self._check()
            self._received(trio.current_time())
            item = pop()
            if item is not None:
                self._parts.core.holdings.receives(trio.current_time())
                return item
            await self._resolve()

    async def _resolve(self) -> None:
        """Have async deserializers called for the next records, unless some are resolved."""
        work = await self._next(self._pop_unresolved)
        if not work:
            return
        acquired, start, stop = work[0]
        assert acquired.records is not None
        assert self._deserializers is not None
        batch = self._deserializers.batch(acquired.records[start:stop])
        assert isinstance(batch, AwaitedBatch)
        core, known = self._parts.core, start
        # The functions have the time of a block. They count as the program's presence meanwhile.
        # Their end is that of the scope alone: if the locks were kept as long, and no longer, both
        # ends would fall into one moment, and all records would be released for a slow one.
        with trio.move_on_after(self._longest) as scope, core.deserializes():
            try:
                acquired.keep(math.inf)
                await batch.resolve()
            finally:
                acquired.keep(trio.current_time() + self._longest)
                known += batch.known
                self._buffer.put_back(acquired, known, stop)
                if known > start:
                    self._buffer.put_resolved(Resolved(acquired, start, known, batch))
                core.deliver.notify()
        if scope.cancelled_caught and known < stop:
            _log.warning(
                "an async deserializer of %s at offset %d was cancelled after max_processing_ms; "
                "the record is released",
                acquired.partition,
                acquired.offsets[known],
            )
            acquired.release_overdue(
                known, known + 1, bytes((AckType.RELEASE,)), "max_processing_ms passed"
            )

    def _pop_unresolved(self) -> list[Slice] | None:
        """Take records whose deserializers are to be called; no slice if others are resolved."""
        if self._buffer.resolved() is not None:
            return []
        found = self._popped(self._buffer.pop_run)
        return None if found is None else [found]

    def _pop_awaited(self) -> Delivery[Key, Value] | None:
        resolved = self._buffer.resolved()
        if resolved is None:
            return None
        acquired, index = resolved.acquired, resolved.start
        self._keep(acquired)
        try:
            record: Any = next(iter(resolved.take(1)))
        except BaseException:  # an interrupt, too: nothing else would release the record
            resolved.skip(index)
            acquired.decide(index, index + 1, bytes((AckType.RELEASE,)))
            raise
        return Delivery(self._parts, acquired, index, record)

    def _pop_awaited_batch(self) -> ShareBatch[Key, Value] | None:
        resolved = self._buffer.resolved()
        if resolved is None:
            return None
        acquired = resolved.acquired
        start = resolved.start
        stop = resolved.stop
        self._keep(acquired)
        return ShareBatch(self._parts, acquired, start, stop, resolved.take(stop - start))

    def _keep(self, acquired: AcquiredRecords) -> None:
        acquired.keep(self._keep_until)

    # --- the end ---

    async def _finish(self, how: Exit) -> None:
        if not self._closing:
            self._closing = True
            await self._parts.close(trio.current_effective_deadline())
