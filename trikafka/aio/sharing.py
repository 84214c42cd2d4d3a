"""The share consumer for asyncio: records are taken directly, only the wait for them crosses.

A block runs in a task of asyncio. If its lock is lost, that task is cancelled, as
:func:`asyncio.timeout` does it, and the block raises :exc:`LockLostError` in its place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import trio

from .. import Delivery as _Delivery
from .. import Record, RecordBatch
from .. import ShareBatch as _ShareBatch
from .. import ShareConsumer as _ShareConsumer
from ..errors import ClientFailedError, IllegalStateError
from ..types import Key, TopicPartition, Value
from .crossing import OpenedClient, cross
from .guest import Guest
from .methods import crossing, direct, report
from .taking import TURN

if TYPE_CHECKING:
    import pyarrow

    from .. import ShareConsumerConfig

Item = TypeVar("Item")


class _Held:
    """Records that this program has, and the block of asyncio around the work on them."""

    def __init__(self, consumer: ShareConsumer[Any, Any], held: Any) -> None:
        self._consumer = consumer
        self._held = held
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0  # of the task, when the block began
        self._cut = False  # the task was cancelled, for a lost lock

    def __repr__(self) -> str:
        return repr(self._held)

    @property
    def deadline(self) -> float:
        """The time (``time.monotonic``) at which the lock ends; each renewal moves it."""
        return float(self._held.deadline + self._consumer._guest.clock_shift)

    def accept(self) -> None:
        """Acknowledge as processed; see :meth:`trikafka.Delivery.accept`."""
        self._consumer._call(self._held.accept)

    def release(self) -> None:
        """Release the records; see :meth:`trikafka.Delivery.release`."""
        self._consumer._call(self._held.release)

    def reject(self, reason: object = None) -> None:
        """Reject the records; see :meth:`trikafka.Delivery.reject`."""
        self._consumer._call(lambda: self._held.reject(reason))

    def retract(self) -> None:
        """Withdraw what was called in the block; see :meth:`trikafka.Delivery.retract`."""
        self._consumer._call(self._held.retract)

    async def acknowledged(self) -> None:
        """Wait until the broker has taken the acknowledgement.

        Raises as :meth:`trikafka.Delivery.acknowledged`.
        """
        self._consumer._check()
        await cross(self._consumer._guest, self._held.acknowledged)

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise IllegalStateError("a block of a delivery needs a task of asyncio")
        self._consumer._call(lambda: self._held.open_elsewhere(self._cancel))
        self._task = task
        self._cancelling = task.cancelling()
        return self

    def _cancel(self, reason: str) -> None:
        """Cancel the block's task, once. Called on Trio's side."""
        task = self._task
        if task is not None and not self._cut and not self._consumer._guest.loop.is_closed():
            self._cut = True
            task.cancel(reason)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A cancellation that came with this block's own goes on, as an exception of the program
        # does. If the block ended before its own arrived, it is waited for here. Another one that
        # arrives in this wait is raised: it arrives once only.
        task = self._task
        if task is None:
            raise IllegalStateError(
                "this delivery has no open block: a block is entered once, and left once"
            )
        self._task = None
        cut = cancelled = arrived = False
        if self._cut:
            if not isinstance(error, asyncio.CancelledError):
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    arrived = True
            if task.uncancel() <= self._cancelling:
                cut = isinstance(error, asyncio.CancelledError) or (arrived and error is None)
            else:
                cancelled = arrived or error is None
        clean = error is None and not cancelled
        try:
            self._consumer._call(lambda: self._held.close_elsewhere(clean=clean, cut=cut))
        except (trio.ClosedResourceError, ClientFailedError):
            # The consumer has ended before the block, and has released its records.
            if clean or cut:
                raise
        if cancelled:
            raise asyncio.CancelledError


class Delivery(_Held, Generic[Key, Value]):
    """One record that this member holds; see :class:`trikafka.Delivery`.

    ``async with delivery:`` accepts the record on a clean exit, and releases it otherwise. If the
    lock is lost, the task inside is cancelled, and the block raises :exc:`LockLostError`.
    """

    _held: _Delivery[Key, Value]

    @property
    def record(self) -> Record[Key, Value]:
        """The record."""
        return self._held.record

    @property
    def delivery_count(self) -> int:
        """The number of deliveries of the record in the group, including this one."""
        return self._held.delivery_count


class ShareBatch(_Held, Generic[Key, Value]):
    """Records of one partition that this member holds; see :class:`trikafka.ShareBatch`."""

    _held: _ShareBatch[Key, Value]

    @property
    def records(self) -> RecordBatch[Key, Value]:
        """The records; keys and values are deserialized as they are read."""
        return self._held.records

    @property
    def topic(self) -> str:
        """The topic of the records."""
        return self._held.topic

    @property
    def partition(self) -> int:
        """The partition of the records."""
        return self._held.partition

    @property
    def delivery_counts(self) -> Sequence[int]:
        """The number of deliveries of each record in the group, including this one."""
        return self._held.delivery_counts

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Record[Key, Value]]:
        return iter(self._held)

    def acknowledge(self, verdicts: Sequence[Any]) -> None:
        """Acknowledge each record by itself; see :meth:`trikafka.ShareBatch.acknowledge`."""
        self._consumer._call(lambda: self._held.acknowledge(verdicts))

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return the records as a ``pyarrow.RecordBatch``, with their delivery counts."""
        return self._held.to_arrow()


