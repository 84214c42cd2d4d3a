"""Brokers that have refused who this client says it is: not asked again for a while, for many attempts lock an account."""

from __future__ import annotations

import trio

from ..config import ClientConfig
from ..errors import AuthenticationError
from ..errors.copies import again
from ..types import Node

#: How long (seconds) a broker that has refused this client is not dialled again.
REFUSED_FOR = 30.0
#: The same where each dial has credentials of its own (a token, a ticket, what ``sasl_credentials`` returns): the next ones may be
#: good, and no account is locked.
REFUSED_ANEW_FOR = 1.0
_PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class Refusals:
    """Of one client, by the brokers' addresses. Only the brokers of that client tell it."""

    def __init__(self, config: ClientConfig) -> None:
        fixed = config.sasl_mechanism in _PASSWORDS and config.sasl_credentials is None
        self._for = REFUSED_FOR if fixed else REFUSED_ANEW_FOR
        self._until: dict[tuple[str, int], tuple[float, AuthenticationError]] = {}

    def refused(self, node: Node, error: AuthenticationError) -> None:
        """A broker did not take the credentials. (Where no broker judged them, TLS or a token is what is wrong.)"""
        if error.code is not None:
            self._until.setdefault((node.host, node.port), (trio.current_time() + self._for, again(error)))

    async def check(self, node: Node) -> None:
        """Raise what the broker said, if that is not long ago. A checkpoint then: who tries again and again lets others run."""
        until, error = self._until.get((node.host, node.port), (0.0, None))
        if error is not None and trio.current_time() < until:
            await trio.lowlevel.checkpoint()
            raise again(error)
        self._until.pop((node.host, node.port), None)
