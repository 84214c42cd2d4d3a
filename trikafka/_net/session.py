"""The session of an authenticated connection, and when to authenticate again (KIP-368)."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from .._wire.messages import ApiMessage
from ..errors import KafkaConnectionError
from ..types import Node

#: The share of a session after which the client authenticates again, as in Java's client. The
#: random share keeps many connections from doing so at once.
_EARLIEST, _LATEST = 0.85, 0.95
#: The shortest time (seconds) between two authentications, however short a session the broker
#: grants. Otherwise a broker could keep this client busy; Kafka's brokers take that for a fault
#: (ILLEGAL_SASL_STATE), which ends a call. A connection whose session is over is closed, and made
#: again.
LEAST_SESSION = 1.0
#: How long (seconds) a client whose credentials were refused, by their source or by other brokers,
#: does not ask for them again while the session goes on.
AFTER_REFUSAL = 30.0
Ask = Callable[[ApiMessage], Awaitable[Any]]


class CredentialsUnavailableError(KafkaConnectionError):
    """The source of tokens or credentials is unreachable, or failed for a while. Retriable.

    While a client opens, this is an :exc:`AuthenticationError`: the brokers are not to blame.
    """


class Authenticate(Protocol):
    """A function that authenticates with a broker, by requests that ``ask`` makes."""

    async def __call__(self, ask: Ask, node: Node) -> float | None:
        """Return the length of the session (seconds); ``None``: until the connection ends."""


class Session:
    """The session of one connection."""

    __slots__ = ("_authenticate", "_changed", "_renew_at", "ends_at")

    def __init__(self) -> None:
        self._authenticate: Authenticate | None = None
        self._renew_at: float | None = None
        #: The time after which the connection is not used (Trio's clock).
        self.ends_at = math.inf
        self._changed = trio.Event()

    def granted(self, authenticate: Authenticate, lifetime: float | None) -> None:
        """Record a session of ``lifetime`` seconds from now, granted to ``authenticate``."""
        share = random.uniform(_EARLIEST, _LATEST)
        now = trio.current_time()
        self._authenticate = authenticate
        self._renew_at = None if lifetime is None else now + max(LEAST_SESSION, lifetime * share)
        self.ends_at = math.inf if lifetime is None else now + lifetime
        if self._renew_at is not None and self._renew_at >= self.ends_at:
            # Such a session is over before LEAST_SESSION, and a broker may still renew it.
            self.ends_at = self._renew_at + LEAST_SESSION
        self._changed.set()

    @property
    def over(self) -> bool:
        """True after the end of the session."""
        return trio.current_time() >= self.ends_at

    def postpone(self, seconds: float) -> None:
        """Plan another authentication in ``seconds``, or wake at the end of the session.

        The wait has a lower bound: ``reconnect_backoff_ms=0`` may not keep the program busy.
        """
        again_at = trio.current_time() + max(LEAST_SESSION, seconds)
        self._renew_at = min(again_at, self.ends_at)

    async def ends(self) -> Authenticate:
        """Wait until it is time to authenticate again; return the function for it."""
        while self._authenticate is None or self._renew_at is None:
            self._changed = trio.Event()
            await self._changed.wait()
        await trio.sleep_until(self._renew_at)
        return self._authenticate
