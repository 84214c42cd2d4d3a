"""The states of a connection, and the requests that each allows. No I/O.

=================  =============================================  ==============================
state              requests                                       next
=================  =============================================  ==============================
NEW                none: it is being dialled                      NEGOTIATING, CLOSED
NEGOTIATING        ApiVersions                                    AUTHENTICATING, READY, CLOSED
AUTHENTICATING     SaslHandshake, SaslAuthenticate                READY, CLOSED
READY              all but those of SASL                          REAUTHENTICATING, CLOSED
REAUTHENTICATING   those of SASL; others wait until READY         READY, CLOSED
CLOSED             none                                           none
=================  =============================================  ==============================
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from kafka.protocol.api_key import ApiKey


class ConnectionState(Enum):
    """The states of a connection."""

    NEW = "new"
    NEGOTIATING = "negotiating"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    REAUTHENTICATING = "reauthenticating"
    CLOSED = "closed"


# Why a table. A connection has one state at a time, and each change goes through
# `ConnectionStateMachine.enter`, which asserts that the table has it. With booleans (negotiated,
# authenticated, closed, ...) impossible combinations could be written, and each reader would have
# to know which of them counts first. `Connection._enqueue` asserts that the state allows a request.
# That finds requests in an order that a broker would punish by closing the connection: one before
# the negotiation, or one between the steps of SASL. CLOSED may be entered again, because the
# reader, the writer and the watch may each find the end.
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
#: Every number of an API. Kafka adds numbers before kafka-python has names for them.
_ALL = frozenset(range(256))
#: The APIs whose requests each state allows.
_ALLOWED: dict[ConnectionState, frozenset[int]] = {
    _S.NEW: frozenset(),
    _S.NEGOTIATING: frozenset((int(ApiKey.ApiVersions),)),
    _S.AUTHENTICATING: SASL_REQUESTS,
    _S.READY: _ALL - SASL_REQUESTS,
    _S.REAUTHENTICATING: _ALL,
    _S.CLOSED: frozenset(),
}


class ConnectionStateMachine:
    """The state of one connection, and the seconds spent in each state so far."""

    __slots__ = ("_clock", "_on_change", "_since", "_spent", "allowed", "current")

    def __init__(
        self,
        clock: Callable[[], float],
        on_change: Callable[
            [ConnectionState, ConnectionStateMachine, Exception | None], object
        ] = lambda before, clock, error: None,
    ) -> None:
        # ``on_change`` is called at each change: with the state before, this machine, and the error
        # that closed it.
        self._clock = clock
        self._on_change = on_change
        self.current = ConnectionState.NEW
        #: The APIs whose requests may be made now.
        self.allowed = _ALLOWED[self.current]
        self._since = clock()
        self._spent: dict[ConnectionState, float] = {}

    def enter(self, state: ConnectionState, error: Exception | None = None) -> None:
        """Enter ``state``; ``error`` is the reason, if one closed the connection."""
        assert state in _NEXT[self.current], (
            f"a connection that is {self.current.value} cannot become {state.value}"
        )
        now = self._clock()
        self._spent[self.current] = self._spent.get(self.current, 0.0) + now - self._since
        before = self.current
        self.current = state
        self.allowed = _ALLOWED[state]
        self._since = now
        if state is not before:
            self._on_change(before, self, error)

    def times(self) -> dict[str, float]:
        """Return the seconds by the name of the state, the current one included."""
        now = self._clock() - self._since
        times = {state.value: seconds for state, seconds in self._spent.items()}
        times[self.current.value] = times.get(self.current.value, 0.0) + now
        return times
