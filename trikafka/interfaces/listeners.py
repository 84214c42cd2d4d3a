"""Who is told what happens in a client: rebalance listeners and observers. To inherit from: the methods here do nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import BatchEvent, ConnectionEvent, MembershipEvent, TopicPartition
from .context import ClientContext


class RebalanceListener:
    """Is told when the group gives and takes partitions, inside ``receive``, in the task that consumes.

    Inherit from it to get methods that do nothing; any object with these methods will do. Heartbeats go on meanwhile. A method that
    is cancelled is called again by the next receive. What it raises comes out of ``receive``, and the rebalance goes on; of a
    plugin's listener as a :exc:`PluginError` that names the plugin, unless it is an error of trikafka's. One that takes longer than
    ``max_poll_interval_ms`` is cancelled for good, for the group has gone on by then: ``receive`` raises
    :exc:`~trikafka.errors.KafkaTimeoutError`, and the next one loses what was assigned and joins again.

    On ``unsubscribe``, ``aclose`` and at the end of ``async with`` the methods run in the task that leaves, within its limit, and
    only once a method that still runs in another task has ended: two never run at the same time. No heartbeats are sent then.
    ``unsubscribe`` and ``aclose`` cannot be called inside a method, and no new receive can be begun there.

    When the ``async with`` block is cancelled, no method is called: a second is left, for the last commit and the goodbye. What
    must be done then too, belongs into a ``finally`` of the user's.
    """

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are new. Nothing of them has been fetched yet: ``seek`` here wins."""

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions go to another member after this returns; they can still be committed here, also on leaving.

        What auto commit has to commit of them was committed just before.
        """

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are gone already, and may be with another member: committing them fails."""


class Observer:
    """Watches one client. Inherit from it to get methods that do nothing; any object with these methods will do.

    Plain functions, called in the client's tasks: they must be quick. What they raise is logged, the first time, and changes
    nothing for the client.
    """

    def opened(self, context: ClientContext) -> None:
        """The client is open."""

    def failed(self, error: Exception) -> None:
        """A background task failed; the client ends."""

    def closed(self) -> None:
        """The client is closed."""


class ConnectionObserver(Observer):
    """An observer that watches the connections, too. An observer without this method is not asked."""

    def connection_changed(self, event: ConnectionEvent) -> None:
        """A connection is in another state: it is negotiated, authenticates (anew), is ready, or closed. Once a change."""


class MembershipObserver(Observer):
    """An observer that watches a consumer's membership of its group, too. An observer without this method is not asked."""

    def membership_changed(self, event: MembershipEvent) -> None:
        """The consumer joined, left, was put out, or lost or found its coordinator: see ``event.kind``. Once a change.

        Of partitions that come and go a :class:`RebalanceListener` is told, at the next receive; this is told at once.
        """


class ProducerObserver(Observer):
    """An observer that watches a producer's batches, too. An observer without these methods is not asked.

    Each is called once a batch, or once for each time that it is sent; never for a record. An event is made only where somebody has
    the method for it.
    """

    def batch_sent(self, event: BatchEvent) -> None:
        """A batch is about to be sent, for the first time or again (``event.attempt``)."""

    def batch_retried(self, event: BatchEvent) -> None:
        """A batch is about to be sent again, after ``event.error``; :meth:`batch_sent` follows."""

    def batch_delivered(self, event: BatchEvent) -> None:
        """The broker has a batch; ``event.age`` is how long that took from its first record on."""

    def batch_failed(self, event: BatchEvent) -> None:
        """The records of a batch have failed with ``event.error``."""
