"""The state that all parts of :class:`~trikafka.Consumer` share, and the checks before a call."""

from __future__ import annotations

import trio

from ..._state.consumer.assignment import AssignedPartition
from ...errors import TrikafkaError
from ...errors.copies import again
from .leaving import Leaving
from .parts import ConsumerParts


class ConsumerBase:
    """The parts of one consumer, and the progress of its exit."""

    def __init__(self, parts: ConsumerParts) -> None:
        core = parts.core
        self._parts = parts
        self._config = parts.config
        self._subscription = core.subscription
        self._assignment = core.assignment
        self._signals = core.signals
        self._leaving = Leaving(parts)
        self._closed = False  # for the user; never set back
        self._shut = False  # the group was left, the sockets are closed
        self._unsubscribe_error: Exception | None = (
            None  # raised by a listener in the background, for the next receive
        )

    def _open(self) -> None:
        """Raise :exc:`trio.ClosedResourceError` once the consumer is closed.

        The handlers that a close waits for, and the hooks that run in it, may still commit and look
        up offsets. So a close refuses calls only after its revoking steps.
        """
        if self._closed and (
            self._shut or not (self._leaving.revoking or self._parts.invoker.inside())
        ):
            raise trio.ClosedResourceError("this consumer is closed")

    def _settled(self) -> None:
        """Raise unless the subscription may be changed now."""
        if self._closed:
            raise trio.ClosedResourceError("this consumer is closed")
        if self._leaving.under_way:
            raise trio.BusyResourceError(
                "unsubscribe() is under way: wait for it before subscribing or assigning"
            )

    def _fatal(self) -> TrikafkaError | None:
        """Return the error that stopped the whole group's work, if there is one."""
        return None if self._parts.group.membership is None else self._parts.group.membership.fatal

    def _pop_refusal(self) -> TrikafkaError | None:
        """Return why the group refuses the member now; one call raises it."""
        return self._parts.core.member.pop_refusal()

    def _check(self, partition: AssignedPartition | None = None) -> None:
        """Raise the errors that the user must see before a delivery.

        With a ``partition`` only that partition's error counts, not those of other partitions.
        """
        # The order is by how much an error stops. A closed consumer comes first. A fatal error of
        # the group is raised by every receive until the next subscription. A refusal
        # (errors/refusals.py) may be lifted, so one receive raises it and the next one goes on
        # waiting. Last comes the error of a partition, which is raised once. position() passes its
        # partition: it leaves the refusal, and the errors of other partitions, to the receives.
        if self._closed:
            raise trio.ClosedResourceError("this consumer is closed")
        if (fatal := self._fatal()) is not None:
            raise again(fatal)
        if partition is None and (refusal := self._pop_refusal()) is not None:
            raise again(refusal)
        if (late := self._unsubscribe_error) is not None:
            self._unsubscribe_error = None
            raise late
        if (
            error := (self._assignment if partition is None else partition).pop_error()
        ) is not None:
            raise error
