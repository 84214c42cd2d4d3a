"""Several records of one partition at once, each key in order.

These are the tasks around :class:`~trikafka.tasks.key_order.KeyOrder`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

import trio

from ..types import Record
from .handling import RecordAttempt
from .key_order import KeyOrder

#: The most records of a partition that may be taken from the first unfinished one on.
WINDOW = 1_000
#: Handlers without a checkpoint let other tasks run at least this often: after so many seconds, and
#: after so many records. The second limit holds in virtual time, too, where work takes no time.
_TURN, _TURN_RECORDS = 0.001, 100
#: While many bytes wait, the seconds between two looks at those of all partitions.
_LOOK = 0.1
#: The bytes that a waiting record takes beside its own: objects and entries, about as many.
_BESIDE = 500


def _size(record: Record) -> int:
    """Return about how many bytes a record that waits takes."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + _BESIDE


class KeyedWorkers:
    """The handler tasks of one partition; an async context manager.

    The end of its block waits for the records in hand. ``handle`` returns whether a record is done,
    and raises nothing. After a record that is not done, after :meth:`stop` and after a
    cancellation, no further record begins, except a record that follows one of its key that is done
    already. One task calls :meth:`ready` and :meth:`put`.

    ``orders`` has the records in hand of all partitions of the run.
    """

    def __init__(
        self,
        concurrency: int,
        handle: Callable[[RecordAttempt], Awaitable[bool]],
        orders: set[KeyOrder[RecordAttempt]] | None = None,
    ) -> None:
        # Why a worker a key, and not a task a record:
        #
        # * Records of one key must be handled one after the other. A record whose key is busy
        #   therefore waits in KeyOrder behind that key; the task that ends a record takes the next
        #   one of its key (``following``), so no other task is started for it.
        # * A commit can only name an offset before which everything is done. One slow record keeps
        #   the committed offset where it is, however many later records are done. The window bounds
        #   how many there are: all of them are handled again after a crash.
        # * The records that wait behind their keys are no longer in the consumer's buffer, so
        #   nothing else bounds their bytes. A thousand large ones would fill the memory.
        # * After stop(), of the records queued behind a busy key only those go on that lie before a
        #   record that has begun: without them, the begun record would be done but not committable.
        # * With a concurrency of 1 there is no nursery: the caller's own task handles the record.
        # * A handler may do without a checkpoint. Then a whole batch would be handled without one,
        #   and heartbeats and other tasks would wait for its end. So other tasks get a turn, before
        #   a record begins: in ready(), after which the caller checks once more whether the record
        #   may begin, or behind a record of the same key.
        # * A record whose handler has returned is done, even if a cancellation has arrived
        #   meanwhile: the work may have ended in that very moment. A handler that swallows its
        #   cancellation returns, too, so its record is done. The cancellation is raised before the
        #   next record, which does not begin.
        self._concurrency = concurrency
        self._handle = handle
        self._window = max(WINDOW, concurrency)
        self._share = self._most_waiting = sys.maxsize
        self.order = KeyOrder[RecordAttempt]()
        self._orders = {self.order} if orders is None else orders
        self._nurseries: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None
        self._room = trio.Event()
        self._turn_began = trio.current_time()
        self._turn_records = 0
        self.stopped = False

    async def __aenter__(self) -> Self:
        self._orders.add(self.order)
        if self._concurrency > 1:
            self._nurseries = trio.open_nursery()
            self._nursery = await self._nurseries.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            if self._nurseries is None:
                return None
            return await self._nurseries.__aexit__(kind, error, trace)
        finally:
            self._orders.discard(self.order)

    def allow(self, most: int, share: int) -> None:
        """Let records of about ``most`` bytes wait behind their keys, of all partitions.

        ``share`` is the part of this partition, which it may use in any case.
        """
        self._most_waiting = most
        self._share = share

    async def ready(self) -> None:
        """Wait until there is room for a record, or :meth:`stop`; let other tasks run."""
        while not self.stopped and (
            self.order.running >= self._concurrency
            or self.order.outstanding >= self._window
            or self._many_bytes_wait()
        ):
            self._room = trio.Event()
            # The bytes of another partition may fall, which does not set this event.
            with trio.move_on_after(_LOOK if self._many_bytes_wait() else math.inf):
                await self._room.wait()
        await self._begin_turn()

    def _many_bytes_wait(self) -> bool:
        if self.order.waiting < self._share:
            return False
        return sum(order.waiting for order in self._orders) >= self._most_waiting

    async def put(self, work: RecordAttempt) -> None:
        """Handle a record once no earlier one of its key is unfinished.

        To be called after :meth:`ready`, without a checkpoint in between. With a concurrency of 1,
        returns when the record is handled, else at once.
        """
        if self.stopped:
            return
        if self._nursery is None:
            self.order.add(work.offset, None, work)
            await self._run(work)
            return
        key, size = None, 0
        if isinstance(work.raw, Record):
            key = work.raw.key
            size = _size(work.raw)
        if self.order.add(work.offset, key, work, size):
            self._nursery.start_soon(self._run, work)

    def stop(self) -> None:
        """Take no more records.

        Records in hand go on, and so do those that must finish before these can be committed.
        """
        self.stopped = True
        self.order.wind_down()
        self._room.set()

    async def _run(self, work: RecordAttempt) -> None:
        following: RecordAttempt | None = work
        while following is not None:
            if not await self._handle(following):
                self.order.abandon(following.offset)
                self.stop()
                return
            following = self.order.done(following.offset)
            self._room.set()
            if following is not None:
                await self._begin_turn()

    async def _begin_turn(self) -> None:
        """Raise a cancellation; let other tasks run if the last turn is over."""
        now = trio.current_time()
        if now - self._turn_began < _TURN and self._turn_records < _TURN_RECORDS:
            self._turn_records += 1
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        self._turn_began = now
        self._turn_records = 0
        await trio.lowlevel.checkpoint()
