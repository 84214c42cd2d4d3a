"""What the parts of :class:`~trikafka.Consumer` share: the consumer's parts, and what forbids a call now."""

from __future__ import annotations

import trio

from .._state.assignment import AssignedPartition
from ..errors import TrikafkaError
from .consumer_parts import ConsumerParts
from .leaving import Leaving


class ConsumerBase:
    """The parts of one consumer, and how far it is on its way out."""

    def __init__(self, parts: ConsumerParts) -> None:
        core = parts.core
        self._parts, self._config = parts, parts.config
        self._subscription, self._assignment, self._signals = core.subscription, core.assignment, core.signals
        self._leaving = Leaving(parts)
        self._closed = False  # for the user; not to be taken back
        self._shut = False  # the group was told, the sockets are closed
        self._unsubscribe_error: Exception | None = None  # what a listener raised in the background, for the next receive

    def _open(self) -> None:
        """Raise once closed. The handlers that closing waits for, and the hooks that run then, may still commit and ask."""
        if self._closed and (self._shut or not (self._leaving.revoking or self._parts.invoker.inside())):
            raise trio.ClosedResourceError("this consumer is closed")

    def _settled(self) -> None:
        """Raise where what it subscribes to cannot be changed."""
        if self._closed:
            raise trio.ClosedResourceError("this consumer is closed")
        if self._leaving.under_way:
            raise trio.BusyResourceError("unsubscribe() is under way: wait for it before subscribing or assigning")

    def _fatal(self) -> TrikafkaError | None:
        """Why nothing can be received any more, of any partition."""
        return None if self._parts.group.membership is None else self._parts.group.membership.fatal

    def _check(self, partition: AssignedPartition | None = None) -> None:
        """Raise what the user has to know before anything is handed out (of ``partition``, or any)."""
        if self._closed:
            raise trio.ClosedResourceError("this consumer is closed")
        if (fatal := self._fatal()) is not None:
            raise fatal.with_traceback(None)
        if (late := self._unsubscribe_error) is not None:
            self._unsubscribe_error = None
            raise late
        if (error := (self._assignment if partition is None else partition).take_error()) is not None:
            raise error
