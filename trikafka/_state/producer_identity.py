"""Who a producer is to the brokers: its id and epoch, which batches may go out under it, and what follows when numbers are lost.

The one seam between the accumulator and the three kinds of producers:

=================  ====================  =====================================================================================
kind               numbers, flag         when a broker refuses a partition's numbers, or the id
=================  ====================  =====================================================================================
not idempotent     none                  nothing: there is nothing to lose
idempotent         numbers               the partition goes on in the next epoch, with its batches numbered anew (epochs are a
                                         partition's own here: a broker's state is one partition's too, so the trouble of one
                                         is not the others'); a fenced id, or one whose epochs are used up, is asked for anew
transactional      numbers, flag         nothing is numbered anew: the batch fails, and the transaction can only be aborted (its
                                         one epoch is raised by the coordinator)
=================  ====================  =====================================================================================

The accumulator alone calls these; the produce manager tells it, and it tells the identity, that an id was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..types import TopicPartition
from .sequences import Identity, next_epoch


class ProducerIdentity(Protocol):
    """What the accumulator asks of an identity. Each method is quick and changes nothing in the accumulator."""

    @property
    def current(self) -> Identity | None:
        """Producer id and epoch; ``None`` while there is none, or none any more."""

    @property
    def numbered(self) -> bool:
        """Whether batches get sequence numbers, and wait for an id."""

    @property
    def transactional(self) -> bool:
        """Whether batches are part of a transaction: the flag in their header."""

    @property
    def renumbers(self) -> bool:
        """Whether a partition whose numbers are lost begins anew by itself, under :meth:`successor`. Else what it has fails."""

    def admits(self, place: TopicPartition, own: Identity | None) -> bool:
        """Whether a batch for ``place``, which has gone on under ``own`` so far, may be sent now.

        If not, whoever can change that has been told; he calls ``Accumulator.identified`` or
        ``Accumulator.wake`` then.
        """

    def initialized(self, identity: Identity) -> None:
        """A broker gave this id and epoch."""

    def successor(self, own: Identity | None) -> Identity | None:
        """What a partition goes on with whose numbers under ``own`` are lost; ``None``: it waits for a new id."""

    def fenced(self, error: Exception) -> None:
        """A broker says that the id is somebody else's now."""

    def batch_failed(self, error: Exception) -> None:
        """A batch that was, or was to be, sent under this identity failed: records are missing that somebody was promised."""


class NoIdentity:
    """Of a producer without idempotence."""

    current: Identity | None = None
    numbered = False
    transactional = False
    renumbers = True

    def admits(self, place: TopicPartition, own: Identity | None) -> bool:
        return True

    def initialized(self, identity: Identity) -> None:
        """It is not used."""

    def successor(self, own: Identity | None) -> Identity | None:
        return None

    def fenced(self, error: Exception) -> None:
        """Nobody is."""

    def batch_failed(self, error: Exception) -> None:
        """Nobody else is concerned."""


class IdempotentIdentity:
    """Of an idempotent producer: ``on_needed()`` is called when a batch waits for an id."""

    numbered = True
    transactional = False
    renumbers = True

    def __init__(self, on_needed: Callable[[], object] = lambda: None) -> None:
        self._on_needed = on_needed
        self._current: Identity | None = None

    @property
    def current(self) -> Identity | None:
        return self._current

    def admits(self, place: TopicPartition, own: Identity | None) -> bool:
        if self._current is None:
            self._on_needed()
        return self._current is not None or own is not None

    def initialized(self, identity: Identity) -> None:
        self._current = identity

    def successor(self, own: Identity | None) -> Identity | None:
        following = next_epoch(own, self._current)
        if following is None:
            self._current = None  # its last epoch is used up
        return following

    def fenced(self, error: Exception) -> None:
        self._current = None

    def batch_failed(self, error: Exception) -> None:
        """The partition's numbers say all that there is to say."""
