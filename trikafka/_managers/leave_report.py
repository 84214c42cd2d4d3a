"""How a member's leave ended, told once: not each of its attempts, and what it means where none succeeded."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from .._state.member import Identity
from ..errors import MemberFencedError, RequestTimedOutError, TrikafkaError
from .membership_events import MembershipEvents

_log = logging.getLogger("trikafka.membership")


class LeaveReport:
    """Around the attempts of one leave; tells at the end, also of one that was cut. ``why`` is for observers."""

    def __init__(self, group: str, identity: Identity, events: MembershipEvents, why: str) -> None:
        self._group, self._identity, self._events, self._why = group, identity, events, why
        self._error: TrikafkaError | None = None
        self._left = False

    def failed(self, error: TrikafkaError) -> None:
        """An attempt failed."""
        _log.debug("group %s: an attempt to leave failed: %s", self._group, error)
        self._error = error

    def left(self) -> None:
        """The coordinator has confirmed it."""
        self._left = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._left or isinstance(self._error, MemberFencedError):  # it is out either way
            _log.info("group %s: %s left", self._group, self._identity.member_id)
            self._events.left(self._identity, self._why)
            return
        _log.warning(
            "group %s: %s could not leave, so its partitions are nobody's until its session ends: %s",
            self._group,
            self._identity.member_id,
            self._error or "the time for it was up",
        )
        unconfirmed = self._error or RequestTimedOutError("the coordinator did not confirm the leave in time")
        self._events.left(self._identity, self._why, unconfirmed)
