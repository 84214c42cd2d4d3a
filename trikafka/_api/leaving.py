"""How a consumer leaves: last commit, revoke hooks, LeaveGroup, in this order and once at a time. Owned by the consumer.

Whoever leaves while somebody else does waits for that leave, and may shorten it. What becomes of the consumer then, a new start
or the end, is for its caller to say, in the synchronous step after :meth:`Leaving.run`, however that ended.

A part of the time is kept for LeaveGroup, whatever the commit and the hooks take: without it the partitions would lie idle for a
session. (Seed 000: better a little longer to close properly.)
"""

from __future__ import annotations

import logging
import math

import trio

from .._managers.listener_invoker import Change
from .._net.deadlines import GRACE
from .._state.member import MemberState
from ..types import TopicPartition
from .consumer_parts import ConsumerParts
from .service import Exit

_log = logging.getLogger("trikafka.consumer")
#: What is kept of the time for LeaveGroup: this share, and never more than so many seconds.
_KEPT_SHARE, _KEPT_MOST = 0.25, 1.0
_BETWEEN_GENERATIONS = frozenset({MemberState.JOINING, MemberState.SYNCING})


class Leaving:
    """The leave that is under way, if there is one."""

    def __init__(self, parts: ConsumerParts) -> None:
        self._parts = parts
        self._ended: trio.Event | None = None  # while one is under way
        self._began = 0.0
        self._deadline = math.inf
        self._scope = trio.CancelScope()  # of the step under way
        self._last_step = False
        self.complete = False  # the last leave was not cut: the group was told, or the time was up

    @property
    def under_way(self) -> bool:
        """Whether some task leaves now."""
        return self._ended is not None

    @property
    def revoking(self) -> bool:
        """Whether handlers are waited for, the last commit is made or the hooks run: the group has not been left yet."""
        return self._ended is not None and not self._last_step

    async def join(self, deadline: float) -> None:
        """Wait for the leave under way; the earlier deadline counts."""
        assert self._ended is not None
        self._deadline = min(deadline, self._deadline)
        self._scope.deadline = min(self._scope.deadline, self._step_ends())
        await self._ended.wait()

    def begin(self, deadline: float) -> None:
        """From now on a leave is under way: :meth:`run` follows."""
        assert self._ended is None
        self._ended, self.complete, self._last_step = trio.Event(), False, False
        self._began, self._deadline = trio.current_time(), deadline

    async def run(self, how: Exit, *, closing: bool) -> None:
        """Stop following the group, commit what is done, run the revoke hooks, leave the group. Raises what a hook raised, last.

        A step past the deadline still gets ``GRACE``. Cancelled: at once, and :attr:`complete` is false. ``closing``: for good.
        """
        ended = self._ended
        assert ended is not None
        parts = self._parts
        if parts.group.auto_commit is not None:
            parts.group.auto_commit.hold()
        try:
            parts.core.poll_timer.check_session(trio.current_time())  # a blocked loop may have let nobody look at the clock
            if parts.core.member.state in _BETWEEN_GENERATIONS:
                await self._commit_first(how)
            await parts.group.stop()
            failed = await self._revoke_all(how)
            self._last_step = True
            with self._step():
                await parts.group.leave(closing=closing)
            self.complete = True
        finally:
            self._ended = None
            ended.set()
        if failed is not None:
            raise failed

    async def _commit_first(self, how: Exit) -> None:
        """Deliver nothing more; the last commit of a member that reads on while the group rebalances.

        By the coordinator's word it may be in the next generation already, or the one whose assignment the group waits for. It
        cannot commit before it knows, and will not know once it has stopped.
        """
        if owned := self._end_delivery(how):
            now = trio.current_time()
            with self._step():
                until = min(self._step_ends(), now + self._parts.config.request_timeout)
                if how is Exit.CANCELLED:
                    await self._parts.group.auto_commit_now(owned, now + max(0.0, until - now) / 2)
                else:
                    await self._parts.before_revoke(owned, now, until)

    def _end_delivery(self, how: Exit) -> list[TopicPartition]:
        if how is Exit.CLEAN:
            self._parts.core.assignment.all_processed(besides=self._parts.streams.partitions)
        return self._parts.core.assignment.begin_revocation()

    async def _revoke_all(self, how: Exit) -> Exception | None:
        """Deliver nothing more; the last commit, and, unless cancelled, the listeners."""
        parts, core = self._parts, self._parts.core
        owned = self._end_delivery(how)
        lost = core.member.state in (MemberState.FENCED, MemberState.STALE)
        with self._step() as scope:
            # A commit that nobody answers is given up after its own limit: the rest of the time is for what follows.
            commits_until = min(self._step_ends(), trio.current_time() + parts.config.request_timeout)
            if how is Exit.CANCELLED:
                now = trio.current_time()
                scope.deadline = min(scope.deadline, now + max(0.0, self._deadline - now) / 2)
                if not lost:
                    await parts.group.auto_commit_now(owned, commits_until)
            elif core.subscription.grouped and owned:
                if not lost:
                    core.member.to(MemberState.LEAVING)
                try:
                    await parts.invoker.tell(Change.LOST if lost else Change.REVOKED, owned, commits_until)
                except Exception as error:
                    return error
            else:
                await parts.before_revoke(owned, trio.current_time(), commits_until)
        if scope.cancelled_caught and how is not Exit.CANCELLED:
            self._tell_cut()
        return None

    def _tell_cut(self) -> None:
        what = "the last commit and the rebalance listeners" if self._parts.invoker.has_listeners else "the last commit"
        cause = self._parts.brokers.outages.cause
        because = "" if cause is None else f" ({cause})"
        _log.warning("leaving: the time for %s was up%s; the group is left now", what, because)

    def _step(self) -> trio.CancelScope:
        self._scope = trio.CancelScope(deadline=self._step_ends())
        return self._scope

    def _step_ends(self) -> float:
        """When the step under way has to end, ``GRACE`` from now at the earliest."""
        kept = 0.0 if self._last_step else min(_KEPT_MOST, _KEPT_SHARE * max(0.0, self._deadline - self._began))
        return max(self._deadline - kept, trio.current_time() + GRACE)
