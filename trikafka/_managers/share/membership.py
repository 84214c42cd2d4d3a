"""The membership manager of a share group (KIP-932): heartbeats are the whole conversation.

A member joins with epoch 0, learns its partitions from the responses, and leaves with epoch -1.
Nothing is revoked: the member just fetches what it is assigned now, and acknowledges what it holds.
One heartbeat at a time goes out, at the interval that the broker sets, and at once when the member
has to join again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from ..._net.brokers import Purpose
from ..._net.gather import with_background
from ..._net.retry import Retry
from ..._net.signal import Signal
from ..._state.group.member import Member, MemberState
from ..._state.share.assignment import ShareAssignment
from ..._wire.extra_messages import ShareGroupHeartbeatRequest
from ..._wire.releases import explained_refusal
from ...config import ShareConsumerConfig
from ...error_codes import ErrorCode
from ...errors import (
    GroupIdNotFoundError,
    MemberFencedError,
    TrikafkaError,
    UnsupportedVersionError,
)
from ...errors.refusals import may_be_lifted
from ..group.consumer_group_messages import JOIN, LEAVE, assigned, new_member_id
from ..group.join_attempts import JoinAttempts
from ..group.leave_report import LeaveReport, leave_with_retries
from ..group.membership_base import GroupRequests
from ..group.membership_events import MembershipEvents
from ..group.poll_timer import PollTimer

_log = logging.getLogger("trikafka.membership")
#: The bounds (seconds) of the heartbeat interval that a response sets; by default, no broker has a
#: longer one.
_LEAST_INTERVAL = 0.1
_LONGEST_INTERVAL = 15.0
#: The least time (seconds) that a broker has to respond to a heartbeat.
_LEAST_LIMIT = 1.0
#: How soon (seconds) a member asks again while it has no partitions; the pause doubles up to the
#: second figure, for the third one in all. The coordinator assigns some time after the join.
_SOON, _SOON_AT_MOST, _SETTLING = 0.1, 1.0, 10.0


class ShareMembership:
    """The membership of one share consumer. The member keeps its id for its life."""

    def __init__(
        self,
        config: ShareConsumerConfig,
        member: Member,
        assignment: ShareAssignment,
        poll_timer: PollTimer,
        requests: GroupRequests,
        events: MembershipEvents,
        is_at_work: Callable[[], bool],
        deliver: Signal,
        returned: Signal,
        give_back: Callable[[], object],
    ) -> None:
        self._config = config
        self._group = config.group_id
        self._member = member
        self._assignment = assignment
        self._poll_timer = poll_timer
        self._requests = requests
        self._events = events
        self._is_at_work = is_at_work
        self._deliver = deliver
        self._returned = returned
        self._give_back = give_back
        self._interval = 1.0
        # What the coordinator knows of the member; a heartbeat repeats it when that is uncertain.
        self._introduced = False
        # False if the coordinator does not have this member: no join was sent, a leave was
        # confirmed, or an error said so.
        self._known = False
        self._logged: str | None = None  # the error that was logged, until a heartbeat succeeds
        self._member.know_as(new_member_id(), epochs=True)
        self._attempts = JoinAttempts(config, config.group_id, member, requests.refused_until)
        #: The error that ended the membership: each receive raises it.
        self.fatal: TrikafkaError | None = None

    @property
    def member_id(self) -> str:
        """The member's id, which it keeps for its life."""
        return self._member.identity.member_id

    async def run(self) -> None:
        """Join and send heartbeats until cancelled; leave while the user is overdue."""
        while True:
            with trio.CancelScope() as scope:

                async def watch(scope: trio.CancelScope = scope) -> None:
                    await self._user_overdue()
                    scope.cancel()

                await with_background([watch], self._send_heartbeats)
            await self._go_stale()

    async def _user_overdue(self) -> None:
        while True:
            await self._poll_timer.expired()
            if not self._is_at_work():
                return
            # A block, and a deserializer, have limits of their own.
            self._poll_timer.polled(trio.current_time())

    async def _go_stale(self) -> None:
        why = (
            f"{self._poll_timer.limit * 1000:g} ms passed without a receive, so this member "
            "leaves the group, until the next receive; raise max_poll_interval_ms (now "
            f"{self._config.max_poll_interval_ms:g}), or receive in a task of its own"
        )
        _log.warning("group %s: %s", self._group, why)
        self._member.to(MemberState.STALE)
        self._events.report("stale", why)
        self._assignment.assign(())
        self._give_back()
        await self._leave(repeated=True)
        # A receive may have begun before the member was stale, or while it left. It looks again
        # now, and reports that the program is back.
        self._deliver.notify()
        await self._returned.wait()
        self._member.to(MemberState.UNJOINED)

    async def _send_heartbeats(self) -> None:
        retry = Retry(self._config)
        soon = _SOON
        settles_by = 0.0
        while True:
            sent = trio.current_time()
            joins = not self._member.identity.joined
            if joins:
                self._introduced = False
                if self._member.state is not MemberState.JOINING:
                    self._member.to(MemberState.JOINING)
            try:
                self._apply(await self._send_heartbeat(), joins)
                self._member.heartbeat_answered(sent)
            except TrikafkaError as error:
                self._member.heartbeat_failed(error)
                self._requests.recover(error)
                self._introduced = False
                # A group without members may be deleted while this member is frozen.
                deleted = isinstance(error, GroupIdNotFoundError) and not joins
                if deleted or isinstance(error, MemberFencedError):
                    self._fenced(error)
                elif may_be_lifted(error):
                    next_attempt = self._attempts.refused_by(error)
                    self._deliver.notify()
                    await trio.sleep_until(next_attempt)
                    continue
                elif not error.retriable:
                    await self._end(explained_refusal(error, "share"))
                else:
                    self._log_failure(error)
                await retry.wait()
                continue
            retry.reset()
            self._logged = None
            if joins:
                settles_by, soon = sent + _SETTLING, _SOON
            settling = not self._assignment.partitions and sent < settles_by
            await trio.sleep_until(
                sent + (min(self._interval, soon) if settling else self._interval)
            )
            soon = min(2 * soon, _SOON_AT_MOST)

    async def _send_heartbeat(self) -> Any:
        identity = self._member.identity
        known = self._introduced and identity.joined
        self._introduced = True
        self._known = True
        request = ShareGroupHeartbeatRequest(
            group_id=self._group,
            member_id=identity.member_id,
            member_epoch=identity.generation if identity.joined else JOIN,
            rack_id=None if known else self._config.client_rack or None,
            subscribed_topic_names=None if known else sorted(self._assignment.topics),
        )
        limit = min(self._config.request_timeout, max(self._interval, _LEAST_LIMIT))
        return await self._requests.heartbeat(
            request,
            "heartbeat of share group" if identity.joined else "joining share group",
            limit if identity.joined else self._config.request_timeout,
        )

    def _apply(self, response: Any, joins: bool) -> None:
        parts = assigned(response)  # first: a response that cannot be read must change nothing
        self._member.know_as(self.member_id, response.member_epoch, epochs=True)
        self._interval = max(
            min(response.heartbeat_interval_ms / 1000, _LONGEST_INTERVAL), _LEAST_INTERVAL
        )
        self._member.heartbeats_begin(trio.current_time(), self._interval)
        if joins:
            self._member.to(MemberState.STABLE)
            epoch = response.member_epoch
            _log.info("share group %s: joined in epoch %d", self._group, epoch)
            self._events.report("joined", f"the coordinator accepted the member in epoch {epoch}")
        if parts is not None and self._assignment.assign(parts):
            _log.debug("share group %s: assigned %d partitions", self._group, len(parts))

    def _fenced(self, error: TrikafkaError) -> None:
        """Join again: the group has removed the member. What it holds stays locked."""
        # A member that is fenced each time it joins logs that once.
        again = self._logged == type(error).__name__
        self._logged = type(error).__name__
        _log.log(
            logging.DEBUG if again else logging.WARNING,
            "share group %s: this member is out of the group: %s",
            self._group,
            error,
        )
        # With another error the coordinator may have the member, in another epoch.
        if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self._known = False
        self._member.to(MemberState.FENCED)
        self._member.forget(keep_id=True)
        self._events.report("fenced", str(error), error)
        self._assignment.assign(())
        self._member.to(MemberState.UNJOINED)

    async def _end(self, error: TrikafkaError) -> None:
        """Have each receive raise ``error``, which no further heartbeat can fix."""
        self.fatal = error
        _log.error("share group %s: this member cannot go on: %s", self._group, error)
        self._assignment.assign(())
        self._deliver.notify()
        await trio.sleep_forever()

    def _log_failure(self, error: TrikafkaError) -> None:
        text = type(error).__name__
        if self._logged != text:
            self._logged = text
            _log.debug("heartbeat of share group %s failed: %s", self._group, error)

    async def leave(self) -> None:
        """Leave the group; best effort, within a limit of its own. :meth:`run` has ended before.

        No-op if the coordinator does not have this member, such as after it left as a stale one.
        """
        await self._leave()

    async def _leave(self, *, repeated: bool = False) -> None:
        """Do the work of :meth:`leave`. ``repeated``: it is called again if this is cancelled."""
        identity = self._member.identity
        if not self._known or isinstance(self.fatal, UnsupportedVersionError):
            return
        # A join whose response is missing may have succeeded.
        request = ShareGroupHeartbeatRequest(
            group_id=self._group, member_id=identity.member_id, member_epoch=LEAVE
        )
        consequence = "it counts as a member"
        report = LeaveReport(
            self._group,
            identity,
            self._events,
            "the share consumer leaves",
            consequence,
            repeated=repeated,
        )
        if self._member.state is not MemberState.STALE:
            self._member.to(MemberState.LEAVING)
        try:
            await leave_with_retries(
                self._config, report, partial(self._ask_to_leave, request), self._requests.recover
            )
        finally:
            self._member.forget(keep_id=True)
            if self._member.state is not MemberState.STALE:
                self._member.to(MemberState.UNJOINED)

    async def _ask_to_leave(self, request: Any, limit: float, purpose: Purpose) -> None:
        # The group is not there if no member stayed for long enough to make it.
        with suppress(MemberFencedError, GroupIdNotFoundError):
            await self._requests.heartbeat(request, "leaving share group", limit, purpose)
        self._known = False
