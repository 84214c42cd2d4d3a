"""The failed attempts of one member to join its group: the pauses, the log, and the report."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from ..._net.reminders import Reminder
from ..._net.retry import Retry, backoff
from ..._state.group.member import Member
from ...config import ClientConfig
from ...errors import DamagedResponseError, TrikafkaError

#: The pauses after a refusal, and after data of the group that cannot be used (ms): the first, and
#: the longest.
_PAUSE_MS, _LONGEST_PAUSE_MS = 500, 10_000
_log = logging.getLogger("trikafka.membership")


class JoinAttempts:
    """The count of one member's failed attempts.

    ``refused_until`` returns when the brokers may be asked again to authenticate this client. A
    lost connection, or a coordinator that moves or loads, is usual and short. A refusal is logged
    at once and makes ``health()`` not ok. So does data that only the group's members can fix.
    """

    def __init__(
        self,
        config: ClientConfig,
        group: str,
        member: Member,
        refused_until: Callable[[], float],
        *,
        longest_pause_ms: float = _LONGEST_PAUSE_MS,
    ) -> None:
        self._longest_pause_ms = longest_pause_ms  # after data that cannot be used
        self._group = group
        self._member = member
        self._refused_until = refused_until
        self._retry = Retry(config)
        self._strange = 0  # failures in a row because of data that cannot be used
        self._refusals = 0  # in a row
        self._since: float | None = None  # when the first failure in a row came
        self._reminder = Reminder()
        self._logged = ""  # the kind of error that was logged last
        member.when_settled(self._succeeded)

    @property
    def refused(self) -> bool:
        """True if the last attempt was refused."""
        return self._refusals > 0

    def _succeeded(self) -> None:
        """Record that the member has settled in its group."""
        if self._logged and self._since is not None:
            _log.info(
                "group %s: this member is in its group again, after %.1f s",
                self._group,
                trio.current_time() - self._since,
            )
        self.forget()

    def forget(self) -> None:
        """Count from zero: the last attempt succeeded, or the subscription is another."""
        self._retry.reset()
        self._strange = 0
        self._refusals = 0
        self._since = None
        self._reminder.forget()
        self._logged = ""

    def pause(self) -> float:
        """Count an attempt that ended without an error and outside the group.

        Return the seconds to wait.
        """
        return self._retry.delay()

    def failed(self, error: TrikafkaError) -> float:
        """Count an attempt that may succeed when it is repeated; return the seconds to wait."""
        delay = self._retry.delay()
        self._refusals = 0
        if not isinstance(error, DamagedResponseError):
            self._strange = 0
            _log.debug("group %s: an attempt to join failed: %s", self._group, error)
            return delay
        self._strange += 1
        # No heartbeat is sent meanwhile: the pause must not let the session end.
        delay = backoff(self._strange, _PAUSE_MS, min(_LONGEST_PAUSE_MS, self._longest_pause_ms))
        self._begin()
        self._member.hindered(error)
        self._warn(
            error, f"this member cannot get into its group: {error}; trying again in {delay:.3g} s"
        )
        return delay

    def refused_by(self, error: TrikafkaError) -> float:
        """Count a refusal and have one receive raise it; return when the next attempt is due."""
        now = trio.current_time()
        self._begin()
        self._refusals += 1
        pause = backoff(self._refusals, _PAUSE_MS, _LONGEST_PAUSE_MS)
        next_attempt = max(now + pause, self._refused_until())
        self._member.refused(error, next_attempt)
        self._warn(
            error, f"this member was refused: {error}; trying again in {next_attempt - now:.3g} s"
        )
        return next_attempt

    def _begin(self) -> None:
        if self._since is None:
            self._since = trio.current_time()

    def _warn(self, error: TrikafkaError, text: str) -> None:
        """Log a failure once, and again after five minutes or when its kind changes."""
        now = trio.current_time()
        kind = type(error).__name__
        if kind == self._logged and not self._reminder.is_due(now):
            _log.debug("group %s: %s", self._group, text)
            return
        self._reminder.logged(now)
        self._logged = kind
        _log.warning("group %s: %s", self._group, text)
