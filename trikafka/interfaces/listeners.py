"""Base classes of rebalance listeners and observers.

All methods here do nothing, so a subclass defines only the methods that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..types import BatchEvent, ConnectionEvent, MembershipEvent, TopicPartition
from .context import ClientContext


# Listeners run inside receive(), in the task that consumes: there the user's code is between two
# records. The membership task posts the revocation and waits, while heartbeats continue. The
# next receive commits what is processed and runs the listeners, and the partitions are gone in the
# step after them. So on_partitions_revoked() can still commit, and nothing is delivered from a
# partition while its listener runs.
#
# Three consequences need care:
#
# * A receive with a timeout must return in time, but a listener that has begun must not be cut. The
#   client runs it in a task of its own, and the next receive waits for that task.
# * A listener that never returns would keep the member's partitions for ever, since heartbeats go
#   on. max_poll_interval_ms bounds it: the group has moved on by then, so committing is pointless
#   and the partitions are lost.
# * On leaving, the listener runs in the task that leaves. If another listener still runs, the
#   leaving task waits for it first: two methods never overlap, so a listener needs no lock.
#
# When the surrounding scope is cancelled no listener can run: each of its checkpoints would raise.
# The remaining second goes to the last commit and the LeaveGroup request.
class RebalanceListener:
    """A listener for partitions that the group assigns or revokes.

    Inherit from this class, or implement the same methods. The methods run inside ``receive``, in
    the task that consumes. Heartbeats continue meanwhile.

    For a receive with a ``timeout``, the methods run in a task of the client. The receive returns
    in time, the methods continue, and the next receive waits for them. If a method is cancelled,
    the next receive calls it again.

    A method that takes longer than ``max_poll_interval_ms`` is cancelled and not called again,
    because the group has moved on. ``receive`` then raises
    :exc:`~trikafka.errors.KafkaTimeoutError`. The next receive loses the assigned partitions and
    joins the group again.

    An exception raised by a method is raised by ``receive``, and the rebalance continues. If the
    listener belongs to a plugin, ``receive`` raises a :exc:`PluginError` with the plugin's name,
    unless the exception is a :exc:`TrikafkaError`.

    On ``unsubscribe``, ``aclose`` and at the end of ``async with``, the methods run in the task
    that leaves, within the limit of that call. No heartbeats are sent during that time. The task
    first waits for a method that still runs elsewhere, so two methods never run at the same time. A
    method must not call ``unsubscribe`` or ``aclose``, nor start a receive.

    When the ``async with`` block is cancelled, no method is called. One second remains, for the
    last commit and for leaving the group. Put cleanup that must always run into a ``finally``
    block.
    """

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle newly assigned partitions.

        No record of them has been fetched yet, so a ``seek`` here decides the position.

        Args:
            partitions: The new partitions.
        """

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle partitions that another member receives after this method returns.

        Their offsets can still be committed here, also on leaving. Auto commit has already
        committed the processed offsets.

        Args:
            partitions: The partitions about to be released.
        """

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle partitions that are gone already.

        Another member may own them, so committing their offsets fails.

        Args:
            partitions: The lost partitions.
        """


class Observer:
    """An observer of one client.

    Inherit from this class, or implement the same methods. The methods are plain functions that run
    in the client's tasks, so they must return quickly. An exception is logged the first time and
    does not affect the client.
    """

    def opened(self, context: ClientContext) -> None:
        """Handle the opening of the client.

        Args:
            context: The client's context.
        """

    def failed(self, error: Exception) -> None:
        """Handle the failure of a background task, which ends the client.

        Args:
            error: The failure.
        """

    def closed(self) -> None:
        """Handle the closing of the client."""


class ConnectionObserver(Observer):
    """An observer of the client's connections as well.

    Observers without this method are not notified of connections.
    """

    def connection_changed(self, event: ConnectionEvent) -> None:
        """Handle a change of a connection's state, once per change.

        The states are listed at :class:`~trikafka.ConnectionStatistics`.

        Args:
            event: The connection, its new state and the state before.
        """


class MembershipObserver(Observer):
    """An observer of a consumer's membership of its group as well.

    Observers without this method are not notified of the membership.
    """

    def membership_changed(self, event: MembershipEvent) -> None:
        """Handle a change of the membership, once per change and without delay.

        The consumer joined, left, was removed, or lost or found its coordinator (``event.kind``).
        Partitions that are assigned or revoked are reported to a :class:`RebalanceListener`
        instead, at the next receive.

        Args:
            event: The change.
        """


class ProducerObserver(Observer):
    """An observer of a producer's batches as well.

    Observers without these methods are not notified of batches. Each method is called once per
    batch or once per attempt, never per record. Events are created only if an observer has the
    method for them.
    """

    def batch_sent(self, event: BatchEvent) -> None:
        """Handle a batch that is about to be sent, for the first time or again.

        Args:
            event: The batch. ``event.attempt`` counts from 1.
        """

    def batch_retried(self, event: BatchEvent) -> None:
        """Handle a batch that is about to be sent again; :meth:`batch_sent` follows.

        Args:
            event: The batch. ``event.error`` is the failure of the last attempt.
        """

    def batch_delivered(self, event: BatchEvent) -> None:
        """Handle a batch that the broker has acknowledged.

        Args:
            event: The batch. ``event.age`` is the time in seconds since its first record was
                accepted.
        """

    def batch_failed(self, event: BatchEvent) -> None:
        """Handle a batch whose records have failed.

        Args:
            event: The batch. ``event.error`` is the failure.
        """
