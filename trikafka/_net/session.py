"""How long a broker takes a connection for authenticated, and when to say anew who one is (KIP-368)."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from .._wire.messages import ApiMessage
from ..types import Node

#: Java's: anew after so much of the session, so that many connections do not do it at once.
_EARLIEST, _LATEST = 0.85, 0.95
#: Not sooner than this (seconds) after the last time, however little a broker grants: else it could keep this client busy, and
#: Kafka's take it for a fault (ILLEGAL_SASL_STATE), which ends a call. A connection whose session is over is closed, and made anew.
LEAST_SESSION = 1.0
Ask = Callable[[ApiMessage], Awaitable[Any]]


class Authenticate(Protocol):
    """Tells a broker who this client is, by requests that ``ask`` makes."""

    async def __call__(self, ask: Ask, node: Node) -> float | None:
        """Return how long (seconds) the broker believes it; ``None``: as long as the connection lives."""


class Session:
    """The session of one connection."""

    __slots__ = ("_authenticate", "_changed", "_renew_at")

    def __init__(self) -> None:
        self._authenticate: Authenticate | None = None
        self._renew_at: float | None = None
        self._changed = trio.Event()

    def granted(self, authenticate: Authenticate, lifetime: float | None) -> None:
        """The broker believes what ``authenticate`` has told it, for ``lifetime`` seconds from now."""
        share = random.uniform(_EARLIEST, _LATEST)
        self._authenticate = authenticate
        self._renew_at = None if lifetime is None else trio.current_time() + max(LEAST_SESSION, lifetime * share)
        self._changed.set()

    async def ends(self) -> Authenticate:
        """Wait until it is time to authenticate anew; return how."""
        while self._authenticate is None or self._renew_at is None:
            self._changed = trio.Event()
            await self._changed.wait()
        await trio.sleep_until(self._renew_at)
        return self._authenticate
