"""Where the membership task and the consuming task meet: rebalance listeners run in the task that consumes.

The membership task posts what is to be revoked, was lost, or is assigned, and waits. The next receive runs the listeners and
answers. Nothing is lost when that receive is cancelled: listeners that were not through are run by the next one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

import trio

from .._net.signal import Signal
from ..interfaces import RebalanceListener
from ..types import TopicPartition


class Change(Enum):
    """What happens to partitions."""

    REVOKED = "revoked"
    LOST = "lost"
    ASSIGNED = "assigned"


class Rebalance:
    """One posted change and who has been told of it."""

    __slots__ = ("change", "done", "partitions", "prepared", "told")

    def __init__(self, change: Change, partitions: tuple[TopicPartition, ...]) -> None:
        self.change, self.partitions = change, partitions
        self.prepared = False
        self.told = 0
        self.done = trio.Event()


class Rendezvous:
    """At most one change is posted at a time, by the membership task."""

    def __init__(self, before_revoke: Callable[[Sequence[TopicPartition]], Awaitable[None]], posted: Signal) -> None:
        self._before_revoke = before_revoke
        self.listeners: list[RebalanceListener] = []
        self.pending: Rebalance | None = None
        self.posted = posted

    async def post(self, change: Change, partitions: Sequence[TopicPartition]) -> None:
        """Post a change and wait until a receive has run the listeners. Cancellation: the change is withdrawn."""
        rebalance = self.pending = Rebalance(change, tuple(partitions))
        self.posted.notify()
        try:
            await rebalance.done.wait()
        finally:
            if self.pending is rebalance:
                self.pending = None

    async def serve(self) -> None:
        """Run the listeners for the posted change, if any. What a listener raises comes out once all have been told."""
        if (rebalance := self.pending) is None:
            return
        failed = await self._tell(rebalance)
        if self.pending is rebalance:
            self.pending = None
        rebalance.done.set()
        if failed is not None:
            raise failed

    async def tell(self, change: Change, partitions: Sequence[TopicPartition]) -> None:
        """Run the listeners now, in this task: for leaving the group."""
        failed = await self._tell(Rebalance(change, tuple(partitions)))
        if failed is not None:
            raise failed

    async def _tell(self, rebalance: Rebalance) -> Exception | None:
        if rebalance.change is Change.REVOKED and not rebalance.prepared:
            await self._before_revoke(rebalance.partitions)
            rebalance.prepared = True
        listeners = self.listeners if rebalance.change is Change.ASSIGNED else self.listeners[::-1]
        failed: Exception | None = None
        for listener in listeners[rebalance.told :]:
            try:
                await getattr(listener, f"on_partitions_{rebalance.change.value}")(rebalance.partitions)
            except Exception as error:
                failed = failed or error
            rebalance.told += 1
        return failed
