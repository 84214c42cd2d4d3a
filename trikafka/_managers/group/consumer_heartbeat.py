"""The heartbeats of the consumer protocol (KIP-848).

They are its whole conversation: joining, following, acknowledging, leaving. One heartbeat at a time
goes out: at the interval that the broker sets, counted from the last one, and at once when there is
something to report. A heartbeat after an unanswered one reports everything.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from ..._net.brokers import Purpose
from ..._net.retry import Retry
from ..._state.group.member import MemberState
from ...error_codes import ErrorCode
from ...errors import (
    DamagedResponseError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    MemberFencedError,
    RequestTimedOutError,
    TrikafkaError,
    UnsupportedVersionError,
)
from .consumer_group_messages import (
    LEAVE,
    LEAVE_FOR_A_WHILE,
    HeartbeatState,
    assigned,
    leave_request,
    new_member_id,
)
from .group_session import GroupSession
from .leave_report import LeaveReport, leave_with_retries
from .membership_base import MembershipDependencies
from .target_reconciler import TargetReconciler, WakeFlag

_log = logging.getLogger("trikafka.heartbeat")
_membership_log = logging.getLogger("trikafka.membership")
#: The least time that a broker gets to respond (seconds), however short its interval is.
_LEAST_LIMIT = 1.0
#: The shortest interval (seconds), whatever a response says: with 0 there would be no pause.
_LEAST_INTERVAL = 0.1
#: How many heartbeats a session has at least, whatever interval a response says.
_BEATS_A_SESSION = 3
#: How soon (seconds) a member that has just joined asks again while it has no partitions; the pause
#: doubles up to the second figure. The third is the number of intervals for which it does so. The
#: coordinator makes new assignments once a second at most, and other members have to release
#: partitions first, so waiting a whole interval would leave this member idle.
_SOON, _SOON_AT_MOST, _SETTLING_INTERVALS = 0.1, 1.0, 2
#: How often (seconds) a member tries to join while another one holds its group_instance_id, and how
#: much longer than a session it goes on.
_RELEASE_PAUSE, _RELEASE_SLACK = 1.0, 5.0


class ConsumerHeartbeats:
    """The conversation of one member with its coordinator. The member keeps its id for its life."""

    def __init__(
        self,
        dependencies: MembershipDependencies,
        wake_flag: WakeFlag,
        reconciler: TargetReconciler,
    ) -> None:
        assert dependencies.config.group_id is not None
        self._config = dependencies.config
        self._group = dependencies.config.group_id
        self._member = dependencies.member
        self._requests = dependencies.requests
        self._poll_timer = dependencies.poll_timer
        self._reconciler = reconciler
        self._events = dependencies.events
        self._said = HeartbeatState(dependencies.config, dependencies.subscription)
        self._wake_flag = wake_flag
        self._member_id = new_member_id()
        self._session = GroupSession(
            dependencies.config, dependencies.config.group_id, dependencies.requests
        )
        self._strange = False  # True if the last response could not be used
        # Until when another member may hold group_instance_id.
        self._release_by: float | None = None
        self._interval = 0.0
        self._limit = 0.0
        self._settled_at = 0.0
        self.in_group = False  # read-only for others: the coordinator may know the member

    async def send_heartbeats(self, fenced: Callable[[TrikafkaError], None]) -> None:
        """Join, then send heartbeats until cancelled. Raise what no further heartbeat can fix.

        ``fenced`` is called once no heartbeat has been answered for the group's session timeout.
        """

        # The bound on the session. A member whose heartbeats do not reach the coordinator is
        # removed from its group after the session timeout, and its partitions go to other members.
        # The member must stop before that, or two members deliver the same records. So it counts
        # the time itself, from the moment when the last answered heartbeat was sent. The
        # coordinator counts from the moment when that heartbeat arrived, which is later. So the
        # member's session never ends after the coordinator's. The time of the response would not
        # do: the response may have been delayed.
        #
        # The deadline is checked in two places. The cancel scope ends the conversation. The poll
        # timer is asked by each receive before it delivers, because after a blocked event loop a
        # receive may run before the task of this scope does.
        def expired() -> None:
            text = (
                f"no heartbeat reached the coordinator of group {self._group!r} for a session "
                f"({self._session.limit:g} s): was the event loop blocked, or the network down?"
            )
            fenced(RequestTimedOutError(text))

        def contact(at: float) -> None:
            self._member.heartbeat_answered(at)
            session.deadline = at + self._session.limit
            self._poll_timer.watch_session(session.deadline, expired)

        try:
            with trio.CancelScope() as session:
                await self._exchange_heartbeats(contact)
            if session.cancelled_caught:
                expired()
        finally:
            self._poll_timer.watch_session(math.inf, expired)

    async def _exchange_heartbeats(self, contact: Callable[[float], None]) -> None:
        self._said.forget()
        self._session.forget()
        self._release_by = None
        self._limit = self._config.request_timeout
        self.outside()
        retry = Retry(self._config)
        soon = _SOON
        while True:
            try:
                # Before the first heartbeat: after it the member may own partitions, and must know
                # for how long.
                await self._session.learn()
                sent = trio.current_time()
                self._handle_response(await self._send_heartbeat())
                contact(sent)
            except TrikafkaError as error:
                self._member.heartbeat_failed(error)
                if isinstance(error, UnsupportedVersionError):
                    self._said.never_sent()
                if isinstance(error, FencedInstanceIdError) or error.code in (
                    ErrorCode.UNSUPPORTED_VERSION,
                    ErrorCode.UNKNOWN_MEMBER_ID,
                ):
                    # The coordinator knows another member by this instance id, or none at all.
                    self.in_group = False
                self._requests.recover(error)
                waits = self._awaits_release(error)
                if not (error.retriable or waits):
                    raise
                self._log_failure(error)
                self._said.forget()
                if waits:
                    await trio.sleep(_RELEASE_PAUSE)
                else:
                    await retry.wait()
            else:
                retry.reset()
                if self._strange:
                    self._strange = False
                    self._member.unhindered()
                settling = self._reconciler.empty and sent < self._settled_at
                await self._wake_flag.wait(
                    sent + (min(self._interval, soon) if settling else self._interval)
                )
                soon = min(2 * soon, _SOON_AT_MOST)

    def send_full(self) -> None:
        """Send a heartbeat now that reports everything.

        The coordinator then repeats the assignment.
        """
        self._said.forget()
        self._wake_flag.set()

    def _log_failure(self, error: TrikafkaError) -> None:
        """Log a failed heartbeat.

        A response that cannot be used is logged once as a warning, since nothing else reports it.
        """
        if isinstance(error, DamagedResponseError):
            if not self._strange:
                _membership_log.warning(
                    "group %s: a response to a heartbeat cannot be used: %s", self._group, error
                )
            self._strange = True
            self._member.hindered(error)
        else:
            _log.debug("heartbeat of group %s failed: %s", self._group, error)

    def _awaits_release(self, error: TrikafkaError) -> bool:
        """Return whether to go on although another member holds this one's ``group_instance_id``.

        That other member is usually an earlier run of the same program which ended without leaving:
        a coordinator of this protocol keeps it until its session ends. A holder that lives on sends
        heartbeats for longer than that.
        """
        if error.code != ErrorCode.UNRELEASED_INSTANCE_ID or self._member.identity.joined:
            return False
        now = trio.current_time()
        if self._release_by is None:
            self._release_by = now + self._session.at_coordinator + _RELEASE_SLACK
            _membership_log.warning(
                "group %s: another member still holds group_instance_id %r, perhaps an earlier "
                "run of this program that ended without leaving; waiting for the end of its "
                "session, up to %g s",
                self._group,
                self._member.identity.instance_id,
                self._session.at_coordinator,
            )
            self._member.hindered(error)
        return now < self._release_by

    def outside(self) -> None:
        """Be in no epoch of the group; keep the member id."""
        self._member.know_as(self._member_id, epochs=True)

    async def _send_heartbeat(self) -> Any:
        identity = self._member.identity
        if self.in_group and not identity.joined and identity.instance_id is not None:
            await self._release()
        self._wake_flag.clear()
        request = self._said.request(identity, self._reconciler.report)
        if self._member.state is MemberState.ACKNOWLEDGING:
            self._member.to(
                MemberState.STABLE if self._reconciler.reached else MemberState.RECONCILING
            )
        self.in_group = True
        what = "heartbeat of group" if identity.joined else "joining group"
        return await self._requests.heartbeat(request, what, self._limit)

    def _handle_response(self, response: Any) -> None:
        joins = not self._member.identity.joined
        # First, because a response that cannot be read must change nothing.
        parts = assigned(response)
        self._member.know_as(self._member_id, response.member_epoch, epochs=True)
        # Never so long that the session ends by this member's own clock before the next heartbeat.
        longest = self._session.limit / _BEATS_A_SESSION
        self._interval = max(min(response.heartbeat_interval_ms / 1000, longest), _LEAST_INTERVAL)
        self._limit = min(self._config.request_timeout, max(self._interval, _LEAST_LIMIT))
        self._member.heartbeats_begin(trio.current_time(), self._interval)
        if joins:
            _membership_log.info(
                "group %s: joined in epoch %d as %s",
                self._group,
                response.member_epoch,
                self._member_id,
            )
            self._events.report(
                "joined", f"the coordinator accepted the member in epoch {response.member_epoch}"
            )
            self._settled_at = trio.current_time() + _SETTLING_INTERVALS * self._interval
            self._session.joined()
            if self._release_by is not None:
                self._release_by = None
                self._member.unhindered()
                _membership_log.info(
                    "group %s: group_instance_id %r is free",
                    self._group,
                    self._member.identity.instance_id,
                )
        if parts is not None:
            self._reconciler.set_target(parts)
        if not self._reconciler.reached:
            if self._member.state in (MemberState.JOINING, MemberState.STABLE):
                self._member.to(MemberState.RECONCILING)
        elif joins:
            self._member.to(MemberState.STABLE)

    async def _release(self) -> None:
        """Leave for a while (epoch -2), so that a static member may join again.

        The coordinator may think that the member is still here, and refuse the join.
        """
        try:
            request = leave_request(self._group, self._member.identity, LEAVE_FOR_A_WHILE)
            await self._requests.heartbeat(request, "leaving group", self._limit)
        except TrikafkaError as error:
            if self._requests.recover(error):
                raise
        self.in_group = False

    async def leave(self, operation: str, why: str, *, repeated: bool = False) -> None:
        """Leave the group, permanently or as a static member that will return.

        Best effort, within a limit of its own. ``operation`` is ``group_membership_operation``
        (KIP-1092): a dynamic member that should remain sends nothing. ``why`` is for observers; the
        protocol has no field for it. ``repeated``: another leave follows if this one is cancelled.
        """
        was = self._member.identity
        static = was.instance_id is not None
        stays = operation == "remain_in_group" or (operation == "default" and static)
        self._member.forget()
        if not self.in_group or (stays and not static):
            return
        self.outside()
        request = leave_request(
            self._group, self._member.identity, LEAVE_FOR_A_WHILE if stays else LEAVE
        )
        await leave_with_retries(
            self._config,
            LeaveReport(self._group, was, self._events, why, repeated=repeated),
            partial(self._ask_to_leave, request),
            self._requests.recover,
        )

    async def _ask_to_leave(self, request: Any, limit: float, purpose: Purpose) -> None:
        # The member is out already, or no request ever reached the coordinator.
        with suppress(MemberFencedError, GroupIdNotFoundError):
            await self._requests.heartbeat(request, "leaving group", limit, purpose)
        self.in_group = False
        self._member.forget()
