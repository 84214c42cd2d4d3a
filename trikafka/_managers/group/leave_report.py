"""The report about a member's leave, made once at its end and not for each attempt.

Without success, the report says what that means for the group.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from ..._state.group.member import MemberIdentity
from ...errors import MemberFencedError, RequestTimedOutError, TrikafkaError
from ...errors.peer_text import peer_text
from .membership_events import MembershipEvents

_log = logging.getLogger("trikafka.membership")


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
            "group %s: %s could not leave, so its partitions have no owner until its session ends: "
            "%s",
            self._group,
            peer_text(self._identity.member_id),
            self._error or "the time for it was up",
        )
        unconfirmed = self._error or RequestTimedOutError(
            "the coordinator did not confirm the leave in time"
        )
        self._events.left(self._identity, self._why, unconfirmed)
