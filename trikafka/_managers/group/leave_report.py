"""The attempts of a member to leave its group, and the report of their outcome.

If they fail, the report says what that means for the group.
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
from ...error_codes import ErrorCode
from ...errors import MemberFencedError, RequestTimedOutError, TrikafkaError
from ...errors.peer_text import peer_text
from .membership_events import MembershipEvents

_log = logging.getLogger("trikafka.membership")
#: The time limit of a leave (seconds), and its number of attempts.
_LIMIT, _ATTEMPTS = 5.0, 3
#: Seconds left for a leave below which the first attempt gets all of them.
_SHORT = 0.1
_NO_TIME = "its time limit has passed"
#: The close's own limit of time is a cancellation here, too.
_CUT_OFF = "the leave was cancelled, or the time for the close was up, before a response"


class LeaveReport:
    """A context manager around the attempts of one leave. It reports the outcome at its end.

    A leave that was cancelled is reported, too, unless another one follows.

    Args:
        group: The group.
        identity: The member.
        events: Notified of the end.
        why: The reason that observers get.
        consequence: The consequence of a leave that failed, until the member's session ends.
        repeated: True if another leave follows when this one is cancelled, and reports the outcome.
    """

    def __init__(
        self,
        group: str,
        identity: MemberIdentity,
        events: MembershipEvents,
        why: str,
        consequence: str = "its partitions have no owner",
        *,
        repeated: bool = False,
    ) -> None:
        self._group = group
        self._repeated = repeated
        self._consequence = consequence
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
        # A fenced member is no longer in the group either.
        if self._left or isinstance(self._error, MemberFencedError):
            _log.info("group %s: %s left", self._group, peer_text(self._identity.member_id))
            self._events.left(self._identity, self._why)
            return
        if self._repeated and kind is not None and issubclass(kind, trio.Cancelled):
            _log.debug("group %s: a leave was cut off; another one follows", self._group)
            return
        _log.warning(
            "group %s: %s could not leave, so %s until its session ends: %s",
            self._group,
            peer_text(self._identity.member_id),
            self._consequence,
            self._error or (_NO_TIME if kind is None else _CUT_OFF),
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

    Args:
        config: The settings of the client.
        report: The report.
        ask: Makes one attempt, within the given seconds and on a connection of the given purpose.
        may_go_on: Returns whether another attempt may follow an error.

    On cancellation the leave is reported as unconfirmed.
    """
    # The first attempt gets half of the time. The next ones use another connection, because on the
    # usual one the last commit may be stuck before the request.
    #
    # A cancelled close may have left a quarter of a second for all of this. Two usual waits between
    # attempts take longer, and the last attempt, which may succeed, would not be made. So no wait
    # takes more than a third of what is left.

    retry = Retry(config)
    with report, trio.move_on_after(_LIMIT):
        for attempt in range(_ATTEMPTS):
            left = _seconds_left()
            limit = left if attempt or left < _SHORT else left / 2
            try:
                await ask(
                    min(limit, config.request_timeout), "general" if attempt else "coordinator"
                )
                report.left()
                return
            except TrikafkaError as error:
                report.failed(error)
                # A broker's own failure proves nothing, and a second leave does no harm.
                if not may_go_on(error) and error.code != ErrorCode.UNKNOWN_SERVER_ERROR:
                    return
                if isinstance(error, RequestTimedOutError):
                    continue
            if attempt + 1 < _ATTEMPTS:
                await trio.sleep(min(retry.delay(), _seconds_left() / 3))


def _seconds_left() -> float:
    return max(0.0, trio.current_effective_deadline() - trio.current_time())
