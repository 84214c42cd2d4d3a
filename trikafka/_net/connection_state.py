"""The states of a connection, and which requests each admits (DESIGN, section 3d). No I/O.

=================  ==============================================  =====================================================
state              requests                                        next
=================  ==============================================  =====================================================
NEW                none: it is being dialled                       NEGOTIATING, CLOSED
NEGOTIATING        ApiVersions                                     AUTHENTICATING, READY, CLOSED
AUTHENTICATING     SaslHandshake, SaslAuthenticate                 READY, CLOSED
READY              all but those of SASL                           REAUTHENTICATING, CLOSED
REAUTHENTICATING   those of SASL; others wait until it is READY    READY, CLOSED
CLOSED             none                                            none
=================  ==============================================  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from kafka.protocol.api_key import ApiKey


class ConnectionState(Enum):
    """Where a connection is."""

    NEW = "new"
    NEGOTIATING = "negotiating"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    REAUTHENTICATING = "reauthenticating"
    CLOSED = "closed"


_S = ConnectionState
_NEXT = {
    _S.NEW: {_S.NEGOTIATING, _S.CLOSED},
    _S.NEGOTIATING: {_S.AUTHENTICATING, _S.READY, _S.CLOSED},
    _S.AUTHENTICATING: {_S.READY, _S.CLOSED},
    _S.READY: {_S.REAUTHENTICATING, _S.CLOSED},
    _S.REAUTHENTICATING: {_S.READY, _S.CLOSED},
    _S.CLOSED: {_S.CLOSED},
}
SASL_REQUESTS = frozenset((int(ApiKey.SaslHandshake), int(ApiKey.SaslAuthenticate)))
_NEGOTIATION = frozenset((int(ApiKey.ApiVersions),))


class StateClock:
    """The state of one connection, and how long (seconds) it was in each so far."""

    __slots__ = ("_clock", "_since", "_spent", "_told", "current")

    def __init__(
        self,
        clock: Callable[[], float],
        told: Callable[[ConnectionState, StateClock, Exception | None], object] = lambda before, clock, error: None,
    ) -> None:
        self._clock, self._told = clock, told  # ``told`` of each change: the state before, this, and why it is closed
        self.current = ConnectionState.NEW
        self._since = clock()
        self._spent: dict[ConnectionState, float] = {}

    def enter(self, state: ConnectionState, error: Exception | None = None) -> None:
        """It is in ``state`` now; ``error`` is why, if it is closed for one."""
        assert state in _NEXT[self.current], f"a connection that is {self.current.value} cannot become {state.value}"
        now = self._clock()
        self._spent[self.current] = self._spent.get(self.current, 0.0) + now - self._since
        before, self.current, self._since = self.current, state, now
        if state is not before:
            self._told(before, self, error)

    def times(self) -> dict[str, float]:
        """Seconds by the name of the state, the current one included."""
        now = self._clock() - self._since
        times = {state.value: seconds for state, seconds in self._spent.items()}
        times[self.current.value] = times.get(self.current.value, 0.0) + now
        return times

    def admits(self, api_key: int) -> bool:
        """Whether a request of this API may be made now."""
        if self.current is ConnectionState.READY:
            return api_key not in SASL_REQUESTS
        if self.current is ConnectionState.NEGOTIATING:
            return api_key in _NEGOTIATION
        if self.current is ConnectionState.AUTHENTICATING:
            return api_key in SASL_REQUESTS
        return self.current is ConnectionState.REAUTHENTICATING
