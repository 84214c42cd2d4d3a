"""The identity, epochs, sequence numbers and transaction of a producer, in one table.

No I/O. The accumulator reports what happens to batches and that an id was given; the transaction
manager reports what happens to the transaction. No other module keeps any of this: a queue asks the
row of its partition, and decides nothing about epochs and numbers.

================  ==============  =================================================================
kind              batches have    when a broker refuses a partition's numbers, or the id
================  ==============  =================================================================
NonIdempotent             neither         nothing: there is nothing to lose
Idempotent        numbers         the partition continues in the next epoch, with its batches
                                  renumbered; a fenced id, or one without epochs left, is replaced
Transactional     numbers, flag   nothing is renumbered: the batch fails, and the transaction can
                                  only be aborted (the coordinator raises its one epoch)
================  ==============  =================================================================

The rules of numbers are in the row, :class:`~.sequences.PartitionSequences`. The rules of a
transaction, its states and legal calls, are in :class:`~.transaction.ProducerTransaction`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from ...types import TopicPartition
from .sequences import PartitionSequences, ProducerIdentity, next_epoch
from .transaction_state import ProducerTransaction


class ProducerState(ABC):
    """The table of one producer. Each method is quick and changes nothing in the accumulator."""

    #: True if batches get sequence numbers, and wait for an id.
    numbered = True
    #: True if batches are part of a transaction: the flag in their header.
    transactional = False
    #: True if a partition whose numbers are lost continues under :meth:`successor`. Otherwise its
    #: batches fail.
    renumbers = True

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, PartitionSequences] = {}

    def partition(self, place: TopicPartition) -> PartitionSequences:
        """Return the row of a partition, created on first use."""
        row = self._partitions.get(place)
        if row is None:
            row = self._partitions[place] = PartitionSequences(self, place)
        return row

    @property
    @abstractmethod
    def current(self) -> ProducerIdentity | None:
        """The producer id and epoch; ``None`` while there is none, or none any more."""

    @abstractmethod
    def may_send(self, row: PartitionSequences) -> bool:
        """Return whether a batch for the row's partition may be sent now.

        If not, the manager that can change that has been notified. It calls
        ``Accumulator.identified`` or ``Accumulator.wake`` later.
        """

    @abstractmethod
    def initialized(self, identity: ProducerIdentity) -> None:
        """Take over the id and epoch that a broker gave."""

    @abstractmethod
    def successor(self, own: ProducerIdentity | None) -> ProducerIdentity | None:
        """Return the identity for a partition whose numbers under ``own`` are lost.

        ``None``: the partition waits for a new id.
        """

    @abstractmethod
    def fenced(self, error: Exception) -> None:
        """Record that a broker refused the identity as fenced: another producer has the id."""

    @abstractmethod
    def batch_failed(self, error: Exception) -> None:
        """Record that a batch failed that was, or was to be, sent under the identity."""


class NonIdempotent(ProducerState):
    """The state of a producer without idempotence."""

    numbered = False
    current: ProducerIdentity | None = None

    def may_send(self, row: PartitionSequences) -> bool:
        """Return ``True``: a plain batch waits for nothing."""
        return True

    def initialized(self, identity: ProducerIdentity) -> None:
        """No-op: a plain producer has no identity."""

    def successor(self, own: ProducerIdentity | None) -> ProducerIdentity | None:
        """Return ``None``: a plain producer has no identity."""
        return None

    def fenced(self, error: Exception) -> None:
        """No-op: without idempotence there is no identity to fence."""

    def batch_failed(self, error: Exception) -> None:
        """No-op: no other batch depends on the failed one."""


# The epoch policy: each partition has an epoch of its own. A broker keeps its state of a producer
# for each partition, and accepts any higher epoch there. So a partition whose numbers are lost
# continues in its next epoch alone: the batches of other partitions keep their numbers, and nothing
# in flight there has to be renumbered. Java's client has one epoch for the whole producer
# (KIP-360).
#
# The id is replaced only when a broker fences it, or when a partition has used epoch 32,767. Rows
# that have an identity continue under it meanwhile; only rows without one wait for the new id.
class Idempotent(ProducerState):
    """The state of an idempotent producer.

    ``on_needed()`` is called when a batch waits for an id.
    """

    def __init__(self, on_needed: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._on_needed = on_needed
        self._current: ProducerIdentity | None = None

    @property
    def current(self) -> ProducerIdentity | None:
        """The producer id and epoch for rows without an identity; ``None``: a new id is needed."""
        return self._current

    def may_send(self, row: PartitionSequences) -> bool:
        """Return whether there is an id, or the row has an identity already.

        A new id is requested if there is none.
        """
        if self._current is None:
            self._on_needed()
        return self._current is not None or row.identity is not None

    def initialized(self, identity: ProducerIdentity) -> None:
        """Take over the id and epoch that a broker gave."""
        self._current = identity

    def successor(self, own: ProducerIdentity | None) -> ProducerIdentity | None:
        """Return the partition's next epoch, or the producer's id if that is newer.

        ``None``: the id has no epochs left, and is dropped.
        """
        following = next_epoch(own, self._current)
        if following is None:
            self._current = None  # its last epoch is used up
        return following

    def fenced(self, error: Exception) -> None:
        """Drop the id, so that the next batch requests another."""
        self._current = None

    def batch_failed(self, error: Exception) -> None:
        """No-op: the numbers of the partition record the loss."""


class Transactional(ProducerState):
    """The state of a producer with a transactional id; its identity is the transaction's."""

    transactional = True
    renumbers = False

    def __init__(self, transaction: ProducerTransaction) -> None:
        super().__init__()
        self.transaction = transaction

    @property
    def current(self) -> ProducerIdentity | None:
        """The identity of the transaction; ``None`` before the producer is initialized."""
        return self.transaction.identity

    def may_send(self, row: PartitionSequences) -> bool:
        """Return whether the transaction may have records of the row's partition now."""
        return self.transaction.admits(row.place)

    def initialized(self, identity: ProducerIdentity) -> None:
        """No-op: the transaction manager gives the identity to the transaction."""

    def successor(self, own: ProducerIdentity | None) -> ProducerIdentity | None:
        """Return ``own``: only the coordinator raises the epoch."""
        return own

    def fenced(self, error: Exception) -> None:
        """No-op: ``batch_failed`` reports the failure to the transaction."""

    def batch_failed(self, error: Exception) -> None:
        """Fail the transaction, so that it can only be aborted."""
        self.transaction.failed(error)
