"""How a consumer leaves: last commit, revoke hooks, goodbye, in this order and once at a time. Owned by the consumer.

Whoever leaves while somebody else does waits for that leave, and may shorten it. What becomes of the consumer then, a new start
or the end, is for its caller to say, in the synchronous step after :meth:`Leaving.run`, however that ended.
"""

from __future__ import annotations

import trio

from .._managers.rendezvous import Change
from .._net.deadlines import GRACE
from .._state.member import MemberState
from .consumer_parts import ConsumerParts
from .service import Exit


class Leaving:
    """The leave that is under way, if there is one."""

    def __init__(self, parts: ConsumerParts) -> None:
        self._parts = parts
        self._ended: trio.Event | None = None
        self._scope = trio.CancelScope()  # of the step under way
        self.complete = False  # the last leave was not cut: the group was told, or the time was up

    @property
    def under_way(self) -> bool:
        """Whether some task leaves now."""
        return self._ended is not None

    async def join(self, deadline: float) -> None:
        """Wait for the leave under way; the earlier deadline counts."""
        assert self._ended is not None
        parts = self._parts
        parts.leave_deadline = min(deadline, deadline if parts.leave_deadline is None else parts.leave_deadline)
        self._scope.deadline = min(self._scope.deadline, max(deadline, trio.current_time() + GRACE))
        await self._ended.wait()

    async def run(self, how: Exit, deadline: float) -> None:
        """Stop following the group, commit what is done, run the revoke hooks, say goodbye. Raises what a hook raised, last.

        A step past the deadline still gets ``GRACE``. Cancelled: at once, and :attr:`complete` is false.
        """
        assert self._ended is None
        parts, ended = self._parts, trio.Event()
        self._ended, self.complete, parts.leave_deadline = ended, False, deadline
        if parts.auto_commit is not None:
            parts.auto_commit.hold()
        try:
            await parts.stop_membership()
            failed = await self._give_up(how)
            with self._limit():
                await parts.leave_group()
            self.complete = True
        finally:
            self._ended = parts.leave_deadline = None
            ended.set()
        if failed is not None:
            raise failed

    async def _give_up(self, how: Exit) -> Exception | None:
        """Hand out nothing more; the last commit, and, unless cancelled, the listeners."""
        parts = self._parts
        owned = list(parts.subscription.partitions)
        for state in parts.subscription.partitions.values():
            state.revoking = True
            if how is Exit.CLEAN:
                state.done = state.position
        with self._limit() as scope:
            if how is Exit.CANCELLED:
                now = trio.current_time()
                scope.deadline = min(scope.deadline, now + max(0.0, self._deadline - now) / 2)
                await parts.auto_commit_now(owned)
            elif parts.subscription.grouped and owned:
                lost = parts.member.state in (MemberState.FENCED, MemberState.EXPELLED)
                try:
                    await parts.rendezvous.tell(Change.LOST if lost else Change.REVOKED, owned)
                except Exception as error:
                    return error
            else:
                await parts.auto_commit_now(owned)
        return None

    def _limit(self) -> trio.CancelScope:
        self._scope = trio.CancelScope(deadline=max(self._deadline, trio.current_time() + GRACE))
        return self._scope

    @property
    def _deadline(self) -> float:
        deadline = self._parts.leave_deadline
        assert deadline is not None
        return deadline
