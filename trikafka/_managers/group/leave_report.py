"""The attempts of a member to leave its group, and the report at their end.

Without success, the report says what that means for the group.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import trio

from ..._net.brokers import Purpose
from ..._net.retry import Retry
from ..._state.group.member import MemberIdentity
from ...config import ClientConfig
from ...errors import MemberFencedError, RequestTimedOutError, TrikafkaError
from ...errors.peer_text import peer_text
from .membership_events import MembershipEvents

_log = logging.getLogger("trikafka.membership")
#: The time limit of a leave (seconds), and its number of attempts.
_LIMIT, _ATTEMPTS = 5.0, 3
#: With less time (seconds) than this, a leave gets one attempt.
_SHORT = 0.1


class LeaveReport:
    """A context manager around the attempts of one leave, which reports at the end.

    It also reports a leave that was cut off. ``why`` is for observers.
    """

    def __init__(
        self, group: str, identity: MemberIdentity, events: MembershipEvents, why: str
    ) -> None:
        self._group = group
        self._identity = identity
        self._events = events
        self._why = why
        self._error: TrikafkaError | None = None
        self._left = False

    def failed(self, error: TrikafkaError) -> None:
        """Record that an attempt failed."""
        _log.debug("group %s: an attempt to leave failed: %s", self._group, error)
        self._error = error

    def left(self) -> None:
        """Record that the coordinator has confirmed the leave."""
        self._left = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._left or isinstance(self._error, MemberFencedError):  # the member is out either way
            _log.info("group %s: %s left", self._group, peer_text(self._identity.member_id))
            self._events.left(self._identity, self._why)
            return
        _log.warning(
            "group %s: %s could not leave, so its partitions have no owner until its session "
            "ends: %s",
            self._group,
            peer_text(self._identity.member_id),
            self._error or "the time for it was up",
        )
        unconfirmed = self._error or RequestTimedOutError(
            "the coordinator did not confirm the leave in time"
        )
        self._events.left(self._identity, self._why, unconfirmed)


async def leave_with_retries(
    config: ClientConfig,
    report: LeaveReport,
    ask: Callable[[float, Purpose], Awaitable[None]],
    may_go_on: Callable[[TrikafkaError], bool],
) -> None:
    """Make up to three attempts to leave, within five seconds, and report the outcome.

    ``ask(limit, purpose)`` is one attempt. Any but the first takes another connection, because the
    last commit may be stuck before it on the usual one. ``may_go_on`` returns whether another
    attempt may follow an error.
    """
    retry = Retry(config)
    with report, trio.move_on_after(_LIMIT):
        for attempt in range(_ATTEMPTS):
            left = max(0.0, trio.current_effective_deadline() - trio.current_time())
            limit = left if attempt or left < _SHORT else left / 2
            try:
                await ask(
                    min(limit, config.request_timeout), "general" if attempt else "coordinator"
                )
                report.left()
                return
            except TrikafkaError as error:
                report.failed(error)
                if not may_go_on(error):
                    return
                if isinstance(error, RequestTimedOutError):
                    continue
            await retry.wait()
