"""The meeting point of the membership task and the consuming task.

Rebalance listeners run in the task that consumes. The membership task posts what is revoked, lost
or assigned, and waits. The next receive runs the listeners and completes the change. A cancelled
receive loses nothing: listeners that did not return are run by the next receive. On leaving, the
leaving task runs them. Two changes are never reported at the same time.

A receive with a timeout returns when its time is over, even if a listener still runs. If the
receive cancelled the listener, the next receive would start it again, and a listener that needs
longer than the timeout would never finish. So for such a receive the listeners run in a task of the
client, which goes on. The next receive waits for that task, and raises what a listener raised. (In
Java's client poll() runs the listeners, and the timeout of poll() does not bound them.)
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from enum import Enum
from functools import partial
from typing import NamedTuple, Protocol

import trio

from ..._net.callers import caller_of
from ..._net.deadlines import GRACE
from ..._net.singleflight import StartSoon
from ...errors import ConfigurationError, KafkaTimeoutError
from ...errors.cut_off import await_user_call
from ...hooks import missing_members, plain_methods, unfit_methods
from ...interfaces import RebalanceListener
from ...types import TopicPartition

_log = logging.getLogger("trikafka.membership")
#: How similar (0 to 1) a method's name is to the one that was probably meant.
_SIMILAR = 0.85


class Change(Enum):
    """The kinds of changes to partitions."""

    REVOKED = "revoked"
    LOST = "lost"
    ASSIGNED = "assigned"


class BeforeRevoke(Protocol):
    """A function that commits what is processed of partitions that will be revoked.

    It has until ``deadline`` (of the receive or the close; Trio's clock). It returns False to ask
    for another try in the next receive: the deadline was too near, and the change was posted only
    recently (at ``since``). Otherwise it returns True.
    """

    async def __call__(
        self, partitions: Sequence[TopicPartition], since: float, deadline: float
    ) -> bool: ...


class _Posted:
    """A posted change, and the listeners that have run for it."""

    __slots__ = (
        "before_listeners",
        "change",
        "done",
        "invoked",
        "partitions",
        "posted_at",
        "prepared",
        "taken",
        "then",
    )

    def __init__(
        self,
        change: Change,
        partitions: tuple[TopicPartition, ...],
        before_listeners: Callable[[], object] | None = None,
        then: Callable[[], object] | None = None,
    ) -> None:
        self.change = change
        self.partitions = partitions
        self.before_listeners = before_listeners
        self.then = then
        self.posted_at = trio.current_time()
        self.prepared = change is not Change.REVOKED
        self.taken = False  # a receive has begun to run the listeners
        # The listeners that have run; the set in use may change before the rest has.
        self.invoked: list[RebalanceListener] = []
        self.done = trio.Event()


class _Run:
    """A run of the listeners in a task of the client, for a receive with a timeout."""

    __slots__ = ("done", "scope")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.done = trio.Event()


class _Running(NamedTuple):
    """The listener method that runs now, and since when."""

    method: str
    listener: RebalanceListener
    since: float


class RebalanceListenerInvoker:
    """The runner of the rebalance listeners, for one posted change at a time.

    The membership task posts the changes. ``wake`` is called when a change was posted, so that a
    waiting receive runs the listeners. ``limit`` returns the rebalance timeout (seconds), which the
    group's protocol decides. The group goes on without a member that takes longer, so a listener
    method that takes longer is cancelled, and not called again. ``start_soon`` starts a task of the
    client.
    """

    def __init__(
        self,
        before_revoke: BeforeRevoke,
        wake: Callable[[], object],
        limit: Callable[[], float],
        start_soon: StartSoon,
    ) -> None:
        self._before_revoke = before_revoke
        self._wake = wake
        self._limit = limit
        self._start_soon = start_soon
        self._run: _Run | None = None
        self._running: _Running | None = None
        self._failed: Exception | None = None  # the error of a listener, for the next receive
        self._heard: set[TopicPartition] = set()  # assigned, and reported to the listeners
        self._invoking = trio.Lock()  # a receive and a leave may run in two tasks
        self._invoking_task: trio.lowlevel.Task | None = None  # the task in which a listener runs
        # The nurseries of that task that the listener did not open.
        self._around: list[trio.Nursery] = []
        self._listeners: list[RebalanceListener] = []
        self._posted: _Posted | None = None

    @property
    def pending(self) -> bool:
        """True while a posted change has not been completed."""
        return self._posted is not None

    @property
    def busy(self) -> bool:
        """True while listeners run in a task of the client, whether or not a receive waits."""
        return self._run is not None

    @property
    def has_listeners(self) -> bool:
        """True if there is a listener."""
        return bool(self._listeners)

    @property
    def obstacle(self) -> str | None:
        """The reason why a posted change is not complete; ``None`` if none is posted."""
        if (running := self._running) is not None:
            seconds = trio.current_time() - running.since
            return f"{running.method} of {running.listener!r} has not returned for {seconds:.0f} s"
        if self._posted is None:
            return None
        if self._posted.taken:
            return "the commit before the revocation, or a stream's handler, has not ended"
        return (
            "the rebalance listeners have not run: they run inside receive(), which was not "
            "called since"
        )

    def use(self, listeners: Iterable[RebalanceListener]) -> None:
        """Run these listeners from now on, in this order, or in reverse when partitions go."""
        self._listeners = list(listeners)

    async def post(
        self,
        change: Change,
        partitions: Sequence[TopicPartition],
        before_listeners: Callable[[], object] | None = None,
        then: Callable[[], object] | None = None,
    ) -> None:
        """Post a change and wait until a receive has run the listeners.

        When cancelled, the change is withdrawn.

        Args:
            change: The kind of the change.
            partitions: The partitions that change.
            before_listeners: Called just before the listeners run.
            then: Completes the change. Called in the step in which the last listener has returned,
                so that the receive does not continue with partitions that were just reported as
                gone.
        """
        posted = self._posted = _Posted(change, tuple(partitions), before_listeners, then)
        self._wake()
        try:
            await posted.done.wait()
        finally:
            if self._posted is posted:
                self._posted = None

    async def invoke(self, deadline: float) -> bool:
        """Run the listeners for the posted change, if there is one.

        A commit before a revocation has until ``deadline``. When cancelled, the listener is
        cancelled too, and the next receive runs it again.

        Returns:
            False if a listener has not returned by ``deadline``. The listener goes on, and the next
            receive waits for it.

        Raises:
            Exception: The first error of a listener, once all have run.
        """
        if self.inside():
            raise trio.BusyResourceError(
                "a rebalance listener cannot receive: the receive that runs it waits for it"
            )
        while True:
            if self._run is None:
                failed = self._failed
                self._failed = None
                if failed is not None:
                    raise failed
                if (posted := self._posted) is None:
                    return True
                posted.taken = True
                if not await self._prepare(posted, deadline):
                    return True
                # The change was withdrawn, or another task runs the listeners.
                if self._posted is not posted or self._run is not None:
                    continue
                if deadline == math.inf:
                    await self._serve(posted)
                    continue
                run = self._run = _Run()
                try:
                    self._start_soon(self._serve_in_task, run, posted)
                except BaseException:
                    self._run = None
                    raise
            if not await self._ended(self._run, deadline):
                return False

    async def _ended(self, run: _Run, deadline: float) -> bool:
        """Wait for the client's task; return whether the listeners ended by ``deadline``."""
        try:
            with trio.move_on_at(max(deadline, trio.current_time() + GRACE)):
                await run.done.wait()
        except trio.Cancelled:
            run.scope.cancel()
            # A cancelled listener may still be cleaning up. That must not overlap with what the
            # user does next.
            with trio.CancelScope(shield=True):
                await run.done.wait()
            raise
        return run.done.is_set()

    async def _serve_in_task(self, run: _Run, posted: _Posted) -> None:
        try:
            with run.scope:
                await self._serve(posted)
        finally:
            self._run = None
            run.done.set()

    async def _serve(self, posted: _Posted) -> None:
        """Run the listeners for ``posted``, and complete the change."""
        async with self._invoking:
            if self._posted is not posted:  # withdrawn meanwhile
                return
            if posted.before_listeners is not None:
                posted.before_listeners()
            self._failed = await self._invoke_all(posted)
        if self._posted is posted:
            self._posted = None
            if posted.then is not None:
                posted.then()
        posted.done.set()

    async def invoke_now(
        self, change: Change, partitions: Sequence[TopicPartition], deadline: float
    ) -> None:
        """Run the listeners now, in this task, because the consumer leaves the group.

        Waits for a listener that still runs inside a receive.
        """
        posted = _Posted(change, tuple(partitions))
        await self._prepare(posted, deadline)
        async with self._invoking:
            failed = await self._invoke_all(posted)
        if failed is not None:
            raise failed

    def forget(self) -> None:
        """Forget which assignments the listeners know, because nothing is assigned any more."""
        self._heard.clear()

    def inside(self) -> bool:
        """Return whether this task runs a listener, or was started inside one and ends with it."""
        if self._invoking_task is None:
            return False
        task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        while task is not None and task is not self._invoking_task:
            if (caller := caller_of(task)) is not None:
                task = caller
                continue
            nursery = task.parent_nursery
            if nursery is None or nursery in self._around:
                return False
            task = nursery.parent_task
        return task is not None

    async def _prepare(self, posted: _Posted, deadline: float) -> bool:
        if not posted.prepared:
            posted.prepared = await self._before_revoke(
                posted.partitions, posted.posted_at, deadline
            )
        return posted.prepared

    async def _invoke_all(self, posted: _Posted) -> Exception | None:
        """Run the listeners that have not run for this change.

        A revocation or loss is reported only for partitions whose assignment was.
        """
        partitions, failed = posted.partitions, None
        if posted.change is Change.ASSIGNED:
            listeners = self._listeners
            self._heard.update(partitions)
        else:
            listeners = self._listeners[::-1]
            partitions = tuple(tp for tp in partitions if tp in self._heard)
        self._invoking_task = trio.lowlevel.current_task()
        self._around = list(self._invoking_task.child_nurseries)
        try:
            for listener in (
                [each for each in listeners if not any(each is one for one in posted.invoked)]
                if partitions
                else ()
            ):
                name = f"on_partitions_{posted.change.value}"
                try:
                    limit = self._limit()
                    self._running = _Running(name, listener, trio.current_time())
                    with trio.move_on_after(limit) as scope:
                        await await_user_call(
                            f"{name} of a {type(listener).__name__}",
                            partial(getattr(listener, name), partitions),
                            _log,
                        )
                    if scope.cancelled_caught:
                        raise KafkaTimeoutError(f"{name} of {listener!r}", limit)
                except Exception as error:
                    if failed is not None:  # only the first error is raised
                        _log.warning("%s of %r failed, too: %r", name, listener, error)
                    failed = failed or _no_end(error, name, listener)
                posted.invoked.append(listener)
        finally:
            self._invoking_task = None
            self._around = []
            self._running = None
        if posted.change is not Change.ASSIGNED:
            self._heard.difference_update(partitions)
        return failed


def _no_end(error: Exception, name: str, listener: RebalanceListener) -> Exception:
    """Return the error of a listener, or a RuntimeError in place of :exc:`StopAsyncIteration`.

    Python would take the latter for the end of the user's ``async for``.
    """
    if not isinstance(error, StopAsyncIteration):
        return error
    raised = RuntimeError(f"{name} of {listener!r} raised StopAsyncIteration")
    raised.__cause__ = error
    return raised


def check_listener(listener: RebalanceListener | None) -> None:
    """Raise :exc:`ConfigurationError` for an object that is not a rebalance listener."""
    if listener is None:
        return
    if isinstance(listener, type):
        raise ConfigurationError(
            f"listener must be an object, not a class: write {listener.__name__}(...)"
        )
    meant = _meant_methods(listener)
    if missing := missing_members(listener, RebalanceListener):
        hint = "".join(f"; did you mean {name} by {given}?" for given, name in meant.items())
        raise ConfigurationError(
            f"listener must be a RebalanceListener; {listener!r} has no {', '.join(missing)}{hint}"
        )
    for given, name in meant.items():
        raise ConfigurationError(f"{given} of {listener!r} is never called; did you mean {name}?")
    if plain := plain_methods(listener, RebalanceListener):
        raise ConfigurationError(
            f"a listener's methods must be `async def`: {', '.join(plain)} of {listener!r}"
        )
    if unfit := unfit_methods(listener, RebalanceListener):
        raise ConfigurationError(f"a listener's method cannot be called: {unfit[0]}")


def _meant_methods(listener: RebalanceListener) -> dict[str, str]:
    """Return methods with a name close to one of a listener that the object lacks or inherits.

    The result maps the given name to that of the listener.
    """
    known = {name for name in vars(RebalanceListener) if name.startswith("on_")}
    lacking = {
        _plain(name): name
        for name in known
        if getattr(type(listener), name, None) in (None, getattr(RebalanceListener, name))
        and name not in getattr(listener, "__dict__", ())
    }
    meant = {}
    for given in dir(type(listener)):
        close = (
            []
            if given in known or given.startswith("_")
            else get_close_matches(_plain(given), lacking, 1, _SIMILAR)
        )
        if close and callable(getattr(type(listener), given)):
            meant[given] = lacking[close[0]]
    return meant


def _plain(name: str) -> str:
    """Return the name without underscores and case: ``onPartitionsLost`` is a similar name, too."""
    return name.replace("_", "").lower()
