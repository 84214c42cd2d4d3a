"""The heartbeat manager of the classic protocol: it keeps the member's session.

The heartbeats have a task of their own, so a consuming task that is slow does not lose the session
(KIP-62).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import trio
from kafka.protocol.consumer.group import HeartbeatRequest

from ..._net.brokers import Brokers
from ..._state.group.member import Member
from ...config import ConsumerConfig
from ...error_codes import ErrorCode
from ...errors import (
    MemberFencedError,
    RebalanceInProgressError,
    RequestTimedOutError,
    TrikafkaError,
    from_code,
)
from ...interfaces import CoordinatorManager
from .poll_timer import PollTimer

_log = logging.getLogger("trikafka.heartbeat")
#: The seconds from a cooperative rebalance to the first heartbeat. Each later pause is twice as
#: long as the one before, up to ``heartbeat_interval_ms``.
_FIRST_FOLLOW_UP = 0.05


class Heartbeats:
    """The heartbeats of a member that is in a generation.

    ``follow_up`` is for a cooperative member. A partition that moves to another member is withheld
    until its owner has released it and joined again. Only the response to a heartbeat reports that
    this second round has begun. With intervals of ``heartbeat_interval_ms`` from the start, the
    partitions that move would not be read for so long. So the first intervals are short.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        group: str,
        brokers: Brokers,
        coordinators: CoordinatorManager,
        member: Member,
        poll_timer: PollTimer,
        follow_up: bool,
    ) -> None:
        self._config = config
        self._group = group
        self._member = member
        self._brokers = brokers
        self._coordinators = coordinators
        self._poll_timer = poll_timer
        self._follow_up = follow_up
        self._session_limit = config.session_timeout_ms / 1000

    async def run(
        self, rejoin: Callable[[str], None], fenced: Callable[[TrikafkaError], None]
    ) -> None:
        """Send heartbeats until cancelled, or until the member is out of the group.

        The member also counts itself as out when ``session_timeout_ms`` has passed since it sent
        the last heartbeat that was answered: the coordinator has removed it by then.
        :class:`.ConsumerHeartbeats` does the same.

        Args:
            rejoin: Called with the reason when the group rebalances.
            fenced: Called with the error when the member is out of the group.
        """
        ended = RequestTimedOutError(
            f"no heartbeat reached the coordinator of group {self._group!r} for "
            f"session_timeout_ms ({self._session_limit:g} s): was the event loop blocked, or the "
            "network down?"
        )

        def expired() -> None:
            fenced(ended)

        def contact(at: float) -> None:
            session.deadline = at + self._session_limit
            self._poll_timer.watch_session(session.deadline, expired)

        def answered(sent: float) -> None:
            self._member.heartbeat_answered(sent)
            contact(sent)

        try:
            with trio.CancelScope() as session:
                contact(trio.current_time())
                self._member.heartbeats_begin(
                    trio.current_time(), self._config.heartbeat_interval_ms / 1000
                )
                await self._run(rejoin, fenced, answered)
            if session.cancelled_caught:
                expired()
        finally:
            self._poll_timer.watch_session(math.inf, expired)

    async def _run(
        self,
        rejoin: Callable[[str], None],
        fenced: Callable[[TrikafkaError], None],
        answered: Callable[[float], None],
    ) -> None:
        interval = self._config.heartbeat_interval_ms / 1000
        delay = min(interval, _FIRST_FOLLOW_UP) if self._follow_up else interval
        while True:
            await trio.sleep(delay)
            delay = min(2 * delay, interval)
            began = trio.current_time()
            try:
                await self._send_heartbeat()
                answered(began)
            except RebalanceInProgressError:
                answered(began)
                rejoin("the group rebalances")
            except MemberFencedError as error:
                self._member.heartbeat_failed(error)
                fenced(error)
                return
            except TrikafkaError as error:
                self._member.heartbeat_failed(error)
                _log.debug("heartbeat of group %s failed: %s", self._group, error)
                if error.refresh_coordinator:
                    self._coordinators.mark_unknown(self._group)
                if not error.retriable:
                    fenced(error)
                    return
                if error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    answered(began)  # All sessions start over when the group has been loaded.
                delay = min(interval, self._config.retry_backoff_max_ms / 1000)

    async def _send_heartbeat(self) -> None:
        identity = self._member.identity
        limit = min(self._session_limit / 3, self._config.request_timeout)
        with trio.move_on_after(limit) as scope:
            node = await self._coordinators.find(self._group)
            request = HeartbeatRequest(
                group_id=self._group,
                generation_id=identity.generation,
                member_id=identity.member_id,
                group_instance_id=identity.instance_id,
            )
            response = await self._brokers.request(node, request, purpose="coordinator")
        if scope.cancelled_caught:
            raise RequestTimedOutError(
                f"no response to a heartbeat of group {self._group!r} within {round(limit, 3):g} s"
            )
        if response.error_code and identity == self._member.identity:
            raise from_code(
                response.error_code, f"heartbeat of group {self._group!r}", operation="Read"
            )
