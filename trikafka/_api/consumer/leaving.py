"""The exit of a consumer: the last commit, the listeners, LeaveGroup; one leave at a time.

Owned by the consumer. A task that leaves while another one does waits for that leave, and may
shorten it. However :meth:`Leaving.leave` ends, its caller starts over or closes in the same step.
"""

# What an exit may cut, and what it may not
# -----------------------------------------
#
# A leave has three steps, and one deadline for all of them:
#
# 1. the last auto commit and the listeners (code of the user, so they may take any time),
# 2. LeaveGroup (or the last heartbeat of KIP-848),
# 3. closing the sockets, which needs no time.
#
# Without LeaveGroup the group notices the exit only when the session ends, and until then the
# partitions are idle. So step 1 may be cut and step 2 keeps its share: a quarter of the time, at
# most a second (better to take a little longer and close properly). A commit without a
# response ends after request_timeout_ms: what it leaves of step 1 is for the listeners.
#
# When cancelled there is one second in all. Half of it is for the commit, the rest for LeaveGroup.
# Listeners are not called then: they may wait for anything, and would take the time of LeaveGroup.
#
# The task may also be cancelled at any await in here. Then ``complete`` stays False. After a cut
# unsubscribe() the member is UNJOINED, and the next membership task begins with LeaveGroup. After a
# cut aclose() the sockets stay open until the end of ``async with``, which leaves again from the
# start. So each step must bear to be repeated.
#
# A past deadline still gives each step GRACE (25 ms): a request that can be answered at once is.

from __future__ import annotations

import logging
import math

import trio

from ..._managers.group.listener_invoker import Change
from ..._net.deadlines import GRACE
from ..._state.group.member import MemberState
from ...types import TopicPartition
from ..client.service import Exit
from .parts import ConsumerParts

_log = logging.getLogger("trikafka.consumer")
#: The share of the time that is kept for LeaveGroup, and its limit in seconds.
_KEPT_SHARE, _KEPT_MOST = 0.25, 1.0
_BETWEEN_GENERATIONS = frozenset({MemberState.JOINING, MemberState.SYNCING})


class Leaving:
    """The leave under way, if there is one."""

    def __init__(self, parts: ConsumerParts) -> None:
        self._parts = parts
        self._ended: trio.Event | None = None  # set while a leave is under way
        self._began = 0.0
        self._deadline = math.inf
        self._scope = trio.CancelScope()  # of the current step
        self._last_step = False
        self.complete = False  # the last leave was not cut: LeaveGroup was sent, or its time was up

    @property
    def under_way(self) -> bool:
        """True while a task leaves."""
        return self._ended is not None

    @property
    def revoking(self) -> bool:
        """True until the group is left: handlers finish, the last commit is made, listeners run."""
        return self._ended is not None and not self._last_step

    async def join(self, deadline: float) -> None:
        """Wait for the leave under way; of both deadlines the earlier counts."""
        assert self._ended is not None
        self.shorten(deadline)
        await self._ended.wait()

    def shorten(self, deadline: float) -> None:
        """End the leave under way by ``deadline``, with a share of the rest for LeaveGroup."""
        if self._ended is not None and deadline < self._deadline:
            self._deadline = deadline
            self._scope.deadline = min(self._scope.deadline, self._step_ends())

    def begin(self, deadline: float) -> None:
        """Mark a leave as under way; :meth:`run` must follow."""
        assert self._ended is None
        self._ended = trio.Event()
        self.complete = False
        self._last_step = False
        self._began = trio.current_time()
        self._deadline = deadline

    async def leave(self, how: Exit, *, closing: bool) -> None:
        """Stop the group's tasks, commit what is done, run the listeners, leave the group.

        A step past the deadline still gets ``GRACE``. Raises the error of a listener at the end.
        When cancelled, ends at once, and :attr:`complete` is False. ``closing``: the consumer does
        not join its group again.
        """
        ended = self._ended
        assert ended is not None
        parts = self._parts
        if parts.group.auto_commit is not None:
            parts.group.auto_commit.hold()
        try:
            # While the event loop was blocked, no heartbeat went out, and no task looked at the
            # clock.
            parts.core.poll_timer.check_session(trio.current_time())
            if parts.core.member.state in _BETWEEN_GENERATIONS:
                await self._commit_first(how)
            await parts.group.stop()
            failed = await self._revoke_all(how)
            self._last_step = True
            with self._step():
                await parts.group.leave(closing=closing)
            self.complete = True
            if closing:
                with self._step():
                    await parts.telemetry.push_last()
        finally:
            self._ended = None
            ended.set()
        if failed is not None:
            raise failed

    async def _commit_first(self, how: Exit) -> None:
        """Stop delivering and commit, for a member that reads on while the group rebalances.

        For the coordinator such a member may already be in the next generation, or may be the
        member whose assignment the group waits for. It cannot commit before it knows its
        generation, and it will not learn that after it has stopped.
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
        """Stop delivering; commit; run the listeners, unless the exit is cancelled."""
        parts, core = self._parts, self._parts.core
        owned = self._end_delivery(how)
        lost = core.member.state in (MemberState.FENCED, MemberState.STALE)
        with self._step() as scope:
            # A commit without a response ends after its own limit: the rest of the time is for what
            # follows.
            commits_until = min(
                self._step_ends(), trio.current_time() + parts.config.request_timeout
            )
            if how is Exit.CANCELLED:
                now = trio.current_time()
                scope.deadline = min(scope.deadline, now + max(0.0, self._deadline - now) / 2)
                if not lost:
                    await parts.group.auto_commit_now(owned, commits_until)
            elif core.subscription.grouped and owned:
                if not lost:
                    core.member.to(MemberState.LEAVING)
                try:
                    await parts.invoker.invoke_now(
                        Change.LOST if lost else Change.REVOKED, owned, commits_until
                    )
                except Exception as error:
                    return error
            else:
                await parts.before_revoke(owned, trio.current_time(), commits_until)
        if scope.cancelled_caught and how is not Exit.CANCELLED:
            self._log_cut()
        return None

    def _log_cut(self) -> None:
        what = (
            "the last commit and the listeners"
            if self._parts.invoker.has_listeners
            else "the last commit"
        )
        cause = self._parts.brokers.outages.cause
        because = "" if cause is None else f" ({cause})"
        _log.warning("leaving: the time for %s was up%s; the group is left now", what, because)

    def _step(self) -> trio.CancelScope:
        self._scope = trio.CancelScope(deadline=self._step_ends())
        return self._scope

    def _step_ends(self) -> float:
        """Return the deadline of the current step: ``GRACE`` from now at the earliest."""
        kept = (
            0.0
            if self._last_step
            else min(_KEPT_MOST, _KEPT_SHARE * max(0.0, self._deadline - self._began))
        )
        return max(self._deadline - kept, trio.current_time() + GRACE)