class ShareConsumer(OpenedClient, Generic[Key, Value]):
    """A member of a share group for asyncio; :func:`trikafka.aio.open_share_consumer` opens one.

    Iterate over it for records, or use :meth:`batches`, which takes much less time in asyncio.
    Several tasks may receive at the same time. Arguments and errors are those of
    :class:`trikafka.ShareConsumer`.
    """

    _client: _ShareConsumer[Key, Value]

    def __init__(self, guest: Guest, client: _ShareConsumer[Key, Value]) -> None:
        super().__init__(guest, client)
        self._due = 0.0  # the time of the next turn of other tasks

    @property
    def config(self) -> ShareConsumerConfig:
        """The settings."""
        return self._client.config

    @property
    def member_id(self) -> str:
        """The member's id in its group."""
        return self._client.member_id

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions from which this member gets records, as far as their names are known."""
        return self._client.assignment

    def __aiter__(self) -> AsyncIterator[Delivery[Key, Value]]:
        return self

    async def __anext__(self) -> Delivery[Key, Value]:
        return await self.receive()

    async def receive(self) -> Delivery[Key, Value]:
        """Return the next record; wait until there is one.

        Raises as :meth:`trikafka.ShareConsumer.receive`. When cancelled, no record is lost.
        """
        return Delivery(self, await self._taken(self._client.receive_nowait))

    async def batches(self) -> AsyncIterator[ShareBatch[Key, Value]]:
        """Iterate over batches: records of one partition that were acquired together."""
        while True:
            yield await self.receive_batch()

    async def receive_batch(self) -> ShareBatch[Key, Value]:
        """Return the next batch of one partition's records; wait until there is one.

        Raises as :meth:`trikafka.ShareConsumer.receive`. When cancelled, no record is lost.
        """
        return ShareBatch(self, await self._taken(self._client.receive_batch_nowait))

    async def _taken(self, take: Callable[[], Item]) -> Item:
        self._check()
        if (now := time.perf_counter()) >= self._due:
            self._due = now + TURN
            await asyncio.sleep(0)
        while True:
            try:
                return self._call(take)
            except trio.WouldBlock:
                pass  # the errors of the wait must not have this one as their context
            await cross(self._guest, self._client.wait_receivable)
            self._due = time.perf_counter() + TURN

    def receive_nowait(self) -> Delivery[Key, Value]:
        """Return the next record if one is buffered.

        Raises :exc:`trio.WouldBlock` if not, else as :meth:`trikafka.ShareConsumer.receive_nowait`.
        """
        return Delivery(self, self._call(self._client.receive_nowait))

    def receive_batch_nowait(self) -> ShareBatch[Key, Value]:
        """Return the next batch if records are buffered. Raises as :meth:`receive_nowait`."""
        return ShareBatch(self, self._call(self._client.receive_batch_nowait))

    def _call(self, function: Callable[[], Item]) -> Item:
        """Call a function of Trio's side that does not wait."""
        self._check()
        try:
            return function()
        finally:
            self._guest.wake()

    flush = crossing(_ShareConsumer.flush)
    health = report(_ShareConsumer.health)
    register_metric = direct(_ShareConsumer.register_metric)
    statistics = report(_ShareConsumer.statistics)
    unregister_metric = direct(_ShareConsumer.unregister_metric)
    wait_receivable = crossing(_ShareConsumer.wait_receivable)
