"""The identity, epochs and sequence numbers of a producer, in one table. No I/O.

The accumulator reports what happens to batches and that an id was given; the transaction manager
reports what happens to the transaction. No other module keeps any of this. There are three kinds of
table:

================  ==============  =================================================================
kind              batches have    when a broker refuses a partition's numbers, or the id
================  ==============  =================================================================
NonIdempotent     neither         nothing: there is nothing to lose
Idempotent        numbers         the partition continues in the next epoch, with its batches
                                  renumbered; a fenced id, or one without epochs left, is replaced
Transactional     numbers, flag   nothing is renumbered: the batch fails, and the transaction can
                                  only be aborted (the coordinator raises its one epoch)
================  ==============  =================================================================

A row of the table is :class:`PartitionSequences`, the numbers of one partition; its queue alone
writes them. For each partition a broker keeps the last sequence number of each producer id and
epoch, and accepts only the batch that follows. The rules of a row derive from that:

* A batch that has a number keeps it through all its retries, so that the broker can distinguish a
  second copy from new records.
* A batch that had a number and was removed (expired, refused) leaves a number that the broker may
  or may not have: the number is *lost*. No new number is assigned while one is lost. A later batch
  that succeeds proves that the lost one was written. There are two other ends. The first remaining
  batch is refused as out of order, so the broker does not have the lost one. Or no batch with a
  number is left, so no response will ever decide. Then the partition continues in a new epoch, from
  0.
* "Does not have" is not "will not have": a broker may read the bytes of a closed connection late,
  for example after it was frozen. If such bytes hold the lost batch, and behind it an older copy of
  the refused one, then the refused one would be written twice under another number: in the old
  epoch and in the new one. So the refused batch keeps its number, and is sent again once LATE_BYTES
  have passed since the refusal. If its copy has arrived, the broker recognizes it. If it is refused
  again, the broker has been responding for that time without the bytes: the new epoch begins, in
  which the broker refuses them.
* A broker that knows nothing of a producer accepts any number: at the beginning of an epoch, and
  after a silence (``producer.id.expiration.ms``). If the first batch were refused then, and the
  second accepted, order would be lost. So a batch that may meet such a broker is *proving*: nothing
  is sent behind it until it has been acknowledged.

The rules of a transaction, its states and legal calls, are in
:class:`~.transaction_state.ProducerTransaction`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ...types import TopicPartition

#: The highest epoch that a broker accepts; above it a producer needs a new id.
MAX_EPOCH = 32_767
#: A broker may have forgotten a producer after a silence of this time (seconds). By default brokers
#: forget after a day.
FORGOTTEN_AFTER = 10.0
#: The time (seconds) that bytes of a lost connection may take to reach a broker that already
#: responds on another connection.
LATE_BYTES = 0.25
_MASK = 0x7FFF_FFFF


class ProducerIdentity(NamedTuple):
    """The identity by which a broker knows a producer."""

    producer_id: int
    epoch: int


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

    def release_partition(self, row: PartitionSequences) -> bool:
        """Drop the row of a partition that is gone and has no batches.

        Returns False if the row must stay, because the partition may appear again and its numbers
        then count.
        """
        if self._may_release(row):
            del self._partitions[row.place]
            return True
        return False

    def _may_release(self, row: PartitionSequences) -> bool:
        return row.identity is None

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
        """Set the id and epoch that a broker gave."""

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

    # The metadata of a broker can lag, so a partition that seemed to be gone may appear again, at a
    # broker that still knows the last numbers. Number 0 in the same epoch would then be out of
    # order, or be taken for a duplicate and lost. So the next new row begins in a newer epoch. That
    # raises the epoch at most once for each partition that is gone, and other rows keep theirs.
    def _may_release(self, row: PartitionSequences) -> bool:
        own = row.identity
        current = self._current
        if own is None or current is None or own.producer_id != current.producer_id:
            return True  # a new row has another id, or no number was given
        if own.epoch >= current.epoch:
            self._current = next_epoch(own, current)
        return True

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
        """Set the id and epoch that a broker gave."""
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


class TransactionIdentity(Protocol):
    """The part of a transaction's state that its producer's table reads, and reports to."""

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer id and epoch; ``None`` before the producer is initialized."""

    def admits(self, place: TopicPartition) -> bool:
        """Return whether the transaction may have records of the partition now."""

    def failed(self, error: Exception) -> None:
        """Record that the transaction can only be aborted."""


class Transactional(ProducerState):
    """The state of a producer with a transactional id; its identity is the transaction's."""

    transactional = True
    renumbers = False

    def __init__(self, transaction: TransactionIdentity) -> None:
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


