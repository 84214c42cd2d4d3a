"""Where the membership task and the consuming task meet: rebalance listeners run in the task that consumes.

The membership task posts what is to be revoked, was lost, or is assigned, and waits. The next receive runs the listeners and
answers. Nothing is lost when that receive is cancelled: listeners that were not through are run by the next one. On leaving, the
leaving task runs them; never are two changes told at the same time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

import trio

from .._net.signal import Signal
from ..interfaces import RebalanceListener
from ..types import TopicPartition

#: Commits what is done of partitions that go. Answers whether to go on: False when only the time of the receive was too
#: short, and since the change was posted (the second argument) there has been little of it.
BeforeRevoke = Callable[[Sequence[TopicPartition], float], Awaitable[bool]]


class Change(Enum):
    """What happens to partitions."""

    REVOKED = "revoked"
    LOST = "lost"
    ASSIGNED = "assigned"


class Rebalance:
    """One posted change and who has been told of it."""

    __slots__ = ("change", "done", "partitions", "posted_at", "prepared", "told")

    def __init__(self, change: Change, partitions: tuple[TopicPartition, ...]) -> None:
        self.change, self.partitions = change, partitions
        self.posted_at = trio.current_time()
        self.prepared = change is not Change.REVOKED
        self.told = 0
        self.done = trio.Event()


class Rendezvous:
    """At most one change is posted at a time, by the membership task."""

    def __init__(self, before_revoke: BeforeRevoke, posted: Signal) -> None:
        self._before_revoke = before_revoke
        self._heard: set[TopicPartition] = set()  # assigned, and the listeners know it
        self._telling = trio.Lock()  # a receive and a leave may be in two tasks
        self._teller: trio.lowlevel.Task | None = None  # the task in which a listener runs now
        self._around: list[trio.Nursery] = []  # its nurseries that the listener did not open
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
        """Run the listeners for what is posted, if anything. What a listener raises comes out once all have been told."""
        while (rebalance := self.pending) is not None:
            if not await self._prepare(rebalance):
                return
            async with self._telling:
                if self.pending is not rebalance:  # withdrawn meanwhile
                    continue
                failed = await self._tell(rebalance)
            if self.pending is rebalance:
                self.pending = None
            rebalance.done.set()
            if failed is not None:
                raise failed

    async def tell(self, change: Change, partitions: Sequence[TopicPartition]) -> None:
        """Run the listeners now, in this task: for leaving the group. Waits for one that still runs inside a receive."""
        rebalance = Rebalance(change, tuple(partitions))
        await self._prepare(rebalance)
        async with self._telling:
            failed = await self._tell(rebalance)
        if failed is not None:
            raise failed

    def forget(self) -> None:
        """Nothing is assigned any more; of what the listeners were not told they will not be."""
        self._heard.clear()

    def inside(self) -> bool:
        """Whether this task runs a listener, or was started inside one to end with it."""
        task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        while task is not None and task is not self._teller:
            nursery = task.parent_nursery
            if nursery is None or nursery in self._around:
                return False
            task = nursery.parent_task
        return task is not None

    async def _prepare(self, rebalance: Rebalance) -> bool:
        if not rebalance.prepared:
            rebalance.prepared = await self._before_revoke(rebalance.partitions, rebalance.posted_at)
        return rebalance.prepared

    async def _tell(self, rebalance: Rebalance) -> Exception | None:
        """Tell the listeners that have not been told yet, of a loss only what they have heard of before."""
        partitions, failed = rebalance.partitions, None
        if rebalance.change is Change.ASSIGNED:
            listeners = self.listeners
            self._heard.update(partitions)
        else:
            listeners = self.listeners[::-1]
            partitions = tuple(tp for tp in partitions if tp in self._heard)
        self._teller = trio.lowlevel.current_task()
        self._around = list(self._teller.child_nurseries)
        try:
            for listener in listeners[rebalance.told :] if partitions else ():
                try:
                    await getattr(listener, f"on_partitions_{rebalance.change.value}")(partitions)
                except Exception as error:
                    failed = failed or error
                rebalance.told += 1
        finally:
            self._teller, self._around = None, []
        if rebalance.change is not Change.ASSIGNED:
            self._heard.difference_update(partitions)
        return failed
