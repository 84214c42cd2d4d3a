"""Sequence numbers of an idempotent producer, one partition at a time. No I/O.

Told by the queue of its partition alone. A broker keeps, for each partition, the last sequence number of each
producer id and epoch, and takes only the batch that follows. From that come the rules here:

* A batch that has a number keeps it through all its retries, so that the broker can tell a second copy from new records.
* A batch that had a number and was given up (expired, refused) leaves a number of which we do not know whether the broker
  has it: it is *lost*. No new number is given while one is lost. A later batch that succeeds proves that the lost one was
  written. When no batch with a number is left, or the first of them is refused as out of order, the broker cannot have
  the lost one, or nobody will ever ask: then the partition goes on in a new epoch, from 0.

What begins anew, and under which epoch, is decided in :mod:`.producer_identity`.
"""

from __future__ import annotations

from typing import NamedTuple

#: The highest epoch a broker takes; above it a producer needs a new id.
MAX_EPOCH = 32_767
_MASK = 0x7FFF_FFFF


class Identity(NamedTuple):
    """What a broker knows a producer by."""

    producer_id: int
    epoch: int


class PartitionSequences:
    """The numbers of one partition. They never wrap in here; :func:`on_wire` gives the 31 bits that brokers see."""

    __slots__ = ("acknowledged", "identity", "lost", "next")

    def __init__(self) -> None:
        #: ``None`` until the first number is given, and after the last epoch was used up.
        self.identity: Identity | None = None
        self.next = 0
        #: Up to here the broker has everything, as far as it has told.
        self.acknowledged = 0
        #: Below this there is a number of which nobody knows whether the broker has it; ``None``: there is none.
        self.lost: int | None = None

    @property
    def unproven(self) -> bool:
        """Whether numbers of this epoch were given out and the broker has not yet told that it has the first."""
        return self.acknowledged == 0 and self.next > 0

    def assign(self, count: int, current: Identity) -> int:
        """Give out ``count`` numbers; return the first. ``current`` is the producer's identity, for a first use."""
        if self.identity is None:
            self.identity = current
        base = self.next
        self.next = base + count
        return base

    def acknowledge(self, base: int, count: int) -> None:
        """The broker has the batch ``[base, base + count)``, and therefore everything of this epoch before it."""
        self.acknowledged = max(self.acknowledged, base + count)
        if self.lost is not None and self.lost <= self.acknowledged:
            self.lost = None

    def lose(self, base: int, count: int) -> None:
        """The batch ``[base, base + count)`` was given up without knowing whether the broker has it."""
        if base + count > self.acknowledged:
            self.lost = max(self.lost or 0, base + count)

    def restart(self, identity: Identity | None) -> None:
        """Go on under ``identity`` (``None``: numbers need a new one to begin with), from 0."""
        self.identity = identity
        self.next = self.acknowledged = 0
        self.lost = None


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
