"""How a consumer leaves: last commit, revoke hooks, LeaveGroup, in this order and once at a time. Owned by the consumer.

Whoever leaves while somebody else does waits for that leave, and may shorten it. What becomes of the consumer then, a new start
or the end, is for its caller to say, in the synchronous step after :meth:`Leaving.run`, however that ended.
"""

from __future__ import annotations

import math

import trio

from .._managers.listener_invoker import Change
from .._net.deadlines import GRACE
from .._state.member import MemberState
from .consumer_parts import ConsumerParts
from .service import Exit


class Leaving:
    """The leave that is under way, if there is one."""

    def __init__(self, parts: ConsumerParts) -> None:
        self._parts = parts
        self._ended: trio.Event | None = None  # while one is under way
        self._deadline = math.inf
        self._scope = trio.CancelScope()  # of the step under way
        self.complete = False  # the last leave was not cut: the group was told, or the time was up

    @property
    def under_way(self) -> bool:
        """Whether some task leaves now."""
        return self._ended is not None

    async def join(self, deadline: float) -> None:
        """Wait for the leave under way; the earlier deadline counts."""
        assert self._ended is not None
        self._deadline = min(deadline, self._deadline)
        self._scope.deadline = min(self._scope.deadline, max(deadline, trio.current_time() + GRACE))
        await self._ended.wait()

    async def run(self, how: Exit, deadline: float) -> None:
        """Stop following the group, commit what is done, run the revoke hooks, leave the group. Raises what a hook raised, last.

        A step past the deadline still gets ``GRACE``. Cancelled: at once, and :attr:`complete` is false.
        """
        assert self._ended is None
        parts, ended = self._parts, trio.Event()
        self._ended, self.complete, self._deadline = ended, False, deadline
        if parts.auto_commit is not None:
            parts.auto_commit.hold()
        try:
            await parts.stop_membership()
            failed = await self._revoke_all(how)
            with self._limit():
                await parts.leave_group()
            self.complete = True
        finally:
            self._ended = None
            ended.set()
        if failed is not None:
            raise failed

    async def _revoke_all(self, how: Exit) -> Exception | None:
        """Deliver nothing more; the last commit, and, unless cancelled, the listeners."""
        parts, core = self._parts, self._parts.core
        if how is Exit.CLEAN:
            core.assignment.all_processed(besides=parts.streams.partitions)
        owned = core.assignment.begin_revocation()
        with self._limit() as scope:
            if how is Exit.CANCELLED:
                now = trio.current_time()
                scope.deadline = min(scope.deadline, now + max(0.0, self._deadline - now) / 2)
                await parts.auto_commit_now(owned, self._deadline)
            elif core.subscription.grouped and owned:
                lost = core.member.state in (MemberState.FENCED, MemberState.STALE)
                try:
                    await parts.invoker.tell(Change.LOST if lost else Change.REVOKED, owned, self._deadline)
                except Exception as error:
                    return error
            else:
                await parts.before_revoke(owned, trio.current_time(), self._deadline)
        return None

    def _limit(self) -> trio.CancelScope:
        self._scope = trio.CancelScope(deadline=max(self._deadline, trio.current_time() + GRACE))
        return self._scope
