"""Where the membership task and the consuming task meet: rebalance listeners run in the task that consumes.

The membership task posts what is to be revoked, was lost, or is assigned, and waits. The next receive runs the listeners and
answers. Nothing is lost when that receive is cancelled: listeners that were not through are run by the next one. On leaving, the
leaving task runs them; never are two changes told at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from enum import Enum
from typing import Protocol

import trio

from ..errors import ConfigurationError, KafkaTimeoutError
from ..hooks import missing_members, plain_methods
from ..interfaces import RebalanceListener
from ..types import TopicPartition

_log = logging.getLogger("trikafka.membership")
#: How much alike (0 to 1) the name of a method is that was meant to be another.
_SIMILAR = 0.85


class Change(Enum):
    """What happens to partitions."""

    REVOKED = "revoked"
    LOST = "lost"
    ASSIGNED = "assigned"


class BeforeRevoke(Protocol):
    """Commits what is processed of partitions that go, until ``deadline`` (of the receive or the close; Trio's clock).

    Answers whether to go on: False when only that deadline was too near, and since the change was posted (``since``) there has
    been little time for it.
    """

    async def __call__(self, partitions: Sequence[TopicPartition], since: float, deadline: float) -> bool: ...


class _Posted:
    """One posted change and who has been told of it."""

    __slots__ = ("change", "done", "partitions", "posted_at", "prepared", "telling", "then", "told")

    def __init__(
        self,
        change: Change,
        partitions: tuple[TopicPartition, ...],
        telling: Callable[[], object] | None = None,
        then: Callable[[], object] | None = None,
    ) -> None:
        self.change, self.partitions, self.telling, self.then = change, partitions, telling, then
        self.posted_at = trio.current_time()
        self.prepared = change is not Change.REVOKED
        self.told: list[RebalanceListener] = []  # others may be used by the time that the rest is
        self.done = trio.Event()


class RebalanceListenerInvoker:
    """Runs the rebalance listeners. At most one change is posted at a time, by the membership task.

    ``wake`` is called when something was posted: a receive that waits has to look. ``limit`` tells the rebalance timeout
    (seconds), which the group's protocol decides. The group goes on without a member that takes longer, so a method of a listener
    that does is cancelled and not called again.
    """

    def __init__(self, before_revoke: BeforeRevoke, wake: Callable[[], object], limit: Callable[[], float]) -> None:
        self._before_revoke, self._wake, self._limit = before_revoke, wake, limit
        self._heard: set[TopicPartition] = set()  # assigned, and the listeners know it
        self._telling = trio.Lock()  # a receive and a leave may be in two tasks
        self._teller: trio.lowlevel.Task | None = None  # the task in which a listener runs now
        self._around: list[trio.Nursery] = []  # its nurseries that the listener did not open
        self._listeners: list[RebalanceListener] = []
        self._posted: _Posted | None = None

    @property
    def pending(self) -> bool:
        """Whether a change was posted that has not been told yet."""
        return self._posted is not None

    @property
    def has_listeners(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self._listeners)

    def use(self, listeners: Iterable[RebalanceListener]) -> None:
        """Tell these from now on, in this order (of what goes: in the reverse one)."""
        self._listeners = list(listeners)

    async def post(
        self,
        change: Change,
        partitions: Sequence[TopicPartition],
        telling: Callable[[], object] | None = None,
        then: Callable[[], object] | None = None,
    ) -> None:
        """Post a change and wait until a receive has run the listeners; ``telling`` is called just before they are.

        ``then`` makes it so, in the step after them: whoever receives does not go on with what he was told is gone.
        Cancellation: the change is withdrawn.
        """
        posted = self._posted = _Posted(change, tuple(partitions), telling, then)
        self._wake()
        try:
            await posted.done.wait()
        finally:
            if self._posted is posted:
                self._posted = None

    async def invoke(self, deadline: float) -> None:
        """Run the listeners for what is posted, if anything; commits before a revocation have until ``deadline``.

        What a listener raises comes out once all have been told.
        """
        while (posted := self._posted) is not None:
            if not await self._prepare(posted, deadline):
                return
            async with self._telling:
                if self._posted is not posted:  # withdrawn meanwhile
                    continue
                if posted.telling is not None:
                    posted.telling()
                failed = await self._tell(posted)
            if self._posted is posted:
                self._posted = None
                if posted.then is not None:
                    posted.then()
            posted.done.set()
            if failed is not None:
                raise failed

    async def tell(self, change: Change, partitions: Sequence[TopicPartition], deadline: float) -> None:
        """Run the listeners now, in this task: for leaving the group. Waits for one that still runs inside a receive."""
        posted = _Posted(change, tuple(partitions))
        await self._prepare(posted, deadline)
        async with self._telling:
            failed = await self._tell(posted)
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

    async def _prepare(self, posted: _Posted, deadline: float) -> bool:
        if not posted.prepared:
            posted.prepared = await self._before_revoke(posted.partitions, posted.posted_at, deadline)
        return posted.prepared

    async def _tell(self, posted: _Posted) -> Exception | None:
        """Tell the listeners that have not been told yet, of a loss only what they have heard of before."""
        partitions, failed = posted.partitions, None
        if posted.change is Change.ASSIGNED:
            listeners = self._listeners
            self._heard.update(partitions)
        else:
            listeners = self._listeners[::-1]
            partitions = tuple(tp for tp in partitions if tp in self._heard)
        self._teller = trio.lowlevel.current_task()
        self._around = list(self._teller.child_nurseries)
        try:
            for listener in [each for each in listeners if not any(each is one for one in posted.told)] if partitions else ():
                name = f"on_partitions_{posted.change.value}"
                try:
                    limit = self._limit()
                    with trio.move_on_after(limit) as scope:
                        await getattr(listener, name)(partitions)
                    if scope.cancelled_caught:
                        raise KafkaTimeoutError(f"{name} of {listener!r}", limit)
                except Exception as error:
                    if failed is not None:  # only the first comes out
                        _log.warning("%s of %r failed, too: %r", name, listener, error)
                    failed = failed or error
                posted.told.append(listener)
        finally:
            self._teller, self._around = None, []
        if posted.change is not Change.ASSIGNED:
            self._heard.difference_update(partitions)
        return failed


def check_listener(listener: RebalanceListener | None) -> None:
    """Raise :exc:`ConfigurationError` for what a user gave as a listener and is none."""
    if listener is None:
        return
    if isinstance(listener, type):
        raise ConfigurationError(f"listener must be an object, not a class: write {listener.__name__}(...)")
    meant = _meant_methods(listener)
    if missing := missing_members(listener, RebalanceListener):
        hint = "".join(f"; did you mean {name} by {given}?" for given, name in meant.items())
        raise ConfigurationError(f"listener must be a RebalanceListener; {listener!r} has no {', '.join(missing)}{hint}")
    for given, name in meant.items():
        raise ConfigurationError(f"nobody calls {given} of {listener!r}; did you mean {name}?")
    if plain := plain_methods(listener, RebalanceListener):
        raise ConfigurationError(f"a listener's methods must be `async def`: {', '.join(plain)} of {listener!r}")


def _meant_methods(listener: RebalanceListener) -> dict[str, str]:
    """Methods whose names are nearly those of a listener's methods that it does not have, or only inherits: name -> that name."""
    known = {name for name in vars(RebalanceListener) if name.startswith("on_")}
    lacking = {
        _plain(name): name
        for name in known
        if getattr(type(listener), name, None) in (None, getattr(RebalanceListener, name))
        and name not in getattr(listener, "__dict__", ())
    }
    meant = {}
    for given in dir(type(listener)):
        close = [] if given in known or given.startswith("_") else get_close_matches(_plain(given), lacking, 1, _SIMILAR)
        if close and callable(getattr(type(listener), given)):
            meant[given] = lacking[close[0]]
    return meant


def _plain(name: str) -> str:
    """``onPartitionsLost`` is as good as ``on_partitions_lost``."""
    return name.replace("_", "").lower()
