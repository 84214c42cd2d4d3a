"""The heartbeats of the consumer protocol (KIP-848), which are its whole conversation: joining, following, acknowledging, leaving.

One at a time: at the interval that the broker tells, counted from the last one that was sent, and at once when there is something
to say. One that was not answered is followed by one that says everything.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio

from .._net.brokers import Purpose
from .._net.retry import Retry
from .._state.member import MemberState
from ..error_codes import ErrorCode
from ..errors import (
    FencedInstanceIdError,
    MemberFencedError,
    RequestTimedOutError,
    TrikafkaError,
    UnsupportedVersionError,
    from_code,
)
from .consumer_group_messages import LEAVE, LEAVE_FOR_A_WHILE, HeartbeatState, assigned, leave_request, new_member_id
from .leave_report import LeaveReport
from .membership_base import LEAVE_ATTEMPTS, LEAVE_LIMIT, GroupParts
from .target_reconciler import News, TargetReconciler

_log, _membership_log = logging.getLogger("trikafka.heartbeat"), logging.getLogger("trikafka.membership")
#: The least that a broker gets to respond (seconds), however short its interval is.
_LEAST_LIMIT = 1.0
#: However short an interval (seconds) a response tells: without one there would be no pause at all.
_LEAST_INTERVAL = 0.1
#: How soon (seconds) a member that has just joined asks again while it has nothing, each time after twice as long up to a most, and
#: for how many intervals: the coordinator makes new assignments once a second at most, and others have to let go first. To wait for
#: the interval would be idling.
_SOON, _SOON_AT_MOST, _SETTLING_INTERVALS = 0.1, 1.0, 2


class ConsumerHeartbeats:
    """The conversation of one member with its coordinator. The member keeps its id for its life."""

    def __init__(self, parts: GroupParts, news: News, reconciler: TargetReconciler) -> None:
        assert parts.config.group_id is not None
        self._config, self._group, self._member = parts.config, parts.config.group_id, parts.member
        self._requests, self._poll_timer, self._reconciler = parts.requests, parts.poll_timer, reconciler
        self._events = parts.events
        self._said = HeartbeatState(parts.config, parts.subscription)
        self._news = news
        self._member_id = new_member_id()
        self._interval = self._limit = self._settled_at = 0.0
        self.in_group = False  # for reading: the coordinator may know the member

    async def run(self, fenced: Callable[[TrikafkaError], None]) -> None:
        """Join, and then tell what there is to tell, until cancelled. Raises what no further heartbeat can mend.

        By its own clock the member is out, and ``fenced`` is told, when no heartbeat was answered for a session. How long that is
        the broker does not say: ``session_timeout_ms`` has its default, for it cannot be given with this protocol.
        """
        limit = self._config.session_timeout_ms / 1000
        ended = RequestTimedOutError(f"no heartbeat reached the coordinator of group {self._group!r} for a session ({limit:g} s)")

        def expired() -> None:
            fenced(ended)

        def contact(at: float) -> None:
            self._member.heartbeat_answered(at)
            session.deadline = at + limit
            self._poll_timer.watch_session(session.deadline, expired)

        try:
            with trio.CancelScope() as session:
                await self._converse(contact)
            if session.cancelled_caught:
                expired()
        finally:
            self._poll_timer.watch_session(math.inf, expired)

    async def _converse(self, contact: Callable[[float], None]) -> None:
        self._said.forget()
        self._limit = self._config.request_timeout
        self.outside()
        retry, soon = Retry(self._config), _SOON
        while True:
            sent = trio.current_time()
            try:
                self._take(await self._beat())
                contact(sent)
            except TrikafkaError as error:
                self._member.heartbeat_failed(error)
                if isinstance(error, UnsupportedVersionError):
                    self._said.never_sent()
                if isinstance(error, FencedInstanceIdError) or error.code == ErrorCode.UNSUPPORTED_VERSION:
                    self.in_group = False  # it is somebody else there; nobody is
                self._requests.recover(error)
                if not error.retriable:
                    raise
                _log.debug("heartbeat of group %s failed: %s", self._group, error)
                self._said.forget()
                await retry.wait()
            else:
                retry.reset()
                settling = self._reconciler.empty and sent < self._settled_at
                await self._news.wait(sent + (min(self._interval, soon) if settling else self._interval))
                soon = min(2 * soon, _SOON_AT_MOST)

    def outside(self) -> None:
        """The member is in no epoch of the group; its id it keeps."""
        self._member.know_as(self._member_id, epochs=True)

    async def _beat(self) -> Any:
        identity = self._member.identity
        if self.in_group and not identity.joined and identity.instance_id is not None:
            await self._release()
        self._news.take()
        request = self._said.request(identity, self._reconciler.report)
        if self._member.state is MemberState.ACKNOWLEDGING:
            self._member.to(MemberState.STABLE if self._reconciler.reached else MemberState.RECONCILING)
        self.in_group = True
        return await self._ask(request, "heartbeat of" if identity.joined else "joining", self._limit)

    def _take(self, response: Any) -> None:
        joins = not self._member.identity.joined
        self._member.know_as(self._member_id, response.member_epoch, epochs=True)
        self._interval = max(response.heartbeat_interval_ms / 1000, _LEAST_INTERVAL)
        self._limit = min(self._config.request_timeout, max(self._interval, _LEAST_LIMIT))
        if joins:
            _membership_log.info("group %s: joined in epoch %d as %s", self._group, response.member_epoch, self._member_id)
            self._events.tell("joined", f"the coordinator took the member in, in epoch {response.member_epoch}")
            self._settled_at = trio.current_time() + _SETTLING_INTERVALS * self._interval
        if (parts := assigned(response)) is not None:
            self._reconciler.aim(parts)
        if not self._reconciler.reached:
            if self._member.state in (MemberState.JOINING, MemberState.STABLE):
                self._member.to(MemberState.RECONCILING)
        elif joins:
            self._member.to(MemberState.STABLE)

    async def _release(self) -> None:
        """A static member that the coordinator may think is here still cannot join before it has gone away for a while."""
        try:
            await self._ask(leave_request(self._group, self._member.identity, LEAVE_FOR_A_WHILE), "leaving", self._limit)
        except TrikafkaError as error:
            self._requests.recover(error)
            if error.retriable:
                raise
        self.in_group = False

    async def leave(self, operation: str, why: str) -> None:
        """Leave the group: for good, or as a static member that will come back. Best effort, within a limit of its own.

        ``operation`` is ``group_membership_operation`` (KIP-1092): a dynamic member that is to remain says nothing. ``why`` is for
        observers, the protocol has no place for it.
        """
        was = self._member.identity
        static = was.instance_id is not None
        stays = operation == "remain_in_group" or (operation == "default" and static)
        self._member.forget()
        if not self.in_group or (stays and not static):
            return
        self.outside()
        request = leave_request(self._group, self._member.identity, LEAVE_FOR_A_WHILE if stays else LEAVE)
        retry = Retry(self._config)
        with LeaveReport(self._group, was, self._events, why) as report, trio.move_on_after(LEAVE_LIMIT):
            for attempt in range(LEAVE_ATTEMPTS):
                try:
                    await self._ask_to_leave(request, attempt)
                    self.in_group = False
                    self._member.forget()
                    report.left()
                    return
                except TrikafkaError as error:
                    report.failed(error)
                    self._requests.recover(error)
                    if not error.retriable:
                        return
                    if isinstance(error, RequestTimedOutError):
                        continue
                await retry.wait()

    async def _ask_to_leave(self, request: Any, attempt: int) -> None:
        """One attempt. Any but the first takes another connection: the last commit may be stuck before it on the usual one."""
        left = max(0.0, trio.current_effective_deadline() - trio.current_time())
        limit = min(left if attempt else left / 2, self._config.request_timeout)
        with suppress(MemberFencedError):  # it is out already
            await self._ask(request, "leaving", limit, "general" if attempt else "coordinator")

    async def _ask(self, request: Any, what: str, limit: float, purpose: Purpose = "coordinator") -> Any:
        response = await self._requests.ask(request, limit, purpose)
        if response.error_code:
            detail = f": {response.error_message}" if response.error_message else ""
            raise from_code(response.error_code, f"{what} group {self._group!r}{detail}", operation="Read")
        return response