# Two other answers to a lost number were considered. Java's client begins the new epoch at the
# first refusal, which can write a record twice when the bytes of a closed connection arrive late.
# The expired batch could be sent again for the sake of those behind it, which would leave no gap.
# An earlier version did that, and was wrong: the error of that batch has been raised. An
# application that sends the records again after the error would have them twice.
#
# The price is a wait of LATE_BYTES, once for each lost number, and only where a connection was lost
# with several batches in flight.
class PartitionSequences:
    """The sequence numbers of one partition.

    They never wrap in here; :func:`on_wire` gives the 31 bits that brokers see.
    """

    __slots__ = (
        "_doubted",
        "_producer",
        "acknowledged",
        "heard",
        "identity",
        "lost",
        "lost_by",
        "next",
        "place",
        "possibly_in_flight_at",
        "proving",
    )

    def __init__(self, producer: ProducerState, place: TopicPartition) -> None:
        self._producer = producer
        self.place = place
        #: ``None`` until the first number is given, and after the last epoch was used up.
        self.identity: ProducerIdentity | None = None
        self.next = 0
        #: The broker has everything before this number, as far as its responses say.
        self.acknowledged = 0
        #: The creation time of the newest batch that the broker is known to have.
        self.heard = -math.inf
        #: Before this number the broker may know nothing of this producer, until it has
        #: acknowledged that much.
        self.proving = 0
        #: Below this number there is one that the broker may or may not have; ``None``: there is
        #: none.
        self.lost: int | None = None
        #: The error of the first batch that left a lost number.
        self.lost_by: Exception | None = None
        #: The brokers that may still read the lost batches.
        self.possibly_in_flight_at: frozenset[int] = frozenset()
        #: When such a broker first refused the batch behind the lost ones.
        self._doubted: float | None = None

    @property
    def unproven(self) -> bool:
        """True while the broker may not know this producer: nothing goes behind the first batch."""
        return self.acknowledged < self.proving

    def allows_batch(self, *, first: bool, numbered: bool) -> bool:
        """Return whether the numbers allow a batch to be sent.

        ``first``: the batch is the first that is not done. ``numbered``: it has a number already.

        * While a number is lost, no new one is assigned.
        * Until the broker has acknowledged the first batch of an epoch, or the first after a
          silence, nothing is sent behind it.
        """
        return (self.lost is None or (first and numbered)) and (first or not self.unproven)

    # After a silence the first batch of a partition goes alone. A broker that has forgotten the
    # producer takes any number as the first one. With two batches in flight, the first may be
    # refused for another reason and the second accepted. Order is lost then, and if the connection
    # is lost as well the second may be written twice. A broker that remembers the producer refuses
    # the second batch in that case.
    #
    # FORGOTTEN_AFTER is far below the brokers' default of a day: the client does not know their
    # setting, and the price of being early is one wait for a response after ten seconds of silence.
    def assign(self, count: int, created: float) -> int:
        """Assign ``count`` numbers to a batch created at that time; return the first.

        The first numbers ever give the row its identity.
        """
        if self.identity is None:
            self.identity = self._producer.current
            assert self.identity is not None
        base = self.next
        self.next = base + count
        if created - self.heard > FORGOTTEN_AFTER:
            self.proving = self.next
        return base

    def acknowledge(self, base: int, count: int, created: float) -> None:
        """Record that the broker has the batch ``[base, base + count)``.

        It has everything of this epoch before the batch then, too.
        """
        self.acknowledged = max(self.acknowledged, base + count)
        self.heard = max(self.heard, created)
        if self.lost is not None and self.lost <= self.acknowledged:
            self._none_lost()

    def lose(
        self,
        base: int,
        count: int,
        possibly_in_flight_at: frozenset[int],
        error: Exception | None = None,
    ) -> None:
        """Record that the batch ``[base, base + count)`` was removed with ``error``.

        ``possibly_in_flight_at``: the brokers that may still read the batch.
        """
        if base + count > self.acknowledged:
            self.lost_by = error if self.lost is None else self.lost_by
            self.lost = max(self.lost or 0, base + count)
            self.possibly_in_flight_at |= possibly_in_flight_at
            self._doubted = None

    def lost_contact(self) -> None:
        """Restart the time for late bytes: a request ended without a response.

        What was sent so far has LATE_BYTES again, once the broker responds.
        """
        self._doubted = None

    def doubt(self, now: float) -> float:
        """Return when the next refusal of the batch behind a lost one counts as final.

        Called when a broker that may still read the lost batch has refused that batch.
        """
        if self._doubted is None:
            self._doubted = now
        return self._doubted + LATE_BYTES

    def leave_behind(self) -> None:
        """Continue in a new epoch, since no response will decide what became of a lost batch.

        No batch with a number is left.
        """
        if self.lost is not None and self._producer.renumbers:
            self.restart()

    def restart(self) -> None:
        """Continue in a new epoch, from 0: the broker cannot have the lost numbers."""
        self._begin(self._producer.successor(self.identity))

    def reset(self) -> None:
        """Drop all numbers and continue under the producer's next identity."""
        self._begin(None)

    def _begin(self, identity: ProducerIdentity | None) -> None:
        self.identity = identity
        self.next = 0
        self.acknowledged = 0
        self.proving = 0
        self.heard = -math.inf
        self._none_lost()

    def _none_lost(self) -> None:
        self.lost = None
        self.lost_by = None
        self.possibly_in_flight_at = frozenset()
        self._doubted = None


def next_epoch(
    own: ProducerIdentity | None, current: ProducerIdentity | None
) -> ProducerIdentity | None:
    """Return the identity for a partition that cannot continue under ``own``.

    That is the next epoch of ``own``, or the producer's identity if its id is newer. ``None``: the
    last epoch is used up, and a new id is needed.
    """
    if own is None or (current is not None and current.producer_id != own.producer_id):
        return current
    return ProducerIdentity(own.producer_id, own.epoch + 1) if own.epoch < MAX_EPOCH else None


def on_wire(sequence: int) -> int:
    """Return ``sequence`` as brokers count: 31 bits, wrapping to 0."""
    return sequence & _MASK
