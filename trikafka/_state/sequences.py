"""Sequence numbers of an idempotent producer, one partition at a time. No I/O.

A row of :mod:`.producer_state`, told by the queue of its partition alone. A broker keeps, for each partition, the last sequence
number of each producer id and epoch, and takes only the batch that follows. From that come the rules here:

* A batch that has a number keeps it through all its retries, so that the broker can tell a second copy from new records.
* A batch that had a number and was given up (expired, refused) leaves a number of which we do not know whether the broker
  has it: it is *lost*. No new number is given while one is lost. A later batch that succeeds proves that the lost one was
  written. When no batch with a number is left, or the first of them is refused as out of order, the broker does not have
  the lost one, or nobody will ever ask: then the partition goes on in a new epoch, from 0.
* "Does not have" is not "will not have": a broker may read the bytes of a closed connection late. If the lost batch may stray in
  so, and behind it an older copy of the one that was refused, then that one is not sent again: it would stand twice, in the old
  epoch and in the new one. (Java's client sends it. franz-go never gives up what it has sent, so it has no gaps; KIP-91 has.)

* A broker that knows nothing of a producer takes any number: at the beginning of an epoch, and after a silence
  (``producer.id.expiration.ms``). Were the first batch refused then, and the second taken, order would be lost. So a batch that
  may meet a broker that knows nothing is *proving*: nothing is sent behind it until it has been acknowledged.

Under which epoch a partition begins anew is decided in :mod:`.producer_state`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ..types import TopicPartition

if TYPE_CHECKING:
    from .producer_state import ProducerState

#: The highest epoch a broker takes; above it a producer needs a new id.
MAX_EPOCH = 32_767
#: A broker may have forgotten a producer that it has had nothing from for so many seconds (a day, as brokers are delivered).
FORGOTTEN_AFTER = 10.0
_MASK = 0x7FFF_FFFF


class Identity(NamedTuple):
    """What a broker knows a producer by."""

    producer_id: int
    epoch: int


class PartitionSequences:
    """The numbers of one partition. They never wrap in here; :func:`on_wire` gives the 31 bits that brokers see."""

    __slots__ = ("_producer", "acknowledged", "heard", "identity", "lost", "lost_by", "next", "place", "proving", "strays")

    def __init__(self, producer: ProducerState, place: TopicPartition) -> None:
        self._producer, self.place = producer, place
        #: ``None`` until the first number is given, and after the last epoch was used up.
        self.identity: Identity | None = None
        self.next = 0
        #: Up to here the broker has everything, as far as it has told.
        self.acknowledged = 0
        #: When the newest batch was made that the broker is known to have.
        self.heard = -math.inf
        #: Up to here the broker may know nothing of this producer, until it has acknowledged that much.
        self.proving = 0
        #: Below this there is a number of which nobody knows whether the broker has it; ``None``: there is none.
        self.lost: int | None = None
        #: What the first batch failed with that was given up so.
        self.lost_by: Exception | None = None
        #: The brokers that may read what is lost still.
        self.strays: frozenset[int] = frozenset()

    @property
    def unproven(self) -> bool:
        """Whether it is open whether the broker knows this producer: nothing goes behind the batch that will tell."""
        return self.acknowledged < self.proving

    def admits(self, *, first: bool, numbered: bool) -> bool:
        """Whether a batch may be sent, as far as the numbers are concerned: the ``first`` that is not done, ``numbered`` already?

        * While a number is lost, no new one is given.
        * Until the broker has taken the first batch of an epoch, or the first after a silence, nothing is sent behind that: a
          broker that knows nothing of a producer takes any number, so the second would be taken though the first was refused.
        """
        return (self.lost is None or (first and numbered)) and (first or not self.unproven)

    def assign(self, count: int, created: float) -> int:
        """Give out ``count`` numbers to a batch made at ``created``; return the first. The first ever give the row its identity."""
        if self.identity is None:
            self.identity = self._producer.current
            assert self.identity is not None
        base = self.next
        self.next = base + count
        if created - self.heard > FORGOTTEN_AFTER:
            self.proving = self.next
        return base

    def acknowledge(self, base: int, count: int, created: float) -> None:
        """The broker has the batch ``[base, base + count)``, and therefore everything of this epoch before it."""
        self.acknowledged = max(self.acknowledged, base + count)
        self.heard = max(self.heard, created)
        if self.lost is not None and self.lost <= self.acknowledged:
            self._none_lost()

    def lose(self, base: int, count: int, strays: frozenset[int], error: Exception | None = None) -> None:
        """The batch ``[base, base + count)`` was given up with ``error``. ``strays``: the brokers that may read it still."""
        if base + count > self.acknowledged:
            self.lost_by = error if self.lost is None else self.lost_by
            self.lost = max(self.lost or 0, base + count)
            self.strays |= strays

    def leave_behind(self) -> None:
        """No batch with a number is left whose response would tell what became of a lost one: then it is not to be found out."""
        if self.lost is not None and self._producer.renumbers:
            self.restart()

    def restart(self) -> None:
        """The broker cannot have the lost numbers: go on in a new epoch, from 0."""
        self._begin(self._producer.successor(self.identity))

    def renounce(self) -> None:
        """The numbers so far are worth nothing: begin under the producer's next identity."""
        self._begin(None)

    def _begin(self, identity: Identity | None) -> None:
        self.identity = identity
        self.next = self.acknowledged = self.proving = 0
        self.heard = -math.inf
        self._none_lost()

    def _none_lost(self) -> None:
        self.lost, self.lost_by, self.strays = None, None, frozenset()


def next_epoch(own: Identity | None, current: Identity | None) -> Identity | None:
    """What a partition goes on with that cannot go on under ``own``: its next epoch, or the producer's id if that is newer.

    ``None``: the last epoch is used up, and a new id is needed.
    """
    if own is None or (current is not None and current.producer_id != own.producer_id):
        return current
    return Identity(own.producer_id, own.epoch + 1) if own.epoch < MAX_EPOCH else None


def on_wire(sequence: int) -> int:
    """Return ``sequence`` as brokers count: 31 bits, beginning again at 0."""
    return sequence & _MASK
