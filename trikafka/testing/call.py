"""One request on its way through the scripted cluster, as the handlers see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from .group import Groups
from .messages import Message, respond
from .script import Fail
from .state import Node, State


class HangUp(Exception):
    """The broker closes the connection instead of answering."""


@dataclass(slots=True, eq=False)
class Call:
    """A request, the node that got it, and the error that the script wants in the answer."""

    state: State
    groups: Groups
    node: Node
    request: Message
    version: int
    client_id: str
    fail: Fail | None = None

    def error(self, topic: str | None = None, partition: int | None = None) -> int:
        """The scripted error code for this item of the response, or 0."""
        return self.fail.code if self.fail is not None and self.fail.concerns(topic, partition) else 0

    def respond(self, **values: Any) -> Message:
        """The response, in the version of the request. Fields that this version does not have are left out."""
        return respond(self.request, **values)


#: Answers one API. ``None`` means that this request has no answer (``acks=0``).
Answer: TypeAlias = Callable[[Call], Awaitable[Message | None]]
