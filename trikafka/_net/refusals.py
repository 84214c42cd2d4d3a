"""The refusals of this client's credentials: such brokers are not asked again for a while.

Many attempts lock an account. A password that does not change belongs to one account, whichever
broker checks it. So at most two attempts in half a minute go out, from all connections to all
brokers together, until one succeeds. A broker that has refused is left alone for the same time.
"""

from __future__ import annotations

import math
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ..config import ClientConfig
from ..errors import AuthenticationError
from ..errors.copies import again
from ..types import Node
from .signal import Signal

T = TypeVar("T")
#: How long (seconds) a broker that has refused this client is not dialled again.
REFUSED_FOR = 30.0
#: The same where each dial has credentials of its own (a token, a ticket, the result of
#: ``sasl_credentials``): the next ones may be good, and no account is locked.
REFUSED_TOKEN_FOR = 1.0
#: How many attempts with a fixed password may be refused in REFUSED_FOR.
MOST_REFUSED = 2
#: A password that was accepted within this time (seconds) is taken to be good: attempts need not go
#: out one after the other.
_PROVEN_FOR = 1.0
_PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class Refusals:
    """The refusals of one client. Only the brokers of that client write it."""

    def __init__(self, config: ClientConfig) -> None:
        #: True if all authentications use one password, of the settings.
        self.fixed = config.sasl_mechanism in _PASSWORDS and config.sasl_credentials is None
        self._for = REFUSED_TOKEN_FOR if config.sasl_mechanism and not self.fixed else REFUSED_FOR
        # By address: until when it is left alone, and why.
        self._of_brokers: dict[tuple[str, int], tuple[float, AuthenticationError]] = {}
        # The refusals since the last success.
        self._recent: deque[tuple[float, AuthenticationError]] = deque(maxlen=MOST_REFUSED)
        self._accepted_at = -math.inf
        self._under_way = 0
        self._ended = Signal()

    @property
    def until(self) -> float:
        """The time when an attempt may succeed again after a refusal; else a past time."""
        until = max((until for until, _ in self._of_brokers.values()), default=-math.inf)
        return until if self._too_many() is None else max(until, self._recent[0][0] + REFUSED_FOR)

    def refused(self, node: Node, error: AuthenticationError) -> None:
        """Record that a broker did not accept the credentials.

        An error without a code is not counted: no broker checked them; TLS or a token is wrong.
        """
        if error.code is not None:
            now = trio.current_time()
            self._of_brokers.setdefault((node.host, node.port), (now + self._for, again(error)))

    def pause_after(self, error: AuthenticationError) -> float:
        """Return how long (seconds) to wait after a refusal before the next attempt.

        The wait is short where that attempt may succeed: each dial asks for credentials, or TLS
        failed, whose files may be replaced at any time. In a row of refusals it should grow.
        """
        if error.code is not None:
            return self._for
        # Without a code and without TLS, the source of tokens or credentials has refused.
        return REFUSED_TOKEN_FOR if isinstance(error.__cause__, ssl.SSLError) else REFUSED_FOR

    async def check(self, node: Node) -> None:
        """Raise the broker's refusal, if it is recent.

        A checkpoint precedes it, for callers that retry at once.
        """
        now = trio.current_time()
        self._of_brokers = {
            place: held for place, held in self._of_brokers.items() if now < held[0]
        }
        _, error = self._of_brokers.get((node.host, node.port), (0.0, None))
        error = error or self._too_many()
        if error is not None:
            await trio.lowlevel.checkpoint()
            raise again(error)

    async def attempt(self, authenticate: Callable[[], Awaitable[T]]) -> T:
        """Authenticate one connection.

        Raises the last refusal instead if a fixed password was refused too often. While it is not
        known whether the password is good, no more attempts run than may be refused. Otherwise
        connections to many brokers, made at the same moment, would be as many refusals.
        """
        while self.fixed and trio.current_time() >= self._accepted_at + _PROVEN_FOR:
            if (error := self._too_many()) is not None:
                raise again(error)
            if len(self._recent) + self._under_way < MOST_REFUSED:
                break
            await self._ended.wait()
        self._under_way += 1
        try:
            result = await authenticate()
        except AuthenticationError as error:
            if error.code is not None:
                self._accepted_at = -math.inf
                self._recent.append((trio.current_time(), again(error)))
            raise
        else:
            self._accepted_at = trio.current_time()
            self._recent.clear()
            return result
        finally:
            self._under_way -= 1
            self._ended.notify()

    def _too_many(self) -> AuthenticationError | None:
        """Return the last refusal, if the same password allows no more attempts now."""
        now = trio.current_time()
        while self._recent and now >= self._recent[0][0] + REFUSED_FOR:
            self._recent.popleft()
        return self._recent[-1][1] if self.fixed and len(self._recent) == MOST_REFUSED else None
