"""One request in the scripted cluster, as its handlers see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from .group import Groups
from .messages import Message, respond
from .script import Fail
from .state import ScriptedNode, State


class HangUp(Exception):
    """The broker closes the connection instead of responding."""


@dataclass(slots=True, eq=False)
class ScriptedCall:
    """A request, the node that received it, and the scripted error for its response.

    ``connection`` is the number of the connection.
    """

    state: State
    groups: Groups
    node: ScriptedNode
    request: Message
    version: int
    client_id: str
    fail: Fail | None = None
    connection: int = 0
    failed: bool = False  # True once the response has the scripted error

    def error(self, topic: str | None = None, partition: int | None = None) -> int:
        """Return the scripted error code for this item of the response, or 0."""
        if self.fail is None or not self.fail.concerns(topic, partition):
            return 0
        self.failed = True
        return self.fail.code

    def respond(self, **values: Any) -> Message:
        """Return the response in the version of the request.

        Fields that the version lacks are left out.
        """
        return respond(self.request, **values)


#: A handler of one API. It returns ``None`` for a request without a response (``acks=0``).
ApiHandler: TypeAlias = Callable[[ScriptedCall], Awaitable[Message | None]]
